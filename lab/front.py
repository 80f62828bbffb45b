"""TCP fronts: loopback addresses that forward to a real process of the lab, opened and closed as the world changes.

A cluster's API is reachable where a real one would be (VIP and control planes, port 6443) while one API server does the work;
`away` takes all of it down for a while, connections included.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from lab.listening import opened

_CHUNK = 64 * 1024


class Front:
    """Forwards `address:port` for every kept address to `127.0.0.1:target`. Use as `async with`."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: dict[str, set[asyncio.StreamWriter]] = {}

    async def __aenter__(self) -> Front:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keep(())

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(self._servers)

    async def keep(self, addresses: Iterable[str]) -> None:
        """Open what is missing and close what is not named, with its connections. Raises OSError for a taken port."""
        wanted = set(addresses)
        for address in self.addresses - wanted:
            self._servers.pop(address).close()
            for writer in self._connections.pop(address, set()):
                writer.transport.abort()
        for address in sorted(wanted - self.addresses):
            self._servers[address] = await self._listen(address)

    async def _listen(self, address: str) -> asyncio.Server:
        open_here = self._connections.setdefault(address, set())

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_here.add(writer)
            try:
                await self._forward(reader, writer)
            finally:
                open_here.discard(writer)
                writer.close()

        return await opened(await asyncio.start_server(accept, address, self.port, start_serving=False))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return  # the process behind is not there: the caller sees a closed connection, as from a dead backend
        try:
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
        finally:
            there_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender is done, then pass the end on. A broken connection ends both directions."""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(ConnectionError, OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()
