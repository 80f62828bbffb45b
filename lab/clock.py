"""The lab's time: real-life seconds, run through faster than life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Clock:
    """Real-life seconds since the lab's start; `scale` of them pass in one second of wall time.

    The product under test never sees this clock: it only sees a faster world.
    """

    def __init__(self, scale: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        if scale <= 0:
            raise ValueError(f"scale must be positive, not {scale}")
        self.scale = scale
        self._monotonic = monotonic
        self._start = monotonic()

    def now(self) -> float:
        """Real-life seconds since the start."""
        return (self._monotonic() - self._start) * self.scale

    def wall(self, real_life_seconds: float) -> float:
        """Seconds on the wall clock that the given real-life seconds take in this lab."""
        return real_life_seconds / self.scale

    async def sleep(self, real_life_seconds: float) -> None:
        await asyncio.sleep(self.wall(real_life_seconds))
