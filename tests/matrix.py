"""Long matrices: `make test-long` plays every case, the suite a sample that is the same in every run."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

LONG = os.environ.get("COZYSTACK_IAC_TEST_LONG", "") not in ("", "0")
MORE = 20  # how many times as many random examples a long run looks at

T = TypeVar("T")


def sampled(cases: Sequence[T], size: int, *, seed: int = 0) -> list[T]:
    """`size` of the cases, in their order; all of them in a long run."""
    if LONG or size >= len(cases):
        return list(cases)
    chosen = sorted(random.Random(seed).sample(range(len(cases)), size))
    return [cases[number] for number in chosen]


def examples(count: int) -> int:
    """How many random examples a property is tried with, where a run of the suite takes `count`."""
    return count * MORE if LONG else count
