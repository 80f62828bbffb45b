"""Scenario files: what they refuse, and what relocation moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lab.scenario import Scenario, ScenarioError, load

SCENARIOS = Path(__file__).parents[2] / "lab" / "scenarios"
MACHINE: dict[str, Any] = {"name": "cp1", "address": "127.10.0.11", "disks": [{"dev": "sda", "size": "64GiB"}]}


def scenario(**changes: Any) -> Scenario:
    return Scenario.model_validate({"name": "test", "machines": [MACHINE], **changes})


@pytest.mark.parametrize("path", sorted(SCENARIOS.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_scenario_of_the_project_loads_under_its_own_name(path: Path) -> None:
    assert load(path).name == path.stem


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scael": 60}, "Extra inputs"),
        ({"scale": 0}, "greater than 0"),
        ({"machines": []}, "at least 1"),
        ({"machines": [MACHINE, MACHINE]}, "machine given more than once: cp1"),
        ({"machines": [MACHINE | {"address": "10.0.0.1"}]}, "must be a loopback address"),
        ({"machines": [MACHINE | {"address": "127.0.0.1"}]}, "must be a loopback address"),
        ({"machines": [MACHINE | {"talos": "v1.9.0"}]}, "pattern"),
        ({"machines": [MACHINE | {"disks": MACHINE["disks"] * 2}]}, "disk given more than once: sda"),
        ({"vip": "127.10.0.11"}, "also the address of a machine"),
        ({"vip": "127.11.0.10"}, "one /16"),
        ({"faults": [{"at": "machine cp1 running"}]}, "a fault is either"),
        ({"faults": [{"on": "machine cp1", "do": {"api_server": "away"}}]}, "a fault is either"),
        ({"faults": [{"at": "x y", "do": {}}]}, "name what happens"),
        ({"faults": [{"at": "x y", "do": {"machine": {"name": "cp1"}, "for": "1s"}}]}, "only `power: off` can last"),
        ({"faults": [{"on": "machine cp1", "answer": {"Reboot": {"code": "NOPE"}}}]}, "Input should be"),
        ({"delays": {"install": "soon"}}, "is not a duration"),
        ({"delays": {"instal": "1m"}}, "Extra inputs"),
    ],
)
def test_a_scenario_that_cannot_be_meant_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        scenario(**changes)


def test_sizes_and_durations_are_read_as_people_write_them() -> None:
    read = scenario(
        delays={"install": "1m30s", "boot": 5, "apply": "250ms"},
        faults=[{"at": "cluster bootstrapped", "do": {"api_server": "away", "for": "40s"}}],
    )

    effect = read.faults[0].do
    assert read.machines[0].disks[0].size == 64 * 2**30
    assert (read.delays.install, read.delays.boot, read.delays.apply) == (90.0, 5.0, 0.25)
    assert effect is not None
    assert effect.for_s == 40.0


def test_a_relocated_scenario_differs_in_nothing_but_its_loopback_addresses() -> None:
    faults = [{"at": "release a/b installing", "do": {"release": {"name": "a/b", "fails": 2}, "for": "1s"}}]
    original = scenario(vip="127.10.0.10", faults=faults)

    moved = original.relocated("127.20")

    assert str(moved.machines[0].address) == "127.20.0.11"
    assert str(moved.vip) == "127.20.0.10"
    assert str(moved.platform.ingress) == "127.20.1.1"
    assert moved.relocated("127.10") == original


@pytest.mark.parametrize("prefix", ["127.0", "10.1", "127.20.0", "127.x"])
def test_a_scenario_moves_only_inside_loopback(prefix: str) -> None:
    with pytest.raises(ValueError, match="is not a loopback /16"):
        scenario().relocated(prefix)


def test_a_fleet_has_as_many_machines_as_asked_for() -> None:
    fleet = Scenario.fleet(1000)

    assert len({machine.address for machine in fleet.machines}) == 1000


def test_a_broken_file_is_reported_with_every_problem_and_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: Bad Name\nscale: fast\nmachines: [{name: a, address: 127.1.0.1, disks: []}]\n")

    with pytest.raises(ScenarioError) as caught:
        load(path)

    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "name",
        "scale",
        "machines.0.disks",
    ]


def test_a_scenario_is_like_another_but_for_what_it_says_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: one-node\ntalos: v1.12.7\nplatform: {oidc: true}\n")
    made, model = load(path), load(SCENARIOS / "one-node.yaml")
    assert [machine.talos for machine in made.machines] == ["v1.12.7"]
    assert made.machines[0].disks == model.machines[0].disks
    assert made.platform == model.platform.model_copy(update={"oidc": True})
    assert "expect" not in made.model_fields_set


@pytest.mark.parametrize(
    ("effect", "kinds"),
    [
        ({"api_server": "away", "for": "40s"}, ("api_server",)),
        (
            {"api_server": {"call": "PATCH tenants", "status": 500, "reason": "InternalError", "message": "no"}},
            ("api_server",),
        ),
        (
            {"create": [{"kind": "Pod"}], "delete": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            ("create", "delete"),
        ),
    ],
)
def test_an_effect_says_who_has_to_carry_it_out(effect: dict[str, Any], kinds: tuple[str, ...]) -> None:
    made = scenario(faults=[{"at": "cluster began", "do": effect}])
    assert made.faults[0].do is not None
    assert made.faults[0].do.kinds == kinds


@pytest.mark.parametrize(
    "effect", [{}, {"create": []}, {"api_server": {"call": "EAT tenants"}}, {"delete": [{"kind": "Pod"}]}]
)
def test_an_effect_that_does_nothing_or_makes_no_sense_is_refused(effect: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        scenario(faults=[{"at": "cluster began", "do": effect}])
