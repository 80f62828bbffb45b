"""Our own protos against messages recorded from the real library: same bytes, same meaning, nothing unknown left over."""

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, empty_pb2, json_format, message_factory
from google.protobuf.message import Message
from ruamel.yaml import YAML

from cozystack_iac import go_yaml
from cozystack_iac.talos.api import (
    cluster_pb2,
    common_pb2,
    generate,
    lifecycle_pb2,
    machine_pb2,
    state_pb2,
    storage_pb2,
    time_pb2,
)

# Importing a module is what puts its messages into the pool.
MODULES = (cluster_pb2, common_pb2, empty_pb2, lifecycle_pb2, machine_pb2, state_pb2, storage_pb2, time_pb2)
# A proxy that merges replies appends `metadata` last; a library writes fields by number.
MERGED_BY_A_PROXY = {
    "apply-response-three-nodes",
    "kubeconfig-data-nodes-metadata",
    "version-response-three-nodes",
    "service-list-response-three-nodes",
    "etcd-status-response-three-nodes",
}


@pytest.fixture(scope="module")
def recorded(vectors: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((vectors / "talos" / "wire.json").read_text())
    return entries


def message_class(name: str) -> type[Message]:
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


def unknown_in(message: Message) -> bool:
    from google.protobuf.unknown_fields import UnknownFieldSet

    return len(UnknownFieldSet(message)) > 0


def test_every_recorded_message_reads_as_its_json(recorded: list[dict[str, Any]]) -> None:
    read = {e["name"]: json_format.MessageToDict(parsed(e)) for e in recorded}

    assert read == {e["name"]: e["json"] for e in recorded}


def test_no_recorded_message_has_a_field_we_do_not_declare(recorded: list[dict[str, Any]]) -> None:
    assert [e["name"] for e in recorded if unknown_in(parsed(e))] == []


def test_every_message_is_written_as_the_real_library_writes_it(recorded: list[dict[str, Any]]) -> None:
    written = {
        e["name"]: json_format.ParseDict(e["json"], message_class(e["message"])()).SerializeToString(deterministic=True)
        for e in recorded
    }
    differing = {e["name"] for e in recorded if written[e["name"]].hex() != e["hex"]}

    assert differing == MERGED_BY_A_PROXY


def test_every_method_has_the_recorded_path_and_types(vectors: Path) -> None:
    methods = {m["path"]: m for m in json.loads((vectors / "talos" / "methods.json").read_text())}
    ours = [
        (f"/{service.full_name}/{method.name}", method.input_type.full_name, method.output_type.full_name)
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]

    assert len(ours) > 30
    assert [o for o in ours if (methods[o[0]]["request"], methods[o[0]]["response"]) != o[1:]] == []


def test_recorded_specs_are_read_as_another_yaml_parser_reads_them(recorded: list[dict[str, Any]]) -> None:
    specs = [
        e["json"]["resource"]["spec"]["yamlSpec"]
        for e in recorded
        if e["message"] in ("cosi.resource.GetResponse", "cosi.resource.ListResponse") and e["json"]
    ]

    assert len(specs) > 40
    assert [go_yaml.load(text) for text in specs] == [YAML(typ="safe", pure=True).load(text) for text in specs]


def test_the_generated_modules_are_those_of_the_protos(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    generate.generate(tmp_path)
    fresh = tmp_path / "cozystack_iac" / "talos" / "api"
    names = sorted(path.name for path in fresh.iterdir())

    _, different, missing = filecmp.cmpfiles(fresh, generate.HERE, names, shallow=False)

    assert (different, missing) == ([], [])


def parsed(entry: dict[str, Any]) -> Message:
    return message_class(entry["message"]).FromString(bytes.fromhex(entry["hex"]))
