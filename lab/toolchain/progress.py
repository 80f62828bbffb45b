"""What a person sees while the tools are built: one line that moves on a terminal, one line every 15 seconds elsewhere."""

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_LINE_EVERY_S = 15.0


@dataclass
class Progress:
    """Tells how far a sequence of pieces is. Use it as a context manager; call `begin`, `tick`, `done` for each piece.

    `expected_s` of a piece is corrected by how long the finished ones took against their expectation, so the second piece
    on a slow machine is already announced truthfully.
    """

    console: Console
    pieces: int
    remaining_s: float
    _started: float = field(default_factory=time.monotonic)
    _piece_started: float = 0.0
    _last_line: float = 0.0
    _index: int = 0
    _title: str = ""
    _expected_s: float = 0.0
    _spent_s: float = 0.0
    _spent_expected_s: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def pace(self) -> float:
        """How much slower than expected this machine has been so far; 1.0 until the first piece is finished."""
        return self._spent_s / self._spent_expected_s if self._spent_expected_s else 1.0

    def say(self, text: str) -> None:
        """A line that stays."""
        say(self.console, text)

    def begin(self, title: str, expected_s: float) -> None:
        self._index += 1
        self._title, self._expected_s = title, expected_s
        self._piece_started = time.monotonic()
        self._last_line = 0.0
        self.tick()

    def tick(self) -> None:
        """Show the present state; call it a few times a second, it decides itself when to print."""
        line = self._line()
        if self._live is not None:
            self._live.update(Text(line))
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self.say(line)
            self._last_line = time.monotonic()

    def done(self) -> float:
        """The piece is finished; returns the seconds it took."""
        took = time.monotonic() - self._piece_started
        self._spent_s += took
        self._spent_expected_s += self._expected_s
        self.remaining_s -= self._expected_s
        self.say(f"[{self._index}/{self.pieces}] {self._title} built in {clock(took)}")
        return took

    def _line(self) -> str:
        elapsed = time.monotonic() - self._piece_started
        expected = self._expected_s * self.pace
        left = max(expected - elapsed, 0) + (self.remaining_s - self._expected_s) * self.pace
        return (
            f"[{self._index}/{self.pieces}] building {self._title}: {clock(elapsed)} of about {clock(expected)}"
            f", all done in about {clock(left)}"
        )


def say(console: Console, text: str) -> None:
    """Print one line as it is: not cut, not coloured, not read as markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def clock(seconds: float) -> str:
    """`3 min 05 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
