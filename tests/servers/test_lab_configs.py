"""Configs as machines read them, held against what the real decoder and validator of each minor said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.machines.changes import reboot_reason
from lab.machines.config import AppliedConfig, Undecodable, decode
from lab.machines.selector import NoSuchDisk, pick
from lab.machines.validation import check_runtime, validate
from lab.scenario import DiskSpec
from tests.machine_configs import Secrets
from tests.recorded import TALOS_MINORS

# The disks the recorded runtime checks were made against.
DISKS = [
    DiskSpec(dev="sda", size=53687091200, model="QEMU HARDDISK", serial="QM00005", rotational=True),
    DiskSpec(dev="nvme0n1", size=1920383410176, model="SAMSUNG MZQL21T9HCJR-00A07", transport="nvme"),
    DiskSpec(dev="vdb", size=214748364800, transport="virtio", rotational=True),
]
# Recorded texts we do not reproduce; the stage at which the config is refused is the same.
OTHER_WORDS = {
    "not-yaml": "the message of the Go YAML parser",
    "runtime-selector-no-match": "the recording keeps only the first line of a wrapped expression",
}


@dataclass(frozen=True)
class Outcome:
    stage: str
    errors: list[str]
    warnings: list[str]
    text: str | None = None  # as printed, where validation refuses


def outcome(case: dict[str, Any]) -> Outcome:
    installed = case["mode"] == "metal-installed"
    try:
        config = decode(case["yaml"], int(case["contract"].split(".")[1]))
    except Undecodable as error:
        return Outcome("decode", [str(error)], [])
    judged = validate(config, installed=installed)
    if not judged.ok:
        return Outcome("validate", [*judged.main, *judged.other], list(judged.warnings), judged.text)
    if case.get("runtime_disks") is not None:
        disks = DISKS if case["runtime_disks"] else []
        runtime = check_runtime(config, installed=installed, talos=case["machinery"], disks=disks)
        if not runtime.ok:
            return Outcome("runtime", list(runtime.main), list(judged.warnings))
    return Outcome("ok", [], list(judged.warnings))


def test_every_recorded_config_is_judged_as_the_real_validator_judged_it(vectors: Path) -> None:
    cases = json.loads((vectors / "talos" / "validate.json").read_text())

    seen = {case["name"]: (outcome(case), case) for case in cases}

    stages = {name: (mine.stage, case["stage"]) for name, (mine, case) in seen.items() if mine.stage != case["stage"]}
    texts = {
        name: (mine.errors, case["errors"])
        for name, (mine, case) in seen.items()
        if mine.errors != case["errors"] and name not in OTHER_WORDS
    }
    warnings = {name for name, (mine, case) in seen.items() if mine.stage == "ok" and mine.warnings != case["warnings"]}
    printed = {name: mine.text for name, (mine, case) in seen.items() if mine.text and case.get("error_text")}
    assert (stages, texts, warnings) == ({}, {}, set())
    assert printed == {name: seen[name][1]["error_text"] for name in printed}


@pytest.mark.parametrize("contract", [f"v1.{minor}" for minor in TALOS_MINORS])
@pytest.mark.parametrize("role", ["controlplane", "worker"])
def test_the_same_facts_are_found_in_every_shape_of_a_config(vectors: Path, contract: str, role: str) -> None:
    text = (vectors / "talos" / "configs" / contract / f"{role}.yaml").read_text()

    config = decode(text, int(contract.split(".")[1]))

    assert (config.role, config.cluster_name, config.endpoint) == (role, "lab", "https://10.0.0.10:6443")
    assert config.os_ca.crt.startswith("-----BEGIN CERTIFICATE-----")
    assert config.kubernetes_ca.crt.startswith("-----BEGIN CERTIFICATE-----")
    assert bool(config.kubernetes_ca.key) is (role == "controlplane")
    assert pick(config, DISKS).dev == "sda"
    assert list(config.network["podSubnets"]) == ["10.244.0.0/16"]
    assert ("node-role.kubernetes.io/control-plane" in config.node_taints) is (role == "controlplane")


@pytest.mark.parametrize(("contract", "name"), [("v1.11", "node1"), ("v1.13", "node1")])
def test_the_vip_is_found_in_old_and_new_network_configs(vectors: Path, contract: str, name: str) -> None:
    text = (vectors / "talos" / "preset-golden" / contract / f"{name}.yaml").read_text()

    config = decode(text, int(contract.split(".")[1]))

    assert (config.hostname, config.vips, config.vip_links) == ("node1", ("10.0.0.10",), {"10.0.0.10": "ens5"})
    assert "/etc/lvm/lvm.conf" in config.files
    assert config.bad_file is None
    assert {"drbd", "zfs", "openvswitch"} <= set(config.modules)


def config(**changes: Any) -> AppliedConfig:
    return decode(_SECRETS.config(**changes), 13)


_SECRETS = Secrets()


@pytest.mark.parametrize(
    ("changes", "reboots"),
    [
        ({}, False),
        ({"nodeLabels": {"a": "b"}}, False),
        ({"sysctls": {"vm.nr_hugepages": "10"}}, False),
        ({"env": {"http_proxy": "http://127.0.0.1"}}, True),
        ({"files": [{"path": "/var/x", "op": "create", "content": "x"}]}, True),
        ({"features": {"kubePrism": {"enabled": True, "port": 7445}}}, True),
    ],
)
def test_only_what_is_read_at_boot_needs_a_reboot(changes: dict[str, Any], reboots: bool) -> None:
    assert (reboot_reason(config(), config(**changes)) is not None) is reboots


@pytest.mark.parametrize(
    ("install", "dev"),
    [
        ({"disk": "/dev/sda"}, "sda"),
        ({"disk": "/dev/disk/by-id/ata-QEMU_HARDDISK_QM00005"}, "sda"),
        ({"diskSelector": {"type": "nvme", "size": "> 1TB"}}, "nvme0n1"),
        ({"diskSelector": {"serial": "QM*"}}, "sda"),
    ],
)
def test_the_install_disk_is_found(install: dict[str, Any], dev: str) -> None:
    assert pick(config(install=install), DISKS).dev == dev


def test_a_disk_that_is_not_there_is_not_replaced_by_another() -> None:
    with pytest.raises(NoSuchDisk):
        pick(config(install={"disk": "/dev/vda"}), DISKS)
