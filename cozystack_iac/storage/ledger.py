"""The disk identity ledger: which disks would be written, what they are, and which identity a person has approved. Pure.

A disk is known by serial number, world-wide name and links below /dev/disk/by-id; any of them approves it, compared as it is
written. What the stack file names is judged offline, what the machine reports is judged live, and the Job compares once more
on the node. An identity that nobody has read is "not verified yet", never approved by silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from cozystack_iac.findings import ERROR, NOTE, Finding, Rule
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.machine import ReportedDisk, size

BY_ID = "/dev/disk/by-id/"
APPROVALS = "cozystack:storage.approvedDisks"
MOST_NODES = 8  # with lines of their own in one finding; the others come up once these are approved
HEAD = ("node", "disk in the stack file", "disk found", "identities", "approval")
_PLAIN = re.compile(
    r"[A-Za-z][A-Za-z0-9._-]*", re.ASCII
)  # what YAML 1.2 can only read as text, together with the next line
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off"})

LED_001 = Rule(
    "LED-001",
    ERROR,
    title="Every disk to be written is approved",
    why="the program writes only to disks whose identity a person has approved",
    remedy="check the disk, then add one of its identities to storage.approvedDisks",
)
LED_002 = Rule(
    "LED-002",
    ERROR,
    title="The disk is the approved one",
    why="disks get replaced and cables moved, so the disk found now may hold someone's data",
    remedy="check the machine, then correct dataDisks and approvedDisks",
)
LED_003 = Rule(
    "LED-003",
    ERROR,
    title="The machine reports its disks",
    why="a disk whose identity cannot be read cannot be approved",
    remedy="make sure that the machine responds, then run this again",
)
LED_004 = Rule(
    "LED-004",
    NOTE,
    title="The identity of every disk has been read",
    why="the identity is not verified yet; the storage job reads it on the node before it writes anything",
    remedy="no action needed; the job stops if the identity differs",
)


class EntryStanding(StrEnum):
    """What is known of one disk of the stack file."""

    APPROVED = "approved"
    UNAPPROVED = "NOT APPROVED"
    NOT_ONE = "does not match exactly one disk"
    UNREAD = "the identity cannot be read"
    UNVERIFIED = "identity not verified yet"


@dataclass(frozen=True)
class LedgerEntry:
    """One disk of the stack file. `disk`: what the machine reports, once it has said so; `approval`: the identity that counts."""

    node: str
    place: str
    wanted: Disk
    standing: EntryStanding
    disk: ReportedDisk | None = None
    approval: str = ""
    detail: str = ""


class LedgerDisk(BaseModel):
    """One line of the ledger as it is kept in the state. Without `verified` everything but the stack file's word is empty."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    wanted: str  # "serial DATA0001"
    approval: str  # "DATA0001"
    verified: bool
    device: str = ""  # what the kernel called it then: /dev/sdb
    size_bytes: int = 0
    model: str = ""
    serial: str = ""
    wwid: str = ""
    links: list[str] = []


@dataclass(frozen=True)
class LedgerRow:
    """One line of the table; all texts."""

    node: str
    wanted: str
    found: str
    identities: str
    approval: str


def identities(disk: ReportedDisk) -> tuple[str, ...]:
    """Everything a disk may be approved by, the best first."""
    links = sorted(link.removeprefix(BY_ID) for link in disk.symlinks if link.startswith(BY_ID))
    return tuple(text for text in (disk.wwid, disk.serial, *links) if text)


def spoken(wanted: Disk) -> tuple[str, ...]:
    """The identities that the stack file itself names; an expression is none."""
    return tuple(value.removeprefix(BY_ID) for kind, value in wanted.identities if kind != "selector")


def approval(approved: Iterable[str], own: Iterable[str]) -> str:
    """The approval that names one of a disk's `own` identities, letter by letter; empty when none does."""
    known = set(own)
    return next((text for text in approved if text and text.removeprefix(BY_ID) in known), "")


def entries(
    node: str, place: str, wanted: Sequence[Disk], approved: Sequence[str], disks: Sequence[ReportedDisk] | None
) -> tuple[LedgerEntry, ...]:
    """The ledger of one node. `disks`: what its machine reports; None where there is nobody to ask before the Job."""
    return tuple(_entry(node, f"{place}.dataDisks[{index}]", one, approved, disks) for index, one in enumerate(wanted))


def unread(node: str, place: str, wanted: Sequence[Disk], why: str) -> tuple[LedgerEntry, ...]:
    """The ledger of a node whose machine should have answered and did not."""
    places = (f"{place}.dataDisks[{index}]" for index in range(len(wanted)))
    return tuple(
        LedgerEntry(node, at, one, EntryStanding.UNREAD, detail=why) for at, one in zip(places, wanted, strict=True)
    )


def _entry(
    node: str, place: str, wanted: Disk, approved: Sequence[str], disks: Sequence[ReportedDisk] | None
) -> LedgerEntry:
    if disks is None:
        by = approval(approved, spoken(wanted))
        return LedgerEntry(
            node, place, wanted, EntryStanding.UNVERIFIED if by else EntryStanding.UNAPPROVED, approval=by
        )
    try:
        found = matching(wanted, disks)
    except Unjudged as term:
        return LedgerEntry(
            node, place, wanted, EntryStanding.NOT_ONE, detail=f"the selector `{term}` cannot be evaluated here"
        )
    if len(found) != 1:
        there = ", ".join(map(str, found or [disk for disk in disks if disk.physical])) or "none"
        text = "it matches several disks" if found else "it matches no disk"
        return LedgerEntry(node, place, wanted, EntryStanding.NOT_ONE, detail=f"{text}; disks of the machine: {there}")
    by = approval(approved, identities(found[0]))
    return LedgerEntry(node, place, wanted, EntryStanding.APPROVED if by else EntryStanding.UNAPPROVED, found[0], by)


