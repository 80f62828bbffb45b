"""A command in a pod: the server's end of its websocket, in the protocol of channels (v4.channel.k8s.io)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import httpcore
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection

from cozystack_iac.kube.client import Object

PROTOCOL = "v4.channel.k8s.io"
Command = Callable[[Object, list[str]], Awaitable[tuple[str, str, int] | None]]  # pod, argv -> stdout, stderr, code


async def no_program(_pod: Object, _argv: list[str]) -> tuple[str, str, int] | None:
    """A container without any program."""
    return None


class Shell(httpcore.AsyncNetworkStream):
    """Runs the command once somebody reads, says what it said and how it ended, and closes."""

    def __init__(self, command: Command, pod: Object, argv: list[str], lost: Callable[[], bool]) -> None:
        self._command, self._pod, self._argv, self._lost = command, pod, argv, lost
        self._left: bytes | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._left is None:
            self._left = _said(self._argv, await self._command(self._pod, self._argv))
        if self._lost():
            raise httpcore.ReadError
        data, self._left = self._left[:max_bytes], self._left[max_bytes:]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """No command here reads, and a closing client is gone before it could be answered."""

    async def aclose(self) -> None:
        self._left = b""


def _said(argv: list[str], answer: tuple[str, str, int] | None) -> bytes:
    out, err, code = answer or ("", "", 0)
    status: Object = {"metadata": {}, "status": "Success"}
    if answer is None:
        message = f'exec: "{argv[0]}": executable file not found in $PATH'
        status = {"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message}
    elif code:
        causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        message = f"command terminated with exit code {code}"
        status = {
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": message,
            "details": causes,
        }
    socket = Connection(ConnectionType.SERVER)
    frames = [(1, ""), (1, out), (2, err), (3, json.dumps(status))]  # the empty one says that the connection stands
    sent = [
        socket.send(BytesMessage(bytes([channel]) + text.encode()))
        for index, (channel, text) in enumerate(frames)
        if text or not index
    ]
    return b"".join(sent) + socket.send(CloseConnection(1000))
