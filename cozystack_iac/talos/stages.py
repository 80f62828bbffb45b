"""The Talos stages as the engine sees them: machines probed, configurations rolled out, etcd bootstrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from cozystack_iac import certificates, report
from cozystack_iac.findings import Finding, Severity, Verdict, as_markdown
from cozystack_iac.stage import Known, Progress, Properties, StageFailed, StageProvider, StageResource
from cozystack_iac.talos import boot, matrix, plan
from cozystack_iac.talos.errors import TalosError
from cozystack_iac.talos.etcd_bootstrap import Bootstrap
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.judgement import judge, skipped
from cozystack_iac.talos.probe import Answer, Standing, Target, ask_all
from cozystack_iac.talos.rollout import Rollout


class ProbeInputs(Properties):
    machines: list[Target]
    talos: str  # the version configurations are made for, e.g. v1.13.6
    cozystack: str  # for the boot guidance
    image: str = ""
    checks: Literal["live", "offline"] = "live"
    client_configuration: dict[str, str] = Field(default_factory=dict, repr=False)  # to know our own machines by
    deadline_s: float

    @property
    def identity(self) -> Identity | None:
        return Identity.if_any(self.client_configuration)


class ProbedMachine(Properties):
    """What identified a machine when it was let through the gate."""

    talos: str
    fingerprint: str
    disks: list[str]  # identities of its physical disks
    links: list[str]


class ProbeOutputs(Properties):
    probed: dict[str, ProbedMachine]


class NodeProbeProvider(StageProvider[ProbeInputs, ProbeOutputs]):
    """Plan gate: every machine is what the stack file says, before anything is touched.

    Machines that this stack has let through before are not asked again: they are configured by now, as they should be.
    """

    inputs = ProbeInputs
    outputs = ProbeOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"machines"})
    late = frozenset({"client_configuration"})

    async def preflight(self, new: ProbeInputs, known: ProbeInputs | None) -> list[Finding]:
        machines = added(new.machines, known)
        if not machines:
            return []
        if new.checks == "offline":
            finding = skipped(len(machines))
            report.add("Machines", f"{finding.problem}: {finding.why}")
            return [finding]
        answers = await ask_all(machines, deadline_s=new.deadline_s, identity=new.identity)
        findings = judge(answers, new.talos)
        table = matrix.rows(answers, findings)
        print(matrix.as_text(matrix.telling(table)), flush=True)
        report.add(
            "Machines", f"{matrix.as_markdown(table)}\n\n{as_markdown(Verdict.of(findings)) if findings else ''}"
        )
        if any(a.standing not in (Standing.MAINTENANCE, Standing.OURS) for a in answers):
            print(boot.guidance(new.cozystack, new.talos, image=new.image), flush=True)
        return findings

    async def establish(self, inputs: ProbeInputs, progress: Progress) -> ProbeOutputs:
        return ProbeOutputs(probed=await self._let_through(inputs, inputs.machines, progress))

    async def revise(
        self, inputs: ProbeInputs, known: Known[ProbeInputs, ProbeOutputs], progress: Progress
    ) -> ProbeOutputs:
        names = {machine.name for machine in inputs.machines}
        before = known.outputs.probed if known.outputs is not None else {}
        kept = {name: probed for name, probed in before.items() if name in names}
        return ProbeOutputs(
            probed={**kept, **await self._let_through(inputs, added(inputs.machines, known.inputs), progress)}
        )

    async def _let_through(
        self, inputs: ProbeInputs, machines: Sequence[Target], progress: Progress
    ) -> dict[str, ProbedMachine]:
        """Asked again right before anything is written: machines and disks change between a preview and its update."""
        if not machines:
            return {}
        progress.say(f"checking {len(machines)} machines")
        answers = await ask_all(machines, deadline_s=inputs.deadline_s, identity=inputs.identity)
        verdict = Verdict.of(judge(answers, inputs.talos))
        if verdict.blocking:
            raise _refused(answers, verdict)
        progress.say(f"{len(machines)} machines are ready")
        return {answer.target.name: _probed(answer) for answer in answers}


def added(machines: Sequence[Target], known: ProbeInputs | None) -> list[Target]:
    """The machines that are not yet known, or are known under another address. Order kept."""
    before = {(m.name, m.address) for m in known.machines} if known is not None else set()
    return [machine for machine in machines if (machine.name, machine.address) not in before]


def _refused(answers: Sequence[Answer], verdict: Verdict) -> StageFailed:
    errors = [f for f in verdict if f.severity is Severity.ERROR]
    return StageFailed(
        f"{len(errors)} finding(s) block the rollout.",
        details={f"{f.code} {f.path}": f"{f.problem}; {f.fix}" for f in errors[:20]}
        | ({"more": f"{len(errors) - 20} findings"} if len(errors) > 20 else {})
        | {"machines": "\n" + matrix.as_text(matrix.rows(answers, list(verdict)))},
        means="no machine was changed",
        next_step="fix the findings above, then run `pulumi up` again",
    )


def _probed(answer: Answer) -> ProbedMachine:
    facts, peer = answer.facts, answer.evidence.peer
    return ProbedMachine(
        talos=facts.version if facts else "",
        fingerprint=peer.fingerprint if peer else "",
        disks=sorted(d.identity for d in facts.disks if d.physical) if facts else [],
        links=sorted(k.name for k in facts.links if k.physical) if facts else [],
    )


class NodeProbe(StageResource, module="cozystack", name="NodeProbe"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(NodeProbeProvider(), name, inputs, opts)


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
        return list(certificates.judge("the Talos client certificate", certificate, "the machine secrets"))

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


class MachineConfigRollout(StageResource, module="cozystack", name="MachineConfigRollout"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(MachineConfigRolloutProvider(), name, inputs, opts)


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


class EtcdBootstrap(StageResource, module="cozystack", name="EtcdBootstrap"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(EtcdBootstrapProvider(), name, inputs, opts)
