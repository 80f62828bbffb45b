"""Kubernetes' side of a machine that goes away for an upgrade, through a kubeconfig that a control plane hands out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from cozystack_iac.kube import absence
from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.storage.controller import SHELL
from cozystack_iac.storage.evacuation import unsettled
from cozystack_iac.talos.errors import TalosError
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

LOOK_EVERY_S = 1.0  # evictions are asked for again at this pace


class Absences:
    """Empties nodes and opens them again. `deadline_s` is the budget of each."""

    def __init__(self, fleet: Fleet, *, deadline_s: float, progress: Progress) -> None:
        self._fleet = fleet
        self._deadline_s = deadline_s
        self._progress = progress
        self._kubeconfig: str | None = None

    async def leave(self, machine: MachineRef) -> None:
        """Until everything that can run elsewhere does. Raises StageFailed, with the node open again, when pods cannot go.

        Not before every replica is up to date: the machine that came back last may still be copying what it missed, and
        this one may hold the last good copy.
        """
        await self._until(machine, "cannot be taken down yet", _replicas_settled)
        try:
            await self._until(machine, "is being drained", absence.leave)
        except StageFailed:
            with suppress(KubeError, TalosError):
                async with self._kube() as kube:
                    await absence.back(kube, machine.name)
            raise

    async def back(self, machine: MachineRef) -> None:
        """Until the node is as ready as it was, and open again."""
        await self._until(machine, "is not schedulable again yet", absence.back)

    async def left_behind(self) -> list[str]:
        """Nodes that an earlier run emptied and did not come to open; none when Kubernetes does not say."""
        with suppress(KubeError, TalosError):
            async with self._kube() as kube:
                return await absence.away(kube)
        return []

    async def _until(self, machine: MachineRef, what: str, turn: Callable[[Kube, str], Awaitable[str]]) -> None:
        last = "no answer yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"Node {machine.name} could not be drained, or could not be uncordoned afterwards (timed "
                f"out after {format_seconds(self._deadline_s)}).",
                details={"last seen": last},
                means="the node itself is running; the upgrade stopped here",
                next_step=f"check the pods, disruption budgets and replicas listed above (`{SHELL} resource list`), "
                "then run `pulumi up` again",
            )

        async with budget(self._deadline_s, expired):
            while True:
                try:
                    async with self._kube() as kube:
                        last = await turn(kube, machine.name)
                except (KubeError, TalosError) as error:  # the API moves with the machines that go away
                    last = str(error)
                if not last:
                    return
                self._progress.say(f"{machine.name} {what}: {last}")
                await pause(LOOK_EVERY_S)

    @asynccontextmanager
    async def _kube(self) -> AsyncIterator[Kube]:
        if self._kubeconfig is None:
            self._kubeconfig = await self._fetched()
        async with Kube.connect(self._kubeconfig) as kube:
            yield kube

    async def _fetched(self) -> str:
        last = TalosError("", "there is no control plane node to get a kubeconfig from")
        for machine in self._fleet.control_planes:
            try:
                return await self._fleet.ask(machine, lambda client: client.kubeconfig())
            except TalosError as error:
                last = error
        raise last


async def _replicas_settled(kube: Kube, _name: str) -> str:
    return await unsettled(kube)
