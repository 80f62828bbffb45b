"""Loopback networks of the tests. Every process that runs tests has its own, so runs side by side never meet."""

from __future__ import annotations

import fcntl
import os
import tempfile
from functools import cache
from pathlib import Path

_FIRST, _EACH, _SLOTS = 100, 6, 25  # 127.100 to 127.249, six for each of 25 processes
_held: list[int] = []
"""Descriptors of this process' locks; the system lets go of them when it ends, however that comes about."""


def prefix(number: int = 0) -> str:
    """The first two octets of a loopback /16 of this process; a test that needs two at a time takes two numbers."""
    if not 0 <= number < _EACH:
        raise ValueError(f"a process has networks 0 to {_EACH - 1}, not {number}")
    return f"127.{_FIRST + _slot() * _EACH + number}"


@cache
def _slot() -> int:
    return claimed(Path(tempfile.gettempdir()) / f"cozystack-iac-tests-{os.getuid()}")


def claimed(folder: Path) -> int:
    """A slot that no other process of this machine has, for as long as this one lives. Raises RuntimeError: all are taken."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for number in range(_SLOTS):
        lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _held.append(lock)
        return number
    raise RuntimeError(f"{_SLOTS} processes run tests on this machine already; see {folder}")
