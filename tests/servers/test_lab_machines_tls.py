"""TLS of simulated machines: who they say they are, whom they let in, and how a refusal shows."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import PeerFault, PortClosed, TalosError, WrongPeer
from cozystack_iac.talos.machine import ApplyMode
from cozystack_iac.talos.transport import look
from tests.machine_configs import Secrets
from tests.simulated_machines import Start, insecure, scenario


async def test_in_maintenance_the_certificate_says_so_and_its_issuer_has_no_name(start: Start) -> None:
    lab = await start(scenario())

    peer = await look(lab.address())

    assert peer.common_name == "maintenance-service.talos.dev"
    assert peer.issuer_organization == ""


async def test_without_alpn_the_handshake_succeeds_and_then_nothing_is_said(start: Start) -> None:
    lab = await start(scenario())

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(None))

    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_with_alpn_the_server_speaks_first(start: Start) -> None:
    lab = await start(scenario())

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"]))

    assert (await asyncio.wait_for(reader.readexactly(9), 5))[3] == 4  # an HTTP/2 SETTINGS frame
    writer.close()


async def test_tls_1_2_is_not_spoken(start: Start) -> None:
    lab = await start(scenario())

    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"], ssl.TLSVersion.TLSv1_2))


async def test_a_missing_client_certificate_shows_on_the_first_read_not_in_the_handshake(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"]))

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_a_client_of_another_ca_is_told_that_its_ca_is_unknown(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    with pytest.raises(WrongPeer) as caught:
        await lab.ours(secrets=Secrets()).stage()

    assert caught.value.fault is PeerFault.FOREIGN_CLUSTER


async def test_a_configured_machine_shows_a_certificate_of_its_own_ca(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured(certSANs=["lab.example.org"])

    async with lab.ours() as machine:
        peer = await machine.peer()

    assert (peer.common_name, peer.issuer_organization) == ("cp1", "talos")


async def test_a_new_san_is_in_the_certificate_without_a_reboot(start: Start) -> None:
    lab = await start(scenario(machine={"installed": True}))
    await lab.configured()
    async with lab.ours() as machine:
        before = await machine.peer()
        applied = await machine.apply(lab.secrets.config(certSANs=["127.0.0.1", "new.example.org"]))

    async with lab.ours() as machine:
        after = await machine.peer()

    assert applied.mode is ApplyMode.NO_REBOOT
    assert b"new.example.org" not in before.der
    assert b"new.example.org" in after.der


@pytest.mark.parametrize(
    ("stage", "error"), [("off", PortClosed), ("not-talos", WrongPeer), ("foreign", WrongPeer), ("silent", TalosError)]
)
async def test_who_else_may_be_at_the_address(start: Start, stage: str, error: type[TalosError]) -> None:
    lab = await start(scenario(machine={"stage": stage}))

    with pytest.raises(error):
        await Machine(lab.address(), deadline_s=1).stage()
