"""The probes of the platform's public names and their stage against real sockets on loopback."""

import asyncio
import datetime as dt
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cozystack_iac.reachability import probes, served
from cozystack_iac.reachability import stages as reach_stages
from cozystack_iac.reachability.names import Lookup, Said
from cozystack_iac.reachability.outcomes import Failure, Target, judge
from cozystack_iac.reachability.stages import ReachabilityProvider, ReachInputs, ReachOutputs
from cozystack_iac.stage import Progress, StageFailed
from lab.platform import resolver
from lab.platform.web import Request, Response, serve
from lab.scenario import ResolverSpec
from tests.addresses import prefix

IP = ip_address("10.0.0.11")


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


@asynccontextmanager
async def serving_at(address: str, port: int, handler: Handler, pki: "Pki") -> AsyncIterator[None]:
    server = await asyncio.start_server(handler, address, port, ssl=pki.server())  # type: ignore[arg-type]
    async with server:
        yield


def local(name: str, port: int) -> Target:
    return Target(name, ip_address("127.0.0.1"), port, passthrough=name.startswith("api."))


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
    standing = served.judge("dashboard.example.com", outcome.served)
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
        outcome = await probes.probe(
            local("dashboard.example.com", port), "", deadline_s=0.5 if handler is says_nothing else 10
        )

    assert (outcome.failure, outcome.status) == (expected, None)


async def test_a_closed_port_is_refused(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        pass

    assert (await probes.probe(local("dashboard.example.com", port), "")).failure is Failure.REFUSED


class ConnectProxy:
    """An HTTP proxy that answers CONNECT with `status`, and leads every address to one port on loopback."""

    def __init__(self, port: int, status: str = "200 Connection established") -> None:
        self._port, self._status = port, status
        self.asked: list[str] = []
        self.authorization: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.split()[1])
        self.authorization += [
            line.split(": ")[1] for line in head.splitlines() if line.startswith("Proxy-Authorization")
        ]
        writer.write(f"HTTP/1.1 {self._status}\r\n\r\n".encode())
        if not self._status.startswith("200"):
            writer.close()
            return
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer), return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.close()


AWAY = Target("api.example.com", ip_address("192.0.2.11"), passthrough=True)  # an address that leads nowhere by itself


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
        ("407 Proxy Authentication Required", "asks for credentials"),
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


@asynccontextmanager
async def proxying(port: int, status: str = "200 OK") -> AsyncIterator[tuple[ConnectProxy, Callable[..., str]]]:
    proxy = ConnectProxy(port, status)
    async with serving(proxy, None) as own:
        yield proxy, lambda user="": f"http://{user}127.0.0.1:{own}"


# Names --------------------------------------------------------------------------------------------------------------

ADDRESS = IPv4Address(f"{prefix()}.53.1")
SPOKEN = ResolverSpec(
    address=ADDRESS,
    port=15353,
    names={
        "dashboard.example.com": ("10.0.0.11",),
        "both.example.com": ("10.0.0.11", "fd00::11"),
        "*.wild.example.com": ("10.0.0.11",),
        "empty.example.com": "empty",
        "servfail.example.com": "servfail",
        "refused.example.com": "refused",
        "silent.example.com": "silent",
    },
)


@asynccontextmanager
async def speaking(*specs: ResolverSpec) -> AsyncIterator[None]:
    task = asyncio.create_task(resolver.serve(specs))
    try:
        await asyncio.sleep(0.05)
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


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
        "resolver": "",
        "port": port,
        "deadline_s": 5.0,
    }
    return ReachInputs.model_validate({**given, **more})


PLAYED = {"resolver": f"{ADDRESS}:{SPOKEN.port}"}
LEADS_HERE = SPOKEN.model_copy(update={"names": {"*.example.com": ("127.0.0.1",)}})


