"""What belongs to a lab or to a test run: every process that inherited its mark, wherever its parents went.

A killed engine leaves plugins behind that nobody is the parent of, in sessions of their own. What all of them still have is
the environment they were started with; so an owner marks it, and whoever ends the owner's work finds everything again.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from lab.identity import Identity

LAB = "COZYSTACK_IAC_BELONGS_TO_LAB"
"""Names the state directory of the lab that a process works on."""
RUN = "COZYSTACK_IAC_BELONGS_TO_RUN"
"""Names the run of the tests that a process was started by."""

GRACE_S = 5.0  # between SIGTERM and SIGKILL
KILLED_WITHIN_S = 10.0
LOOK_EVERY_S = 0.1


def mark(state: Path) -> dict[str, str]:
    """What a process that works on the lab in `state` has in its environment."""
    return {LAB: str(state.resolve())}


def of_lab(state: Path) -> list[Identity]:
    """The living processes that work on the lab in `state`; neither this one nor those it was started by."""
    return marked(mark(state))


def marked(wanted: Mapping[str, str]) -> list[Identity]:
    """The living processes with all of this in their environment; neither this one nor those it was started by.

    Processes of other users cannot be looked into; they are nobody's of ours.
    """
    here = psutil.Process()
    spared = {here.pid, *(parent.pid for parent in here.parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if all(environment.get(name) == value for name, value in wanted.items()):
                found.append(Identity.of(process.pid))
    return [identity for identity in found if identity is not None]


def end(wanted: Mapping[str, str], grace_s: float = GRACE_S) -> list[str]:
    """End everything that is marked so, and what it starts meanwhile; what each was, for people.

    All get SIGTERM at once and SIGKILL after the grace: an engine that is told to stop takes its plugins along. Returns when
    nothing is left, or the kernel does not let go of it.
    """
    ended: dict[Identity, str] = {}
    began = time.monotonic()
    while (found := marked(wanted)) and time.monotonic() < began + grace_s + KILLED_WITHIN_S:
        number = signal.SIGTERM if time.monotonic() < began + grace_s else signal.SIGKILL
        for identity in found:
            if identity not in ended or number is signal.SIGKILL:
                ended.setdefault(identity, describe(identity))
                identity.signal(number)
        time.sleep(LOOK_EVERY_S)
    return list(ended.values())


def describe(identity: Identity) -> str:
    """The process' number and command, as far as it still has one."""
    try:
        return f"pid {identity.pid}, {' '.join(psutil.Process(identity.pid).cmdline())[:160]}"
    except psutil.Error:
        return f"pid {identity.pid}"


def main(run: str) -> None:
    """Outlive the test run `run`, which holds the other end of this process' stdin, and end what it leaves behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the run; this one ends after it
    sys.stdin.buffer.read()
    end({RUN: run})


if __name__ == "__main__":
    main(sys.argv[1])
