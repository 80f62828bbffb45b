"""The gate before and after every change to a control plane: etcd has all its votes, and the API servers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import NotThere, TalosError, WrongPeer
from cozystack_iac.talos.fleet import CALL_S, Fleet, MachineRef
from cozystack_iac.talos.machine import EtcdStatus, Member
from cozystack_iac.talos.transport import look
from cozystack_iac.waiting import Progress, StageFailed, budget, call_limit, pause

KUBE_API_PORT = 6443
LOOK_EVERY_S = 0.5  # neither etcd's members nor the API servers can be watched through Talos
# States of Talos' etcd service in which no etcd has come up on this machine since it booted.
_NOT_STARTED = frozenset(("Initialized", "Waiting", "Preparing"))


@dataclass(frozen=True)
class EtcdView:
    """etcd as one control plane sees it. `dormant`: its etcd waits for a bootstrap. `trouble`: no answer, and why."""

    machine: MachineRef
    dormant: bool = False
    members: tuple[Member, ...] = ()
    status: EtcdStatus | None = None
    trouble: str = ""


def obstacles(views: Sequence[EtcdView]) -> list[str]:
    """Why no control plane may be changed now; empty when any single one may. Pure.

    All dormant is no obstacle: there is no quorum that could be lost. An unanswered question always is one.
    """
    if views and all(view.dormant for view in views):
        return []
    found = []
    for view in views:
        name = view.machine.name
        if view.dormant:
            found.append(f"{name}: etcd has not started")
        elif view.status is None or not view.members:
            found.append(f"{name}: {view.trouble or 'does not report its etcd status'}")
        elif view.status.errors:
            found.append(f"{name}: {'; '.join(view.status.errors)}")
        elif not view.status.healthy:
            found.append(f"{name}: {'is still an etcd learner' if view.status.learner else 'has no etcd leader'}")
    leaders = {view.status.leader for view in views if view.status is not None and view.status.leader}
    if len(leaders) > 1:
        found.append("the control plane nodes follow different leaders: there is more than one etcd cluster")
    waiting = sorted({str(m) for view in views for m in view.members if not m.votes})
    return [*found, *(f"member {text} cannot vote yet" for text in waiting)]


def all_members(views: Sequence[EtcdView]) -> tuple[Member, ...]:
    """The members by the word of any control plane; all of them together where they differ. Pure."""
    found = {member.id: member for view in views for member in view.members}
    # A view that is behind may still call a member a learner: the newest word is the one that lets it vote.
    found.update({member.id: member for view in views for member in view.members if member.votes})
    return tuple(found[id_] for id_ in sorted(found))


class Gate:
    """Asks all control planes of a fleet, and those `leaving` it as long as etcd counts their votes."""

    def __init__(self, fleet: Fleet, progress: Progress, leaving: Sequence[MachineRef] = ()) -> None:
        self._fleet = fleet
        self._progress = progress
        self._leaving = tuple(leaving)

    async def passes(self, when: str, deadline_s: float) -> bool:
        """Wait until etcd and the API servers are well; False when there is no etcd yet. Raises StageFailed."""
        last: list[str] = []

        def expired() -> StageFailed:
            return StageFailed(
                f"The control plane is not healthy {when}.",
                details={str(number): text for number, text in enumerate(last, 1)} or {"last seen": "no answer"},
                means="no further control plane node was changed; if one more went down, etcd could lose its quorum",
                next_step="repair etcd, then run `pulumi up` again: it continues from here",
            )

        async with budget(deadline_s, expired):
            while True:
                views = await self.views()
                last = obstacles(views)
                exists = not all(view.dormant for view in views)
                if not last and exists:
                    last = await self._silent_api_servers()
                if not last:
                    return exists
                self._progress.say(f"{when}: {'; '.join(last[:4])}")
                await pause(LOOK_EVERY_S)

    async def views(self) -> tuple[EtcdView, ...]:
        """Every control plane's view of etcd. Never raises."""
        views = await asyncio.gather(*(self._view(m) for m in self._fleet.control_planes))
        members = all_members(views)
        voting = [m for m in self._leaving if any(m.addresses & member.addresses for member in members)]
        return (*views, *await asyncio.gather(*(self._view(m) for m in voting)))

    async def _view(self, machine: MachineRef) -> EtcdView:
        try:
            async with self._fleet.secure(machine) as client:
                services = {service.name: service for service in await client.services()}
                etcd = services.get("etcd")
                if etcd is not None and etcd.state in _NOT_STARTED:
                    return EtcdView(machine, dormant=not await _has_data(client), trouble=f"etcd is {etcd.state}")
                return EtcdView(machine, False, await client.etcd_members(), await client.etcd_status())
        except TalosError as error:
            return EtcdView(machine, trouble=error.text)

    async def _silent_api_servers(self) -> list[str]:
        """API servers that do not complete a TLS handshake; that is as much as can be asked without a kubeconfig."""
        silent = await asyncio.gather(*(self._api_trouble(m) for m in self._fleet.control_planes))
        return [text for text in silent if text]

    async def _api_trouble(self, machine: MachineRef) -> str:
        try:
            async with asyncio.timeout(call_limit(CALL_S)):
                await look(machine.address, KUBE_API_PORT, limits=self._fleet.limits)
        except WrongPeer:
            return ""  # it speaks TLS and wants to know who asks
        except (TalosError, TimeoutError):
            return f"{machine.name}: the API server does not respond"
        return ""


async def _has_data(client: Machine) -> bool:
    """Whether etcd has lived here before. A folder cannot be read, so any answer but "not there" means yes."""
    try:
        await client.read("/var/lib/etcd/member")
    except NotThere:
        return False
    except TalosError:
        return True
    return True
