"""Ports that are closed again when whoever opens them is cancelled meanwhile."""

from __future__ import annotations

import asyncio


async def opened(server: asyncio.Server) -> asyncio.Server:
    """Have a server that was made with `start_serving=False` serve.

    asyncio's own way listens first and awaits once more before it returns: cancelled there, nobody has the server to close,
    and its socket listens for ever.
    """
    try:
        await server.start_serving()
    except BaseException:
        server.close()
        raise
    return server