def judge_entries(found: Iterable[LedgerEntry], kept: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Everything that forbids writing, and what nobody has verified yet. `kept`: by node, the approvals that are right."""
    by_node: dict[str, list[LedgerEntry]] = {}
    for entry in found:
        by_node.setdefault(entry.node, []).append(entry)
    open_ = {node: [e for e in own if e.standing is EntryStanding.UNAPPROVED] for node, own in by_node.items()}
    missing = {node: {_best(e): _told(e) for e in own} for node, own in open_.items() if own}
    findings = [unapproved(LED_001, APPROVALS, missing, kept)] if missing else []
    return [*findings, *(finding for node, own in by_node.items() for finding in _unsure(node, own))]


def _unsure(node: str, own: Sequence[LedgerEntry]) -> Iterator[Finding]:
    for entry in own:
        if entry.standing is EntryStanding.NOT_ONE:
            problem = f"{node}: {entry.wanted}: {entry.detail}"
            yield LED_002.at(entry.place, problem=problem, fix="check the machine, then correct the stack file")
    silent = [entry for entry in own if entry.standing is EntryStanding.UNREAD]
    if silent:
        problem = f"{node} does not report its disks: {silent[0].detail}"
        yield LED_003.at(
            silent[0].place, problem=problem, fix="make sure that the machine responds, then run this again"
        )
    later = [entry for entry in own if entry.standing is EntryStanding.UNVERIFIED]
    if later:
        problem = f"{node}: the identity of {'; '.join(str(entry.wanted) for entry in later)} is not verified yet"
        yield LED_004.at(
            later[0].place, problem=problem, fix="no action needed: the job reads it on the node before it writes"
        )


def unapproved(
    rule: Rule, place: str, missing: Mapping[str, Mapping[str, str]], kept: Mapping[str, Sequence[str]]
) -> Finding:
    """The finding of disks that nobody has approved, with the exact lines that would approve them.

    `missing`: by node, the identity to approve and what the disk is. `kept`: by node, the approvals that are right already.
    """
    nodes = list(missing)[:MOST_NODES]
    more = f", and disks of {len(missing) - len(nodes)} more nodes" if len(missing) > len(nodes) else ""
    told = "; ".join(f"{node}: {', '.join(missing[node].values())}" for node in nodes)
    lines = "\n".join(f"    {line(node, [*kept.get(node, ()), *missing[node]])}" for node in nodes)
    return rule.at(
        place,
        problem=f"these disks are not approved: {told}{more}",
        fix=f"check every disk, then add to the stack file:\ncozystack:storage:\n  approvedDisks:\n{lines}",
    )


def line(node: str, approved: Sequence[str]) -> str:
    """The line of YAML that approves these identities on one node."""
    return f"{_word(node)}: [{', '.join(map(_word, approved))}]"


def rows(found: Iterable[LedgerEntry], between: str = "\n") -> tuple[LedgerRow, ...]:
    """The table that a person reads before approving; `between` a disk's identities, where a cell has to be one line."""
    return tuple(
        LedgerRow(
            node=entry.node,
            wanted=str(entry.wanted),
            found=_what(entry.disk) if entry.disk else "?",
            identities=between.join(identities(entry.disk)) if entry.disk else "?",
            approval=f"approved by {entry.approval}" if entry.standing is EntryStanding.APPROVED else _verdict(entry),
        )
        for entry in found
    )


def kept(entry: LedgerEntry) -> LedgerDisk:
    """An approved (or not yet verified) entry for the state."""
    disk = entry.disk or ReportedDisk("", "")
    return LedgerDisk(
        wanted=str(entry.wanted),
        approval=entry.approval,
        verified=entry.standing is EntryStanding.APPROVED,
        device=disk.path,
        size_bytes=disk.size_bytes,
        model=disk.model,
        serial=disk.serial,
        wwid=disk.wwid,
        links=sorted(link for link in disk.symlinks if link.startswith(BY_ID)),
    )


def _verdict(entry: LedgerEntry) -> str:
    if entry.standing is EntryStanding.UNVERIFIED:
        return f"{entry.standing.value}: approved as {entry.approval}, read on the node before the first write"
    return entry.standing.value


def _best(entry: LedgerEntry) -> str:
    """The identity to approve: what the stack file names if it names one, else the best that the machine reports."""
    own = identities(entry.disk) if entry.disk else ()
    return next(iter((*spoken(entry.wanted), *own)), str(entry.wanted))


def _told(entry: LedgerEntry) -> str:
    disk = entry.disk
    return f"{_what(disk)} ({', '.join(identities(disk))})" if disk else str(entry.wanted)


def _what(disk: ReportedDisk) -> str:
    return f"{disk.path} {size(disk.size_bytes)} {disk.model}".rstrip()


def _word(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text, ensure_ascii=False)
