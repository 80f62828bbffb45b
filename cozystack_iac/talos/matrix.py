"""The readiness matrix: every machine in one row, as a terminal table and as Markdown. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from cozystack_iac.findings import Finding, Severity
from cozystack_iac.settings.nodes import Disk as WantedDisk
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.machine import size
from cozystack_iac.talos.probe import Answer, Facts, MachineStanding

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_ROWS = 60  # what a person reads in a terminal
HEAD = ("node", "role", "address", "found", "Talos", "install disk", "data disks", "verdict")


@dataclass(frozen=True)
class MachineRow:
    """One machine. All texts; `-` where nothing is known."""

    node: str
    role: str
    address: str
    found: str
    talos: str
    install_disk: str
    data_disks: str
    verdict: str


def rows(answers: Sequence[Answer], findings: Sequence[Finding]) -> tuple[MachineRow, ...]:
    """One row per machine, in the order of the inventory. A machine nothing is known about is never `ready`."""
    return tuple(_row(answer, [f for f in findings if _about(f, answer)]) for answer in answers)


def telling(table_rows: Sequence[MachineRow], most: int = MOST_ROWS) -> tuple[MachineRow, ...]:
    """The rows that a terminal shows: all of them, or those that are not ready where there are too many to read."""
    if len(table_rows) <= most:
        return tuple(table_rows)
    found = [row for row in table_rows if not row.verdict.startswith("ready")]
    left = len(table_rows) - len(found[:most])
    others = MachineRow("others", "", "", f"{left} more", "", "", "", f"{len(table_rows) - len(found)} ready")
    return (*found[:most], others)


def as_text(table_rows: Sequence[DataclassInstance], *, head: Sequence[str] = HEAD, width: int = 200) -> str:
    """For a terminal or a log, without colours. Rows are dataclasses of texts, one per column of `head`."""
    # Imported where it is used: the program itself never draws one, and every preview would wait for it.
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, title=None, pad_edge=False)
    for row in table_rows:
        table.add_row(*astuple(row))
    target = io.StringIO()
    Console(file=target, width=width, no_color=True, highlight=False, markup=False, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines())


def as_markdown(table_rows: Sequence[DataclassInstance], *, head: Sequence[str] = HEAD) -> str:
    """For a pull request."""
    lines = [head, ("---",) * len(head), *(astuple(row) for row in table_rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _row(answer: Answer, findings: list[Finding]) -> MachineRow:
    target, facts = answer.target, answer.facts
    install = _disk(facts, [target.install_disk]) if target.install_disk else "-"
    return MachineRow(
        node=target.name,
        role="control plane" if target.role == "controlPlane" else "worker",
        address=answer.at,
        found=answer.standing.value,
        talos=facts.version if facts else "-",
        install_disk=install,
        data_disks=_disk(facts, target.data_disks) if target.data_disks else "-",
        verdict=_verdict(answer, findings),
    )


def _disk(facts: Facts | None, wanted: Sequence[WantedDisk]) -> str:
    if facts is None:
        return "-"
    return ", ".join(_found(facts, one) for one in wanted)


def _found(facts: Facts, wanted: WantedDisk) -> str:
    try:
        disks = matching(wanted, facts.disks)
    except Unjudged:
        return "?"
    return f"{disks[0].path} {size(disks[0].size_bytes)}" if len(disks) == 1 else f"{len(disks)} match"


def _verdict(answer: Answer, findings: list[Finding]) -> str:
    errors = sorted({f.code for f in findings if f.severity is Severity.ERROR})
    warnings = sorted({f.code for f in findings if f.severity is Severity.WARNING})
    if errors:
        return ", ".join(errors)
    known = answer.standing is MachineStanding.OURS or (
        answer.standing is MachineStanding.MAINTENANCE and answer.facts is not None
    )
    if not known:
        return "not ready"
    return f"ready ({', '.join(warnings)})" if warnings else "ready"


def _about(finding: Finding, answer: Answer) -> bool:
    path = answer.target.path
    return finding.path == path or finding.path.startswith((f"{path}.", f"{path}["))
