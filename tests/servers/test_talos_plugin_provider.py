"""The talos stand-in as a provider: tokens, shapes and secretness of the official plugin, and its process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped] # ships no types
import pytest
from google.protobuf.empty_pb2 import Empty
from pulumi.provider.experimental import provider as api
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from cozystack_iac import yaml_text as text
from lab.plugins.talos import __main__ as plugin
from lab.plugins.talos import arguments, provider, secrets
from lab.plugins.values import UNKNOWN, Secret, plain_all, wire, wire_all
from tests.talos_plugin import shape_of, urn_of


def _open(value: Any) -> Any:
    """Recorded values with their secret marks as the plugin's own form."""
    if isinstance(value, Mapping):
        return Secret(_open(value["$secret"])) if "$secret" in value else {k: _open(v) for k, v in value.items()}
    return [_open(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def made(bundle: secrets.Bundle) -> dict[str, PropertyValue]:
    """The outputs of a Secrets resource."""
    return wire_all(provider._secrets_outputs(bundle, "v1.13.6"))


def test_the_version_is_the_installed_sdks() -> None:
    assert version("pulumiverse-talos") == plugin.VERSION


async def test_secrets_have_the_official_names_and_secret_marks(vectors: Path) -> None:
    recorded = json.loads((vectors / "pulumi-plugins" / "talos-secrets.json").read_text())
    expected = wire_all(_open(recorded["outputs"]))
    request = api.CreateRequest(urn_of(provider.SECRETS), wire_all({"talosVersion": "v1.13.6"}), 0, False)
    response = await provider.TalosProvider().create(request)
    assert response.resource_id == provider.SECRETS_ID == recorded["id"]
    assert {k: shape_of(v) for k, v in response.properties.items()} == {
        k: shape_of(v) for k, v in expected.items() if k != "id"
    }


async def test_secrets_are_unknown_in_a_preview() -> None:
    request = api.CreateRequest(urn_of(provider.SECRETS), {}, 0, True)
    properties = plain_all((await provider.TalosProvider().create(request)).properties)
    assert properties["machineSecrets"] is UNKNOWN and properties["clientConfiguration"] is UNKNOWN


async def test_another_contract_keeps_every_secret(made: dict[str, PropertyValue]) -> None:
    old = made
    news = wire_all({"talosVersion": "v1.14.0"})
    diff = await provider.TalosProvider().diff(api.DiffRequest(urn_of(provider.SECRETS), "x", old, news, []))
    assert diff.changes and not diff.replaces and diff.diffs == ["talosVersion"]
    updated = await provider.TalosProvider().update(
        api.UpdateRequest(urn_of(provider.SECRETS), "x", old, news, 0, [], False)
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
    diff = await provider.TalosProvider().diff(api.DiffRequest(urn_of(provider.SECRETS), "x", old, same, []))
    assert diff.diffs == ["clientConfiguration"]
    request = api.UpdateRequest(urn_of(provider.SECRETS), "x", old, same, 0, [], False)
    renewed = plain_all((await provider.TalosProvider().update(request)).properties)["clientConfiguration"]
    assert renewed["clientCertificate"] != expiring.cert
    assert renewed["caCertificate"] == plain_all(old)["machineSecrets"]["certs"]["os"]["cert"]


async def test_unchanged_secrets_have_no_diff(made: dict[str, PropertyValue]) -> None:
    for news in ({"talosVersion": "v1.13.6"}, {}):
        request = api.DiffRequest(urn_of(provider.SECRETS), "x", made, wire_all(news), [])
        assert not (await provider.TalosProvider().diff(request)).changes


async def test_importing_secrets_reads_a_secrets_file(vectors: Path) -> None:
    path = vectors / "talos" / "configs" / "secrets.yaml"
    response = await provider.TalosProvider().read(api.ReadRequest(urn_of(provider.SECRETS), str(path), {}, {}))
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
    request = api.CheckRequest(urn_of("talos:machine/bootstrap:Bootstrap"), {}, {}, b"")
    checked = await provider.TalosProvider().check(request)
    assert checked.failures and "talos:machine/bootstrap:Bootstrap" in checked.failures[0].reason


@pytest.mark.parametrize(("text_", "seconds"), [("720h", 2_592_000), ("1h30m", 5400), ("45s", 45), ("500ms", 0.5)])
def test_go_durations(text_: str, seconds: float) -> None:
    assert arguments.duration_s(text_) == seconds


@pytest.mark.parametrize("text_", ["", "720", "h", "1d", "1h x"])
def test_what_is_no_go_duration_is_refused(text_: str) -> None:
    with pytest.raises(arguments.BadArgument):
        arguments.duration_s(text_)


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
        request = provider_pb2.CreateRequest(urn=urn_of(provider.KUBECONFIG), timeout=0.1)
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
    urn = urn_of(provider.KUBECONFIG)
    checked = await talos.check(api.CheckRequest(urn, {}, inputs, b""))
    created = await talos.create(api.CreateRequest(urn, inputs, 0, True))
    secrets_created = await talos.create(api.CreateRequest(urn_of(provider.SECRETS), {}, 0, True))
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