async def test_the_stage_waits_for_a_backend_that_starts(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach_stages, "PROBE_EVERY_S", 0.05)
    async with serving(Web(503, 503, 503, 503, 401), pki.server()) as port, speaking(LEADS_HERE):
        made = await ReachabilityProvider().establish(
            inputs(pki, port, **PLAYED), Progress("Reachability", write=print)
        )

    assert set(made.reached.values()) == {"HTTP 401"}
    names = ("dashboard.example.com", "api.example.com", "*.example.com")
    assert made.dns == dict.fromkeys(names, "resolved: 127.0.0.1")
    assert made.verdict == "reached"
    assert "does not trust" in made.certificates["dashboard.example.com"]


async def test_names_that_lead_nowhere_are_told_and_stop_nothing(pki: Pki) -> None:
    said: list[str] = []
    async with serving(Web(401), pki.server()) as port, speaking(SPOKEN):
        made = await ReachabilityProvider().establish(
            inputs(pki, port, **PLAYED, oidc=True), Progress("Reachability", write=said.append)
        )

    assert made.verdict.startswith("DNS is wrong: ")
    assert made.dns["keycloak.example.com"] == "absent: does not exist"
    assert "leads to 10.0.0.11, not to 127.0.0.1" in made.dns["dashboard.example.com"]
    assert any("create a record for api.example.com" in line for line in said)


async def test_an_address_in_front_that_leads_to_the_platform_is_no_wrong_name(pki: Pki) -> None:
    front = LEADS_HERE.model_copy(update={"names": {"*.example.com": ("127.0.0.2",)}})
    web = Web(401)
    async with serving(web, pki.server()) as port, serving_at("127.0.0.2", port, web, pki), speaking(front):
        made = await ReachabilityProvider().establish(inputs(pki, port, **PLAYED), Progress("x", write=print))

    assert made.verdict == "reached"


