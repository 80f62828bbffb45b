"""What the rest of the lab sees of a tool."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Origin = Literal["PATH", "built", "downloaded", "stand-in", "plugin cache"]


@dataclass(frozen=True)
class Tool:
    """A tool that can be used.

    `official` is false for what we wrote ourselves and for our build of older plugin source: behaviour may differ from
    what users have. `note` is for people: what was passed over, which source.
    """

    name: str
    version: str
    path: Path
    origin: Origin
    official: bool
    note: str = ""
