"""The talos stand-in as a provider: tokens, shapes and secretness of the official plugin, and the kubeconfig call."""

import asyncio
import base64
import io
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped] # ships no types
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
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from cozystack_iac.talos.api.common_pb2 import Data
from cozystack_iac.talos.documents import text
from lab.plugins.talos import __main__ as plugin
from lab.plugins.talos import arguments, clientconfig, machine, provider, secrets
from lab.plugins.values import UNKNOWN, Secret, plain_all, wire, wire_all

URN = "urn:pulumi:dev::cozystack::cozystack:talos:TalosMachineConfigs${}::name"


def _urn(token: str) -> str:
    return URN.format(token)


def _open(value: Any) -> Any:
    """Recorded values with their secret marks as the plugin's own form."""
    if isinstance(value, Mapping):
        return Secret(_open(value["$secret"])) if "$secret" in value else {k: _open(v) for k, v in value.items()}
    return [_open(item) for item in value] if isinstance(value, list) else value


def _shape(value: PropertyValue) -> Any:
    """Names and secret marks, without the values."""
    if isinstance(value.value, Mapping):
        return {key: _shape(item) for key, item in value.value.items()}
    return "secret" if value.is_secret else "plain"


@pytest.fixture(scope="module")
def bundle() -> secrets.Bundle:
    return secrets.generate()


@pytest.fixture
def made(bundle: secrets.Bundle) -> dict[str, PropertyValue]:
    """The outputs of a Secrets resource."""
    return wire_all(provider._secrets_outputs(bundle, "v1.13.6"))


def test_the_version_is_the_installed_sdks() -> None:
    assert version("pulumiverse-talos") == plugin.VERSION


async def test_secrets_have_the_official_names_and_secret_marks(vectors: Path) -> None:
    recorded = json.loads((vectors / "pulumi-plugins" / "talos-secrets.json").read_text())
    expected = wire_all(_open(recorded["outputs"]))
    request = api.CreateRequest(_urn(provider.SECRETS), wire_all({"talosVersion": "v1.13.6"}), 0, False)
    response = await provider.TalosProvider().create(request)
    assert response.resource_id == provider.SECRETS_ID == recorded["id"]
    assert {k: _shape(v) for k, v in response.properties.items()} == {
        k: _shape(v) for k, v in expected.items() if k != "id"
    }


async def test_secrets_are_unknown_in_a_preview() -> None:
    request = api.CreateRequest(_urn(provider.SECRETS), {}, 0, True)
    properties = plain_all((await provider.TalosProvider().create(request)).properties)
    assert properties["machineSecrets"] is UNKNOWN and properties["clientConfiguration"] is UNKNOWN


async def test_another_contract_keeps_every_secret(made: dict[str, PropertyValue]) -> None:
    old = made
    news = wire_all({"talosVersion": "v1.14.0"})
    diff = await provider.TalosProvider().diff(api.DiffRequest(_urn(provider.SECRETS), "x", old, news, []))
    assert diff.changes and not diff.replaces and diff.diffs == ["talosVersion"]
    updated = await provider.TalosProvider().update(
        api.UpdateRequest(_urn(provider.SECRETS), "x", old, news, 0, [], False)
    )
    assert updated.properties["machineSecrets"] == old["machineSecrets"]
    assert updated.properties["clientConfiguration"] == old["clientConfiguration"]
    assert plain_all(updated.properties)["talosVersion"] == "v1.14.0"


async def test_a_client_certificate_is_renewed_in_its_last_month(
    bundle: secrets.Bundle, made: dict[str, PropertyValue]
) -> None:
    expiring = secrets.client(bundle.os, now=datetime.now(UTC) - timedelta(days=340))
    client = {"caCertificate": bundle.os.cert, "clientCertificate": expiring.cert, "clientKey": Secret(expiring.key)}
    old = made | wire_all({"clientConfiguration": client})
    same = wire_all({"talosVersion": "v1.13.6"})
    diff = await provider.TalosProvider().diff(api.DiffRequest(_urn(provider.SECRETS), "x", old, same, []))
    assert diff.diffs == ["clientConfiguration"]
    request = api.UpdateRequest(_urn(provider.SECRETS), "x", old, same, 0, [], False)
    renewed = plain_all((await provider.TalosProvider().update(request)).properties)["clientConfiguration"]
    assert renewed["clientCertificate"] != expiring.cert
    assert renewed["caCertificate"] == plain_all(old)["machineSecrets"]["certs"]["os"]["cert"]


