"""The engine that started this provider process: whether it still lives, and what to do once it does not.

A killed engine leaves its plugins running (docs/architecture.md, "Killed runs"). Nobody could record the result of what they do,
so running operations stop at their next safe point and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

POLL_S = 0.5  # how soon an orphaned stage notices that its engine is gone

T = TypeVar("T")


class EngineGone(BaseException):
    """The engine that asked for this operation is dead: nobody can record its result, so stop at the next safe point.

    A `BaseException`, as `KeyboardInterrupt` is: no stage may mistake it for a failure of the outside world and retry.
    """


class EngineWatch:
    """Knows whether the engine that started this process still lives.

    The parent process is the first sign, the engine's address (an argument of every plugin) the second: a shell between the two
    hides the first, and so does an engine that died before anybody looked.
    """

    def __init__(self, *, parent: Callable[[], int] = os.getppid, address: tuple[str, int] | None = None) -> None:
        self._parent, self._first_parent, self._address = parent, parent(), address
        self.gone = threading.Event()
        self._running = 0
        self._idle = threading.Condition()

    def look(self) -> None:
        if self._parent() != self._first_parent or (self._address and not _listens(*self._address)):
            self.gone.set()

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        with self._idle:
            self._running += 1
        try:
            yield
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()

    def wait(self) -> None:
        """Returns once the engine is gone."""
        while not self.gone.wait(POLL_S):
            self.look()

    def guard(self) -> None:
        """Once the engine is gone, let running operations reach a safe point, then end this process."""
        self.wait()
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=30)
        os._exit(1)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            # A port that nobody listens on may be given to this very connection, which then talks to itself.
            return bool(connection.getsockname() != connection.getpeername())
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # slow is not dead


def engine_address(argv: list[str]) -> tuple[str, int] | None:
    """Where the engine listens: the last argument of every plugin it starts. None for a plugin that runs by itself."""
    host, _, port = (argv[-1] if argv else "").rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None


_engine = EngineWatch()
_watching = threading.Lock()


def run(work: Coroutine[Any, Any, T], heartbeat: Callable[[], None] | None = None) -> T:
    """Run one operation in an event loop of its own, for as long as this process' engine lives. Raises EngineGone."""
    engine = _engine
    with engine.operation():
        return asyncio.run(until_gone(work, engine, heartbeat))


def begin(argv: list[str] | None = None) -> None:
    """Watch the engine from now on and end this process once it is gone. `argv`: the plugin's arguments. Harmless twice.

    Where this package is installed, every provider process of Python's calls it before anything else (`engine_watch.pth`).
    """
    global _engine
    if not _watching.acquire(blocking=False):
        return
    _engine = EngineWatch(address=engine_address(sys.argv[1:] if argv is None else argv))
    threading.Thread(target=_engine.guard, name="engine-watch", daemon=True).start()


def serve_as_provider() -> None:
    """Once per provider process: quiet frames, and no orphan."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == "pulumi.dynamic.__main__":
        sys.tracebacklimit = 0  # users of a failed stage read the message, not our frames
        begin()


async def until_gone(
    work: Coroutine[Any, Any, T], engine: EngineWatch, heartbeat: Callable[[], None] | None = None
) -> T:
    """Run `work`, call `heartbeat` meanwhile, and cancel the work at its next await once the engine has died."""
    task = asyncio.ensure_future(work)
    while True:
        done, _ = await asyncio.wait({task}, timeout=POLL_S)
        if done:
            return task.result()
        if heartbeat:
            heartbeat()
        if engine.gone.is_set():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            raise EngineGone("the Pulumi engine has exited; run `pulumi up` again: it continues from here")
