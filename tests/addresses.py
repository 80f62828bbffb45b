"""Loopback networks of the tests. Every process that runs tests has its own, so runs side by side never meet."""

from __future__ import annotations

import os

_FIRST, _EACH, _SLOTS = 100, 6, 25  # 127.100 to 127.249, six for each of 25 processes


def prefix(number: int = 0) -> str:
    """The first two octets of a loopback /16 of this process; a test that needs two at a time takes two numbers."""
    if not 0 <= number < _EACH:
        raise ValueError(f"a process has networks 0 to {_EACH - 1}, not {number}")
    # Workers of one run have one parent; their numbers tell them apart for certain, and other runs with good odds.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return f"127.{_FIRST + (os.getppid() + worker) % _SLOTS * _EACH + number}"
