"""Inventories that change under a running cluster: the steps, or the message a person must see."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from cozystack_iac.membership.change import Approvals, Plan, SeenCluster, Topology, plan

VOTER = SeenCluster(answers=True, member=True, votes=True, healthy=True, node=True)
WORKER = SeenCluster(answers=True, node=True)
DEAD = SeenCluster(member=True, votes=True, node=True)
LEARNER = SeenCluster(answers=True, member=True)
BROKEN = SeenCluster(answers=True, member=True, votes=True, node=True)
STRANGER = SeenCluster(member=True, votes=True)


def topology(names: str) -> Topology:
    planes = {name: f"10.0.0.1{name[2:]}" for name in names.split() if name.startswith("cp")}
    return Topology(planes, {name: f"10.0.0.2{name[1:]}" for name in names.split() if not name.startswith("cp")})


def planned(
    before: str,
    after: str,
    seen: Mapping[str, SeenCluster] = MappingProxyType({}),
    *,
    reset: str = "",
    lost: str = "",
    evacuate: str = "",
) -> Plan:
    usual = {name: VOTER if name.startswith("cp") else WORKER for name in before.split()}
    approvals = Approvals(frozenset(reset.split()), frozenset(lost.split()), frozenset(evacuate.split()))
    return plan(topology(before), topology(after), {**usual, **seen}, approvals)


def steps(made: Plan) -> list[str]:
    assert made.findings == ()
    return [f"{step.machine} {step.act.value}" for step in made.steps]


def codes(made: Plan) -> list[str]:
    assert made.steps == ()
    return [finding.code for finding in made.findings]


@pytest.mark.parametrize(
    ("change", "seen", "expected"),
    [
        (("cp1", "cp1 cp2 cp3"), {}, ["cp2 joins etcd", "cp3 joins etcd"]),
        (("cp1 w1", "cp1 w1 w2"), {}, []),
        (("cp1 w1", "cp1"), {}, ["w1 is drained", "w1 its Node is deleted"]),
        (("cp1 cp2 cp3", "cp1 cp2"), {}, ["cp3 is drained", "cp3 leaves etcd", "cp3 its Node is deleted"]),
        (
            ("cp1", "cp2"),
            {},
            ["cp2 joins etcd", "cp1 is drained", "cp1 leaves etcd", "cp1 its Node is deleted"],
        ),
        (  # what was done before the run was killed is not done again
            ("cp1 cp2 cp3", "cp1 cp2"),
            {"cp3": SeenCluster(answers=True, node=True, drained=True)},
            ["cp3 its Node is deleted"],
        ),
        (("cp1 cp2 cp3", "cp1 cp2"), {"cp3": SeenCluster(bare=True, node=True)}, ["cp3 its Node is deleted"]),
        (  # wiped by hand while etcd still lists it: nobody is left who could leave
            ("cp1 cp2 cp3", "cp1 cp2"),
            {"cp3": SeenCluster(bare=True, member=True, votes=True, node=True)},
            ["cp3 its etcd member is removed", "cp3 its Node is deleted"],
        ),
        (("cp1 cp2", "cp1 cp2 cp3"), {"cp3": LEARNER}, ["cp3 joins etcd"]),
        (  # whoever stays votes before anybody leaves
            ("cp1 cp2 cp3", "cp1 cp2"),
            {"cp2": LEARNER},
            ["cp2 joins etcd", "cp3 is drained", "cp3 leaves etcd", "cp3 its Node is deleted"],
        ),
    ],
)
def test_the_way_from_one_inventory_to_the_next(
    change: tuple[str, str], seen: dict[str, SeenCluster], expected: list[str]
) -> None:
    assert steps(planned(*change, seen)) == expected


def test_a_reset_comes_after_the_vote_is_gone_and_only_with_approval() -> None:
    way = ["cp3 is drained", "cp3 leaves etcd", "cp3 is reset", "cp3 its Node is deleted"]
    assert steps(planned("cp1 cp2 cp3", "cp1 cp2", reset="cp3")) == way


STORING = SeenCluster(answers=True, node=True, replicas=("pvc-1", "pvc-2"))


def test_a_machine_that_stores_something_is_emptied_after_the_drain_and_before_anything_that_cannot_be_undone() -> None:
    plane = SeenCluster(answers=True, member=True, votes=True, healthy=True, node=True, replicas=("pvc-1",))
    made = planned("cp1 cp2 cp3", "cp1 cp2", seen={"cp3": plane}, reset="cp3", evacuate="cp3")
    order = ["is drained", "has its replicas moved to other nodes", "leaves etcd", "is reset", "its Node is deleted"]
    assert steps(made) == [f"cp3 {act}" for act in order]


@pytest.mark.parametrize(
    ("at", "evacuate", "expected"),
    [
        (STORING, "", ["MEM-008"]),
        (SeenCluster(answers=True, node=True, rooted=("pvc-local",)), "w1", ["MEM-008"]),
        (SeenCluster(answers=True, node=True, replicas=("pvc-1",), rooted=("pvc-local",)), "", ["MEM-008", "MEM-008"]),
        (SeenCluster(answers=True, node=True, unknown="No route to host"), "w1", ["MEM-009"]),
    ],
)
def test_what_a_machine_stores_keeps_it_until_that_is_known_and_may_be_moved(
    at: SeenCluster, evacuate: str, expected: list[str]
) -> None:
    assert codes(planned("cp1 w1", "cp1", seen={"w1": at}, evacuate=evacuate)) == expected


def test_what_a_lost_machine_stored_is_lost_with_it() -> None:
    made = planned("cp1 w1", "cp1", lost="w1", seen={"w1": SeenCluster(node=True, replicas=("pvc-1",), unknown="away")})
    assert steps(made) == ["w1 its Node is deleted"]


def test_a_lost_machine_is_forgotten_before_its_successor_joins() -> None:
    made = planned("cp1 cp2 cp3", "cp1 cp2 cp4", lost="cp3", seen={"cp3": DEAD})
    assert steps(made) == ["cp3 its etcd member is removed", "cp3 its Node is deleted", "cp4 joins etcd"]
    assert [step.machine for step in made.losses] == ["cp3", "cp3"]


def test_a_broken_etcd_on_a_living_machine_is_forgotten_with_approval_and_the_machine_reset() -> None:
    made = planned("cp1 cp2 cp3", "cp1 cp2", lost="cp3", reset="cp3", seen={"cp3": BROKEN})
    assert steps(made) == ["cp3 its etcd member is removed", "cp3 is reset", "cp3 its Node is deleted"]


@pytest.mark.parametrize(
    ("change", "seen", "code", "words"),
    [
        (("cp1 w1", "w1"), {}, "MEM-001", "no control plane node would be left"),
        (
            ("cp1 cp2 cp3", "cp1 cp2"),
            {"cp2": DEAD},
            "MEM-002",
            "only 1 of 2 voting members would be healthy, but 2 are needed",
        ),
        (("cp1 cp2 cp3", "cp1 cp2 cp3 cp4"), {"cp2": DEAD}, "MEM-002", "etcd member cp2 is not healthy"),
        (("cp1 cp2 cp3", "cp1 cp2"), {"other": STRANGER}, "MEM-002", "etcd member other is not healthy"),
        (("cp1 cp2 cp3", "cp1 cp2"), {"cp3": DEAD}, "MEM-003", "cp3 is to be removed but does not respond"),
        (("cp1 cp2 cp3", "cp1 cp2"), {"cp3": BROKEN}, "MEM-003", "its etcd is not healthy"),
        (("cp1 w1", "cp1"), {"w1": SeenCluster(node=True)}, "MEM-003", "w1 is to be removed but does not respond"),
        (("cp1 cp2", "cp1 cp3"), {"cp1": WORKER, "cp2": WORKER}, "MEM-005", "no control plane node returns"),
    ],
)
def test_a_change_that_could_cost_the_cluster_is_refused(
    change: tuple[str, str], seen: dict[str, SeenCluster], code: str, words: str
) -> None:
    made = planned(*change, seen)
    assert set(codes(made)) == {code}
    assert words in made.findings[0].problem


def test_without_a_majority_not_even_a_lost_member_is_forgotten() -> None:
    made = planned("cp1 cp2 cp3", "cp1 cp2", lost="cp3", seen={"cp2": DEAD, "cp3": DEAD})
    assert codes(made) == ["MEM-002"]
    assert "only 1 of 3 etcd voting members are healthy, but 2 are needed" in made.findings[0].problem


def test_a_worker_may_leave_whatever_etcd_says() -> None:
    assert steps(planned("cp1 cp2 cp3 w1", "cp1 cp2 cp3", seen={"cp2": DEAD})) == [
        "w1 is drained",
        "w1 its Node is deleted",
    ]


@pytest.mark.parametrize(("after", "words"), [("cp1 cp2 cp3", "a different role"), ("moved", "the address 10.0.9.9")])
def test_a_machine_that_changes_its_nature_is_refused(after: str, words: str) -> None:
    before: Any = Topology({"cp1": "10.0.0.11", "cp2": "10.0.0.12"}, {"cp3": "10.0.0.13"})
    moved = Topology({"cp1": "10.0.0.11", "cp2": "10.0.9.9"}, {"cp3": "10.0.0.13"})
    made = plan(before, moved if after == "moved" else topology(after), {"cp2": VOTER, "cp3": WORKER}, Approvals())
    assert "MEM-004" in codes(made)
    assert words in made.findings[0].problem


def test_an_address_that_was_wrong_from_the_start_may_be_corrected() -> None:
    before, after = Topology({"cp1": "10.0.0.99"}), topology("cp1")
    assert plan(before, after, {"cp1": SeenCluster()}, Approvals()).findings == ()
