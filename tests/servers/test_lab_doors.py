"""The lab's addresses: which it needs, which of them are not to be had, and the fronts that forward from them."""

import asyncio
import os
import socket

import pytest

from lab import doors
from lab.children import free_ports
from lab.front import Front
from lab.scenario import Scenario


def test_a_taken_address_is_named_with_its_holder_and_a_free_one_is_not() -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = doors.problems(
            [doors.Door("127.0.0.1", port, "Kubernetes API"), doors.Door("127.0.0.1", free, "kubelet")]
        )

    assert len(found) == 1
    assert found[0].startswith(f"127.0.0.1:{port} (Kubernetes API): already used by pid {os.getpid()}, ")


def test_an_address_the_machine_does_not_have_is_said_to_be_missing() -> None:
    (problem,) = doors.problems([doors.Door("192.0.2.1", 6443, "Kubernetes API")])  # TEST-NET-1, nobody's address
    assert "not an address of this machine" in problem


def test_every_fixed_address_of_a_scenario_is_looked_at() -> None:
    scenario = Scenario.fleet(2, "127.78", vip="127.78.0.10")

    assert {str(door) for door in doors.doors(scenario)} == {
        *(f"127.78.0.{host}:{port}" for host in (11, 12) for port in (50000, 6443, 10250)),
        "127.78.0.10:6443",
        "127.78.200.1:8443",
    }


async def test_a_front_forwards_and_going_away_cuts_open_connections() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()

    backend = await asyncio.start_server(echo, "127.0.0.1", 0)
    (port,) = free_ports(1)
    async with backend, Front(port, backend.sockets[0].getsockname()[1]) as front:
        await front.keep(["127.81.0.1", "127.81.0.2"])
        reader, writer = await asyncio.open_connection("127.81.0.2", port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"

        await front.keep(["127.81.0.1"])

        assert await _end(reader) == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.81.0.2", port)
        assert front.addresses == {"127.81.0.1"}


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""
