"""The kubeconfig of the talos stand-in: asked of a machine, asked again, kept, and renewed before it expires."""

import base64
import io
import ipaddress
import socket
import ssl
import tarfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from google.protobuf.empty_pb2 import Empty
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError
from grpclib.server import Server
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue

from cozystack_iac.talos.api.common_pb2 import Data
from lab.plugins.talos import clientconfig, machine, provider, secrets
from lab.plugins.values import UNKNOWN, plain_all, wire_all
from tests.talos_plugin import shape_of, urn_of


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("10.0.0.1", ("10.0.0.1", 50_000)),
        ("10.0.0.1:50001", ("10.0.0.1", 50_001)),
        ("fd00::1", ("fd00::1", 50_000)),
        ("[fd00::1]:50001", ("fd00::1", 50_001)),
    ],
)
def test_endpoints(endpoint: str, address: tuple[str, int]) -> None:
    assert machine.Target("node", endpoint).address == address


KUBECONFIG = """apiVersion: v1
kind: Config
current-context: admin@lab
contexts: [{name: admin@lab, context: {cluster: lab, namespace: default, user: admin@lab}}]
clusters: [{name: lab, cluster: {server: "https://10.0.0.10:6443", certificate-authority-data: Y2E=}}]
users: [{name: admin@lab, user: {client-certificate-data: CERT, client-key-data: a2V5}}]
"""


