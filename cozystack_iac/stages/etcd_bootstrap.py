"""etcd exists, and every control plane is a voting member of it."""

from __future__ import annotations

from pydantic import Field

from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.talos.errors import TalosError
from cozystack_iac.talos.etcd_bootstrap import Bootstrap
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.waiting import Progress, StageFailed


class BootstrapInputs(Properties):
    control_planes: list[MachineRef]  # etcd is created on the first one
    client_configuration: dict[str, str] = Field(repr=False)
    deadline_s: float


class BootstrapOutputs(Properties):
    members: dict[str, str]  # etcd member ids (hexadecimal) by machine


class EtcdBootstrapProvider(StageProvider[BootstrapInputs, BootstrapOutputs]):
    """etcd exists, and every control plane is a voting member of it."""

    inputs = BootstrapInputs
    outputs = BootstrapOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"control_planes"})

    async def establish(self, inputs: BootstrapInputs, progress: Progress) -> BootstrapOutputs:
        fleet = Fleet.of(inputs.control_planes, inputs.client_configuration)
        bootstrap = Bootstrap(fleet, deadline_s=inputs.deadline_s, progress=progress)
        return BootstrapOutputs(members=await bootstrap.run())

    async def revise(
        self, inputs: BootstrapInputs, known: Known[BootstrapInputs, BootstrapOutputs], progress: Progress
    ) -> BootstrapOutputs:
        """Control planes came or went: wait for those that came. An etcd that this stack has seen is never created again."""
        if known.outputs is None:
            return await self.establish(inputs, progress)
        fleet = Fleet.of(inputs.control_planes, inputs.client_configuration)
        recorded = known.outputs.members
        bootstrap = Bootstrap(fleet, deadline_s=inputs.deadline_s, progress=progress, recorded=recorded)
        return BootstrapOutputs(members=await bootstrap.run())

    async def observe(self, inputs: BootstrapInputs, outputs: BootstrapOutputs) -> BootstrapOutputs | None:
        fleet = Fleet.of(inputs.control_planes, inputs.client_configuration)
        progress = Progress("EtcdBootstrap")
        bootstrap = Bootstrap(fleet, deadline_s=inputs.deadline_s, progress=progress, recorded=outputs.members)
        try:
            return BootstrapOutputs(members=await bootstrap.members())
        except TalosError as error:
            raise StageFailed(
                "No control plane node returns the etcd member list.",
                details={"last seen": str(error)},
                means="drift cannot be detected; the state keeps its last values",
                next_step="check the network path to the control plane nodes and their etcd, then run the refresh "
                "again",
            ) from None

    async def withdraw(self, inputs: BootstrapInputs, outputs: BootstrapOutputs, progress: Progress) -> None:
        progress.say(
            "etcd and its data stay on the control plane nodes; reset the machines yourself before reusing them"
        )


class EtcdBootstrap(StageResource[BootstrapInputs], provider=EtcdBootstrapProvider):
    pass
