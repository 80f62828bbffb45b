"""The lab's control socket: one JSON object per line, over a unix socket in the state directory.

`{"ask": "state"}` is answered with `{"ok": …}` or `{"error": "…"}`. Built in: `state`, `events` (since), `mutate`
(a machine change). Simulators add their own with `handler(world, name, coroutine)`; stub tools and tests use `ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lab.scenario import MachineChange
from lab.world import MachineState, Query, World

LINE_LIMIT = 16 * 2**20  # bytes; the event log of a long run is one line


class ControlError(Exception):
    """The lab refused the question or did not answer; the text says why."""


def handler(world: World, name: str, query: Query) -> None:
    """Answer questions called `name`. The coroutine gets the arguments and returns plain data; ValueError refuses."""
    if name in _BUILT_IN or name in world.queries:
        raise ValueError(f"the control socket already answers {name!r}")
    world.queries[name] = query


def ask(path: Path, question: str, *, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """Ask the lab behind this socket. Blocking. Raises ControlError."""
    request = json.dumps({"ask": question, **arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(request)
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        raise ControlError(f"the lab does not respond at {path}: {error}") from None
    if not line:
        raise ControlError(f"the lab at {path} closed the connection without a response")
    reply = json.loads(line)
    if "error" in reply:
        raise ControlError(str(reply["error"]))
    return reply["ok"]


class ControlServer:
    """Serves the socket while the context is open."""

    def __init__(self, world: World, path: Path) -> None:
        self._world = world
        self._path = path
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ControlServer:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._client, self._path, limit=LINE_LIMIT)
        self._path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            for client in tuple(self._clients):
                client.close()
            await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._reply(line), default=str).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # the client left, or sent a line beyond the limit
            pass
        finally:
            self._clients.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except ValueError as error:
            return {"error": f"not JSON: {error}"}
        if not isinstance(request, dict) or not isinstance(request.get("ask"), str):
            return {"error": 'write {"ask": "<question>", …}'}
        name = request.pop("ask")
        try:
            if name in _BUILT_IN:
                return {"ok": _BUILT_IN[name](self._world, request)}
            if name in self._world.queries:
                return {"ok": await self._world.queries[name](request)}
        except (ValidationError, ValueError, KeyError) as error:
            return {"error": str(error.args[0] if isinstance(error, KeyError) else error)}
        known = ", ".join(sorted({*_BUILT_IN, *self._world.queries}))
        return {"error": f"unknown question {name!r}; known: {known}"}


def _state(world: World, arguments: Mapping[str, Any]) -> dict[str, Any]:
    cluster = world.cluster
    return {
        "scenario": world.scenario.name,
        "now": round(world.clock.now(), 3),
        "scale": world.clock.scale,
        "machines": [_machine(machine) for machine in world.machines.values()],
        "cluster": {
            "bootstrapped": cluster.bootstrapped,
            "name": cluster.name,
            "endpoint": cluster.endpoint,
            "leader": cluster.leader,
            "members": [
                {"machine": m.machine, "id": f"{m.id:016x}", "learner": m.learner} for m in cluster.members.values()
            ],
            "nodes": cluster.node_names,
        },
        "events": len(world.log.events),
    }


def _machine(machine: MachineState) -> dict[str, Any]:
    return {
        "name": machine.name,
        "address": machine.address,
        "stage": str(machine.stage),
        "talos": machine.talos,
        "powered": machine.powered,
        "door": machine.door,
        "role": machine.role,
        "hostname": machine.hostname,
        "installed": machine.installed,
        "etcd": str(machine.etcd),
        "config": machine.config.digest[:12] if machine.config is not None else None,
        "disks": [
            {
                "dev": disk.dev,
                "size": disk.spec.size,
                "serial": disk.spec.serial,
                "residue": disk.residue,
                "pool": disk.pool,
                "system": disk.system,
            }
            for disk in machine.disks.values()
        ],
        "zpools": {pool.name: {"health": pool.health, "devices": pool.devices} for pool in machine.zpools.values()},
    }


def _events(world: World, arguments: Mapping[str, Any]) -> list[Any]:
    since = arguments.get("since", 0)
    if not isinstance(since, int):
        raise ValueError(f"since is the number of an event, not {since!r}")
    return [json.loads(event.as_json()) for event in world.log.since(since)]


def _mutate(world: World, arguments: Mapping[str, Any]) -> dict[str, Any]:
    change = MachineChange.model_validate(dict(arguments.get("machine") or {}))
    if change.name not in world.machines:
        raise ValueError(f"no machine {change.name!r}; there are {', '.join(world.machines)}")
    world.change(change)
    return _machine(world.machines[change.name])


_BUILT_IN = {"state": _state, "events": _events, "mutate": _mutate}
