"""The Talos minors that the lab plays: one line each. Pure data; what differs in behaviour is with the behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Minor:
    """A Talos minor. `release`: the one that scenarios and tests run. `kubernetes`: the oldest of six minors it supports."""

    release: str
    kernel: str
    kubernetes: int


# Only the kernel of 1.13 was recorded; the others are placeholders of the right shape.
MINORS: Mapping[int, Minor] = {
    10: Minor("v1.10.9", kernel="6.12.48", kubernetes=28),
    11: Minor("v1.11.6", kernel="6.12.57", kubernetes=29),
    12: Minor("v1.12.7", kernel="6.18.9", kubernetes=30),
    13: Minor("v1.13.6", kernel="6.18.41", kubernetes=31),
    14: Minor("v1.14.0", kernel="6.18.44", kubernetes=32),
}
RELEASES: Mapping[int, str] = {number: minor.release for number, minor in MINORS.items()}
