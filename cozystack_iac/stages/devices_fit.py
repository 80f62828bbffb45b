"""The stage before LINSTOR is given disks: each is read again on its node, and LINSTOR itself says that it is empty."""

from __future__ import annotations

import asyncio

from pydantic import Field

from cozystack_iac.findings import Finding
from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.settings.nodes import Disk as Wanted
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.storage import devices, linstor
from cozystack_iac.storage.controller import Controller
from cozystack_iac.storage.devices import Resolved
from cozystack_iac.talos.errors import TalosError
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

LOOK_EVERY_S = 2.0


class DeviceInputs(Properties):
    kubeconfig: str = Field(repr=False)
    pool: str
    disks: dict[str, Wanted]  # by node: the one disk its pool is made of
    machines: list[MachineRef] = Field(default_factory=list)  # Talos only: whom to ask about their disks
    client_configuration: dict[str, str] = Field(default_factory=dict, repr=False)
    deadline_s: float


class DeviceOutputs(Properties):
    links: dict[str, str]  # by node: the link LINSTOR is given


class DevicesFitProvider(StageProvider[DeviceInputs, DeviceOutputs]):
    """Every disk that LINSTOR is about to write to is the approved one, and empty.

    A node that has its pool already is not asked again: its disk carries the pool. On hosts without the Talos API the link is
    taken as it is written; that it leads to the disk of that serial number is what cannot be checked there.
    """

    inputs = DeviceInputs
    outputs = DeviceOutputs
    secret = frozenset({"kubeconfig", "client_configuration"})
    matters = frozenset({"disks", "pool"})

    async def establish(self, inputs: DeviceInputs, progress: Progress) -> DeviceOutputs:
        last = "no answer yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"LINSTOR does not report its empty disks (timed out after {format_seconds(inputs.deadline_s)}).",
                details={"last seen": last},
                means="no disk was handed to LINSTOR; nothing was written",
                next_step=f"check `kubectl -n {linstor.NAMESPACE} get pods -o wide`: every node needs a running "
                "satellite; then run `pulumi up` again",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:
                try:
                    controller = await Controller.find(kube)
                    away = set(inputs.disks) - {row.node for row in await controller.nodes() if row.online}
                    if not away:
                        ready = {row.node for row in await controller.pools() if row.pool == inputs.pool}
                        return await _confirmed(inputs, ready, await controller.devices())
                    last = f"these satellites are not online: {', '.join(sorted(away))}"
                except (KubeError, linstor.Unreadable) as error:
                    last = str(error)
                progress.say(last)
                await pause(LOOK_EVERY_S)

    async def revise(
        self, inputs: DeviceInputs, known: Known[DeviceInputs, DeviceOutputs], progress: Progress
    ) -> DeviceOutputs:
        """Only nodes that are new, or have another disk, are looked at."""
        if known.inputs is None or known.outputs is None or known.inputs.pool != inputs.pool:
            return await self.establish(inputs, progress)
        before, links = known.inputs.disks, known.outputs.links
        kept = {n: links[n] for n, disk in inputs.disks.items() if n in links and before.get(n) == disk}
        fresh = {node: disk for node, disk in inputs.disks.items() if node not in kept}
        made = await self.establish(inputs.model_copy(update={"disks": fresh}), progress) if fresh else None
        return DeviceOutputs(links={node: (kept | (made.links if made else {}))[node] for node in inputs.disks})

    async def withdraw(self, inputs: DeviceInputs, outputs: DeviceOutputs, progress: Progress) -> None:
        progress.say("the disks and their pools are kept")


class DevicesFit(StageResource[DeviceInputs], provider=DevicesFitProvider):
    pass


async def _confirmed(inputs: DeviceInputs, ready: set[str], offered: tuple[linstor.DeviceRow, ...]) -> DeviceOutputs:
    resolved = await _resolved(inputs)
    findings = [one for one in resolved.values() if isinstance(one, Finding)]
    for node, one in resolved.items():
        if isinstance(one, Resolved) and node not in ready and (finding := devices.judge_device(one, offered)):
            findings.append(finding)
    if findings:
        raise StageFailed(
            f"{len(findings)} of {len(inputs.disks)} disks must not be handed to LINSTOR.",
            details={f"{f.code} {f.path}": f"{f.problem}\n{f.why}\n{f.fix}" for f in findings},
            means="none of this stack's disks was handed to LINSTOR; nothing was written on any node",
            next_step="fix the findings above, then run `pulumi up` again",
        )
    return DeviceOutputs(links={node: one.link for node, one in resolved.items() if isinstance(one, Resolved)})


async def _resolved(inputs: DeviceInputs) -> dict[str, Resolved | Finding]:
    if not inputs.machines:
        return {node: devices.as_written(node, disk) for node, disk in inputs.disks.items()}
    fleet = Fleet.of(inputs.machines, inputs.client_configuration)
    asked = [machine for machine in inputs.machines if machine.name in inputs.disks]
    found = await asyncio.gather(*(_on_machine(fleet, m, inputs.disks[m.name]) for m in asked))
    return {machine.name: one for machine, one in zip(asked, found, strict=True)}


async def _on_machine(fleet: Fleet, machine: MachineRef, wanted: Wanted) -> Resolved | Finding:
    try:
        disks = await fleet.ask(machine, lambda client: client.disks())
    except TalosError as error:
        problem = f"{machine.name}: its disks cannot be read again: {error.text}"
        fix = "check the network path to the machine; a disk with an unknown identity is not handed to LINSTOR"
        return devices.LIN_004.at(machine.name, problem=problem, fix=fix)
    return devices.on_talos(machine.name, wanted, disks)
