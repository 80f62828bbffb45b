"""Every machine runs with its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field

from cozystack_iac import certificates, report
from cozystack_iac.findings import Finding
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.talos import plan
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.rollout import Rollout
from cozystack_iac.waiting import Progress, StageFailed


class RolloutInputs(Properties):
    machines: list[MachineRef]
    configurations: dict[str, str] = Field(default_factory=dict, repr=False)  # complete ones, by machine
    client_configuration: dict[str, str] = Field(
        default_factory=dict, repr=False
    )  # caCertificate, clientCertificate, …
    documents: dict[str, str] = Field(default_factory=dict)  # what of them is not secret, for the plan's diff
    worker_batch: int = 3
    deadline_s: float


class RolloutOutputs(Properties):
    digests: dict[str, str]  # of the configuration each machine carries; "" when it does not say


def planned(new: RolloutInputs, known: RolloutInputs | None) -> str:
    """What the plan says about the machines' configurations; empty when nothing changes."""
    whole = (known.configurations, new.configurations) if known is not None and new.configurations else None
    return plan.of_machines(
        known.documents if known is not None else {},
        new.documents,
        roles={m.name: "control plane" if m.is_control_plane else "worker" for m in new.machines},
        complete=whole,
    )


class MachineConfigRolloutProvider(StageProvider[RolloutInputs, RolloutOutputs]):
    """Every machine runs with its configuration."""

    inputs = RolloutInputs
    outputs = RolloutOutputs
    secret = frozenset({"configurations", "client_configuration"})
    matters = frozenset({"machines", "configurations"})
    late = frozenset({"configurations", "client_configuration"})

    async def preflight(self, new: RolloutInputs, known: RolloutInputs | None) -> list[Finding]:
        """Nothing is asked: the plan shows what changes on which machine, and judges how long our certificate holds."""
        text = planned(new, known)
        if text:
            print(f"machine configurations\n{text}", flush=True)
            report.add("Machine configurations", report.fenced(text))
        certificate = new.client_configuration.get("clientCertificate")
        return list(
            certificates.judge_expiry(
                "the Talos client certificate", certificate, "the machine secrets", datetime.now(UTC)
            )
        )

    async def establish(self, inputs: RolloutInputs, progress: Progress) -> RolloutOutputs:
        _refuse_gaps(inputs)
        return RolloutOutputs(digests=await _rollout(inputs, inputs.configurations, (), progress))

    async def revise(
        self, inputs: RolloutInputs, known: Known[RolloutInputs, RolloutOutputs], progress: Progress
    ) -> RolloutOutputs:
        """Only machines that are new, or get another configuration, are looked at and touched."""
        if known.inputs is None:
            return await self.establish(inputs, progress)
        _refuse_gaps(inputs)
        names = {machine.name for machine in inputs.machines}
        leaving = [m for m in known.inputs.machines if m.name not in names and m.is_control_plane]
        concerned = concerned_by(inputs, known.inputs)
        before = known.outputs.digests if known.outputs is not None else {}
        kept = {name: digest for name, digest in before.items() if name in names}
        if not concerned:
            return RolloutOutputs(digests=kept)
        chosen = {name: inputs.configurations[name] for name in concerned}
        return RolloutOutputs(digests={**kept, **await _rollout(inputs, chosen, leaving, progress)})

    async def observe(self, inputs: RolloutInputs, outputs: RolloutOutputs) -> RolloutOutputs | None:
        """What every machine carries now. A machine that does not answer is not gone; it only says nothing."""
        fleet = Fleet.of(inputs.machines, inputs.client_configuration)
        digests = await fleet.digests()
        if not any(digests.values()) and fleet.machines:
            raise StageFailed(
                "No machine reports its configuration.",
                details={m.name: fleet.seen.get(m.name, "no answer") for m in fleet.machines[:12]},
                means="drift cannot be detected; the state keeps its last values",
                next_step="check the network path to the machines, then run the refresh again",
            )
        return RolloutOutputs(digests=digests)

    async def withdraw(self, inputs: RolloutInputs, outputs: RolloutOutputs, progress: Progress) -> None:
        names = ", ".join(m.name for m in inputs.machines[:8])
        progress.say(f"the machines keep their configurations ({names}); reset them yourself before reusing them")


def concerned_by(new: RolloutInputs, known: RolloutInputs) -> list[str]:
    """The machines that are new, are found elsewhere than before, or get another configuration. Order kept."""
    before = {m.name: (m.role, m.address, known.configurations.get(m.name)) for m in known.machines}
    now = {m.name: (m.role, m.address, new.configurations.get(m.name)) for m in new.machines}
    return [name for name, what in now.items() if before.get(name) != what]


def _refuse_gaps(inputs: RolloutInputs) -> None:
    without = [m.name for m in inputs.machines if m.name not in inputs.configurations]
    if without:
        raise StageFailed(
            f"The configuration for {', '.join(without)} is missing.",
            means="the inventory and the generated configurations do not match; no machine was changed",
            next_step="report this as a bug, together with the stack file's inventory",
        )


async def _rollout(
    inputs: RolloutInputs, configurations: Mapping[str, str], leaving: Sequence[MachineRef], progress: Progress
) -> dict[str, str]:
    rollout = Rollout(
        Fleet.of(inputs.machines, inputs.client_configuration),
        configurations,
        leaving=leaving,
        deadline_s=inputs.deadline_s,
        worker_batch=max(1, inputs.worker_batch),
        progress=progress,
    )
    return await rollout.run()


class MachineConfigRollout(StageResource[RolloutInputs], provider=MachineConfigRolloutProvider):
    pass
