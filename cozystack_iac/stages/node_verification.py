"""Machines that run are verified before anything is built on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import Field

from cozystack_iac import report
from cozystack_iac.findings import ERROR, Finding, block
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.stages.talos_upgrade import silent
from cozystack_iac.talos import matrix
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.inspection import inspect
from cozystack_iac.talos.verification import (
    HEAD,
    VRF_001,
    SeenMachine,
    Unanswered,
    VerificationRow,
    WantedMachine,
    rows,
    verify,
)
from cozystack_iac.waiting import Progress, StageFailed, pause

LOOK_EVERY_S = 0.5  # machines that still start have no way to say that they are done


class VerificationInputs(Properties):
    machines: list[MachineRef]
    wanted: dict[str, WantedMachine]  # by machine
    virtual: list[str]  # every virtual address of the site
    revision: str = ""  # of the machines' configurations: another one is verified again
    client_configuration: dict[str, str] = Field(repr=False)
    deadline_s: float


class VerifiedMachine(Properties):
    """What a machine was when it was last looked at. Empty where it did not say."""

    talos: str
    extensions: list[str]
    modules: list[str]  # of the wanted ones, those that are loaded
    findings: list[str]  # codes


class VerificationOutputs(Properties):
    verified: dict[str, VerifiedMachine]
    members: list[str]  # of etcd: "name (addresses)"


class NodeVerificationProvider(StageProvider[VerificationInputs, VerificationOutputs]):
    """Every machine is what storage and platform need. Asked through Talos alone: no CNI, no Kubernetes node has to be ready."""

    inputs = VerificationInputs
    outputs = VerificationOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"machines", "wanted", "virtual", "revision"})

    async def establish(self, inputs: VerificationInputs, progress: Progress) -> VerificationOutputs:
        progress.say(f"checking {len(inputs.machines)} machines")
        seen = await _settled(inputs, progress)
        findings = verify(seen, inputs.wanted, inputs.virtual)
        table = rows(seen, inputs.wanted, findings)
        report.add("Machines, verified", matrix.as_markdown(table, head=HEAD))
        if any(finding.severity is ERROR for finding in findings):
            raise _refused(table, findings)
        for finding in findings:
            progress.say(block(finding))
        progress.say(f"{len(seen)} machines are verified")
        return _verified(seen, inputs, findings)

    async def observe(self, inputs: VerificationInputs, outputs: VerificationOutputs) -> VerificationOutputs | None:
        """What the machines are now. A silent one has VRF-001 and nothing else; etcd's members are kept when nobody says."""
        seen = await inspect(Fleet.of(inputs.machines, inputs.client_configuration))
        states = {one.machine.name: one.status.why for one in seen if isinstance(one.status, Unanswered)}
        if seen and len(states) == len(seen):
            raise silent(states)
        now = _verified(seen, inputs, verify(seen, inputs.wanted, inputs.virtual))
        return now if now.members else now.model_copy(update={"members": outputs.members})

    def drifted(self, inputs: VerificationInputs, outputs: VerificationOutputs) -> bool:
        return any(set(one.findings) - {VRF_001.code} for one in outputs.verified.values())

    async def withdraw(self, inputs: VerificationInputs, outputs: VerificationOutputs, progress: Progress) -> None:
        return


class NodeVerification(StageResource[VerificationInputs], provider=NodeVerificationProvider):
    pass


async def _settled(inputs: VerificationInputs, progress: Progress) -> tuple[SeenMachine, ...]:
    """The machines' answers, once all of them run and say everything; what there is when the budget is used up."""
    fleet = Fleet.of(inputs.machines, inputs.client_configuration)
    seen: tuple[SeenMachine, ...] = ()
    try:
        async with asyncio.timeout(inputs.deadline_s):
            while True:
                seen = await inspect(fleet)
                open_ = [one.machine.name for one in seen if not one.settled]
                if not open_:
                    return seen
                progress.say(f"waiting for {', '.join(open_[:8])}")
                await pause(LOOK_EVERY_S)
    except TimeoutError:
        away = Unanswered("timed out")
        return seen or tuple(SeenMachine(m, away, away, away, away, away, away, away, away) for m in inputs.machines)


def _refused(table: Sequence[VerificationRow], findings: Sequence[Finding]) -> StageFailed:
    errors = [finding for finding in findings if finding.severity is ERROR]
    shown = {f"{number}. {f.code} {f.path}": f"{f.problem}; {f.fix}" for number, f in enumerate(errors[:20], 1)}
    return StageFailed(
        f"{len({finding.path for finding in errors})} of {len(table)} machines do not meet Cozystack's requirements.",
        details=shown
        | ({"more": f"{len(errors) - 20} findings"} if len(errors) > 20 else {})
        | {"machines": "\n" + matrix.as_text(table, head=HEAD)},
        means="storage and platform would fail on these machines later, with less clear errors; nothing has "
        "been built on them yet",
        next_step="fix the findings above, then run `pulumi up` again",
    )


def _verified(
    seen: Sequence[SeenMachine], inputs: VerificationInputs, findings: Sequence[Finding]
) -> VerificationOutputs:
    made = {}
    for one in seen:
        wanted = inputs.wanted[one.machine.name]
        extensions = () if isinstance(one.extensions, Unanswered) else one.extensions
        modules = frozenset[str]() if isinstance(one.modules, Unanswered) else one.modules
        made[one.machine.name] = VerifiedMachine(
            talos="" if isinstance(one.talos, Unanswered) else one.talos,
            extensions=sorted(f"{e.name} {e.version}" for e in extensions),
            modules=sorted(set(wanted.modules) & modules),
            findings=sorted({finding.code for finding in findings if finding.path == one.machine.name}),
        )
    members = {str(member) for one in seen if isinstance(one.members, tuple) for member in one.members}
    return VerificationOutputs(verified=made, members=sorted(members))
