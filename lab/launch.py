"""Bringing a lab up and down from outside: a detached supervisor, and the proof that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console

from lab import belongings, toolchain
from lab.children import port_open, tail
from lab.controlplane import BINARIES
from lab.scenario import Scenario
from lab.state import ProcessRecord, Record, StateDir, fingerprint
from lab.supervisor import STAY, STOPS_WITHIN_S, LabFailed, Supervisor, address_problems

READY_WITHIN_S = 120.0  # measured: 5 s on idle cores; the rest is for a machine that does other things
PORTS_WITHIN_S = 10.0
SOCKET_PATH_BYTES = 103  # sockaddr_un holds 104 bytes on macOS, 108 on Linux, the closing zero included
_CHECKOUT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Down:
    """What `down` found. `forced` are processes it had to end itself; `taken` ports that are still open, by strangers.

    `orderly`: the supervisor stopped everything and said so; otherwise it had died before, or dies while stopping.
    """

    was_there: bool
    orderly: bool = True
    seconds: float = 0.0
    forced: list[str] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


def up(state: StateDir, scenario: Scenario, console: Console) -> Record:
    """Start the lab detached and return when it is ready; a lab that already runs this scenario is left as it is.

    Raises LabFailed: another scenario runs here, an address is taken, a process did not come up. ToolchainError when a tool
    cannot be had.
    """
    with held(state, scenario, console) as lab:
        lab.stays()
        return lab.record


@dataclass
class Held:
    """A lab that ends with its holder. `started`: by the holder; one that was running already is nobody's to end."""

    record: Record
    started: bool
    _lifeline: IO[bytes] | None = None

    def stays(self) -> None:
        """From now on the lab goes on when the block or this process ends."""
        if self._lifeline is not None:
            self._lifeline.write(STAY)
            self._lifeline.close()
            self._lifeline = None


@contextmanager
def held(state: StateDir, scenario: Scenario, console: Console) -> Iterator[Held]:
    """A lab for as long as the block, unless it is told that it `stays()`; with it ends everything that works on it.

    The supervisor holds the other end of a pipe, so it notices even that this process was killed. Raises like `up`.
    """
    running = _running(state, scenario)
    if running is not None:
        yield Held(_until_ready(state, running.supervisor.pid, lambda: None), started=False)
        return
    process = _start(state, scenario, console)
    lab = None
    try:
        lab = Held(_until_ready(state, process.pid, process.poll), started=True, _lifeline=process.stdin)
        yield lab
    finally:
        if lab is None or lab._lifeline is not None:
            down(state)
        if process.stdin is not None:
            process.stdin.close()


def _start(state: StateDir, scenario: Scenario, console: Console) -> subprocess.Popen[bytes]:
    prepare(state, scenario, console)
    state.logs.mkdir(parents=True, exist_ok=True)
    argv = [
        sys.executable,
        "-m",
        "lab",
        "up",
        "--foreground",
        "--held",
        "--state",
        str(state.root),
        "--scenario",
        str(state.scenario),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")]))}
    with state.supervisor_log.open("wb") as log:
        return subprocess.Popen(
            argv, bufsize=0, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        )


def foreground(state: StateDir, scenario: Scenario, console: Console, *, held: bool = False) -> Supervisor:
    """A supervisor for this process, after the same checks as `up`. The caller holds `state.locked()`.

    `held`: stdin is the lifeline of whoever started it.
    """
    tools = prepare(state, scenario, console)
    state.prepare()
    lifeline = sys.stdin.fileno() if held else None
    return Supervisor(state, scenario, {name: tools.path(name) for name in BINARIES}, console, lifeline)


def prepare(state: StateDir, scenario: Scenario, console: Console) -> toolchain.Toolchain:
    """Tools there, remains of a crash gone, addresses free, scenario written down. Raises LabFailed, ToolchainError."""
    if len(os.fsencode(state.socket)) > SOCKET_PATH_BYTES:
        raise LabFailed(f"the path {state.root} is too long for a unix socket; choose a shorter one with --state")
    state.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    tools = toolchain.ensure(state.root, only=BINARIES, console=console)
    record = state.read()
    if record is not None and record.supervisor.pid != os.getpid() and not record.alive:
        _clean(state, record)
    if problems := address_problems(scenario):
        raise LabFailed(
            "these addresses of the scenario are not available:\n" + "\n".join(f"  {line}" for line in problems)
        )
    state.scenario.write_text(scenario.model_dump_json(by_alias=True, indent=1), encoding="utf-8")
    return tools


def _running(state: StateDir, scenario: Scenario) -> Record | None:
    record = state.read()
    if record is None or not record.alive:
        return None
    if record.fingerprint != fingerprint(scenario):
        raise LabFailed(
            f"a lab with a different scenario ({record.scenario}) is running in {state.root}.\n  next  "
            "run `python -m lab down`, then `up` again; or use another --state directory and another /16"
        )
    return record


def _until_ready(state: StateDir, pid: int, exited: Callable[[], int | None]) -> Record:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        code = exited()
        record = state.read()
        mine = record if record is not None and record.supervisor.pid == pid else None
        if mine is not None and mine.phase == "ready":
            return mine
        if code is not None or (mine is not None and not mine.alive):
            raise LabFailed(_why_not(state, mine))
        time.sleep(0.05)
    down(state)
    raise LabFailed(
        f"the lab was not ready within {READY_WITHIN_S:.0f} s; the end of {state.supervisor_log}:\n{tail(state.supervisor_log)}"
    )


def _why_not(state: StateDir, record: Record | None) -> str:
    reason = "\n".join(record.problems) if record is not None and record.problems else tail(state.supervisor_log)
    return f"the lab did not start.\n{reason}\n  next  check the logs in {state.logs}"


def down(state: StateDir) -> Down:
    """End the lab, also what a crash left of it; returns when its processes are gone and its ports closed.

    Ended are the processes on record (by pid and start time), and those that carry this lab's mark. Harmless when nothing runs.
    """
    record = state.read()
    if record is None:
        return Down(was_there=False, forced=belongings.end(belongings.mark(state.root)))
    began = time.monotonic()
    if record.supervisor.identity.signal(signal.SIGTERM):
        record.supervisor.identity.gone_within(STOPS_WITHIN_S)
    # A supervisor that stopped in order has removed its record. One that did not may have started more children since.
    remains = state.read()
    forced = _clean(state, remains or record)
    taken = _still_open([each.port for each in record.children if each.port is not None])
    return Down(True, remains is None, round(time.monotonic() - began, 1), forced, taken)


def _clean(state: StateDir, record: Record) -> list[str]:
    """End what is left, the supervisor first so that it starts nothing new; forget the record."""
    left = [each for each in record.processes if each.identity.alive()]
    for each in left:
        each.identity.end(grace_s=0 if each is record.supervisor else 5)
    survivors = [each for each in left if each.identity.alive()]
    ended = belongings.end(belongings.mark(state.root))
    if survivors:
        raise LabFailed(f"these processes of the lab could not be stopped: {', '.join(map(_named, survivors))}")
    state.forget()
    return [*map(_named, left), *ended]


def _named(record: ProcessRecord) -> str:
    return f"{record.name} (pid {record.pid})"


def _still_open(ports: list[int]) -> list[int]:
    deadline = time.monotonic() + PORTS_WITHIN_S
    while time.monotonic() < deadline:
        if not any(port_open("127.0.0.1", port) for port in ports):
            return []
        time.sleep(0.05)
    return [port for port in ports if port_open("127.0.0.1", port)]
