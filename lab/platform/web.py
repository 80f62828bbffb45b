"""A small HTTP/1.1 server over TLS for the lab's endpoints: enough for the API aggregator, browsers and probes."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lab.listening import opened
from lab.pki import Pair

BODY_LIMIT = 4 * 2**20  # bytes
IDLE_S = 120.0


@dataclass(frozen=True)
class Request:
    """`server_name` is what the client asked for in its TLS greeting, `host` its Host header without port."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    server_name: str = ""

    @property
    def host(self) -> str:
        return self.headers.get("host", "").rsplit(":", 1)[0].lower()

    def json(self) -> Any:
        """Raises ValueError."""
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None  # chunks written as they come, until the client leaves

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Response:
        return cls(status, json.dumps(value).encode())


Handler = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """The peer does not speak HTTP/1.1 as far as this server does."""


def context(pair: Pair) -> ssl.SSLContext:
    """A server context for one certificate."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.set_alpn_protocols(["http/1.1"])
    with tempfile.TemporaryDirectory() as folder:  # `ssl` reads keys from files only
        path = Path(folder) / "pair.pem"
        path.touch(mode=0o600)
        path.write_text(pair.crt + pair.key, encoding="utf-8")
        found.load_cert_chain(path)
    return found


async def serve(handler: Handler, host: str, port: int, tls: ssl.SSLContext) -> asyncio.Server:
    """Listen until the returned server is closed."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(handler, reader, writer)
        except (ConnectionError, TimeoutError, BadRequest, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client left or talks nonsense: nothing to answer
        finally:
            writer.close()
            with suppress(Exception):
                await writer.wait_closed()

    return await opened(await asyncio.start_server(client, host, port, ssl=tls, start_serving=False))


async def _converse(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    names = writer.get_extra_info("ssl_object")
    while True:
        async with asyncio.timeout(IDLE_S):
            request = await _read(reader, getattr(names, "lab_server_name", "") or "")
        if request is None:
            return
        response = await handler(request)
        await _write(writer, response)
        if response.stream is not None or request.headers.get("connection", "").lower() == "close":
            return


async def _read(reader: asyncio.StreamReader, server_name: str) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    parts = line.decode("latin-1").split()
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await _body(reader, headers)
    url = urlsplit(parts[1])
    query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
    return Request(parts[0], url.path, query, headers, body, server_name)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        length = int(headers.get("content-length") or 0)
        if length > BODY_LIMIT:
            raise BadRequest
        return await reader.readexactly(length)
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
        if len(body) > BODY_LIMIT:
            raise BadRequest
    await reader.readline()
    return body


async def _write(writer: asyncio.StreamWriter, response: Response) -> None:
    known = response.status in set(HTTPStatus)  # those of CDNs (520 to 530) are not
    reason = HTTPStatus(response.status).phrase if known else "Unknown"
    headers = {"Content-Type": response.content_type, **response.headers}
    if response.stream is None:
        headers["Content-Length"] = str(len(response.body))
    else:
        headers["Transfer-Encoding"] = "chunked"
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {response.status} {reason}\r\n{head}\r\n".encode() + response.body)
    await writer.drain()
    if response.stream is not None:
        async for chunk in response.stream:
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
