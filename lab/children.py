"""The real processes of the lab: started into one process group, logged, watched, and dead when the supervisor is.

All of them share one process group, apart from the supervisor's own, so that ^C in a terminal reaches the supervisor alone
and the order of stopping stays its decision. On Linux the kernel kills each child when the supervisor dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.identity import Identity

KILL_AFTER_S = 10.0
FIRST_PORT, CLIENT_PORTS = 12_000, 32_768  # net.ipv4.ip_local_port_range begins there on Linux, higher elsewhere
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ChildDied(Exception):
    """A process of the lab ended although nobody asked it to."""

    def __init__(self, name: str, code: int, log: Path) -> None:
        self.name = name
        self.code = code
        self.log = log
        super().__init__(f"{name} {describe_exit(code)}; the end of {log}:\n{tail(log)}")


@dataclass(eq=False)
class Child:
    """One running process. `port` is the loopback port that must be free again once it is gone."""

    name: str
    process: asyncio.subprocess.Process
    identity: Identity
    log: Path
    port: int | None = None
    stopping: bool = False

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def check(self) -> None:
        """Raises ChildDied when the process has ended."""
        if self.process.returncode is not None:
            raise ChildDied(self.name, self.process.returncode, self.log)

    async def stop(self) -> None:
        """End it: SIGTERM, SIGKILL after a grace; returns when the process is gone and its port closed."""
        self.stopping = True
        if self.running:
            self._send(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), KILL_AFTER_S)
            except TimeoutError:
                self._send(signal.SIGKILL)
                await self.process.wait()
        if self.port is not None:
            await port_closed("127.0.0.1", self.port)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass
class Children:
    """Starts children into one group and tells `on_death(child, code)` about each that ends unasked."""

    logs: Path
    on_death: Callable[[Child, int], None]
    on_start: Callable[[Child], None] = lambda child: None
    members: list[Child] = field(default_factory=list)
    _group: int = 0
    _watches: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], port: int | None = None) -> Child:
        """Start `argv` with exactly `env`; stdout and stderr go to `<logs>/<name>.log`."""
        log = self.logs / f"{name}.log"
        if not any(member.running for member in self.members):
            self._group = 0  # a group without members is gone: the next child founds a new one
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=dict(env),
                process_group=self._group,
                preexec_fn=die_with_parent(),
            )
        self._group = self._group or process.pid
        identity = Identity.of(process.pid)
        if identity is None:
            raise ChildDied(name, await process.wait(), log)
        child = Child(name, process, identity, log, port)
        self.members.append(child)
        self.on_start(child)
        watch = asyncio.create_task(self._watch(child))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return child

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        if not child.stopping:
            self.on_death(child, code)

    async def stop(self, *names: str) -> None:
        """Stop the named children together; names that never started are no error."""
        await asyncio.gather(*(member.stop() for member in self.members if member.name in names))


def die_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that ties a child's life to this process; None where the system cannot do that (not Linux)."""
    parent, libc = os.getpid(), _LIBC
    if libc is None:
        return None

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return prepare


async def until_ready(child: Child, ready: Callable[[], Awaitable[bool]], deadline_s: float) -> None:
    """Ask `ready` every 50 ms. Raises ChildDied, or TimeoutError with the log's end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    while True:
        child.check()
        if await ready():
            return
        if loop.time() > deadline:
            raise TimeoutError(
                f"{child.name} was not ready within {deadline_s:.0f} s; the end of {child.log}:\n{tail(child.log)}"
            )
        await asyncio.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on at this moment, and that no other lab and no outgoing connection takes meanwhile.

    Each process begins its search in a block of its own, below the ports that the system gives to clients.
    """
    blocks = (CLIENT_PORTS - FIRST_PORT) // count
    for number in range(blocks):
        first = FIRST_PORT + (os.getpid() + number) % blocks * count
        ports = list(range(first, first + count))
        if all(map(_can_listen, ports)):
            return ports
    raise OSError(errno.EADDRINUSE, f"there are no {count} free loopback ports from {FIRST_PORT} to {CLIENT_PORTS}")


def _can_listen(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def port_closed(host: str, port: int, deadline_s: float = 15.0) -> None:
    """Returns once nobody accepts on the port. Raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while port_open(host, port):
            await asyncio.sleep(0.05)


def port_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def describe_exit(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, cut to a readable width."""
    try:
        content = log.read_bytes()[-20_000:].decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(f"  {line[:300]}" for line in content.splitlines()[-lines:]) or "  (empty)"