async def test_somebody_elses_page_at_the_name_does_not_count(
    pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Pki(tmp_path_factory.mktemp("other"))
    front = LEADS_HERE.model_copy(update={"names": {"*.example.com": ("127.0.0.2",)}})
    async with serving(Web(401), pki.server()) as port, serving_at("127.0.0.2", port, Web(200), other), speaking(front):
        made = await ReachabilityProvider().establish(inputs(pki, port, **PLAYED), Progress("x", write=print))

    assert made.verdict.startswith("DNS is wrong")
    assert "there: HTTP 200" in made.dns["dashboard.example.com"]


@pytest.mark.parametrize(
    ("leads", "verdict"),
    [
        (True, "reached"),
        (False, "DNS is wrong: api.example.com absent, *.example.com absent, dashboard.example.com absent"),
    ],
)
async def test_behind_a_proxy_its_own_resolution_of_names_counts(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, leads: bool, verdict: str
) -> None:
    async def unknown(_name: str, **_: object) -> Lookup:
        return Lookup(Said.NXDOMAIN)

    monkeypatch.setattr(probes, "lookup_here", unknown)
    own = Pki(tmp_path_factory.mktemp("own"), names=("api.example.com", "*.example.com"))
    other = Pki(tmp_path_factory.mktemp("other"))
    async with (
        serving(Web(401), own.server()) as port,
        serving(Web(200), other.server()) as elsewhere,
        proxying(port if leads else elsewhere) as (proxy, url),
    ):
        monkeypatch.setenv("https_proxy", url())
        made = await ReachabilityProvider().establish(inputs(own, port, resolver="system"), Progress("x", write=print))

    assert sorted(made.verdict.split(": ")[-1].split(", ")) == sorted(verdict.split(": ")[-1].split(", "))
    assert f"dashboard.example.com:{port}" in proxy.asked
    assert ("leads to the platform by name" in made.dns["*.example.com"]) is leads


async def test_a_check_that_is_skipped_leaves_its_reason(pki: Pki) -> None:
    given = inputs(pki, 1, skipped="the site has no way in from here")
    made = await ReachabilityProvider().establish(given, Progress("x", write=print))

    assert made.verdict == "not checked: the site has no way in from here"
    assert await ReachabilityProvider().observe(given, made) == made


async def test_a_preview_warns_of_names_that_lead_nowhere_before_anything_is_there(pki: Pki) -> None:
    new = inputs(pki, 1, **PLAYED, kubeconfig="")
    async with speaking(LEADS_HERE.model_copy(update={"names": {"dashboard.example.com": ("127.0.0.1",)}})):
        found = await ReachabilityProvider().preflight(new, None)
        again = await ReachabilityProvider().preflight(new, new)
        offline = await ReachabilityProvider().preflight(new.model_copy(update={"checks": "offline"}), None)

    assert [(f.code, f.severity.value, f.path) for f in found] == [
        ("RCH-001", "warning", "api.example.com"),
        ("RCH-001", "warning", "*.example.com"),
    ]
    assert (again, offline) == ([], [])


def slices(ready: int) -> dict[str, object]:
    return {"items": [{"metadata": {"name": "s"}, "endpoints": [{"conditions": {"ready": True}}] * ready}]}


@asynccontextmanager
async def cluster(pki: Pki, ready: int) -> AsyncIterator[str]:
    """A Kubernetes API that knows how many endpoints are ready, and nothing else."""

    async def answer(request: Request) -> Response:
        if request.path.endswith("/endpointslices"):
            return Response.of(slices(ready))
        return Response.of({"spec": {"externalIPs": []}})

    server = await serve(answer, "127.0.0.1", 0, pki.server())
    async with server:
        yield kubeconfig(pki.ca).replace("127.0.0.1:1", f"localhost:{server.sockets[0].getsockname()[1]}")


@pytest.mark.parametrize(
    ("ready", "headline"),
    [(2, "The path to the platform is closed"), (0, "The platform is down behind its public names")],
)
async def test_the_cluster_is_the_third_witness(tmp_path: Path, ready: int, headline: str) -> None:
    own = Pki(tmp_path, names=("localhost",))
    async with serving(Web(200), own.server()) as port:
        pass
    async with cluster(own, ready) as text:
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(
                inputs(own, port, kubeconfig=text, deadline_s=1.5), Progress("x", write=print)
            )

    assert failed.value.what.startswith(headline)
    assert f"root ingress: {ready} ready" in str(failed.value)


async def test_a_load_balancer_without_address_is_named_and_a_refresh_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach_stages, "INSIDE_S", 0.3)
    own, provider = Pki(tmp_path, names=("localhost",)), ReachabilityProvider()
    async with cluster(own, 2) as text:
        given = inputs(own, 1, kubeconfig=text, addresses=[], deadline_s=0.3)
        with pytest.raises(StageFailed) as failed:
            await provider.establish(given, Progress("x", write=print))
        with pytest.raises(StageFailed, match="Where the platform is published is not known"):
            await provider.observe(given, ReachOutputs(reached={}, dns={}, seconds=0))

    assert failed.value.what.startswith("No address of the platform is known yet")
    assert failed.value.details["last seen"] == "the load balancer gave no address"


async def test_a_cluster_that_does_not_answer_leaves_it_open(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        pass
    with pytest.raises(StageFailed) as failed:
        await ReachabilityProvider().establish(inputs(pki, port, deadline_s=1.5), Progress("x", write=print))

    assert "it is not known why" in failed.value.what
    assert "get endpointslices" in failed.value.next_step


async def test_the_stage_gives_up_on_a_backend_that_never_starts(pki: Pki) -> None:
    async with serving(Web(502), pki.server()) as port:
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(inputs(pki, port, backend_s=0.5), Progress("x", write=print))

    assert "The platform is down behind its public names" in failed.value.what
    assert "the same answers for" in failed.value.what
    assert f"https://dashboard.example.com:{port} at 127.0.0.1" in str(failed.value)


async def test_every_address_has_to_answer(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        both = inputs(pki, port, addresses=["127.0.0.1", "127.0.0.2"], exposed=["dashboard"], deadline_s=2.0)
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(both, Progress("x", write=print))

    assert list(failed.value.details) == [f"https://dashboard.example.com:{port} at 127.0.0.2", "seen from inside"]
    assert "the path to the platform is closed (1 of 2" in failed.value.what.lower()
