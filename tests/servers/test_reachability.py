"""What answers and silences of the platform's public names prove, and the probes against real sockets on loopback."""

import asyncio
import datetime as dt
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cozystack_iac.readiness import probes
from cozystack_iac.readiness.reach_stages import ReachabilityProvider, ReachInputs
from cozystack_iac.readiness.reachability import (
    Dns,
    Failure,
    Lookup,
    Outcome,
    Reach,
    Target,
    embedded_address,
    judge,
    judge_dns,
)
from cozystack_iac.stage import Progress, StageFailed

IP = ip_address("10.0.0.11")
DASHBOARD = Target("dashboard.example.com", IP)
API = Target("api.example.com", IP, passthrough=True)


@pytest.mark.parametrize(
    ("outcome", "reach"),
    [
        *((Outcome(status=status), Reach.REACHED) for status in (200, 301, 302, 307, 401, 403)),
        *((Outcome(status=status), Reach.STARTING) for status in (502, 503, 504)),
        (Outcome(status=404), Reach.ABSENT),  # the ingress's default backend
        (Outcome(status=526), Reach.PROXY),
        (Outcome(status=530), Reach.PROXY),
        (Outcome(status=500), Reach.BROKEN),
        (Outcome(status=418), Reach.BROKEN),
        (Outcome(detail="not HTTP"), Reach.BROKEN),
        (Outcome(failure=Failure.REFUSED), Reach.REFUSED),
        (Outcome(failure=Failure.UNREACHABLE), Reach.UNREACHABLE),
        (Outcome(failure=Failure.TIMEOUT), Reach.UNREACHABLE),
        (Outcome(failure=Failure.CLOSED), Reach.TLS),
        (Outcome(failure=Failure.HANDSHAKE), Reach.TLS),
        (Outcome(failure=Failure.CERTIFICATE), Reach.TLS),
    ],
)
def test_b62_what_an_outcome_proves(outcome: Outcome, reach: Reach) -> None:
    for target in (DASHBOARD, API):
        standing = judge(target, outcome)

        assert standing.reach is reach
        assert standing.ok or (standing.means and standing.remedy)


def test_an_api_certificate_for_other_names_points_at_the_certificate_names() -> None:
    detail = "Hostname mismatch, certificate is not valid for 'api.example.com'."

    assert "extraSans" in judge(API, Outcome(failure=Failure.CERTIFICATE, detail=detail)).remedy


@pytest.mark.parametrize(
    ("name", "here", "others", "expected"),
    [
        ("dashboard.example.com", Lookup(frozenset({IP})), [], Dns.RESOLVED),
        ("dashboard.example.com", Lookup(frozenset({IP, ip_address("10.0.0.99")})), [], Dns.RESOLVED),
        ("dashboard.example.com", Lookup(frozenset({ip_address("203.0.113.9")})), [], Dns.ELSEWHERE),
        ("dashboard.example.com", Lookup(), [], Dns.ABSENT),
        ("dashboard.example.com", Lookup(), [Lookup(frozenset({IP}))], Dns.FILTERED),
        ("dashboard.example.com", Lookup(), [Lookup(), Lookup(error="refused")], Dns.ABSENT),
        ("dashboard.example.com", Lookup(error="timed out"), [Lookup(frozenset({IP}))], Dns.UNKNOWN),
        ("dashboard.192-168-1-50.nip.io", Lookup(), [], Dns.FILTERED),  # B59: protection against rebinding
    ],
)
def test_b59_where_a_name_leads(name: str, here: Lookup, others: list[Lookup], expected: Dns) -> None:
    standing = judge_dns(name, here, others, {IP})

    assert standing.dns is expected
    assert bool(standing.remedy) is (expected is not Dns.RESOLVED)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("dashboard.192-168-1-50.nip.io", "192.168.1.50"),
        ("dashboard.192.168.1.50.nip.io", "192.168.1.50"),
        ("api.cluster-10-0-0-1.sslip.io.", "10.0.0.1"),
        ("dashboard.999-1-1-1.nip.io", None),
        ("dashboard.10-0-0-1.example.com", None),
        ("dashboard.example.com", None),
    ],
)
def test_addresses_carried_by_names_of_wildcard_services(name: str, address: str | None) -> None:
    assert embedded_address(name) == (ip_address(address) if address else None)


# Probes on loopback -------------------------------------------------------------------------------------------------


class Pki:
    """A CA and one server certificate for api.example.com, with a kubeconfig that trusts the CA."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("api.example.com", "dashboard.example.com")) -> None:
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ca of {folder.name}")])
        now = dt.datetime.now(dt.UTC)

        def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
            return (
                x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
                .not_valid_before(now - dt.timedelta(days=1))
                .not_valid_after(now + dt.timedelta(days=1))
            )

        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        key_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
        ca = (
            certificate(issuer, ca_key.public_key())
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(key_id, critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        leaf = (
            certificate(x509.Name([]), key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        self.ca = ca.public_bytes(pem).decode()
        self._files = folder / "tls.crt", folder / "tls.key"
        self._files[0].write_bytes(leaf.public_bytes(pem))
        self._files[1].write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._files)
        return context


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


class Web:
    """A web server on loopback that answers with the given statuses in turn, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses: Iterator[int] = iter(statuses)
        self._status = 0
        self.hosts: list[str] = []
        self.names: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.hosts += [line.split(": ")[1] for line in head.splitlines() if line.startswith("Host: ")]
        self._status = next(self._statuses, self._status)
        writer.write(f"HTTP/1.1 {self._status} Whatever\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def serving(
    handler: Handler, context: ssl.SSLContext | None, names: list[str] | None = None
) -> AsyncIterator[int]:
    if context is not None and names is not None:
        context.sni_callback = lambda _socket, name, _context: names.append(name or "")
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def local(name: str, port: int) -> Target:
    return Target(name, ip_address("127.0.0.1"), port, passthrough=name.startswith("api."))


