"""The ledger as a stage: what would be written is shown and judged in the preview, and read again right before it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from cozystack_iac import report
from cozystack_iac.findings import Finding, Severity, Verdict, as_markdown
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.storage import ledger
from cozystack_iac.storage.ledger import LedgerDisk, LedgerEntry
from cozystack_iac.talos import matrix, probe
from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import TalosError
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.judgement_disks import judge_disks
from cozystack_iac.talos.probe import Answer, Facts, MachineStanding, Target
from cozystack_iac.talos.transport import Limits
from cozystack_iac.waiting import Progress, StageFailed


class LedgerInputs(Properties):
    disks: dict[str, list[Disk]]  # node -> its data disks
    places: dict[str, str]  # node -> where the stack file describes it, for findings
    approved: dict[str, list[str]]
    machines: list[MachineRef] = Field(default_factory=list)  # whom to ask; none where there is no Talos API
    checks: Literal["live", "offline"] = "live"
    client_configuration: dict[str, str] = Field(default_factory=dict, repr=False)
    deadline_s: float

    @property
    def identity(self) -> Identity | None:
        return Identity.if_any(self.client_configuration)


class LedgerOutputs(Properties):
    ledger: dict[str, list[LedgerDisk]]  # node -> its data disks


class DiskLedgerProvider(StageProvider[LedgerInputs, LedgerOutputs]):
    """Every disk that is going to be written is the one a person has approved. Disks that are in the ledger stay in it."""

    inputs = LedgerInputs
    outputs = LedgerOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"disks"})
    late = frozenset({"client_configuration"})

    async def preflight(self, new: LedgerInputs, known: LedgerInputs | None) -> list[Finding]:
        before = known.disks if known is not None else {}
        looks = await _looks(new, fresh(new, before))
        kept = {look.node: look.approvals for look in looks}
        looks = [look.only(before.get(look.node, [])) for look in looks]
        found = [entry for look in looks for entry in look.entries]
        if not found:
            return []
        own = [entry for look in looks for entry in look.to_judge(first=look.node not in before)]
        findings = [*ledger.judge_entries(own, kept), *(finding for look in looks for finding in look.traces())]
        print(matrix.as_text(ledger.rows(found), head=ledger.HEAD), flush=True)
        markdown = matrix.as_markdown(ledger.rows(found, between=", "), head=ledger.HEAD)
        report.add("Disks to be written", f"{markdown}\n\n{as_markdown(Verdict.of(findings)) if findings else ''}")
        return findings

    async def establish(self, inputs: LedgerInputs, progress: Progress) -> LedgerOutputs:
        return LedgerOutputs(ledger=await self._enter(inputs, list(inputs.disks), progress))

    async def revise(
        self, inputs: LedgerInputs, known: Known[LedgerInputs, LedgerOutputs], progress: Progress
    ) -> LedgerOutputs:
        """Only nodes that get other disks are asked; lines of disks that stay are kept as they were."""
        if known.inputs is None or known.outputs is None:
            return await self.establish(inputs, progress)
        nodes = fresh(inputs, known.inputs.disks)
        kept = {
            node: disks for node, disks in known.outputs.ledger.items() if node in inputs.disks and node not in nodes
        }
        return LedgerOutputs(ledger={**kept, **await self._enter(inputs, nodes, progress)})

    async def withdraw(self, inputs: LedgerInputs, outputs: LedgerOutputs, progress: Progress) -> None:
        count = sum(map(len, outputs.ledger.values()))
        progress.say(f"the records of {count} disks are deleted; the disks and their data are kept")

    async def _enter(
        self, inputs: LedgerInputs, nodes: Sequence[str], progress: Progress
    ) -> dict[str, list[LedgerDisk]]:
        """Read again right before the disks are written: disks change between a preview and its update."""
        progress.say(f"reading the disk identities of {len(nodes)} nodes")
        # The preview alone may be told to ask nobody; here a machine that could be asked has to answer.
        looks = await _looks(inputs.model_copy(update={"checks": "live"}), nodes)
        entries = [entry for look in looks for entry in look.entries]
        verdict = Verdict.of(ledger.judge_entries(entries, {look.node: look.approvals for look in looks}))
        if verdict.blocking:
            raise _refused(entries, verdict)
        return {look.node: [ledger.kept(entry) for entry in look.entries] for look in looks}


class DiskLedger(StageResource[LedgerInputs], provider=DiskLedgerProvider):
    pass


def fresh(inputs: LedgerInputs, before: Mapping[str, Sequence[Disk]]) -> list[str]:
    """Nodes with a disk that was not among theirs before, or with fewer. Order kept."""
    return [node for node, disks in inputs.disks.items() if list(disks) != list(before.get(node, []))]


@dataclass(frozen=True)
class NodeLedger:
    """One node's part of the ledger; `answer` is what its machine said, None where there is none to ask."""

    node: str
    entries: tuple[LedgerEntry, ...]
    answer: Answer | None = None

    @property
    def approvals(self) -> list[str]:
        """Those that name a disk; others of this node are slips, or of disks that have left."""
        return [entry.approval for entry in self.entries if entry.approval]

    def only(self, known: Sequence[Disk]) -> NodeLedger:
        """Without the disks that are in the ledger already: they are not going to be written."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.wanted not in known))

    @property
    def ours(self) -> bool:
        """Whether this cluster has configured the machine; one that it has not is judged by the gate of the machines, too."""
        return self.answer is not None and self.answer.standing is MachineStanding.OURS

    def to_judge(self, *, first: bool) -> list[LedgerEntry]:
        """What a preview says here. Of a machine that is new to the cluster the gate says what is missing, and why."""
        gates = first and self.answer is not None and not self.ours
        return [
            e
            for e in self.entries
            if not (gates and e.standing in (ledger.EntryStanding.NOT_ONE, ledger.EntryStanding.UNREAD))
        ]

    def traces(self) -> list[Finding]:
        """What else speaks against the disks of a machine that runs: the gate has looked at it before they were there."""
        if not self.ours or self.answer is None or self.answer.facts is None:
            return []
        places = {entry.place for entry in self.entries}
        found = judge_disks(self.answer, self.answer.facts)
        return [finding for finding in found if finding.path in places and finding.code not in _IDENTITY]


_IDENTITY = frozenset({"DSK-003", "DSK-004", "DSK-005"})  # the ledger has its own words for these


async def _looks(inputs: LedgerInputs, nodes: Iterable[str]) -> list[NodeLedger]:
    """The ledger of each of `nodes`, all machines asked at once. Never raises."""
    nodes = list(nodes)
    machines = {machine.name: machine for machine in inputs.machines if inputs.checks == "live"}
    targets = [
        _target(machines[node], inputs.places.get(node, node), inputs.disks[node]) for node in nodes if node in machines
    ]
    limits = Limits.of()
    answers = await probe.ask_all(targets, deadline_s=inputs.deadline_s, identity=inputs.identity)
    complete = await asyncio.gather(*(_complete(inputs, answer, limits) for answer in answers))
    by_node = {answer.target.name: answer for answer in complete}
    return [_look(inputs, node, by_node.get(node)) for node in nodes]


def _look(inputs: LedgerInputs, node: str, answer: Answer | None) -> NodeLedger:
    disks, place, approved = inputs.disks[node], inputs.places.get(node, node), inputs.approved.get(node, [])
    if answer is None:
        return NodeLedger(node, ledger.entries(node, place, disks, approved, None))
    if answer.facts is None:
        return NodeLedger(node, ledger.unread(node, place, disks, answer.seen), answer)
    return NodeLedger(node, ledger.entries(node, place, disks, approved, answer.facts.disks), answer)


def _target(machine: MachineRef, place: str, disks: Sequence[Disk]) -> Target:
    given = machine.model_dump(include={"name", "role", "maintenance", "address", "internal", "fingerprint", "port"})
    return Target(**given, path=place, data_disks=tuple(disks))


async def _complete(inputs: LedgerInputs, answer: Answer, limits: Limits) -> Answer:
    """A machine that this cluster has configured says what it has only to us."""
    identity = inputs.identity
    if answer.standing is not MachineStanding.OURS or identity is None:
        return answer
    port = answer.target.port
    client = Machine(answer.at, identity=identity, port=port, deadline_s=inputs.deadline_s, limits=limits)
    try:
        async with client:
            system, disks, volumes = await asyncio.gather(client.system_disk(), client.disks(), client.volumes())
    except TalosError as error:
        return replace(answer, evidence=replace(answer.evidence, error=error))
    return replace(answer, facts=Facts("", system, disks, volumes, links=(), addresses=()))


def _refused(entries: Sequence[LedgerEntry], verdict: Verdict) -> StageFailed:
    errors = [finding for finding in verdict if finding.severity is Severity.ERROR]
    return StageFailed(
        "The disks found are not the approved disks.",
        details={f"{f.code} {f.path}": f"{f.problem}; {f.fix}" for f in errors[:20]}
        | ({"more": f"{len(errors) - 20} findings"} if len(errors) > 20 else {})
        | {"disks": "\n" + matrix.as_text(ledger.rows(entries), head=ledger.HEAD)},
        means="nothing was written to any disk",
        next_step="check the machines named above, correct the stack file, then run `pulumi up` again",
    )