async def test_unchanged_secrets_have_no_diff(made: dict[str, PropertyValue]) -> None:
    for news in ({"talosVersion": "v1.13.6"}, {}):
        request = api.DiffRequest(_urn(provider.SECRETS), "x", made, wire_all(news), [])
        assert not (await provider.TalosProvider().diff(request)).changes


async def test_importing_secrets_reads_a_secrets_file(vectors: Path) -> None:
    path = vectors / "talos" / "configs" / "secrets.yaml"
    response = await provider.TalosProvider().read(api.ReadRequest(_urn(provider.SECRETS), str(path), {}, {}))
    (recorded,) = text.parse(path.read_text())
    assert plain_all(response.properties)["machineSecrets"]["cluster"] == recorded["cluster"]
    assert plain_all(response.properties)["talosVersion"] == "v1.3"


async def test_functions_answer_as_recorded(vectors: Path) -> None:
    folder = vectors / "pulumi-plugins"
    made = plain_all(wire_all(_open(json.loads((folder / "talos-secrets.json").read_text())["outputs"])))
    compared = 0
    for call in json.loads((folder / "talos-invokes.json").read_text()):
        # The recording kept the callers' names for some arguments; on the wire all are camelCase.
        if "error" in call:
            continue
        given = {_camel(key): value for key, value in call["args"].items()}
        given |= {key: made[key] for key in ("machineSecrets", "clientConfiguration") if key in given}
        response = await provider.TalosProvider().invoke(api.InvokeRequest(call["function"], wire_all(given)))
        assert not response.failures, call["name"]
        result = plain_all(response.return_value or {})
        for name, value in call["result"].items():
            assert text.parse(result[name]) == text.parse(value) if "\n" in value else result[name] == value
        compared += 1
    assert compared >= 5


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


async def test_snake_case_keys_fail_with_the_official_words(vectors: Path) -> None:
    calls = json.loads((vectors / "pulumi-plugins" / "talos-invokes.json").read_text())
    expected = next(call["error"] for call in calls if "error" in call)
    given = {"clusterName": "lab", "clientConfiguration": {"ca_certificate": "…"}}
    response = await provider.TalosProvider().invoke(api.InvokeRequest(provider.CLIENT_CONFIGURATION, wire_all(given)))
    assert [failure.reason for failure in response.failures] == [expected]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machineType": "init"}, "machine_type"),
        ({"talosVersion": "v1.9"}, "v1.9"),
        ({"configPatches": ["machine: {netwrok: {}}"]}, "unknown keys found during decoding"),
        ({"configPatches": ["a: ["]}, "yaml"),
        ({"clusterName": None}, "cluster_name"),
        ({"machineSecrets": {}}, "machine_secrets"),
    ],
)
async def test_a_bad_argument_is_a_failure_without_secrets(
    bundle: secrets.Bundle, changed: dict[str, Any], said: str
) -> None:
    made = provider._secrets_outputs(bundle, "v1.13")["machineSecrets"]
    given = {
        "clusterName": "lab",
        "clusterEndpoint": "https://10.0.0.10:6443",
        "machineType": "controlplane",
        "machineSecrets": made,
    }
    call = api.InvokeRequest(provider.MACHINE_CONFIGURATION, wire_all(given | changed))
    (failure,) = (await provider.TalosProvider().invoke(call)).failures
    assert said in failure.reason
    assert bundle.cluster_secret not in failure.reason and bundle.os.key not in failure.reason


