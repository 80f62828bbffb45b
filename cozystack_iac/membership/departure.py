"""Machines that leave a cluster: drained, out of etcd, reset where that is approved, their Nodes deleted.

What to do next is planned anew (`change.plan`) from a fresh look after every step. A step that was done before a run was
killed shows in what is seen, so the next run goes on behind it; and no step is taken on a view that is older than the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.kube.drain import NODES, drain, drained, pods_on
from cozystack_iac.kube.kubeconfig import BadKubeconfig
from cozystack_iac.membership import change
from cozystack_iac.membership.approval import Approval
from cozystack_iac.membership.change import MEM_005, MEM_009, Act, Approvals, Plan, SeenCluster, Step, Topology
from cozystack_iac.storage import evacuation
from cozystack_iac.talos.errors import PeerFault, TalosError, WrongPeer
from cozystack_iac.talos.etcd_bootstrap import owner
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.gate import EtcdView, Gate, all_members
from cozystack_iac.talos.machine import Member, Stage
from cozystack_iac.waiting import Progress, StageFailed, format_seconds, patience, pause

LOOK_EVERY_S = 1.0  # several of the questions have no watch
PATIENCE_S = 10.0  # how long a machine may be silent, or a leader missing, before it is taken for a fact
LEAVES_WITHIN_S = 120.0  # a reset that was accepted cuts the connection well before that
RESET_MARK = "cozystack-iac/reset"  # on the Node: a silent machine with it was sent into its reset, and is not lost


@dataclass(frozen=True)
class Inventories:
    """The machines before and after, as refs."""

    before: tuple[MachineRef, ...]
    after: tuple[MachineRef, ...]

    @property
    def leaving(self) -> tuple[MachineRef, ...]:
        names = {machine.name for machine in self.after}
        return tuple(machine for machine in self.before if machine.name not in names)

    @property
    def concerned(self) -> tuple[MachineRef, ...]:
        """Those that leave, and those that are said to be something else than they were: the others need no answer."""
        before, after = self.topologies()
        names = {machine.name for machine in self.leaving} | before.differing(after).keys()
        return tuple(machine for machine in self.before if machine.name in names)

    @property
    def known(self) -> tuple[MachineRef, ...]:
        """Every machine, those of the cluster as the cluster knows them."""
        names = {machine.name for machine in self.before}
        return (*self.before, *(machine for machine in self.after if machine.name not in names))

    def topologies(self) -> tuple[Topology, Topology]:
        """One of several addresses may change or be corrected; a machine that shares none with its old self is another."""
        old = {machine.name: machine for machine in self.before}
        same = {m.name: old[m.name] for m in self.after if m.name in old and m.addresses & old[m.name].addresses}
        places = {m.name: same.get(m.name, m).address for m in self.after}
        return _topology(self.before, {m.name: m.address for m in self.before}), _topology(self.after, places)


def _topology(machines: Sequence[MachineRef], places: Mapping[str, str]) -> Topology:
    planes = {m.name: places[m.name] for m in machines if m.is_control_plane}
    return Topology(planes, {m.name: places[m.name] for m in machines if not m.is_control_plane})


@dataclass(frozen=True)
class MachineLook:
    """What one look brought, and whom to ask for changes to etcd."""

    seen: Mapping[str, SeenCluster]
    members: Mapping[str, Member]
    views: tuple[EtcdView, ...]


class Departure:
    """The departures from one inventory to the next. `deadline_s` is every step's own budget.

    `losses_only`: only what concerns machines that cannot leave by themselves any more; the others are left for later.
    """

    def __init__(
        self,
        fleet: Fleet,
        inventories: Inventories,
        approvals: Mapping[str, Approval],
        *,
        losses_only: bool,
        deadline_s: float,
        progress: Progress,
    ) -> None:
        self._fleet = replace(fleet, machines=inventories.known)
        self._inventories = inventories
        self._approvals = approvals
        self._losses_only = losses_only
        self._deadline_s = deadline_s
        self._progress = progress
        self._machines = {machine.name: machine for machine in inventories.known}
        self._gate = Gate(self._fleet, progress)
        self._kubeconfig: str | None = None
        self._reset: set[str] = set()
        self._done: dict[str, list[str]] = defaultdict(list)
        self._clock: tuple[object, float] = (None, 0.0)
        self._said = "nothing yet"
        self._doubt_since: float | None = None

    # Looking and planning -------------------------------------------------------------------------------------------

    async def planned(self) -> Plan:
        """What would be done, by a look at machines, etcd and what LINSTOR stores. Read-only; never raises."""
        for _ in range(2):  # a refusal may be a moment's weakness
            made = self._plan(await self._survey())
            if not made.findings:
                return made
            await pause(LOOK_EVERY_S)
        return self._plan(await self._survey())

    async def _survey(self) -> MachineLook:
        """A look for a plan: where Kubernetes cannot be asked, what is stored is not known."""
        try:
            async with self._kubernetes() as kube:
                return await self._look(kube)
        except (TalosError, KubeError, BadKubeconfig) as error:
            look = await self._look(None)
            unknown = {m.name: replace(look.seen[m.name], unknown=str(error)) for m in self._inventories.leaving}
            return replace(look, seen={**look.seen, **unknown})

    def _plan(self, look: MachineLook) -> Plan:
        before, after = self._inventories.topologies()
        reset = frozenset(name for name, one in self._approvals.items() if one.reset is not None)
        lost = frozenset(name for name, one in self._approvals.items() if one.lost is not None)
        evacuate = frozenset(name for name, one in self._approvals.items() if one.evacuate is not None)
        return change.plan(before, after, look.seen, Approvals(reset, lost, evacuate))

    async def _look(self, kube: Kube | None) -> MachineLook:
        views, asked = await asyncio.gather(
            self._gate.views(), asyncio.gather(*(self._standing(m) for m in self._inventories.concerned))
        )
        seen = {machine.name: at for machine, at in zip(self._inventories.concerned, asked, strict=True)}
        members: dict[str, Member] = {}
        for member in all_members(views):
            machine = owner(member, self._machines.values())
            name = machine.name if machine is not None else str(member)
            members[name] = member
            seen[name] = replace(seen.get(name, SeenCluster()), member=True, votes=member.votes)
        for view in views:
            if view.status is not None and view.status.healthy:
                seen[view.machine.name] = replace(seen.get(view.machine.name, SeenCluster()), healthy=True)
        if kube is not None:
            for machine in self._inventories.leaving:
                seen[machine.name] = await self._in_kubernetes(kube, machine, seen[machine.name])
        return MachineLook(seen, members, views)

    async def _standing(self, machine: MachineRef) -> SeenCluster:
        try:
            status = await self._fleet.ask(machine, lambda client: client.status())
        except WrongPeer as error:
            # Whoever is in maintenance mode at the address of a member is not that member any more.
            return SeenCluster(bare=error.fault is PeerFault.MAINTENANCE)
        except TalosError:
            return SeenCluster(bare=machine.name in self._reset)
        return SeenCluster(bare=True) if status.stage is Stage.RESETTING else SeenCluster(answers=True)

    async def _in_kubernetes(self, kube: Kube, machine: MachineRef, seen: SeenCluster) -> SeenCluster:
        kept = await evacuation.stored(kube, machine.name)
        seen = replace(seen, replicas=kept.replicas, rooted=kept.rooted, unknown=kept.unknown)
        node = await kube.find(NODES.named(machine.name))
        if node is None:
            return seen
        sent = RESET_MARK in (node["metadata"].get("annotations") or {})
        bare = seen.bare or (sent and not seen.answers)
        return replace(seen, node=True, bare=bare, drained=drained(node, await pods_on(kube, machine.name)))

    @asynccontextmanager
    async def _kubernetes(self) -> AsyncIterator[Kube]:
        """The cluster's API by a kubeconfig that one of its control planes hands out; nothing ambient can get in."""
        if self._kubeconfig is None:
            self._kubeconfig = await self._fetched()
        async with Kube.connect(self._kubeconfig) as kube:
            yield kube

    async def _fetched(self) -> str:
        last: TalosError | None = None
        leaving = {machine.name for machine in self._inventories.leaving}
        for machine in sorted(self._fleet.control_planes, key=lambda m: m.name in leaving):
            try:
                return await self._fleet.ask(machine, lambda client: client.kubeconfig())
            except TalosError as error:
                last = last or error
        raise last or TalosError("", "there is no control plane node to get a kubeconfig from")

    # Doing ----------------------------------------------------------------------------------------------------------

    async def run(self) -> dict[str, str]:
        """Until nothing is left to do; what was done, by machine. Raises StageFailed."""
        while True:
            try:
                if await self._round():
                    return self._far()
            except (TalosError, KubeError, BadKubeconfig) as error:
                self._within_budget(self._clock[0] or "checking the cluster")
                self._say(str(error))
            await pause(LOOK_EVERY_S)

    async def _round(self) -> bool:
        """One look and one step; True when there is nothing left to do."""
        if self._losses_only and await self._nothing_lost():
            return True
        async with self._kubernetes() as kube:
            look = await self._look(kube)
            made = self._plan(look)
            if self._in_doubt(made, look):
                return False
            if made.findings:
                raise self._refused(made)
            step = next(iter(made.losses if self._losses_only else made.steps), None)
            if step is None:
                return True
            self._within_budget(step)
            await self._carry_out(step, look, kube)
        return False

    async def _nothing_lost(self) -> bool:
        """Whether Kubernetes need not be asked: nobody is lost, or there is no etcd yet, and later stages will see to that."""
        look = await self._look(None)
        if not look.members:
            return not self._in_doubt(
                Plan(findings=(MEM_005.at("etcd", problem="etcd does not respond", fix=""),)), look
            )
        return not self._plan(look).findings and all(look.seen[m.name].answers for m in self._inventories.leaving)

    def _in_doubt(self, made: Plan, look: MachineLook) -> bool:
        """A refusal, or a loss, may be a moment's weakness: an election, a machine that reboots. It has to last."""
        silent = [step.machine for step in made.losses if not look.seen[step.machine].bare]
        if not made.findings and not silent:
            self._doubt_since = None
            return False
        if self._done and made.findings and all(finding.code == MEM_009.code for finding in made.findings):
            # LINSTOR's controller may have run on the very node that is drained: it starts elsewhere and takes its time.
            self._within_budget("waiting for the LINSTOR controller to start on another node")
            self._say(made.findings[0].problem)
            return True
        now = time.monotonic()
        self._doubt_since = self._doubt_since or now
        if now - self._doubt_since >= patience(PATIENCE_S):
            return False
        texts = [finding.problem for finding in made.findings] or [
            f"{name} does not respond and cannot leave by itself" for name in silent
        ]
        self._say("; ".join(dict.fromkeys(texts)))
        return True

    async def _carry_out(self, step: Step, look: MachineLook, kube: Kube) -> None:
        machine, act = self._machines[step.machine], step.act
        if act is Act.DRAIN:
            left = await drain(kube, machine.name)
            self._say(f"draining {machine.name}" + (f": {left}" if not left.done else ""))
        elif act is Act.EVACUATE:
            self._say(
                f"{machine.name}: "
                f"{await evacuation.evacuate(kube, machine.name) or 'no replicas are left on this node'}"
            )
        elif act is Act.FORGET:
            await self._forget(machine, look)
        elif act is Act.LEAVE:
            await self._leave(machine)
        elif act is Act.RESET:
            await self._send_into_reset(machine, look.seen[machine.name], kube)
        elif act is Act.DELETE:
            await kube.delete(NODES.named(machine.name))
        else:
            self._say(f"waiting for {machine.name} to become a voting member of etcd")
        if act is not Act.JOIN and act.value not in self._done[machine.name]:
            self._done[machine.name].append(act.value)

    async def _forget(self, machine: MachineRef, look: MachineLook) -> None:
        member = look.members[machine.name]
        able = [v.machine for v in look.views if v.status and v.status.healthy and v.machine != machine]
        self._say(f"removing {member} from etcd")
        await self._fleet.ask(able[0], lambda client: client.etcd_remove(member.id))

    async def _leave(self, machine: MachineRef) -> None:
        self._say(f"{machine.name} is leaving etcd")
        async with self._fleet.secure(machine) as client:
            # A courtesy: without it the others elect a leader, which takes them a moment longer.
            with suppress(TalosError):
                await client.etcd_forfeit_leadership()
            await client.etcd_leave()

    async def _send_into_reset(self, machine: MachineRef, seen: SeenCluster, kube: Kube) -> None:
        self._say(f"resetting {machine.name}: {self._approvals[machine.name].reset}")
        if seen.node:
            mark = {"metadata": {"annotations": {RESET_MARK: "sent"}}}
            await kube.merge_patch(NODES.named(machine.name), mark)
        async with self._fleet.secure(machine) as client:
            # Not gracefully: it has been drained and has left etcd, and a graceful reset never ends where that is impossible.
            await client.reset(graceful=False)
            self._reset.add(machine.name)
            await client.hangs_up(LEAVES_WITHIN_S)

    # Saying ---------------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._said = text
        self._progress.say(text)

    def _within_budget(self, activity: object) -> None:
        """Every activity has the budget for itself; its clock starts when it is first seen to be the next one."""
        now = time.monotonic()
        if self._clock[0] != activity:
            self._clock = (activity, now)
        elif now - self._clock[1] > self._deadline_s:
            raise self._expired(activity)

    def _far(self) -> dict[str, str]:
        return {name: ", ".join(acts) for name, acts in self._done.items() if acts}

    def _expired(self, activity: object) -> StageFailed:
        what = f"{activity.act.doing} {activity.machine}" if isinstance(activity, Step) else str(activity)
        next_step = "fix the problem shown above, then run `pulumi up` again: it continues from here"
        if isinstance(activity, Step) and activity.act is Act.EVACUATE:
            next_step = (
                "free space on the other storage nodes for these replicas (a replacement node can store "
                "replicas from the run that adds it: add it in one run, remove this one in the next), "
                "then run `pulumi up` again: it continues from here"
            )
        return StageFailed(
            f"A node cannot leave the cluster yet: {what} timed out after {format_seconds(self._deadline_s)}.",
            details={"last seen": self._said, **self._far()},
            means="the node is still part of the cluster except for the steps listed above; nothing was reset "
            "without approval",
            next_step=next_step,
        )

    def _refused(self, made: Plan) -> StageFailed:
        return StageFailed(
            f"{len(made.findings)} finding(s) block this change of the inventory.",
            details={f"{f.code} {f.path}": f"{f.problem}; {f.fix}" for f in made.findings} | self._far(),
            means="etcd could lose its quorum, or a node its data; nothing was changed",
            next_step="fix the findings above, then run `pulumi up` again",
        )
