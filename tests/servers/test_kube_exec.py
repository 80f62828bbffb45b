"""A command in a pod over a real connection: the handshake, what the server refuses, and a connection that breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import wsproto
from wsproto.events import AcceptConnection, Request

from cozystack_iac.kube.client import ExecResult, Kube, Unavailable, Unreachable
from lab.memory.shell import PROTOCOL, Shell

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[Kube]:
    """A client of a server that answers its one connection like this."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            yield Kube(http)


async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    socket = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
    socket.receive_data(await reader.readuntil(b"\r\n\r\n"))
    [request] = socket.events()
    assert isinstance(request, Request)
    assert request.subprotocols == [PROTOCOL]
    writer.write(socket.send(AcceptConnection(subprotocol=PROTOCOL)))


async def test_what_a_command_said_and_how_it_ended_comes_over_the_wire() -> None:
    async def fail(_pod: object, argv: list[str]) -> tuple[str, str, int]:
        return "x" * 200_000, " ".join(argv), 3

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted(reader, writer)
        shell = Shell(fail, {}, ["a", "b"], lost=lambda: False)
        while data := await shell.read(65536):
            writer.write(data)
        await reader.read()
        writer.close()

    async with served(serve) as kube:
        assert await kube.exec("default", "p", "c", ["a", "b"]) == ExecResult("x" * 200_000, "a b", ok=False)


async def test_a_refusal_is_told_in_the_servers_words() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"kind":"Status","reason":"InternalError","message":"container not found"}'
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with served(serve) as kube:
        with pytest.raises(Unavailable, match="container not found"):
            await kube.exec("default", "p", "c", ["a"])


async def test_a_connection_that_breaks_is_no_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted(reader, writer)
        writer.close()

    async with served(serve) as kube:
        with pytest.raises(Unreachable, match="was closed before the command finished"):
            await kube.exec("default", "p", "c", ["a"])
