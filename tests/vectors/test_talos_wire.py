"""Our own protos against messages recorded from the real library: same bytes, same meaning, nothing unknown left over."""

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool, empty_pb2, json_format, message_factory
from google.protobuf.message import Message
from ruamel.yaml import YAML

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
from cozystack_iac.talos.specs import load_spec

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


def test_specs_read_line_by_line_are_what_a_yaml_parser_reads(recorded: list[dict[str, Any]]) -> None:
    specs = [
        e["json"]["resource"]["spec"]["yamlSpec"]
        for e in recorded
        if e["message"] in ("cosi.resource.GetResponse", "cosi.resource.ListResponse") and e["json"]
    ]

    assert len(specs) > 40
    assert [load_spec(text) for text in specs] == [YAML(typ="safe", pure=True).load(text) for text in specs]


@pytest.mark.parametrize(
    "text",
    [
        "a: 0o644\n",
        "a: 0x1F\n",
        "a: 1e5\n",
        "a: 1.5\n",
        "a: 2026-11-30\n",
        "a: off\n",
        "a: null\n",
        "a: ~\n",
        "a: 'x: y'\n",
        'a: "x \\n y"\n',
        "a: x # note\n",
        "a: 00:11\n",
        "a: 007\n",
        "a: 1_000\n",
        "a: -5\n",
        "a:\n    - x\n    - 5\n    - true\nb: y\n",
        "a:\n    b: 1\n",
        "a:\n    b: 1\n    c: []\nd: x\n",
        "a:\n    b: 1\n    b: 2\n",
        "a:\n    b: 1\n    - x\n",
        "a:\n    - x\n    b: 1\n",
        "a:\n    b:\n        c: 1\n",
        "a:\n    - b: 1\n",
        "a:\n    - - x\n",
        "a:\n    b: 1\n      more\n",
        "a: 1\n    b: 2\n",
        "a:\n",
        "a: |\n    text\n    more\nb: 1\n",
        "a: x\n  continued\n",
        "a: [1, 2]\n",
        "a: .inf\n",
        "true: 1\n",
        "a: *x1\n",
        "a: 52:54:00:12:34:56\n",
        "a: fe80::1/64\n",
        "plain\n",
        "a: wwid t10.ATA     QEMU HARDDISK\n",
        "a: x:\n",
    ],
)
def test_a_spec_beyond_the_flat_subset_still_means_what_yaml_says(text: str) -> None:
    def outcome(read: Any) -> object:
        try:
            return read(text)
        except Exception:  # noqa: BLE001 - whether both refuse is the question
            return "refused"

    assert outcome(load_spec) == outcome(YAML(typ="safe", pure=True).load)


def test_the_generated_modules_are_those_of_the_protos(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    generate.generate(tmp_path)
    fresh = tmp_path / "cozystack_iac" / "talos" / "api"
    names = sorted(path.name for path in fresh.iterdir())

    _, different, missing = filecmp.cmpfiles(fresh, generate.HERE, names, shallow=False)

    assert (different, missing) == ([], [])


def parsed(entry: dict[str, Any]) -> Message:
    return message_class(entry["message"]).FromString(bytes.fromhex(entry["hex"]))
