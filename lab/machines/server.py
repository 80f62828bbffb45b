"""What listens on a machine's Talos port: gRPC over TLS, a stranger's service, a silent host, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

import h2.config
from grpclib.config import Configuration
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import H2Protocol
from grpclib.server import Handler as CallHandler

if TYPE_CHECKING:
    from grpclib.const import Handler

BACKLOG = 256
_H2 = h2.config.H2Configuration(
    client_side=False,
    header_encoding="ascii",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
)


class Connections(Protocol):
    """Who keeps count of open connections."""

    def opened(self, transport: asyncio.Transport) -> None: ...

    def lost(self, transport: asyncio.Transport) -> None: ...


class _Grpc(H2Protocol):
    """HTTP/2, but only with a peer that negotiated it: without ALPN h2 a node closes without a byte."""

    _refused = False

    def __init__(self, calls: CallHandler, config: Configuration, connections: Connections) -> None:
        super().__init__(calls, config, _H2)
        self._connections = connections
        self._own: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        self._connections.opened(self._own)
        tls = transport.get_extra_info("ssl_object")
        if tls is None or tls.selected_alpn_protocol() != "h2":
            self._refused = True
            self._own.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._own is not None:
            self._connections.lost(self._own)
        if not self._refused:
            super().connection_lost(exc)


class _Silent(asyncio.Protocol):
    """Accepts and never says a word: a firewall that swallows, a hung host."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._own: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)
        self._connections.opened(self._own)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._own is not None:
            self._connections.lost(self._own)


class Door:
    """The Talos port of one machine. Opens as different things over the machine's life; closing cuts every connection."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.Transport] = set()

    def opened(self, transport: asyncio.Transport) -> None:
        self._transports.add(transport)

    def lost(self, transport: asyncio.Transport) -> None:
        self._transports.discard(transport)

    @property
    def open(self) -> bool:
        return self._server is not None

    async def serve(self, context: ssl.SSLContext, calls: Mapping[str, Handler]) -> None:
        """gRPC with these methods. A door that is open already closes first."""
        codec, dispatch, config = ProtoCodec(), _DispatchServerEvents(), Configuration().__for_server__()
        await self._listen(lambda: _Grpc(CallHandler(dict(calls), codec, None, dispatch), config, self), context)

    async def stay_silent(self) -> None:
        await self._listen(lambda: _Silent(self), None)

    async def speak_something_else(self, context: ssl.SSLContext) -> None:
        """TLS with a certificate that is no Talos one, and then nothing."""
        await self._listen(lambda: _Silent(self), context)

    async def close(self) -> None:
        """Stop listening and cut every connection, as a reboot does."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for transport in tuple(self._transports):
            transport.abort()
        # a TLS handshake in flight holds its own transport, which asyncio closes by itself: no need to wait for it
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), timeout=1)

    async def _listen(self, protocol: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext | None) -> None:
        await self.close()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            protocol, self.host, self.port, ssl=context, backlog=BACKLOG, reuse_address=True
        )
