"""The probes of the platform's public names against real sockets on loopback: addresses, proxies and resolvers."""

import asyncio
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest

from cozystack_iac.reachability import probes, served
from cozystack_iac.reachability.names import Said
from cozystack_iac.reachability.outcomes import Endpoint, Failure, judge_endpoint
from tests.loopback import ADDRESS, SPOKEN, Handler, Pki, Web, proxying, serving, speaking


def local(name: str, port: int) -> Endpoint:
    return Endpoint(name, ip_address("127.0.0.1"), port, passthrough=name.startswith("api."))


# Addresses -----------------------------------------------------------------------------------------------------------


async def test_a_probe_goes_to_the_address_and_keeps_the_name(pki: Pki) -> None:
    web = Web(302)
    async with serving(web, pki.server(), web.names) as port:
        outcome = await probes.probe(local("dashboard.example.com", port), "")

    assert (outcome.status, outcome.failure, outcome.way) == (302, None, "")
    assert set(web.names) == {"dashboard.example.com"}
    assert set(web.hosts) == {f"dashboard.example.com:{port}"}


async def test_a_certificate_that_is_not_trusted_is_seen_and_told(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        outcome = await probes.probe(local("dashboard.example.com", port), "")

    assert outcome.served is not None
    standing = served.judge_trust("dashboard.example.com", outcome.served, datetime.now(UTC))
    assert standing.trust is served.Trust.PRIVATE
    assert "ca of" in standing.words


async def test_a_redirect_is_told_without_its_query(pki: Pki) -> None:
    async def redirects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: https://keycloak.example.com/auth?state=s3cret\r\n\r\n")
        await writer.drain()

    async with serving(redirects, pki.server()) as port:
        outcome = await probes.probe(local("dashboard.example.com", port), "")

    assert outcome.location == "keycloak.example.com"
    assert "s3cret" not in repr(outcome)


async def test_the_api_is_reached_when_the_clusters_own_ca_signed_the_answer(pki: Pki) -> None:
    async with serving(Web(401), pki.server()) as port:
        target = local("api.example.com", port)

        assert judge_endpoint(target, await probes.probe(target, pki.ca)).ok


async def test_an_api_of_another_cluster_is_not_reached(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours = Pki(tmp_path_factory.mktemp("ours")).ca
    async with serving(Web(401), pki.server()) as port:
        outcome = await probes.probe(local("api.example.com", port), ours)

    assert outcome.failure is Failure.CERTIFICATE


async def test_an_api_certificate_without_the_name_is_told_apart(tmp_path: Path) -> None:
    other = Pki(tmp_path, names=("kubernetes.default",))
    async with serving(Web(401), other.server()) as port:
        target = local("api.example.com", port)
        standing = judge_endpoint(target, await probes.probe(target, other.ca))

    assert "does not include api.example.com" in standing.means


async def closes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def speaks_plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.0 400 plain HTTP\r\n\r\n")
    await writer.drain()


async def speaks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"SSH-2.0-no-web-server\n")
    await writer.drain()


async def says_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


@pytest.mark.parametrize(
    ("handler", "tls", "expected"),
    [
        (closes, False, Failure.CLOSED),
        (speaks_plain, False, Failure.HANDSHAKE),
        (says_nothing, False, Failure.TIMEOUT),
        (says_nothing, True, Failure.TIMEOUT),
        (speaks_nonsense, True, None),
    ],
)
async def test_silences_and_strangers(pki: Pki, handler: Handler, tls: bool, expected: Failure | None) -> None:
    async with serving(handler, pki.server() if tls else None) as port:
        outcome = await probes.probe(
            local("dashboard.example.com", port), "", deadline_s=0.5 if handler is says_nothing else 10
        )

    assert (outcome.failure, outcome.status) == (expected, None)


async def test_a_closed_port_is_refused(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        pass

    assert (await probes.probe(local("dashboard.example.com", port), "")).failure is Failure.REFUSED


# Proxies -------------------------------------------------------------------------------------------------------------


AWAY = Endpoint(
    "api.example.com", ip_address("192.0.2.11"), passthrough=True
)  # an address that leads nowhere by itself


async def test_a_proxy_of_the_workstation_is_used_and_named(pki: Pki) -> None:
    async with serving(Web(401), pki.server()) as port, proxying(port) as (proxy, url):
        outcome = await probes.probe(AWAY, pki.ca, environ={"https_proxy": url("user:s3cret@")}, deadline_s=10)

    assert outcome.status == 401
    assert outcome.way.startswith("127.0.0.1:")
    assert proxy.asked == ["192.0.2.11:443"]
    assert proxy.authorization == ["Basic dXNlcjpzM2NyZXQ="]


async def test_tls_inside_a_proxy_is_judged_as_without_one(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours = Pki(tmp_path_factory.mktemp("ours")).ca
    async with serving(Web(401), pki.server()) as port, proxying(port) as (_, url):
        outcome = await probes.probe(AWAY, ours, environ={"https_proxy": url()}, deadline_s=10)

    assert outcome.failure is Failure.CERTIFICATE


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("407 Proxy Authentication Required", "requires credentials"),
        ("403 Forbidden", "answered 403 Forbidden"),
        ("502 Bad Gateway", "answered 502 Bad Gateway"),
    ],
)
async def test_a_proxy_that_does_not_open_the_way_is_not_the_platform(pki: Pki, status: str, says: str) -> None:
    async with proxying(1, status) as (_, url):
        outcome = await probes.probe(AWAY, pki.ca, environ={"https_proxy": url("user:s3cret@")}, deadline_s=10)

    assert outcome.failure is Failure.PROXY
    assert says in outcome.detail
    assert "s3cret" not in repr(outcome)


async def test_a_proxy_that_is_not_there_is_told(pki: Pki) -> None:
    outcome = await probes.probe(AWAY, pki.ca, environ={"https_proxy": "http://127.0.0.1:1"}, deadline_s=10)

    assert (outcome.failure, "no connection to 127.0.0.1:1" in outcome.detail) == (Failure.PROXY, True)


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said", "found"),
    [
        ("dashboard.example.com", Said.ADDRESSES, {"10.0.0.11"}),
        ("both.example.com", Said.ADDRESSES, {"10.0.0.11", "fd00::11"}),
        ("any.wild.example.com", Said.ADDRESSES, {"10.0.0.11"}),
        ("empty.example.com", Said.EMPTY, set()),
        ("nowhere.example.com", Said.NXDOMAIN, set()),
        ("servfail.example.com", Said.FAILED, set()),
        ("refused.example.com", Said.REFUSED, set()),
        ("silent.example.com", Said.SILENT, set()),
    ],
)
async def test_what_a_resolver_says_is_told_apart(name: str, said: Said, found: set[str]) -> None:
    async with speaking(SPOKEN):
        limit_s = 0.3 if said is Said.SILENT else 5
        lookup = await probes.lookup_at(name, f"{ADDRESS}:{SPOKEN.port}", deadline_s=limit_s)

    assert (lookup.said, set(map(str, lookup.addresses))) == (said, found)
    assert lookup.resolver == f"{ADDRESS}:{SPOKEN.port}"


async def test_a_resolver_that_is_not_there_said_nothing() -> None:
    assert not (await probes.lookup_at("dashboard.example.com", "127.0.0.1:1", deadline_s=0.3)).said.answered


async def test_this_workstations_own_names_are_found() -> None:
    assert ip_address("127.0.0.1") in (await probes.lookup_here("localhost")).addresses
