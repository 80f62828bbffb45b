"""Whatever happens to a cluster and whatever its inventory becomes: the planned steps never endanger etcd's quorum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cozystack_iac.membership.change import Act, Approvals, Plan, SeenCluster, Step, Topology, plan, quorum
from tests.matrix import examples

NAMES = [f"m{number}" for number in range(9)]
HEALTHY = SeenCluster(answers=True, member=True, votes=True, healthy=True, node=True)
WORKING = SeenCluster(answers=True, node=True)
NEW = SeenCluster(answers=True)
BARE = SeenCluster(bare=True)


def inventory(planes: list[str], workers: list[str]) -> Topology:
    return Topology({name: name for name in planes}, {name: name for name in workers if name not in planes})


@dataclass
class World:
    """Machines as they are. Steps are carried out as etcd and Talos would; each must be possible."""

    machines: dict[str, SeenCluster] = field(default_factory=dict)
    approvals: Approvals = field(default_factory=Approvals)

    @property
    def voters(self) -> list[str]:
        return [name for name, at in self.machines.items() if at.member and at.votes]

    @property
    def live(self) -> list[str]:
        return [name for name in self.voters if self.machines[name].healthy]

    @property
    def has_quorum(self) -> bool:
        return len(self.live) >= quorum(len(self.voters))

    def carry_out(self, step: Step) -> None:
        at = self.machines.get(step.machine, NEW)
        if step.act in (Act.FORGET, Act.DELETE):
            assert at.answers or at.bare or step.machine in self.approvals.lost, "nobody said that it is lost"
        if step.act in (Act.FORGET, Act.JOIN, Act.LEAVE):
            self._membership(step, at)
        elif step.act is Act.DRAIN:
            assert at.answers
            self.machines[step.machine] = replace(at, drained=True)
        elif step.act is Act.RESET:
            assert at.answers
            assert not at.member, "a machine is reset while etcd still counts its vote"
            assert step.machine in self.approvals.reset
            assert not at.replicas or step.machine in self.approvals.lost, "nobody has moved what it stores"
            self.machines[step.machine] = replace(BARE, node=at.node)
        elif step.act is Act.EVACUATE:
            assert at.answers
            assert step.machine in self.approvals.evacuate
            self.machines[step.machine] = replace(at, replicas=())
        else:
            assert not at.member
            assert not (at.answers and at.replicas) or step.machine in self.approvals.lost
            self.machines[step.machine] = replace(at, node=False)

    def _membership(self, step: Step, at: SeenCluster) -> None:
        assert self.has_quorum, "etcd decides nothing without a majority"
        if step.act is Act.JOIN:
            assert all(self.machines[name].healthy for name in self.voters), "etcd takes nobody in while one is away"
            # A learner first: it counts for nothing until it has caught up.
            self.machines[step.machine] = replace(at, answers=True, member=True)
            self.machines[step.machine] = replace(at, answers=True, member=True, votes=True, healthy=True, node=True)
        else:
            assert at.member
            assert step.act is Act.FORGET or at.live_vote, "only a live member can leave by itself"
            assert step.act is Act.LEAVE or not at.live_vote, "a live vote is never removed behind its back"
            self.machines[step.machine] = replace(at, member=False, votes=False, healthy=False)
        assert self.voters, "the last vote is gone"
        assert self.has_quorum


class ClusterLife(RuleBasedStateMachine):
    """A cluster whose inventory changes again and again, with machines that die, return, or are approved as lost."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.before = inventory([], [])
        self.after = self.before

    @property
    def approvals(self) -> Approvals:
        return self.world.approvals

    @initialize(planes=st.integers(1, 5), workers=st.integers(0, 3))
    def born(self, planes: int, workers: int) -> None:
        self.before = self.after = inventory(NAMES[:planes], NAMES[planes : planes + workers])
        self.world.machines = {
            **dict.fromkeys(self.before.control_planes, HEALTHY),
            **dict.fromkeys(self.before.workers, WORKING),
        }

    @rule(data=st.data(), planes=st.integers(0, 2), workers=st.integers(0, 1))
    def wish(self, data: Any, planes: int, workers: int) -> None:
        """Somebody edits the stack file: some machines go, some come. What was under way stays open."""
        gone = data.draw(st.frozensets(st.sampled_from(list(self.before.machines)), max_size=3))
        spare = [name for name in NAMES if name not in self.before.machines]
        keep = [name for name in self.before.control_planes if name not in gone]
        work = [name for name in self.before.workers if name not in gone]
        self.after = inventory(keep + spare[:planes], work + spare[planes : planes + workers])
        some = st.frozensets(st.sampled_from(sorted(gone))) if gone else st.just(frozenset[str]())
        self.world.approvals = Approvals(data.draw(some), data.draw(some), data.draw(some))

    @rule(data=st.data(), fate=st.sampled_from(("dies", "dies", "returns", "etcd breaks", "is wiped", "stores")))
    def something_happens(self, data: Any, fate: str) -> None:
        """To any machine, most of them those that are about to leave."""
        leaving = [name for name in self.before.machines if name not in self.after.machines]
        candidates = [name for name in (*leaving, *leaving, *self.world.machines) if name in self.world.machines]
        name = data.draw(st.sampled_from(candidates))
        at = self.world.machines[name]
        if fate == "dies":
            self.world.machines[name] = replace(at, answers=False, healthy=False)
        elif fate == "returns" and not at.bare:
            self.world.machines[name] = replace(at, answers=True, healthy=at.member)
        elif fate == "etcd breaks":
            self.world.machines[name] = replace(at, healthy=False)
        elif fate == "stores" and at.answers:
            self.world.machines[name] = replace(at, replicas=("pvc-1",))
        elif fate == "is wiped" and name not in self.after.machines:
            self.world.machines[name] = replace(at, answers=False, healthy=False, bare=True)

    @rule(killed_after=st.sampled_from((1, 2, 3, 20)))
    @precondition(lambda self: self.before != self.after)
    def run(self, killed_after: int) -> None:
        """Step by step with a fresh plan each time, as the stage does; killed anywhere, or through to the end."""
        self.a_plan_can_be_carried_out_as_a_whole()
        for _ in range(killed_after):
            made = self.planned()
            if made.findings:
                return
            if not made.steps:
                self.settle()
                return
            self.world.carry_out(made.steps[0])

    def a_plan_can_be_carried_out_as_a_whole(self) -> None:
        made = self.planned()
        assert not (made.findings and made.steps)
        copy = World(dict(self.world.machines), self.approvals)
        for step in made.steps:
            copy.carry_out(step)
        if not made.findings:
            again = plan(self.before, self.after, copy.machines, self.approvals)
            assert again == Plan(moves=tuple(step for step in again.moves if step.act is Act.RESET))

    def planned(self) -> Plan:
        return plan(self.before, self.after, self.world.machines, self.approvals)

    def settle(self) -> None:
        """Everything is done: what left is gone, what joined votes, and nobody lost a machine without a word."""
        for name in set(self.before.machines) - set(self.after.machines):
            at = self.world.machines[name]
            assert not at.member
            assert not at.node
            assert at.answers or at.bare or name in self.approvals.lost
            assert not (at.answers and name in self.approvals.reset)
        assert set(self.after.control_planes) <= set(self.world.voters)
        for name in self.after.workers:
            self.world.machines[name] = self.world.machines.get(name, WORKING)
        self.before = self.after

    @invariant()
    def somebody_votes(self) -> None:
        assert self.world.voters or not self.world.machines


@given(planes=st.integers(1, 5), workers=st.integers(0, 3), data=st.data())
def test_a_machine_that_changes_its_role_or_its_address_is_refused(planes: int, workers: int, data: Any) -> None:
    before = inventory(NAMES[:planes], NAMES[planes : planes + workers])
    name = data.draw(st.sampled_from(list(before.machines)))
    moved = Topology({k: v + "x" * (k == name) for k, v in before.control_planes.items()}, before.workers)
    moved = replace(moved, workers={k: v + "x" * (k == name) for k, v in before.workers.items()})
    swapped = inventory(
        [m for m in before.machines if (m in before.control_planes) != (m == name)],
        [m for m in before.machines if (m in before.workers) != (m == name)],
    )
    for after in (moved, swapped):
        made = plan(before, after, {name: WORKING}, Approvals())
        assert made.steps == ()
        assert "MEM-004" in {finding.code for finding in made.findings}


ClusterLifeTest = ClusterLife.TestCase
ClusterLifeTest.settings = settings(
    max_examples=examples(100), stateful_step_count=20, suppress_health_check=list(HealthCheck)
)