async def test_a_probe_goes_to_the_address_and_keeps_the_name(pki: Pki) -> None:
    web = Web(302)
    async with serving(web, pki.server(), web.names) as port:
        outcome = await probes.probe(local("dashboard.example.com", port), "")

    assert outcome == Outcome(status=302)
    assert web.names == ["dashboard.example.com"]
    assert web.hosts == [f"dashboard.example.com:{port}"]


async def test_the_api_is_reached_when_the_clusters_own_ca_signed_the_answer(pki: Pki) -> None:
    async with serving(Web(401), pki.server()) as port:
        target = local("api.example.com", port)

        assert judge(target, await probes.probe(target, pki.ca)).ok


async def test_an_api_of_another_cluster_is_not_reached(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours = Pki(tmp_path_factory.mktemp("ours")).ca
    async with serving(Web(401), pki.server()) as port:
        outcome = await probes.probe(local("api.example.com", port), ours)

    assert outcome.failure is Failure.CERTIFICATE


async def test_an_api_certificate_without_the_name_is_told_apart(tmp_path: Path) -> None:
    other = Pki(tmp_path, names=("kubernetes.default",))
    async with serving(Web(401), other.server()) as port:
        target = local("api.example.com", port)
        standing = judge(target, await probes.probe(target, other.ca))

    assert "does not name api.example.com" in standing.means


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
        outcome = await probes.probe(local("dashboard.example.com", port), "", deadline_s=0.5)

    assert (outcome.failure, outcome.status) == (expected, None)


async def test_a_closed_port_is_refused(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        pass

    assert (await probes.probe(local("dashboard.example.com", port), "")).failure is Failure.REFUSED


class Resolver(asyncio.DatagramProtocol):
    """A DNS server that knows one name."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        reply, asked = dns.message.make_response(query), query.question[0]
        if asked.name.to_text() != "dashboard.example.com.":
            reply.set_rcode(dns.rcode.NXDOMAIN)
        elif asked.rdtype == dns.rdatatype.A:
            reply.answer.append(dns.rrset.from_text(asked.name, 60, "IN", "A", "10.0.0.11"))
        self._transport.sendto(reply.to_wire(), addr)


@pytest.mark.parametrize(("name", "found"), [("dashboard.example.com", {IP}), ("nowhere.example.com", set())])
async def test_a_named_resolver_is_asked(name: str, found: set[object]) -> None:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Resolver, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        assert await probes.lookup_at(name, "127.0.0.1", port=port, deadline_s=2) == Lookup(frozenset(found))  # type: ignore[arg-type]
    finally:
        transport.close()


async def test_a_resolver_that_is_not_there_said_nothing() -> None:
    assert (await probes.lookup_at("dashboard.example.com", "127.0.0.1", port=1, deadline_s=0.3)).error


async def test_this_workstations_own_names_are_found() -> None:
    assert ip_address("127.0.0.1") in (await probes.lookup_here("localhost")).addresses


# The stage ----------------------------------------------------------------------------------------------------------


def kubeconfig(ca: str) -> str:
    cluster = f"{{server: 'https://127.0.0.1:1', certificate-authority-data: {b64encode(ca.encode()).decode()}}}"
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {cluster}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )


def inputs(pki: Pki, port: int, **more: object) -> ReachInputs:
    given = {
        "kubeconfig": kubeconfig(pki.ca),
        "host": "example.com",
        "addresses": ["127.0.0.1"],
        "exposed": ["api", "dashboard"],
        "port": port,
        "deadline_s": 5.0,
    }
    return ReachInputs.model_validate({**given, **more})


async def test_the_stage_waits_for_a_backend_that_starts(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "lookup_here", lambda _name: _answer(Lookup(frozenset({ip_address("127.0.0.1")}))))
    async with serving(Web(503, 503, 401), pki.server()) as port:
        made = await ReachabilityProvider().establish(inputs(pki, port), Progress("Reachability", write=print))

    assert set(made.reached.values()) == {"HTTP 401"}
    assert made.dns == dict.fromkeys(("api.example.com", "dashboard.example.com"), "resolved: 127.0.0.1")


async def _answer(lookup: Lookup) -> Lookup:
    return lookup


async def test_the_stage_gives_up_on_a_backend_that_never_starts(pki: Pki) -> None:
    async with serving(Web(502), pki.server()) as port:
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(inputs(pki, port, backend_s=0.5), Progress("x", write=print))

    assert "answers without a backend" in str(failed.value)
    assert f"https://dashboard.example.com:{port} at 127.0.0.1" in str(failed.value)


async def test_every_address_has_to_answer(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        both = inputs(pki, port, addresses=["127.0.0.1", "127.0.0.2"], exposed=["dashboard"], deadline_s=0.6)
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(both, Progress("x", write=print))

    assert list(failed.value.details) == [f"https://dashboard.example.com:{port} at 127.0.0.2"]
