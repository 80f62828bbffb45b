"""Whatever is cancelled while it opens a port, at whichever await: the port is free again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from lab import doors
from lab.children import free_ports
from lab.doors import Door as Address
from lab.front import Front
from lab.machines.server import Door
from lab.pki import issue_serving, new_authority
from lab.platform import web
from tests.addresses import prefix

HOST = f"{prefix()}.0.77"
STEPS = 12  # turns of the event loop; opening takes fewer


async def front(port: int) -> Callable[[], Awaitable[None]]:
    made = Front(port, 1)
    await made.keep([HOST])
    return lambda: made.keep([])


async def machine(port: int) -> Callable[[], Awaitable[None]]:
    made = Door(HOST, port)
    await made.stay_silent()
    return made.close


async def website(port: int) -> Callable[[], Awaitable[None]]:
    made = await web.serve(nobody, HOST, port, web.context(issue_serving(new_authority("test"), "test", [HOST])))

    async def close() -> None:
        made.close()
        await made.wait_closed()

    return close


@pytest.mark.parametrize("opening", [front, machine, website])
async def test_a_port_whose_opening_is_cancelled_is_free(
    opening: Callable[[int], Awaitable[Callable[[], Awaitable[None]]]],
) -> None:
    (port,) = free_ports(1)
    opened = 0
    for steps in range(STEPS):
        task = asyncio.ensure_future(opening(port))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            close = await task
            opened += 1
            await close()
        assert doors.problems([Address(HOST, port, f"cancelled after {steps} turns")]) == []
    assert opened  # so every await on the way was cancelled at


async def nobody(_request: web.Request) -> web.Response:
    raise AssertionError("nobody connects here")
