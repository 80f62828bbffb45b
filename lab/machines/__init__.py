"""The simulated Talos machines: one gRPC server per loopback address, all in this process, all on one world.

A machine keeps its config for as long as the process lives; a lab that is started again starts with fresh machines.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from lab.events import Event
from lab.machines import etcd, pki
from lab.machines.calls import answers
from lab.machines.node import Node
from lab.scenario import Effect
from lab.world import World

__all__ = ["Machines"]


class Machines:
    """`async with Machines(world):` opens every machine's port; leaving closes them all.

    Raises OSError when an address or port is taken. A mistake in a simulated machine surfaces on leaving.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.nodes: dict[str, Node] = {}
        ca, calls = pki.new_ca(None), answers()
        for state in world.machines.values():
            port = world.scenario.talos_port
            self.nodes[state.name] = Node(world, state, ca, port, self.nodes, calls)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def __aenter__(self) -> Machines:
        self._world.log.on(self._react)
        self._world.faults.handle("machine", self._effect)
        try:
            for node in self.nodes.values():
                await node.start()
        except BaseException:
            await self._close()
            raise
        self._tasks = [asyncio.create_task(node.run(), name=f"machine {name}") for name, node in self.nodes.items()]
        self._tasks.append(asyncio.create_task(etcd.joining(self._world, self.nodes), name="etcd"))
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        failed = [task for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        await self._close()
        for task in failed:
            task.result()

    async def _close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._closed and not task.cancelled() and (error := task.exception()) is not None:
            self._world.log.record("lab", "machine simulator crashed", task=task.get_name(), error=repr(error))

    def _effect(self, effect: Effect) -> None:
        change = effect.machine
        if change is None:
            return
        self._world.change(change)
        if effect.for_s is not None:
            after = effect.for_s
            node = self.nodes[change.name]
            node.order(lambda: node.powered_again(after))

    def _react(self, event: Event) -> None:
        """Power, replacement and node registration reach the machines through the log."""
        if self._closed:
            return
        if event.what == "registered" and event.data.get("machine") in self.nodes:
            state = self.nodes[event.data["machine"]].state
            state.node_registered = True
            state.touch()
        node = self.nodes.get(event.subject.removeprefix("machine "))
        if node is None:
            return
        if event.what.startswith("power "):
            wanted = event.what.removeprefix("power ")
            node.interrupt(lambda: node.power(wanted))
        elif event.what == "replaced":
            node.interrupt(lambda: node.replace(event.data["by"]))