class Machine:
    """A machine that hands out a kubeconfig, after as many refusals as a test wants."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig, self.refusals, self.metadata = kubeconfig, list[GRPCError](), list[Mapping[str, Any]]()

    def __mapping__(self) -> dict[str, Handler]:
        return {"/machine.MachineService/Kubeconfig": Handler(self._answer, Cardinality.UNARY_STREAM, Empty, Data)}

    async def _answer(self, stream: Any) -> None:
        await stream.recv_message()
        self.metadata.append(dict(stream.metadata))
        if self.refusals:
            raise self.refusals.pop(0)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            entry = tarfile.TarInfo("kubeconfig")
            entry.size = len(self.kubeconfig)
            tar.addfile(entry, io.BytesIO(self.kubeconfig.encode()))
        await stream.send_message(Data(bytes=archive.getvalue()))


def _server_context(bundle: secrets.Bundle, folder: Path) -> ssl.SSLContext:
    authority = x509.load_pem_x509_certificate(base64.b64decode(bundle.os.cert))
    key, now = ed25519.Ed25519PrivateKey.generate(), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=24))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(secrets.load_ed25519(bundle.os.key), None)
    )
    pem = folder / "server.pem"
    plain = serialization.NoEncryption()
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(pem)
    context.load_verify_locations(cadata=secrets.pem(bundle.os.cert))
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    return context


@pytest.fixture
async def served(bundle: secrets.Bundle, tmp_path: Path) -> AsyncIterator[tuple[Machine, str]]:
    """A machine that answers over mutual TLS on a free loopback port."""
    service = Machine(KUBECONFIG.replace("CERT", secrets.client(bundle.os).cert))
    server = Server([service], codec=ProtoCodec())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        await server.start(sock=listener.dup(), ssl=_server_context(bundle, tmp_path))
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()


def _inputs(bundle: secrets.Bundle, endpoint: str) -> dict[str, PropertyValue]:
    pair = secrets.client(bundle.os)
    client = {"caCertificate": bundle.os.cert, "clientCertificate": pair.cert, "clientKey": pair.key}
    return wire_all({"node": "10.0.0.11", "endpoint": endpoint, "clientConfiguration": client})


async def test_kubeconfig_comes_from_the_machine(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    service, endpoint = served
    request = api.CreateRequest(urn_of(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
    response = await provider.TalosProvider().create(request)
    assert response.resource_id == "lab"
    outputs = plain_all(response.properties)
    assert outputs["kubeconfigRaw"] == service.kubeconfig
    assert outputs["certificateRenewalDuration"] == "720h"
    assert outputs["kubernetesClientConfiguration"]["host"] == "https://10.0.0.10:6443"
    assert outputs["kubernetesClientConfiguration"]["clientKey"] == "a2V5"
    shape = {key: shape_of(value) for key, value in response.properties.items()}
    assert shape["kubeconfigRaw"] == "secret"
    assert shape["clientConfiguration"]["clientKey"] == "secret"
    assert shape["kubernetesClientConfiguration"]["clientKey"] == "secret"
    assert service.metadata[0]["node"] == "10.0.0.11" and service.metadata[0]["runtime"] == "Talos"


async def test_a_refusal_is_retried_until_the_machine_answers(
    bundle: secrets.Bundle, served: tuple[Machine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, endpoint = served
    monkeypatch.setattr(machine, "RETRY_FIRST_S", 0.01)
    service.refusals = [GRPCError(Status.UNAVAILABLE, "booting"), GRPCError(Status.FAILED_PRECONDITION, "not yet")]
    request = api.CreateRequest(urn_of(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
    assert (await provider.TalosProvider().create(request)).resource_id == "lab"
    assert len(service.metadata) == 3


async def test_an_invalid_argument_is_final(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    service, endpoint = served
    service.refusals = [GRPCError(Status.INVALID_ARGUMENT, "no such thing")] * 5
    request = api.CreateRequest(urn_of(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
    with pytest.raises(machine.Unavailable, match="no such thing"):
        await provider.TalosProvider().create(request)
    assert len(service.metadata) == 1


async def test_the_deadline_ends_the_retries_with_the_last_answer(bundle: secrets.Bundle) -> None:
    with pytest.raises(machine.Unavailable, match=r"10\.0\.0\.11 within 0 s; last answer: .*refused|Connect"):
        pair = secrets.client(bundle.os)
        access = clientconfig.Access(bundle.os.cert, pair.cert, pair.key)
        await machine.kubeconfig(machine.Target("10.0.0.11", "127.0.0.1:9"), access, 0.3)


async def test_another_clusters_certificate_is_not_served(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    _, endpoint = served
    stranger = secrets._authority("talos", ed25519.Ed25519PrivateKey.generate(), datetime.now(UTC))
    pair = secrets.client(stranger)
    access = clientconfig.Access(bundle.os.cert, pair.cert, pair.key)
    with pytest.raises(machine.Unavailable):
        await machine.kubeconfig(machine.Target("10.0.0.11", endpoint), access, 0.4)


async def test_a_changed_input_keeps_the_kubeconfig(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    service, endpoint = served
    inputs = _inputs(bundle, endpoint)
    talos = provider.TalosProvider()
    old = (await talos.create(api.CreateRequest(urn_of(provider.KUBECONFIG), inputs, 10, False))).properties
    assert not (await talos.diff(api.DiffRequest(urn_of(provider.KUBECONFIG), "lab", old, inputs, []))).changes
    moved = inputs | wire_all({"node": "10.0.0.12"})
    diff = await talos.diff(api.DiffRequest(urn_of(provider.KUBECONFIG), "lab", old, moved, []))
    assert diff.diffs == ["node"] and not diff.replaces
    for preview in (True, False):
        request = api.UpdateRequest(urn_of(provider.KUBECONFIG), "lab", old, moved, 10, [], preview)
        updated = (await talos.update(request)).properties
        assert updated["kubeconfigRaw"] == old["kubeconfigRaw"]
        assert plain_all(updated)["node"] == "10.0.0.12"
    assert len(service.metadata) == 1


async def test_an_expiring_kubeconfig_is_fetched_again(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    service, endpoint = served
    fresh = service.kubeconfig
    expiring = secrets.client(bundle.os, now=datetime.now(UTC) - timedelta(days=340)).cert
    service.kubeconfig = KUBECONFIG.replace("CERT", expiring)
    inputs, talos = _inputs(bundle, endpoint), provider.TalosProvider()
    old = (await talos.create(api.CreateRequest(urn_of(provider.KUBECONFIG), inputs, 10, False))).properties
    service.kubeconfig = fresh
    diff = await talos.diff(api.DiffRequest(urn_of(provider.KUBECONFIG), "lab", old, inputs, []))
    assert diff.diffs == ["kubeconfigRaw"]
    preview = api.UpdateRequest(urn_of(provider.KUBECONFIG), "lab", old, inputs, 10, [], True)
    assert plain_all((await talos.update(preview)).properties)["kubeconfigRaw"] is UNKNOWN
    request = api.UpdateRequest(urn_of(provider.KUBECONFIG), "lab", old, inputs, 10, [], False)
    assert plain_all((await talos.update(request)).properties)["kubeconfigRaw"] == fresh


async def test_a_kubeconfig_without_its_client_is_refused_in_check_but_not_an_unknown_one() -> None:
    def check(given: dict[str, Any]) -> api.CheckRequest:
        return api.CheckRequest(urn_of(provider.KUBECONFIG), {}, wire_all(given), b"")

    talos = provider.TalosProvider()
    refused = await talos.check(check({"node": "n", "clientConfiguration": {"ca_certificate": "x"}}))
    assert refused.failures and "client_configuration.ca_certificate" in refused.failures[0].reason
    assert not (await talos.check(check({"node": UNKNOWN, "clientConfiguration": UNKNOWN}))).failures
    partly = {"caCertificate": "x", "clientCertificate": UNKNOWN, "clientKey": UNKNOWN}
    assert not (await talos.check(check({"node": "n", "clientConfiguration": partly}))).failures
