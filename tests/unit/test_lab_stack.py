"""The stack file that fits a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac.findings import Severity
from lab.scenario import Scenario, load
from lab.stack import CHART, stack_file
from tests.sites import judged

ROOT = Path(__file__).parents[2]


def scenario(*machines: dict[str, Any], **more: Any) -> Scenario:
    given = [
        {"name": "cp1", "address": "127.10.0.11", "disks": [{"dev": "sda", "size": "64GiB", "serial": "A"}]} | machine
        for machine in machines or ({},)
    ]
    return Scenario.model_validate({"name": "test", "machines": given, **more})


def test_the_default_scenarios_stack_file_is_the_one_in_the_checkout() -> None:
    written = YAML(typ="safe", pure=True).load((ROOT / "Pulumi.lab.yaml").read_text())["config"]
    written["cozystack:platform"]["chart"] = CHART
    assert stack_file(load(ROOT / "lab" / "scenarios" / "three-nodes.yaml")) == written


def test_a_fitting_stack_file_has_nothing_to_object_to() -> None:
    raw = {
        k.removeprefix("cozystack:"): v for k, v in stack_file(load(ROOT / "lab/scenarios/three-nodes.yaml")).items()
    }
    assert [f for f in judged(raw) if f.severity is not Severity.NOTE] == []


def test_a_scenario_changes_adds_and_takes_away() -> None:
    changes = {
        "talos": {"sysctls": {"vm.swappiness": "1"}},
        "checks": "offline",
        "nodes": {"cp1": {"link": None, "installDisk": {"serial": None, "selector": "disk.rotational"}}},
    }
    made = stack_file(scenario(stack=changes, vip="127.10.0.10"))
    assert made["cozystack:talos"] == {"vip": "127.10.0.10", "sysctls": {"vm.swappiness": "1"}}
    assert made["cozystack:checks"] == "offline"
    [node] = made["cozystack:nodes"]
    assert node["installDisk"] == {"selector": "disk.rotational"}
    assert "link" not in node


def test_a_machine_that_does_not_exist_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="w9"):
        stack_file(scenario(stack={"nodes": {"w9": {}}}))


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"name": "w1"}, {"role": "worker"}),
        ({"lease": "127.10.0.99"}, {"maintenanceAddress": "127.10.0.99", "addresses": ["127.10.0.11/24"]}),
        ({"inside": "127.10.7.11"}, {"internalAddress": "127.10.7.11", "publicAddress": "127.10.0.11"}),
    ],
)
def test_what_a_machine_is_like_decides_its_entry(machine: dict[str, Any], expected: dict[str, Any]) -> None:
    [node] = stack_file(scenario(machine))["cozystack:nodes"]
    assert expected.items() <= node.items()


@pytest.mark.parametrize(("talos", "version"), [("v1.13.6", None), ("v1.12.7", "v1.12.7")])
def test_a_version_is_named_where_the_release_pins_another(talos: str, version: str | None) -> None:
    assert stack_file(scenario({"talos": talos}))["cozystack:talos"].get("version") == version
