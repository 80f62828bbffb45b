"""HTTP/2 over TLS on a socket that we dialled ourselves: the one place that knows the inside of grpclib and of asyncio's TLS.

grpclib has no public way to dial by one's own rules, to judge the certificate, and to wait for the server's first word before
anything is sent; asyncio has none to say how much a TLS connection may reserve. `tests/servers/test_talos_channel.py` notices
when what is used here changes; grpclib's version is pinned because of it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from asyncio import sslproto
from typing import Any, cast

from grpclib.client import Channel, Handler
from grpclib.encoding.proto import ProtoCodec
from grpclib.protocol import H2Protocol

MAX_MESSAGE_BYTES = 32 * 1024 * 1024  # Talos' GRPCMaxMessageSize


class _Codec(ProtoCodec):
    """Protobuf with the size limit of the official client: a peer gone mad cannot fill our memory."""

    def encode(self, message: Any, message_type: Any) -> bytes:
        data = super().encode(message, message_type)
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"the request of {len(data)} bytes is larger than a machine accepts")
        return data

    def decode(self, data: bytes, message_type: Any) -> Any:
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"the response of {len(data)} bytes is larger than expected")
        return super().decode(data, message_type)


class Http2(H2Protocol):
    """HTTP/2 that can be waited for: the server's first bytes mean that it accepted us, an alert that it did not."""

    def __init__(self, handler: Handler, config: Any, h2_config: Any) -> None:
        super().__init__(handler, config, h2_config)
        self.first_word: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: BaseException | None = None
        self.gone = asyncio.Event()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self.first_word.done():
            self.first_word.set_result(None)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = exc
        self.gone.set()
        if not self.first_word.done():
            self.first_word.set_exception(exc or ConnectionResetError("the connection was closed without a response"))
            self.first_word.exception()  # looked at, so that an abandoned wait leaves no message in the log
        super().connection_lost(exc)


class DialledChannel(Channel, ABC):
    """A grpclib channel that leaves the making of its connection to `dialled`. Connects at the first call."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(address, port, codec=_Codec(), ssl=context)

    @abstractmethod
    async def dialled(self) -> Http2:
        """A connection that calls can be sent on."""

    @property
    def http2(self) -> Http2 | None:
        """The present connection, or the last one that was lost; None before the first, and after `close`."""
        return cast("Http2 | None", self._protocol)

    async def connected(self) -> None:
        """Connect now, unless there is a connection."""
        await self.__connect__()

    async def over_tls(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> Http2:
        """Shake hands on a connected socket, which is the loop's from now on, and speak HTTP/2. Raises OSError."""
        loop = asyncio.get_running_loop()
        http2 = Http2(Handler(), self._config, self._h2_config)
        shaken: asyncio.Future[None] = loop.create_future()
        tls = _Tls(loop, http2, context, shaken, server_hostname=name)
        transport, _ = await loop.create_connection(lambda: tls, sock=sock)
        try:
            await shaken
        except BaseException:
            transport.abort()
            raise
        return http2

    async def _create_connection(self) -> H2Protocol:
        return await self.dialled()


class _Tls(sslproto.SSLProtocol):
    """TLS of one connection, which reserves less for reading than asyncio's 256 KiB.

    Hundreds of machines are asked at once, and a machine's whole answer is smaller than a tenth of that.
    """

    max_size = 32 * 1024
