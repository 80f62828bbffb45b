"""The language host and its policy gate, running in this process, as the engine speaks to them."""

import json
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, language_pb2, language_pb2_grpc, plugin_pb2

from lab.toolchain.children import Children
from lab.toolchain.language_host import LanguageHost
from lab.toolchain.policy_gate import PolicyGate

# The policy gate -----------------------------------------------------------------------------------------------------


class _Pack(analyzer_pb2_grpc.AnalyzerServicer):
    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version="1.2.3")

    def ConfigureStack(
        self, request: analyzer_pb2.AnalyzerStackConfigureRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzerStackConfigureResponse:
        return analyzer_pb2.AnalyzerStackConfigureResponse()

    def Analyze(
        self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzeResponse:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the pack's own words")
        raise AssertionError("abort raises")


def test_a_policy_pack_starts_once_with_the_stack_in_its_environment_and_is_spoken_to_unchanged() -> None:
    pack = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    analyzer_pb2_grpc.add_AnalyzerServicer_to_server(_Pack(), pack)
    port = pack.add_insecure_port("127.0.0.1:0")
    pack.start()
    starts: list[dict[str, str]] = []

    def start(environment: Any) -> int:
        starts.append(dict(environment))
        return int(port)

    gate = PolicyGate(start)
    channel = grpc.insecure_channel(f"127.0.0.1:{gate.port}")
    stub = analyzer_pb2_grpc.AnalyzerStub(channel)
    stub.Handshake(analyzer_pb2.AnalyzerHandshakeRequest(engine_address="127.0.0.1:1"))
    assert starts == []
    stub.ConfigureStack(
        analyzer_pb2.AnalyzerStackConfigureRequest(project="p", stack="s", dry_run=True, config={"p:key": "value"})
    )
    assert stub.GetPluginInfo(empty_pb2.Empty()).version == "1.2.3"
    with pytest.raises(grpc.RpcError) as raised:
        stub.Analyze(analyzer_pb2.AnalyzeRequest())
    channel.close()
    gate.close()
    pack.stop(0)

    assert raised.value.details() == "the pack's own words"
    assert len(starts) == 1
    assert starts[0]["PULUMI_STACK"] == "s"
    assert starts[0]["PULUMI_DRY_RUN"] == "true"
    assert json.loads(starts[0]["PULUMI_CONFIG"]) == {"p:key": "value"}


def test_a_policy_pack_that_does_not_start_is_an_error_in_its_own_words() -> None:
    def start(environment: Any) -> int:
        raise RuntimeError("the policy pack did not start; it said:\nNo module named 'pulumi_policy'")

    gate = PolicyGate(start)
    channel = grpc.insecure_channel(f"127.0.0.1:{gate.port}")
    stub = analyzer_pb2_grpc.AnalyzerStub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        stub.GetPluginInfo(empty_pb2.Empty())
    channel.close()
    gate.close()
    assert "No module named 'pulumi_policy'" in raised.value.details()


# The language host ---------------------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[language_pb2_grpc.LanguageRuntimeStub]:
    """A running host in this process, as the engine sees it."""
    running = Children()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost("127.0.0.1:1", running), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield language_pb2_grpc.LanguageRuntimeStub(channel)
    running.stop_all()
    server.stop(0)


def program(directory: Path, **options: str) -> language_pb2.ProgramInfo:
    info = language_pb2.ProgramInfo(root_directory=str(directory), program_directory=str(directory), entry_point=".")
    info.options.update(options)
    return info


def test_a_plugin_directory_is_run_and_its_output_and_exit_code_come_back(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text(
        "import os, sys; print('port', sys.argv[1:], os.environ['OF_ENGINE']); print('oops', file=sys.stderr); sys.exit(3)"
    )
    request = language_pb2.RunPluginRequest(
        pwd=str(tmp_path), info=program(tmp_path), kind="resource", args=["127.0.0.1:9"], env=["OF_ENGINE=a=b"]
    )
    answers = list(host.RunPlugin(request))
    assert b"".join(answer.stdout for answer in answers) == b"port ['127.0.0.1:9'] a=b\n"
    assert b"".join(answer.stderr for answer in answers) == b"oops\n"
    assert answers[-1].exitcode == 3


def test_a_directory_that_is_no_plugin_is_an_error_that_says_so(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunPluginRequest(pwd=str(tmp_path), info=program(tmp_path), kind="resource")
    with pytest.raises(grpc.RpcError) as raised:
        list(host.RunPlugin(request))
    assert "is no Python plugin" in raised.value.details()


def test_a_configuration_that_linux_cannot_pass_on_is_an_error_that_says_what_to_do(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunRequest(
        project="p", stack="s", pwd=str(tmp_path), info=program(tmp_path), config={"p:inventory": "x" * 200_000}
    )
    answer = host.Run(request)
    assert "at most 128 KiB" in answer.error
    assert "a file of their own" in answer.error


def test_a_program_without_its_virtual_environment_does_not_start(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunRequest(project="p", stack="s", pwd=str(tmp_path), info=program(tmp_path, virtualenv="x"))
    assert "has no bin/python" in host.Run(request).error


def test_the_host_tells_about_the_projects_python(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULUMI_PYTHON_CMD", raising=False)
    info = program(tmp_path)
    about = host.About(language_pb2.AboutRequest(info=info))
    top = host.GetProgramDependencies(language_pb2.GetProgramDependenciesRequest(info=info))
    everything = host.GetProgramDependencies(
        language_pb2.GetProgramDependenciesRequest(info=info, transitiveDependencies=True)
    )
    assert about.executable == sys.executable
    assert {"pulumi", "grpcio"} <= {found.name for found in everything.dependencies}
    assert "grpcio" not in {found.name for found in top.dependencies}
