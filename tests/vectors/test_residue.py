"""Every volume that the real library recorded has a class, and disks are judged by what is on them and inside."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac.residue import volume_kind
from cozystack_iac.residue.traces import TRACES
from cozystack_iac.talos import machine
from cozystack_iac.talos.judgement_disks import residue_of
from cozystack_iac.talos.machine import ReportedDisk, Volume
from cozystack_iac.talos.probe import Facts


@pytest.fixture(scope="module")
def volumes(vectors: Path) -> tuple[Volume, ...]:
    entries: list[dict[str, Any]] = json.loads((vectors / "talos" / "wire.json").read_text())
    listed = [e["json"]["resource"] for e in entries if e["name"].startswith("cosi-list-discoveredvolumes-response")]
    yaml = YAML(typ="safe", pure=True)
    return tuple(machine.VOLUMES.parse(r["metadata"]["id"], yaml.load(r["spec"]["yamlSpec"])) for r in listed)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nvme0n1", {"lvm"}),
        ("sda", {"talos", "filesystem"}),
        ("sdb", {"gpt", "zfs"}),
        ("vdc", set()),
    ],
)
def test_a_recorded_disk_carries(volumes: tuple[Volume, ...], name: str, kinds: set[str]) -> None:
    facts = Facts("v1.13.9", None, (), volumes, (), ())
    assert residue_of(ReportedDisk(name, f"/dev/{name}"), facts).keys() == kinds


def test_every_recorded_volume_is_of_a_known_class(volumes: tuple[Volume, ...]) -> None:
    assert len(volumes) == 9
    for volume in volumes:
        inside = volume.kind == "partition"
        kind = volume_kind(volume.content, partition=inside, partition_label=volume.partition_label)
        assert kind in TRACES if volume.content else kind == ("partition" if inside else "")
        assert kind != "unknown"
