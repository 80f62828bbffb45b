"""What listens on a machine's Talos port: gRPC over TLS, a stranger's service, a silent host, or nothing."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import h2.config
from grpclib.config import Configuration
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import H2Protocol
from grpclib.server import Handler as CallHandler

from lab.listening import opened
from lab.machines.tls import TlsServer

if TYPE_CHECKING:
    from grpclib.const import Handler

BACKLOG = 256
_CONFIG = Configuration().__for_server__()
_H2 = h2.config.H2Configuration(
    client_side=False,
    header_encoding="ascii",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)


class _Grpc(H2Protocol):
    """HTTP/2, but only with a peer that negotiated it: without ALPN h2 a node closes without a byte."""

    _refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self._refused = True
            transport.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self._refused:
            super().connection_lost(exc)


class _Counted(asyncio.Protocol):
    """Is in its door's set while it is connected, so that a closing door can cut it."""

    connections: set[asyncio.Transport]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counted = cast(asyncio.Transport, transport)
        self.connections.add(self._counted)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self._counted)
        super().connection_lost(exc)


class _CountedTls(_Counted, TlsServer):
    pass


class Door:
    """The Talos port of one machine. Opens as different things over the machine's life; closing cuts every connection."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Transport] = set()

    async def serve(self, context: Callable[[], ssl.SSLContext], calls: Mapping[str, Handler]) -> None:
        """gRPC with these methods. `context` is asked for per connection. A door that is open already closes first."""
        codec, dispatch = ProtoCodec(), _DispatchServerEvents()

        def grpc() -> asyncio.Protocol:
            return _Grpc(CallHandler(cast("dict[str, Handler]", calls), codec, None, dispatch), _CONFIG, _H2)

        await self._listen(lambda: _CountedTls(context(), grpc))

    async def stay_silent(self) -> None:
        """Accepts and never says a word: a firewall that swallows, a hung host."""
        await self._listen(_Counted)

    async def speak_something_else(self, context: ssl.SSLContext) -> None:
        """TLS with whatever certificate the context has, and nothing behind it."""
        await self._listen(lambda: _CountedTls(context, asyncio.Protocol))

    async def close(self) -> None:
        """Stop listening and cut every connection, as a reboot does."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in tuple(self._connections):
            connection.abort()
        await server.wait_closed()

    async def _listen(self, make: Callable[[], _Counted]) -> None:
        await self.close()

        def counted() -> _Counted:
            protocol = make()
            protocol.connections = self._connections
            return protocol

        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            counted, self.host, self.port, backlog=BACKLOG, reuse_address=True, start_serving=False
        )
        self._server = await opened(server)
