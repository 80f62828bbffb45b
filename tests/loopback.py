"""What public names lead to, on loopback: servers with certificates of a CA of their own, a proxy, and a resolver."""

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab.platform import resolver
from lab.scenario import ResolverSpec
from tests.addresses import prefix


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


@asynccontextmanager
async def proxying(port: int, status: str = "200 OK") -> AsyncIterator[tuple[ConnectProxy, Callable[..., str]]]:
    proxy = ConnectProxy(port, status)
    async with serving(proxy, None) as own:
        yield proxy, lambda user="": f"http://{user}127.0.0.1:{own}"


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
