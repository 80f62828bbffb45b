"""Which process is meant: a pid alone is reused, a pid with its start time and the boot it belongs to is not.

Everything the lab ends, it ends through an `Identity`: a process it cannot prove to be its own is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil


@dataclass(frozen=True)
class Identity:
    """`started` is in clock ticks since boot where /proc says so (immune to clock changes), else seconds since 1970."""

    pid: int
    started: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now; None when there is none, or only its unreaped remains."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, _started(process), _boot())
        except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
            return None

    @classmethod
    def mine(cls) -> Self:
        found = cls.of(os.getpid())
        if found is None:
            raise RuntimeError("this process cannot find itself in the process table")
        return found

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(int(raw["pid"]), float(raw["started"]), str(raw["boot"]))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def alive(self) -> bool:
        return Identity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to exactly this process. False when it is gone."""
        if not self.alive():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; returns when the process is gone."""
        self.signal(signal.SIGTERM)
        if not self.gone_within(grace_s):
            self.signal(signal.SIGKILL)
            self.gone_within(5)

    def gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _started(process: psutil.Process) -> float:
    stat = Path(f"/proc/{process.pid}/stat")
    if stat.exists():
        # The command in field 2 may hold blanks and brackets; field 22 is the 20th after its last bracket.
        return float(stat.read_text().rpartition(")")[2].split()[19])
    return float(process.create_time())


def _boot() -> str:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return boot_id.read_text().strip() if boot_id.exists() else f"{psutil.boot_time():.0f}"