@pytest.mark.parametrize("secret", [True, False])
async def test_configuration_made_of_secrets_is_secret_as_a_whole(bundle: secrets.Bundle, secret: bool) -> None:
    made = provider._secrets_outputs(bundle, "v1.13")["machineSecrets"]
    given = {
        "clusterName": "lab",
        "clusterEndpoint": "https://10.0.0.10:6443",
        "machineType": "worker",
        "machineSecrets": made if secret else plain_all(wire_all(made)),
    }
    response = await provider.TalosProvider().invoke(api.InvokeRequest(provider.MACHINE_CONFIGURATION, wire_all(given)))
    assert response.return_value is not None
    assert response.return_value["machineConfiguration"].is_secret is secret


async def test_an_unknown_token_is_refused_by_name() -> None:
    response = await provider.TalosProvider().invoke(api.InvokeRequest("talos:machine/getDisks:getDisks", {}))
    assert "talos:machine/getDisks:getDisks" in response.failures[0].reason
    request = api.CheckRequest(_urn("talos:machine/bootstrap:Bootstrap"), {}, {}, b"")
    checked = await provider.TalosProvider().check(request)
    assert checked.failures and "talos:machine/bootstrap:Bootstrap" in checked.failures[0].reason


@pytest.mark.parametrize(("text_", "seconds"), [("720h", 2_592_000), ("1h30m", 5400), ("45s", 45), ("500ms", 0.5)])
def test_go_durations(text_: str, seconds: float) -> None:
    assert arguments.duration_s(text_) == seconds


