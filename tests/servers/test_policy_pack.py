"""The pack as the engine starts it: one executable file that prints a port and answers over gRPC."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import psutil
import pytest
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

ROOT = Path(__file__).parents[2]
ENGINE = """
import socket, subprocess, sys, time
listening = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{listening.getsockname()[1]}"
process = subprocess.Popen([sys.argv[1], address], stdout=subprocess.PIPE, text=True)
print(process.pid, process.stdout.readline().strip(), flush=True)
time.sleep(600)
"""
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}


@pytest.fixture(scope="module")
def analyzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    elsewhere = tmp_path_factory.mktemp("project")  # the engine's working directory is not the checkout
    engine = socket.create_server(("127.0.0.1", 0))
    process = subprocess.Popen(
        [ROOT / "policy" / "pack", f"127.0.0.1:{engine.getsockname()[1]}"],
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    assert port.isdigit(), f"the first line of a pack is its port, not {port!r}"
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield analyzer_pb2_grpc.AnalyzerStub(channel)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        engine.close()


def request(token: str, props: dict[str, Any], urn: str = "urn:x", **options: Any) -> Any:
    asked = analyzer_pb2.AnalyzeRequest(type=token, urn=urn, name="x")
    json_format.ParseDict(props, asked.properties)
    json_format.ParseDict(options, asked.options)
    return asked


def levels(response: Any) -> dict[str, str]:
    names = analyzer_pb2.EnforcementLevel.Name
    return {d.policyName: names(d.enforcementLevel) for d in response.diagnostics}


def test_the_pack_names_its_policies(analyzer: Any) -> None:
    info = analyzer.GetAnalyzerInfo(empty_pb2.Empty())

    assert info.name == "cozystack-guardrails"
    assert {"no-privileged-workload", "root-tenant-host-and-ingress", "secret-inputs"} <= {
        p.name for p in info.policies
    }


def test_a_known_violation_is_mandatory_and_an_unknown_one_advisory(analyzer: Any) -> None:
    unknown = "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7"  # how the engine writes an unknown boolean
    pod = {"metadata": {"namespace": "apps", "name": "p"}, "spec": {"hostPID": True, "hostNetwork": unknown}}
    response = analyzer.Analyze(request("kubernetes:core/v1:Pod", pod))

    assert levels(response) == {
        "no-privileged-workload": "MANDATORY",
        "no-privileged-workload-unverified": "ADVISORY",
    }


def test_a_plain_kubeconfig_is_a_mandatory_violation_and_nothing_is_rewritten(analyzer: Any) -> None:
    asked = request("pulumi:providers:kubernetes", {"kubeconfig": "apiVersion: v1"}, urn="urn:plain")

    assert list(analyzer.Remediate(asked).remediations) == []
    assert levels(analyzer.Analyze(asked)) == {"secret-inputs": "MANDATORY"}


def test_a_secret_kubeconfig_passes(analyzer: Any) -> None:
    sealed = {"kubeconfig": {**SECRET, "value": "apiVersion: v1"}}
    asked = request("pulumi:providers:kubernetes", sealed, urn="urn:sealed")

    assert list(analyzer.Remediate(asked).remediations) == []
    assert levels(analyzer.Analyze(asked)) == {}


def test_unprotected_machine_secrets_are_refused(analyzer: Any) -> None:
    token = "talos:machine/secrets:Secrets"

    assert levels(analyzer.Analyze(request(token, {}, protect=False))) == {"machine-secrets-protected": "MANDATORY"}
    assert levels(analyzer.Analyze(request(token, {}, protect=True))) == {}


KEY = "-----BEGIN ED25519 PRIVATE KEY-----"  # the marker is all a guardrail looks for


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        pytest.param({"clientKey": {**SECRET, "value": KEY}}, {}, id="a secret inside a mapping"),
        pytest.param({"list": [{"clientKey": {**SECRET, "value": KEY}}]}, {}, id="a secret inside a list"),
        pytest.param({"clientKey": KEY}, {"secret-inputs": "MANDATORY"}, id="plain inside a mapping"),
        pytest.param({"list": [{"clientKey": KEY}]}, {"secret-inputs": "MANDATORY"}, id="plain inside a list"),
    ],
)
def test_nested_secrets_are_seen_as_what_they_are(
    analyzer: Any, client: dict[str, Any], expected: dict[str, str], request: pytest.FixtureRequest
) -> None:
    asked = _kubeconfig(client, urn=f"urn:{request.node.name}")
    analyzer.Remediate(asked)
    assert levels(analyzer.Analyze(asked)) == expected


def _kubeconfig(client: dict[str, Any], urn: str) -> Any:
    options = {"additionalSecretOutputs": ["kubeconfigRaw"]}
    return request("talos:cluster/kubeconfig:Kubeconfig", {"clientConfiguration": client}, urn=urn, **options)


def test_the_pack_ends_with_an_engine_that_was_killed(tmp_path: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, ROOT / "policy" / "pack"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    with engine:
        assert engine.stdout is not None
        pid, port = map(int, engine.stdout.readline().split())
        pack = psutil.Process(pid)
        try:
            assert port > 0
            assert pack.is_running()
            engine.kill()
            pack.wait(timeout=20)
        finally:
            engine.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                pack.kill()


def test_a_pack_that_starts_after_its_engine_has_died_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    process = subprocess.Popen([ROOT / "policy" / "pack", address], cwd=tmp_path, stdout=subprocess.PIPE)
    with process:
        try:
            assert process.wait(timeout=20) == 1
        finally:
            process.kill()
