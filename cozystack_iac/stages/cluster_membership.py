"""The stage that lets machines go: who was taken out of the inventory leaves in order, or the plan says why not."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cozystack_iac.findings import WARNING, Finding, Rule
from cozystack_iac.membership.approval import Approval
from cozystack_iac.membership.change import MEM_005
from cozystack_iac.membership.departure import Departure, Inventories
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.waiting import Progress, StageFailed

MEM_006 = Rule(
    "MEM-006",
    WARNING,
    title="Nodes removed from the inventory leave the cluster",
    why="their workloads and replicas move to the other nodes, which need room for them",
    remedy="no action needed if this is intended",
)
MEM_007 = Rule(
    "MEM-007",
    WARNING,
    title="Nodes that leave are checked",
    why="only the machines know whether etcd keeps its quorum; the update checks again",
    remedy="run the preview with `checks: live` where the machines are reachable",
)


class MembershipInputs(Properties):
    machines: list[MachineRef]
    approvals: dict[str, Approval]  # by machine; only of machines that are no longer in the inventory
    client_configuration: dict[str, str] = Field(repr=False)
    losses_only: bool = False
    checks: Literal["live", "offline"] = "live"
    deadline_s: float  # of every step


class MembershipOutputs(Properties):
    departed: dict[str, str]  # what was done about machines that left with the last change
    open: list[MachineRef]
    """Machines that are out of the inventory, and about which an approval may still be given."""


class ClusterMembershipProvider(StageProvider[MembershipInputs, MembershipOutputs]):
    """The cluster consists of the machines of the inventory and of no other.

    Twice in the graph: before anything else changes, for machines that are lost (etcd takes nobody in while one is missing);
    and after newcomers have joined, for those that can say goodbye.
    """

    inputs = MembershipInputs
    outputs = MembershipOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"machines", "approvals"})

    async def preflight(self, new: MembershipInputs, known: MembershipInputs | None) -> list[Finding]:
        if new.losses_only or known is None:
            return []  # the later of the two speaks for both
        inventories = _inventories(new, Known(known, None))
        if not inventories.concerned:
            return []
        announced = [_announcement(machine, new.approvals.get(machine.name)) for machine in inventories.leaving]
        if new.checks == "offline":
            names = ", ".join(machine.name for machine in inventories.leaving)
            return [*announced, MEM_007.at(names, problem="etcd on these machines was not checked", fix=MEM_007.remedy)]
        try:
            made = await _departure(new, inventories, Progress("ClusterMembership")).planned()
        except StageFailed as error:
            return [MEM_005.at("etcd", problem=error.what, fix=error.next_step)]
        return [*announced, *made.findings]

    async def establish(self, inputs: MembershipInputs, progress: Progress) -> MembershipOutputs:
        return MembershipOutputs(departed={}, open=[])  # of a new cluster nobody can have left

    async def revise(
        self, inputs: MembershipInputs, known: Known[MembershipInputs, MembershipOutputs], progress: Progress
    ) -> MembershipOutputs:
        inventories = _inventories(inputs, known)
        waiting = _waiting(inputs, known)
        if not inventories.concerned:
            return MembershipOutputs(departed={}, open=waiting)
        departed = await _departure(inputs, inventories, progress).run()
        for name, text in departed.items():
            progress.say(f"{name}: {text}")
        still = [machine for machine in inventories.leaving if not _decided(inputs, machine)]
        return MembershipOutputs(departed=departed, open=[*waiting, *still])

    async def withdraw(self, inputs: MembershipInputs, outputs: MembershipOutputs, progress: Progress) -> None:
        progress.say("the machines stay a cluster; none of them is drained or reset")


class ClusterMembership(StageResource[MembershipInputs], provider=ClusterMembershipProvider):
    pass


def _inventories(new: MembershipInputs, known: Known[MembershipInputs, MembershipOutputs]) -> Inventories:
    """Before: what the state remembers, and earlier leavers about whom somebody has decided since."""
    before = {machine.name: machine for machine in (known.inputs.machines if known.inputs else [])}
    names = {machine.name for machine in new.machines}
    earlier = known.outputs.open if known.outputs else []
    before |= {m.name: m for m in earlier if m.name not in names | before.keys() and _decided(new, m)}
    return Inventories(tuple(before.values()), tuple(new.machines))


def _waiting(new: MembershipInputs, known: Known[MembershipInputs, MembershipOutputs]) -> list[MachineRef]:
    names = {machine.name for machine in (*new.machines, *(known.inputs.machines if known.inputs else []))}
    earlier = known.outputs.open if known.outputs else []
    return [machine for machine in earlier if machine.name not in names and not _decided(new, machine)]


def _decided(new: MembershipInputs, machine: MachineRef) -> bool:
    """Whether nothing more can be approved about a machine than has been."""
    approval = new.approvals.get(machine.name, Approval())
    return approval.lost is not None or (approval.reset is not None and not new.losses_only)


def _departure(inputs: MembershipInputs, inventories: Inventories, progress: Progress) -> Departure:
    return Departure(
        Fleet.of(inputs.machines, inputs.client_configuration),
        inventories,
        inputs.approvals,
        losses_only=inputs.losses_only,
        deadline_s=inputs.deadline_s,
        progress=progress,
    )


def _announcement(machine: MachineRef, approval: Approval | None) -> Finding:
    emptied = "drained" if approval is None or approval.evacuate is None else "drained, evacuated"
    leaves = f"{emptied}, removed from etcd" if machine.is_control_plane else emptied
    if approval is not None and approval.lost is not None:
        ends = f"and its Node will be deleted; if it does not respond, it is treated as lost ({approval.lost})"
    elif approval is not None and approval.reset is not None:
        ends = f"reset ({approval.reset}), and its Node will be deleted"
    else:
        ends = "and its Node will be deleted; it keeps its configuration and would rejoin at its next boot"
    entry = f"{{name: {machine.name}, reset: {{approved: true, reason: …}}}}"
    fix = (
        f"approve a reset in `cozystack:removed` ({entry}), or turn the machine off for good"
        if approval is None
        else "no action needed if this is intended"
    )
    return MEM_006.at(machine.name, problem=f"{machine.name} will be {leaves}, {ends}", fix=fix)