@pytest.mark.parametrize("text_", ["", "720", "h", "1d", "1h x"])
def test_what_is_no_go_duration_is_refused(text_: str) -> None:
    with pytest.raises(arguments.BadArgument):
        arguments.duration_s(text_)


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
    request = api.CreateRequest(_urn(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
    response = await provider.TalosProvider().create(request)
    assert response.resource_id == "lab"
    outputs = plain_all(response.properties)
    assert outputs["kubeconfigRaw"] == service.kubeconfig
    assert outputs["certificateRenewalDuration"] == "720h"
    assert outputs["kubernetesClientConfiguration"]["host"] == "https://10.0.0.10:6443"
    assert outputs["kubernetesClientConfiguration"]["clientKey"] == "a2V5"
    shape = {key: _shape(value) for key, value in response.properties.items()}
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
    request = api.CreateRequest(_urn(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
    assert (await provider.TalosProvider().create(request)).resource_id == "lab"
    assert len(service.metadata) == 3


async def test_an_invalid_argument_is_final(bundle: secrets.Bundle, served: tuple[Machine, str]) -> None:
    service, endpoint = served
    service.refusals = [GRPCError(Status.INVALID_ARGUMENT, "no such thing")] * 5
    request = api.CreateRequest(_urn(provider.KUBECONFIG), _inputs(bundle, endpoint), 10, False)
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
    old = (await talos.create(api.CreateRequest(_urn(provider.KUBECONFIG), inputs, 10, False))).properties
    assert not (await talos.diff(api.DiffRequest(_urn(provider.KUBECONFIG), "lab", old, inputs, []))).changes
    moved = inputs | wire_all({"node": "10.0.0.12"})
    diff = await talos.diff(api.DiffRequest(_urn(provider.KUBECONFIG), "lab", old, moved, []))
    assert diff.diffs == ["node"] and not diff.replaces
    for preview in (True, False):
        request = api.UpdateRequest(_urn(provider.KUBECONFIG), "lab", old, moved, 10, [], preview)
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
    old = (await talos.create(api.CreateRequest(_urn(provider.KUBECONFIG), inputs, 10, False))).properties
    service.kubeconfig = fresh
    diff = await talos.diff(api.DiffRequest(_urn(provider.KUBECONFIG), "lab", old, inputs, []))
    assert diff.diffs == ["kubeconfigRaw"]
    preview = api.UpdateRequest(_urn(provider.KUBECONFIG), "lab", old, inputs, 10, [], True)
    assert plain_all((await talos.update(preview)).properties)["kubeconfigRaw"] is UNKNOWN
    request = api.UpdateRequest(_urn(provider.KUBECONFIG), "lab", old, inputs, 10, [], False)
    assert plain_all((await talos.update(request)).properties)["kubeconfigRaw"] == fresh


async def test_a_kubeconfig_without_its_client_is_refused_in_check_but_not_an_unknown_one() -> None:
    def check(given: dict[str, Any]) -> api.CheckRequest:
        return api.CheckRequest(_urn(provider.KUBECONFIG), {}, wire_all(given), b"")

    talos = provider.TalosProvider()
    refused = await talos.check(check({"node": "n", "clientConfiguration": {"ca_certificate": "x"}}))
    assert refused.failures and "client_configuration.ca_certificate" in refused.failures[0].reason
    assert not (await talos.check(check({"node": UNKNOWN, "clientConfiguration": UNKNOWN}))).failures
    partly = {"caCertificate": "x", "clientCertificate": UNKNOWN, "clientKey": UNKNOWN}
    assert not (await talos.check(check({"node": "n", "clientConfiguration": partly}))).failures


def test_values_go_to_the_wire_and_back() -> None:
    value = {"a": [1, "x", True, None, {"b": 0.5}], "s": Secret("y")}
    assert plain_all(wire_all(value)) == {"a": [1, "x", True, None, {"b": 0.5}], "s": "y"}
    assert isinstance(wire(value).value, Mapping)
    assert wire_all(value)["s"].is_secret


@pytest.fixture
def process() -> Any:
    """The plugin as the engine starts it, below a parent that can be killed."""
    script = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-m', 'lab.plugins.talos', '127.0.0.1:1']).wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True
    ) as parent:
        yield parent
        try:
            os.killpg(parent.pid, signal.SIGKILL)
        except ProcessLookupError:
            assert parent.poll() is not None


async def test_the_plugin_process_serves_and_ends_with_its_parent(process: Any) -> None:
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), 30)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{int(line)}") as channel:
        stub = provider_pb2_grpc.ResourceProviderStub(channel)
        info = await stub.GetPluginInfo(Empty())
        assert info.version == plugin.VERSION
        request = provider_pb2.CreateRequest(urn=_urn(provider.KUBECONFIG), timeout=0.1)
        request.properties.update({"node": "n", "endpoint": "127.0.0.1:9"})
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Create(request)
        assert "File " not in (failed.value.details() or "")
    process.kill()
    # The plugin holds the pipe's other end: it closes when the plugin has ended.
    assert await asyncio.wait_for(asyncio.to_thread(process.stdout.read), 10) == b""


async def test_previews_with_unknown_inputs_can_be_sent(made: dict[str, PropertyValue]) -> None:
    """The SDK cannot marshal its own Computed values; whatever came in unknown must go out in a form that it can."""
    talos = provider.TalosProvider()
    inputs = {"node": PropertyValue.computed(), "clientConfiguration": PropertyValue.computed()}
    urn = _urn(provider.KUBECONFIG)
    checked = await talos.check(api.CheckRequest(urn, {}, inputs, b""))
    created = await talos.create(api.CreateRequest(urn, inputs, 0, True))
    secrets_created = await talos.create(api.CreateRequest(_urn(provider.SECRETS), {}, 0, True))
    for properties, name in (
        (checked.inputs or {}, "clientConfiguration"),
        (created.properties, "kubeconfigRaw"),
        (created.properties, "endpoint"),
        (secrets_created.properties, "machineSecrets"),
    ):
        sent = PropertyValue.unmarshal_map(PropertyValue.marshal_map(properties))
        assert plain_all(sent)[name] is UNKNOWN
    partly = PropertyValue({"caCertificate": PropertyValue("x"), "clientKey": PropertyValue.computed()})
    news = {"node": PropertyValue("n"), "clientConfiguration": partly}
    old = wire_all({"kubeconfigRaw": Secret("k"), "kubernetesClientConfiguration": {}})
    updated = await talos.update(api.UpdateRequest(urn, "lab", old, news, 0, [], True))
    sent = plain_all(PropertyValue.unmarshal_map(PropertyValue.marshal_map(updated.properties)))
    assert sent["clientConfiguration"] == {"caCertificate": "x", "clientKey": UNKNOWN}
    assert sent["kubeconfigRaw"] == "k"
