"""A Talos machine for tests: a grpclib server with certificates shaped like Talos', which answers what a test tells it to.

Not the lab's simulator: this one has no life of its own, so that a test sees exactly one behaviour.
"""

from __future__ import annotations

import inspect
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from google.protobuf import empty_pb2
from google.protobuf.message import Message
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.server import Server

from cozystack_iac.talos.api import common_pb2, lifecycle_pb2, machine_pb2, state_pb2, storage_pb2
from cozystack_iac.talos.identity import Identity

MAINTENANCE = "maintenance-service.talos.dev"


@dataclass(frozen=True)
class Authority:
    """A CA as Talos makes one."""

    key: Ed25519PrivateKey
    certificate: x509.Certificate

    @classmethod
    def named(cls, organization: str | None = "talos") -> Authority:
        key = Ed25519PrivateKey.generate()
        name = _name(organization, None)
        builder = _builder(name, name, key.public_key(), timedelta(0)).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        return cls(key, builder.sign(key, None))

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def server(
        self, common_name: str = "node1", *, address: str = "127.0.0.1", shift: timedelta = timedelta(0)
    ) -> Pair:
        key = Ed25519PrivateKey.generate()
        builder = _builder(_name(None, common_name), self.certificate.subject, key.public_key(), shift)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
        )
        return self._signed(builder, key, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(
        self, role: str = "os:admin", *, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH
    ) -> Identity:
        key = Ed25519PrivateKey.generate()
        builder = _builder(_name(role, None), self.certificate.subject, key.public_key(), timedelta(0))
        pair = self._signed(builder, key, usage)
        return Identity(self.pem, pair.certificate, pair.key)

    def _signed(self, builder: x509.CertificateBuilder, key: Ed25519PrivateKey, usage: x509.ObjectIdentifier) -> Pair:
        certificate = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False).sign(self.key, None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Pair(certificate.public_bytes(Encoding.PEM).decode(), pem)


@dataclass(frozen=True)
class Pair:
    certificate: str
    key: str


def _name(organization: str | None, common_name: str | None) -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts if value])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, shift: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC) + shift
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=24))
    )


@dataclass
class Answers:
    """What the machine says. `calls` maps a method's name to replies, a status, or a (maybe async) function of the request.

    Resources are YAML texts by type and id.
    """

    calls: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, Message]] = field(default_factory=list)

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.asked if name == method]


_METHODS: Mapping[str, tuple[Cardinality, type[Message], type[Message]]] = {
    f"/{service.full_name}/{method.name}": (
        Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY,
        method.input_type._concrete_class,
        method.output_type._concrete_class,
    )
    for module in (common_pb2, lifecycle_pb2, machine_pb2, state_pb2, storage_pb2, empty_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class _Service:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __mapping__(self) -> dict[str, Handler]:
        return {path: Handler(self._handler(path), *types) for path, types in _METHODS.items()}

    def _handler(self, path: str) -> Any:
        name = path.rsplit("/", 1)[1]

        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            self._answers.asked.append((name, request))
            for reply in await self._replies(path, name, request):
                await stream.send_message(reply)

        return handle

    async def _replies(self, path: str, name: str, request: Any) -> Sequence[Message]:
        if name in self._answers.calls:
            answer = self._answers.calls[name]
            answer = answer(request) if callable(answer) else answer
            answer = await answer if inspect.isawaitable(answer) else answer
            if isinstance(answer, GRPCError):
                raise answer
            return answer if isinstance(answer, list) else [answer]
        if path.startswith("/cosi.resource.State/"):
            return self._resources(name, request)
        raise GRPCError(Status.UNIMPLEMENTED, f"method {name} not implemented")

    def _resources(self, name: str, request: Any) -> Sequence[Message]:
        known = self._answers.resources.get(request.type, {})
        if name == "List":
            return [state_pb2.ListResponse(resource=_resource(request, id_, text)) for id_, text in known.items()]
        if request.id not in known:
            raise GRPCError(Status.NOT_FOUND, f"resource {request.type}({request.id}) doesn't exist")
        return [state_pb2.GetResponse(resource=_resource(request, request.id, known[request.id]))]


def _resource(request: Any, id_: str, text: str) -> state_pb2.Resource:
    metadata = state_pb2.Metadata(namespace=request.namespace, type=request.type, id=id_, version="1")
    return state_pb2.Resource(metadata=metadata, spec=state_pb2.Spec(yaml_spec=text))


class _Alerting(ssl.SSLObject):
    """A server that tells its client why: asyncio drops the alert of a failed handshake unless it is asked to go on."""

    _told = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self._told:
                raise
            self._told = True
            raise ssl.SSLWantReadError from None  # flushes what OpenSSL has to say; the client then hangs up


def server_context(pair: Pair, clients: str | None = None, *, alpn: bool = True) -> ssl.SSLContext:
    """TLS as apid does it; `clients` is the CA whose client certificates are required."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslobject_class = _Alerting
    if alpn:
        context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.pem")
        path.write_text(pair.certificate + pair.key)
        context.load_cert_chain(path)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients)
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext, answers: Answers | None = None) -> AsyncIterator[int]:
    """The machine at 127.0.0.1 and the yielded port."""
    server = Server([_Service(answers or Answers())], codec=ProtoCodec())
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    await server.start(sock=sock, ssl=context)
    try:
        yield sock.getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def in_maintenance() -> ssl.SSLContext:
    """A fresh maintenance certificate under a throw-away CA with an empty subject."""
    return server_context(Authority.named(None).server(MAINTENANCE))


def configured(authority: Authority) -> ssl.SSLContext:
    """Mutual TLS of a machine that `authority`'s cluster configured."""
    return server_context(authority.server(), authority.pem)
