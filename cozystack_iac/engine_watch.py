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
    """Knows whether the engine that started this provider process still lives.

    A killed engine leaves its providers running (docs/architecture.md, "Killed runs"). The parent process is the first
    sign, the engine's address (the provider's last argument) the second: a shell between the two would hide the first.
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

    def guard(self) -> None:
        """Look for ever; once the engine is gone, let running operations reach a safe point, then end this process."""
        while not self.gone.wait(POLL_S):
            self.look()
        with self._idle:
            self._idle.wait_for(lambda: self._running == 0, timeout=30)
        os._exit(1)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True  # slow is not dead


def _engine_address(argv: list[str]) -> tuple[str, int] | None:
    host, _, port = (argv[-1] if argv else "").rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None


_engine = EngineWatch()


def run(work: Coroutine[Any, Any, T], heartbeat: Callable[[], None] | None = None) -> T:
    """Run one operation in an event loop of its own, for as long as this process' engine lives. Raises EngineGone."""
    engine = _engine
    with engine.operation():
        return asyncio.run(until_gone(work, engine, heartbeat))


def serve_as_provider() -> None:
    """Once per provider process: quiet frames, and no orphan."""
    global _engine
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is None or main.name != "pulumi.dynamic.__main__" or getattr(sys, "tracebacklimit", None) == 0:
        return
    sys.tracebacklimit = 0  # users of a failed stage read the message, not our frames
    _engine = EngineWatch(address=_engine_address(sys.argv[1:]))
    threading.Thread(target=_engine.guard, name="engine-watch", daemon=True).start()


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
            raise EngineGone("the engine is gone; run `pulumi up` again: it continues from here")
