"""TLS as a real server's clients see it: when a handshake fails, the alert is sent before the connection ends.

asyncio's own server drops the alert and resets the connection, and the alert is what tells a client why it was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, cast

LINGER_S = 1.0  # wall time a refused peer gets to read the alert before the connection is cut
READ_BYTES = 64 * 1024


class TlsServer(asyncio.Protocol):
    """The server side of one connection; `make` builds the protocol that runs inside once the handshake is done."""

    def __init__(self, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._make = make
        self._inside: asyncio.Protocol | None = None
        self._refused = False
        self.raw: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.raw.is_closing():
            return
        self._incoming.write(data)
        try:
            self._advance()
        except ssl.SSLWantReadError:
            self.flush()
        except ssl.SSLZeroReturnError:
            self.flush()
            self.raw.close()
        except ssl.SSLError:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._inside is not None:
            self._inside.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._inside is not None:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        if self._inside is not None:
            self._inside.resume_writing()

    def flush(self) -> None:
        """Send what TLS has ready."""
        data = self._outgoing.read()
        if data and not self.raw.is_closing():
            self.raw.write(data)

    def _advance(self) -> None:
        if self._inside is None:
            self.tls.do_handshake()
            self.flush()
            self._inside = self._make()
            self._inside.connection_made(_Inside(self))
        while not self.raw.is_closing():
            plain = self.tls.read(READ_BYTES)
            if not plain:
                self.raw.close()
                return
            self._inside.data_received(plain)

    def _refuse(self) -> None:
        """The alert lies in the outgoing buffer. What the peer still sends is read and ignored: a reset would eat it."""
        self._refused = True
        self.flush()
        if self.raw.can_write_eof():
            self.raw.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.raw.abort)


class _Inside(asyncio.Transport):
    """The transport that the protocol inside TLS writes to."""

    def __init__(self, server: TlsServer) -> None:
        super().__init__()
        self._server = server

    def write(self, data: Any) -> None:
        if self.is_closing():
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._server.tls.write(rest) :]
        self._server.flush()

    def close(self) -> None:
        if self.is_closing():
            return
        with contextlib.suppress(ssl.SSLError):  # our close_notify goes out; the peer's is not waited for
            self._server.tls.unwrap()
        self._server.flush()
        self._server.raw.close()

    def abort(self) -> None:
        self._server.raw.abort()

    def is_closing(self) -> bool:
        return self._server.raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._server.tls if name == "ssl_object" else self._server.raw.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._server.raw.pause_reading()

    def resume_reading(self) -> None:
        self._server.raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._server.raw.get_write_buffer_size()
