"""What `talos.channel` uses of grpclib's and asyncio's inside: a version that changes it fails here, and not on a site."""

import asyncio
from asyncio import sslproto
from importlib import metadata

import pytest

from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from cozystack_iac.talos.channel import DialledChannel, Http2
from cozystack_iac.talos.identity import anonymous
from cozystack_iac.talos.transport import Connection, Expected
from tests.talos_machine import in_maintenance, serving

RESERVED = 32 * 1024


class Dialled(Exception):
    """Ours to make."""


class Refusing(DialledChannel):
    async def dialled(self) -> Http2:
        raise Dialled


def test_the_version_is_the_one_that_was_read() -> None:
    assert metadata.version("grpclib") == "0.4.9"


async def test_grpclib_asks_us_for_the_connection_of_a_call() -> None:
    channel = Refusing("127.0.0.1", 1, anonymous())
    with pytest.raises(Dialled):
        await channel.connected()
    stub = MachineServiceStub(channel)
    with pytest.raises(Dialled):
        async with stub.Version.open() as stream:
            await stream.send_request()
    assert channel.http2 is None


async def test_a_connection_is_kept_until_it_is_closed() -> None:
    async with serving(in_maintenance()) as port:
        connection = Connection("127.0.0.1", port, Expected())
        await connection.connect()
        first = connection.http2
        await connection.connect()
        assert connection.http2 is first
        assert first is not None
        assert first.first_word.done()
        connection.close()
        assert connection.http2 is None
        async with asyncio.timeout(5):
            await first.gone.wait()


async def test_a_connection_reserves_little_and_nobody_elses_changes() -> None:
    async with serving(in_maintenance()) as port:
        connection = Connection("127.0.0.1", port, Expected())
        await connection.connect()
        http2 = connection.http2
        assert http2 is not None
        assert http2.transport is not None
        tls = http2.transport._ssl_protocol  # type: ignore[attr-defined]
        assert len(tls.get_buffer(-1)) == RESERVED
        connection.close()
    assert sslproto.SSLProtocol.max_size > RESERVED
