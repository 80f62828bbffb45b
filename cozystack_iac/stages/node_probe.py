"""The plan gate of machines: each is what the stack file says, before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from cozystack_iac import report
from cozystack_iac.findings import Finding, Severity, Verdict, as_markdown
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.talos import boot, matrix
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.judgement import judge_machines, skipped
from cozystack_iac.talos.probe import Answer, MachineStanding, Target, ask_all
from cozystack_iac.waiting import Progress, StageFailed


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
        findings = judge_machines(answers, new.talos)
        table = matrix.rows(answers, findings)
        print(matrix.as_text(matrix.telling(table)), flush=True)
        report.add(
            "Machines", f"{matrix.as_markdown(table)}\n\n{as_markdown(Verdict.of(findings)) if findings else ''}"
        )
        if any(a.standing not in (MachineStanding.MAINTENANCE, MachineStanding.OURS) for a in answers):
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
        verdict = Verdict.of(judge_machines(answers, inputs.talos))
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


class NodeProbe(StageResource[ProbeInputs], provider=NodeProbeProvider):
    pass
