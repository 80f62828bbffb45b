"""The provider: ``local.Command`` and ``remote.Command``. Collecting assets and archives is left to the official plugin."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from pulumi.provider.experimental.provider import (
    CheckFailure,
    CheckRequest,
    CheckResponse,
    CreateRequest,
    CreateResponse,
    DeleteRequest,
    DiffRequest,
    DiffResponse,
    Provider,
    UpdateRequest,
    UpdateResponse,
)

from lab.plugins.command import remote
from lab.plugins.command.process import Children, Ended
from lab.plugins.serve import difference, token
from lab.plugins.values import UNKNOWN, changed, plain_all, wire_all

LOCAL = "command:local:Command"
REMOTE = "command:remote:Command"
SHELL = ("/bin/sh", "-c")
_SHARED = ("addPreviousOutputInEnv", "create", "delete", "environment", "logging", "stdin", "triggers", "update")
INPUTS = {LOCAL: (*_SHARED, "archivePaths", "assetPaths", "dir", "interpreter"), REMOTE: (*_SHARED, "connection")}


class CommandProvider(Provider):
    """Runs commands at create, update and delete; in a preview nothing runs."""

    def __init__(self) -> None:
        self._children = Children()

    async def check(self, request: CheckRequest) -> CheckResponse:
        """Refuse what the stand-in cannot do."""
        given = plain_all(request.new_inputs)
        failures = []
        if token(request.urn) not in INPUTS:
            failures.append(CheckFailure("", f"the lab's stand-in for the command plugin has no {token(request.urn)}"))
        failures += [
            CheckFailure(name, "only the official command plugin collects files")
            for name in ("assetPaths", "archivePaths")
            if name in given
        ]
        connection = given.get("connection")
        if isinstance(connection, Mapping):
            failures += [
                CheckFailure(f"connection.{name}", "only the official command plugin supports this; use privateKey")
                for name in remote.unsupported(connection)
            ]
        return CheckResponse(wire_all(request.new_inputs), failures)

    async def diff(self, request: DiffRequest) -> DiffResponse:
        """Changed triggers replace the resource, whatever ``update`` says; everything else updates it."""
        found = changed(request.old_state, request.new_inputs, INPUTS[token(request.urn)])
        return difference(found, frozenset({"triggers"}))

    async def create(self, request: CreateRequest) -> CreateResponse:
        """Run ``create``; without it only the state is made."""
        identity = f"{request.name}{secrets.token_hex(4)}"
        if request.preview:
            unknown = {"stdout": UNKNOWN, "stderr": UNKNOWN}
            return CreateResponse(identity, wire_all(request.properties | unknown))
        outputs = await self._run(token(request.urn), plain_all(request.properties), "create", {})
        return CreateResponse(identity, wire_all(request.properties | outputs))

    async def update(self, request: UpdateRequest) -> UpdateResponse:
        """Run ``update``, or ``create`` where there is none."""
        given = plain_all(request.news)
        if request.preview:
            return UpdateResponse(wire_all(request.news | {"stdout": UNKNOWN, "stderr": UNKNOWN}))
        operation = "update" if "update" in given else "create"
        outputs = await self._run(token(request.urn), given, operation, plain_all(request.olds))
        return UpdateResponse(wire_all(request.news | outputs))

    async def delete(self, request: DeleteRequest) -> None:
        """Run ``delete`` with the inputs that the state holds."""
        state = plain_all(request.properties)
        await self._run(token(request.urn), state, "delete", state)

    async def cancel(self) -> None:
        """End what runs."""
        self._children.kill()

    async def _run(
        self, kind: str, given: Mapping[str, Any], operation: str, previous: Mapping[str, Any]
    ) -> dict[str, str]:
        outputs = {name: str(previous.get(name) or "") for name in ("stdout", "stderr")}
        command = given.get(operation)
        if command is None:
            return outputs
        environment = {name: str(value) for name, value in (given.get("environment") or {}).items()}
        if given.get("addPreviousOutputInEnv", True):
            environment |= {f"PULUMI_COMMAND_{name.upper()}": text for name, text in outputs.items() if text}
        ended = (await self._start(kind, given, command, environment)).checked(command)
        return {"stdout": ended.stdout, "stderr": ended.stderr}

    async def _start(self, kind: str, given: Mapping[str, Any], command: str, environment: dict[str, str]) -> Ended:
        stdin = given.get("stdin")
        if kind == REMOTE:
            return await remote.run(self._children, given["connection"], command, environment=environment, stdin=stdin)
        argv = [*(given.get("interpreter") or SHELL), command]
        return await self._children.run(argv, environment=environment, stdin=stdin, directory=given.get("dir"))
