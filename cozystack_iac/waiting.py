"""Waits and their ends: progress, budgets, polling, and a failure whose text stands alone. Imports nothing of ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

T = TypeVar("T")


class StageFailed(Exception):
    """A foreseeable failure whose text stands alone: what failed and where, what was last seen, what it means, what to do."""

    def __init__(self, what: str, *, details: Mapping[str, str] | None = None, means: str, next_step: str) -> None:
        self.what = what
        self.details = dict(details or {})
        self.means = means
        self.next_step = next_step
        super().__init__(what)

    def __str__(self) -> str:
        rows = [*self.details.items(), ("means", self.means), ("next", self.next_step)]
        width = max(len(label) for label, _ in rows)
        indent = " " * (width + 4)
        body = (f"  {label.ljust(width)}  {indent.join(text.splitlines(keepends=True))}" for label, text in rows)
        return "\n".join([self.what, *body])


class Progress:
    """Says what a stage waits for: one line per change, repeated now and then so that silence never means "hung"."""

    def __init__(self, stage: str, *, repeat_s: float = 30.0, write: Callable[[str], None] | None = None) -> None:
        self._stage = stage
        self._repeat_s = repeat_s
        self._write = write or print_line
        self._started = time.monotonic()
        self._said: str | None = None
        self._said_at = 0.0

    @property
    def elapsed(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self._started)

    def heartbeat(self) -> None:
        """Repeat the last line when nothing was said for `repeat_s` seconds. Called by the base while a stage runs."""
        if self._said is not None:
            self.say(self._said)

    def say(self, message: str) -> None:
        """Print `message` when it differs from the last one, or when it has been true for `repeat_s` seconds more."""
        now = time.monotonic()
        if message == self._said and now - self._said_at < self._repeat_s:
            return
        self._said, self._said_at = message, now
        self._write(f"{self._stage} [{format_seconds(now - self._started)}] {message}")


def print_line(text: str) -> None:
    print(text, flush=True)  # the engine shows the provider's stdout live, attached to the stack


def format_seconds(seconds: float) -> str:
    """`75.2` -> `1 min 15 s`; durations as people read them."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class Pace:
    """How fast the world goes that is waited for; 1 is life. Stories play in one that goes a thousand times faster.

    `looks` multiplies pauses between looks, `patience` how long something that passes by itself is waited for, `calls` how long
    a single call may take.
    """

    looks: float = 1.0
    patience: float = 1.0
    calls: float = 1.0


_pace = Pace()


@contextlib.contextmanager
def at_pace(pace: Pace) -> Iterator[None]:
    """All waits of this process go at that pace inside the block."""
    global _pace
    before, _pace = _pace, pace
    try:
        yield
    finally:
        _pace = before


def interval(seconds: float) -> float:
    return seconds * _pace.looks


def patience(seconds: float) -> float:
    return seconds * _pace.patience


def call_limit(seconds: float) -> float:
    return seconds * _pace.calls


async def pause(seconds: float) -> None:
    """Until the next look. Only where the other side offers no watch."""
    await asyncio.sleep(interval(seconds))


@contextlib.asynccontextmanager
async def budget(deadline_s: float, expired: Callable[[], StageFailed]) -> AsyncIterator[None]:
    """Bound a wait by its own budget; when it is used up, `expired` builds the failure from what was last seen."""
    limit = asyncio.timeout(deadline_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise  # somebody else's timeout inside the wait: not ours to explain
        raise expired() from None


async def poll(question: Callable[[], Awaitable[T | None]], *, every_s: float = 1.0) -> T:
    """Ask until there is an answer. Only where the other side offers no watch."""
    while (answer := await question()) is None:
        await pause(every_s)
    return answer
