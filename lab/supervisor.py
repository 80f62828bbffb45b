"""The one process of a lab: owns the real children, runs every simulator as a task, and writes down what happens to both.

A child or a simulator that ends unasked is a problem of the record and makes `status` red; the rest runs on, so that there is
something to look at. SIGTERM and SIGINT stop everything in order, and so does the end of whoever holds the lab. Engines that work
on it, and their plugins, carry its mark and end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import psutil
from rich.console import Console

from lab import belongings, doors, platform
from lab.children import Child, ChildDied, Children, describe_exit
from lab.cluster import ClusterSimulator
from lab.control import ControlServer
from lab.controlplane import ControlPlane
from lab.events import Event
from lab.identity import Identity
from lab.machines import Machines
from lab.scenario import Scenario
from lab.state import Memory, ProcessRecord, Record, StateDir, fingerprint
from lab.world import World

MEMORY_EVERY_S = 5.0
STAY = b"s"  # written by a holder that ends and lets the lab go on
STOPS_WITHIN_S = 40.0
STANDSTILL_S = (
    8.0  # wall time the event loop may take for one turn; a thousand machines on two cores stay below a second
)


class LabFailed(Exception):
    """The lab could not be started; the text says what, why and what next."""


class Supervisor:
    """Runs one scenario in one state directory, until told to stop."""

    def __init__(
        self,
        state: StateDir,
        scenario: Scenario,
        binaries: Mapping[str, Path],
        console: Console,
        lifeline: int | None = None,
    ) -> None:
        """`lifeline`: a descriptor whose other end is held by whoever the lab must not outlive."""
        self._state = state
        self._lifeline = lifeline
        self._scenario = scenario
        self._binaries = binaries
        self._console = console
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._record = Record(
            scenario=scenario.name,
            fingerprint=fingerprint(scenario),
            supervisor=ProcessRecord.of("supervisor", Identity.mine()),
        )

    async def run(self) -> None:
        """Start, report ready, wait for a signal, stop. Raises LabFailed when the start fails. Holds the state's lock."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if self._lifeline is not None:
            watch = threading.Thread(target=self._end_with_holder, args=(self._lifeline, loop), daemon=True)
            watch.start()
        began = time.monotonic()
        self._state.write(self._record)
        try:
            async with self._running(began) as world:
                self._enter("ready", ready_s=round(time.monotonic() - began, 1))
                world.log.record("lab", "ready", seconds=self._record.ready_s)
                self._console.print(f"ready in {self._record.ready_s} s")
                self._spawn("memory", self._watch_memory())
                self._spawn("beat", self._beat())
                await self._stop.wait()
                self._enter("stopping")
                await asyncio.to_thread(belongings.end, belongings.mark(self._state.root))
        except (ChildDied, TimeoutError, OSError, LabFailed) as error:
            self._fail(str(error))
            raise LabFailed(str(error)) from None
        except BaseException as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        self._state.forget()

    async def _beat(self) -> None:
        """A loop that stands still cannot say why. The alarm is a thread without Python's lock, so nothing can hold it up."""
        beat_s = STANDSTILL_S / 4
        with contextlib.ExitStack() as stack:
            stack.callback(faulthandler.cancel_dump_traceback_later)
            while True:
                faulthandler.dump_traceback_later(STANDSTILL_S, file=sys.stderr)
                before = time.monotonic()
                await asyncio.sleep(beat_s)
                if (late_s := time.monotonic() - before - beat_s) > STANDSTILL_S:
                    self._problem(f"the lab was blocked for {late_s:.0f} s; see {self._state.supervisor_log} for where")

    def _end_with_holder(self, lifeline: int, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: even a lab whose loop is stuck ends with its holder, by force if it must."""
        if os.read(lifeline, 1) == STAY:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(self._stop.set)
        time.sleep(STOPS_WITHIN_S)
        belongings.end(belongings.mark(self._state.root))
        os._exit(1)  # the kernel ends the children

    @asynccontextmanager
    async def _running(self, began: float) -> AsyncIterator[World]:
        """Everything of the lab, up; taken down in reverse on the way out, also when the start fails half-way."""
        async with AsyncExitStack() as stack:
            events = stack.enter_context(self._state.events.open("a", encoding="utf-8", buffering=1))
            world = World(self._scenario, sink=_line_writer(events))
            self.watch(world)
            children = Children(
                self._state.logs, on_death=lambda c, code: self._died(world, c, code), on_start=self._started
            )
            control_plane = ControlPlane(self._state.root, children, self._binaries)
            stack.push_async_callback(control_plane.stop)
            starting = asyncio.create_task(control_plane.start())
            try:
                await stack.enter_async_context(ControlServer(world, self._state.socket))
                await stack.enter_async_context(Machines(world))
                await self._unless_stopped(starting)
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            self._record.control_plane_s = round(time.monotonic() - began, 1)
            cluster = await stack.enter_async_context(ClusterSimulator(world, control_plane))
            stack.push_async_callback(self._cancel_tasks)
            kubeconfig = control_plane.kubeconfig.read_text(encoding="utf-8")
            self._simulate(world, "cluster", cluster.run())
            self._simulate(world, "platform", platform.run(world, kubeconfig, self._state.root))
            yield world

    async def _unless_stopped(self, starting: asyncio.Task[None]) -> None:
        """Wait for the start; a SIGTERM meanwhile cancels it."""
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if not starting.done():
            raise LabFailed("the lab was stopped while it was starting")
        await starting

    def _simulate(self, world: World, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a simulator; its end, expected never, is a problem."""

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                return
            error = task.exception()
            reason = "ended" if error is None else f"crashed: {_causes(error)}"
            if error is not None:
                self._console.print("".join(traceback.format_exception(error)), markup=False, highlight=False)
            self._problem(f"the {name} simulator {reason}")
            world.log.record("lab", "simulator crashed", name=name)

        self._spawn(name, work).add_done_callback(ended)

    def watch(self, world: World) -> None:
        """What simulators cannot do, and crashes in the machines, reach the record through the event log only."""
        world.log.on(self._gone_wrong)

    def _gone_wrong(self, event: Event) -> None:
        if (event.subject, event.what) == ("platform", "write refused"):
            self._problem(f"the API server rejected an object of the simulated platform: {event.data.get('message')}")
        if (event.subject, event.what) == ("lab", "machine simulator crashed"):
            self._problem(f"the simulator of {event.data.get('task')} crashed: {event.data.get('error')}")

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _started(self, child: Child) -> None:
        self._record.children.append(ProcessRecord.of(child.name, child.identity, child.port))
        self._state.write(self._record)

    def _died(self, world: World, child: Child, code: int) -> None:
        for each in self._record.children:
            if each.pid == child.identity.pid:
                each.exit = describe_exit(code)
        self._problem(f"{child.name} {describe_exit(code)}; see {child.log}")
        world.log.record("lab", "process crashed", name=child.name, code=code)

    def _problem(self, text: str) -> None:
        self._console.print(text, markup=False)
        self._record.problems.append(text)
        self._state.write(self._record)

    def _enter(self, phase: Any, ready_s: float | None = None) -> None:
        self._record.phase = phase
        self._record.ready_s = ready_s or self._record.ready_s
        self._state.write(self._record)

    def _fail(self, text: str) -> None:
        self._record.phase = "failed"
        self._problem(text)

    async def _watch_memory(self) -> None:
        while True:
            now = await asyncio.to_thread(memory_bytes, self._record)
            self._record.memory = Memory(now_bytes=now, peak_bytes=max(now, self._record.memory.peak_bytes))
            self._state.write(self._record)
            await asyncio.sleep(MEMORY_EVERY_S)


def memory_bytes(record: Record) -> int:
    """What all living processes of the lab use together, those that simulators started included."""
    pids = {each.pid for each in record.processes if each.identity.alive()}
    for pid in list(pids):
        with contextlib.suppress(psutil.Error):
            pids |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return sum(process_bytes(pid) for pid in pids)


def process_bytes(pid: int) -> int:
    """Resident bytes, 0 when the process is gone.

    An upper bound: pages that two processes share count twice. A proportional share would divide them with other labs on
    this machine as well, and a lab would look the smaller the more of them run.
    """
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _causes(error: BaseException) -> str:
    """The errors inside a task group's group: the group itself says nothing."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_causes, error.exceptions))
    return f"{type(error).__name__}: {error}"


def address_problems(scenario: Scenario) -> list[str]:
    """Addresses of the scenario that cannot be listened on, one line each."""
    return doors.problems(doors.doors(scenario))


def _line_writer(sink: TextIO) -> Callable[[str], None]:
    def write(line: str) -> None:
        sink.write(line + "\n")

    return write
