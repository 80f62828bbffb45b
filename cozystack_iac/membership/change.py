"""How an inventory may change under a running cluster: ordered steps, or the reasons why not. Pure.

etcd decides by majority of its voting members, so membership changes one member at a time and only from health: lost members
are forgotten first (etcd takes nobody in while one is missing), new ones join before others leave, the last one stays.
A plan is made anew from what is seen after every step, so a run that was killed anywhere is continued by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cozystack_iac.findings import ERROR, Finding, Rule
from cozystack_iac.storage.controller import SHELL
from cozystack_iac.storage.evacuation import named
from cozystack_iac.storage.linstor import NAMESPACE

MEM_001 = Rule(
    "MEM-001",
    ERROR,
    title="At least one control plane node stays",
    why="the cluster's state is in etcd on the control plane nodes and would be lost with the last of them",
    remedy="keep one of them; add its replacement in one run and remove it in the next",
)
MEM_002 = Rule(
    "MEM-002",
    ERROR,
    title="The remaining control plane nodes are healthy before their number changes",
    why="if one more member fails, etcd loses its majority and stops, and Kubernetes with it",
    remedy="bring back the control plane node named in the finding, or declare it lost",
)
MEM_003 = Rule(
    "MEM-003",
    ERROR,
    title="A node that leaves is reachable, or is declared lost",
    why="an unreachable node may still be running, and its volumes could then be used twice",
    remedy="bring it back, or declare it lost in `cozystack:removed`",
)
MEM_004 = Rule(
    "MEM-004",
    ERROR,
    title="A node of the cluster keeps its role and its address",
    why="the node is known to etcd and Kubernetes by its address, and Talos can change its role only with a reset",
    remedy="remove the node in one run, and add it again in the next",
)
MEM_005 = Rule(
    "MEM-005",
    ERROR,
    title="The etcd member list is available",
    why="without the member list, the effect of a removal on the quorum is unknown",
    remedy="bring etcd back on the control plane nodes",
)
MEM_008 = Rule(
    "MEM-008",
    ERROR,
    title="A node that leaves stores no replicas, or may be evacuated",
    why="its replicas would become unreachable, and the last copy of a volume may be among them",
    remedy="approve an evacuation in `cozystack:removed`",
)
MEM_009 = Rule(
    "MEM-009",
    ERROR,
    title="The replicas on a node that leaves are known",
    why="without an answer from LINSTOR, the program cannot tell which data the node stores",
    remedy="bring the LINSTOR controller back first",
)


@dataclass(frozen=True, slots=True)
class Topology:
    """The machines of an inventory by role, each with an address that tells it from others; in the inventory's order."""

    control_planes: Mapping[str, str]
    workers: Mapping[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> dict[str, str]:
        return {**self.control_planes, **self.workers}

    def differing(self, other: Topology) -> dict[str, str]:
        """What `other` says differently about machines that are in both, in words."""
        found = {}
        for name, address in self.machines.items():
            now = other.machines.get(name)
            if now is not None and (name in self.workers) != (name in other.workers):
                found[name] = "a different role"
            elif now is not None and now != address:
                found[name] = f"the address {now}, but the cluster knows it as {address}"
        return found


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """One machine as it was just found; what is not known is False.

    `answers`: as a machine of this cluster. `bare`: it carries nothing of the cluster any more. `member`: etcd lists it.
    `votes`: it has started and is no learner. `healthy`: it follows a leader without alarm, by its own word.
    `node`: Kubernetes has a Node of its name. `drained`: nothing that could run elsewhere runs there.
    `replicas`: what LINSTOR stores there and can copy elsewhere. `rooted`: what it stores there and cannot.
    `unknown`: why it is not known what is stored there.
    """

    answers: bool = False
    bare: bool = False
    member: bool = False
    votes: bool = False
    healthy: bool = False
    node: bool = False
    drained: bool = False
    replicas: tuple[str, ...] = ()
    rooted: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def live_vote(self) -> bool:
        return self.member and self.votes and self.healthy


@dataclass(frozen=True, slots=True)
class Approvals:
    """What a person decided, by machine."""

    reset: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    evacuate: frozenset[str] = frozenset()


class Act(StrEnum):
    """What is done to one machine."""

    FORGET = "its etcd member is removed"
    JOIN = "joins etcd"
    DRAIN = "is drained"
    EVACUATE = "has its replicas moved to other nodes"
    LEAVE = "leaves etcd"
    RESET = "is reset"
    DELETE = "its Node is deleted"

    @property
    def doing(self) -> str:
        """With the machine's name behind it, as the subject of a sentence."""
        return _DOING[self]


_DOING: Mapping[Act, str] = {
    Act.FORGET: "removing the etcd member of",
    Act.JOIN: "adding to etcd",
    Act.DRAIN: "draining",
    Act.EVACUATE: "moving replicas off",
    Act.LEAVE: "removing from etcd",
    Act.RESET: "resetting",
    Act.DELETE: "deleting the Node of",
}


@dataclass(frozen=True, slots=True)
class Step:
    act: Act
    machine: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Either steps, in order, or findings that forbid the change; never both.

    `losses` are about machines that cannot leave by themselves any more; they come before everything else.
    """

    losses: tuple[Step, ...] = ()
    moves: tuple[Step, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.losses + self.moves


def quorum(voters: int) -> int:
    """How many of so many votes decide."""
    return voters // 2 + 1


def plan(before: Topology, after: Topology, seen: Mapping[str, SeenCluster], approvals: Approvals) -> Plan:
    """The way from one inventory to the next, given what is seen now (a machine without an entry has not been seen).

    `seen` also holds members of etcd that are in neither inventory, so that their votes count.
    """
    change = _Change(before, after, seen, approvals)
    findings = tuple(change.findings())
    return Plan(findings=findings) if findings else Plan(tuple(change.losses()), tuple(change.moves()))


@dataclass(frozen=True)
class _Change:
    before: Topology
    after: Topology
    seen: Mapping[str, SeenCluster]
    approvals: Approvals

    def at(self, name: str) -> SeenCluster:
        return self.seen.get(name, SeenCluster())

    @property
    def leaving(self) -> list[str]:
        """Workers first: they carry no vote, and what is drained from them finds the control planes well."""
        names = [*self.before.workers, *self.before.control_planes]
        return [name for name in names if name not in self.after.machines]

    @property
    def joining(self) -> list[str]:
        return [name for name in self.after.control_planes if not self.at(name).votes]

    def absent(self, name: str) -> bool:
        """It cannot leave by itself any more."""
        at = self.at(name)
        return not at.answers or (at.member and not at.healthy and name in self.approvals.lost)

    # Reasons why not ------------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        yield from self._identities()
        yield from self._last()
        yield from self._silent()
        yield from self._stored()
        if self._changes_etcd():
            yield from self._votes()

    def _identities(self) -> Iterator[Finding]:
        for name, what in self.before.differing(self.after).items():
            if self.at(name).answers or self.at(name).member:  # else it was never what the inventory said
                fix = "remove the node from `cozystack:nodes` in one run, and add it again in the next"
                yield MEM_004.at(name, problem=f"{name} would get {what}", fix=fix)

    def _last(self) -> Iterator[Finding]:
        if self.before.control_planes and not self.after.control_planes:
            names = ", ".join(self.before.control_planes)
            yield MEM_001.at(
                names,
                problem=f"no control plane node would be left ({names} would leave)",
                fix="keep at least one of them",
            )

    def _silent(self) -> Iterator[Finding]:
        for name in self.leaving:
            at = self.at(name)
            fix = (
                f"bring it back, or add `{{name: {name}, lost: {{approved: true, reason: …}}}}` to `cozystack:removed`"
            )
            if not at.answers and not at.bare and name not in self.approvals.lost:
                yield MEM_003.at(name, problem=f"{name} is to be removed but does not respond", fix=fix)
            elif at.answers and at.member and not at.healthy and name not in self.approvals.lost:
                yield MEM_003.at(name, problem=f"{name} is to be removed, but its etcd is not healthy", fix=fix)

    def _stored(self) -> Iterator[Finding]:
        """Of a machine that is lost the replicas are gone, whatever anybody says about them."""
        for name in self.leaving:
            at = self.at(name)
            if self.absent(name):
                continue
            listing = f"{SHELL} resource list --nodes {name}"
            if at.unknown:
                problem = f"{name} is to be removed, but LINSTOR cannot tell which replicas it stores: {at.unknown}"
                fix = f"check `kubectl -n {NAMESPACE} get pods`, then run this again"
                yield MEM_009.at(name, problem=problem, fix=fix, command=listing)
            if at.rooted:
                problem = f"{name} stores {named(at.rooted)}, which LINSTOR cannot copy because there is no DRBD layer"
                fix = "save the data and delete the PersistentVolumeClaims, or keep the node"
                yield MEM_008.at(name, problem=problem, fix=fix, command=listing)
            if at.replicas and name not in self.approvals.evacuate:
                fix = f"add `{{name: {name}, evacuate: {{approved: true, reason: …}}}}` to `cozystack:removed`"
                yield MEM_008.at(name, problem=f"{name} still stores {named(at.replicas)}", fix=fix, command=listing)

    def _changes_etcd(self) -> bool:
        return bool(self.joining) or any(self.at(name).member for name in self.leaving)

    def _votes(self) -> Iterator[Finding]:
        """Everybody who stays is well; and what is left decides, step by step."""
        members = [name for name, at in self.seen.items() if at.member]
        if not members and not self.leaving:
            return  # there is no etcd yet, and nothing that could be lost
        if not members:
            yield MEM_005.at("etcd", problem="no control plane node returns the etcd member list", fix=MEM_005.remedy)
            return
        voters = [name for name in members if self.at(name).votes]
        live = [name for name in voters if self.at(name).healthy]
        if len(live) < quorum(len(voters)):
            problem = (
                f"only {len(live)} of {len(voters)} etcd voting members are healthy, but "
                f"{quorum(len(voters))} are needed"
            )
            yield MEM_002.at(
                "etcd", problem=problem, fix="bring control plane nodes back; nothing can be changed without a quorum"
            )
        elif self.joining or any(self.at(name).member and not self.absent(name) for name in self.leaving):
            yield from self._unwell(voters, live)  # to forget what is lost anyway is safe, whoever else is away

    def _unwell(self, voters: list[str], live: list[str]) -> Iterator[Finding]:
        going = [name for name in self.leaving if self.at(name).member]
        rest, alive = len(set(voters) - set(going)), len(set(live) - set(going))
        for name, at in self.seen.items():
            if at.member and name not in going and not at.live_vote and name not in self.joining:
                left = (
                    f"only {alive} of {rest} voting members would be healthy, but {quorum(rest)} are needed"
                    if going
                    else ""
                )
                problem = f"etcd member {name} is not healthy" + (f": {left}" if left else "")
                yield MEM_002.at(name, problem=problem, fix=f"bring {name} back first, or remove it as lost")

    # The way --------------------------------------------------------------------------------------------------------

    def losses(self) -> Iterator[Step]:
        for name in self.leaving:
            if self.absent(name):
                yield from self._without(name)

    def moves(self) -> Iterator[Step]:
        """Newcomers, then who leaves: one vote at a time, in this order."""
        for name in self.joining:
            yield Step(Act.JOIN, name)
        for name in self.leaving:
            if not self.absent(name):
                yield from self._goodbye(name)

    def _without(self, name: str) -> Iterator[Step]:
        at = self.at(name)
        if at.member:
            yield Step(Act.FORGET, name)
        if at.answers and name in self.approvals.reset:
            yield Step(Act.RESET, name)
        if at.node:
            yield Step(Act.DELETE, name)

    def _goodbye(self, name: str) -> Iterator[Step]:
        at = self.at(name)
        if at.node and not at.drained:
            yield Step(Act.DRAIN, name)
        if at.replicas:
            yield Step(Act.EVACUATE, name)
        if at.member:
            yield Step(Act.LEAVE, name)
        if name in self.approvals.reset:
            yield Step(Act.RESET, name)
        if at.node:
            yield Step(Act.DELETE, name)
