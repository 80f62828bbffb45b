"""What is wrong, where, why it matters and what to do: one vocabulary for offline rules, live checks and policies.

A `Rule` is declared once, next to the code that judges it; documentation is generated from the registry of rules. A `Finding` is
one place where a rule does not hold. A `Verdict` is all of them, sorted. Rendering is pure; only `stop` talks to the outside.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NoReturn, Self

import pulumi


class Severity(StrEnum):
    """How bad a finding is: an error stops the run, a warning is a risk somebody should know, a note informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst, so that sorting puts errors first."""
        return _RANKS[self]


_RANKS: Mapping[Severity, int] = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

_LONGEST_TEXT = 1000  # values are quoted in findings, and a value can be of any length

_REGISTRY: dict[str, "Rule"] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a rule does not hold.

    `path` is the place in the stack file as `pulumi config set --path` spells it (`cozystack:nodes[1].address`), a file and a
    path inside it (`sites/prod.nodes.yaml: [1].address`), or, for live checks, the machine or object by name. `command` is a
    line to run when one helps.
    """

    code: str
    severity: Severity
    path: str
    problem: str
    why: str
    fix: str
    command: str | None = None

    @property
    def order(self) -> tuple[int, str, tuple[tuple[int, int, str], ...], str]:
        """Sort key: worst first, then by code, place (numbers as numbers) and text."""
        return self.severity.rank, self.code, _natural(self.path), self.problem


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its stable code. Declaring one registers it; declaring a code twice with other words is a mistake.

    `title` says in a few words what must hold, `why` what happens otherwise, `remedy` the usual way out (each finding carries
    its own, more exact one). `overridable` rules can be named in the stack file's `allow:`. Those that are `soft_on_existing`
    only warn where the cluster is there already, since nobody is going to rebuild it. Rules that are `live` are judged by a
    look at the world: whether an override of one is needed cannot be told offline.
    """

    code: str
    severity: Severity
    why: str
    title: str = ""
    remedy: str = ""
    overridable: bool = False
    soft_on_existing: bool = False
    live: bool = False

    def __post_init__(self) -> None:
        known = _REGISTRY.setdefault(self.code, self)
        if known != self:
            raise ValueError(f"rule {self.code} is declared twice with different words")

    def at(
        self, path: str, *, problem: str, fix: str, command: str | None = None, severity: Severity | None = None
    ) -> Finding:
        """A finding of this rule at `path`; `severity` only where one rule judges degrees of the same thing."""
        if command is not None and len(command) > _LONGEST_TEXT:
            command = None  # half a command is worse than none
        return Finding(self.code, severity or self.severity, path, _bounded(problem), self.why, _bounded(fix), command)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings of one run, sorted and without repetition. Make one with `Verdict.of`."""

    findings: tuple[Finding, ...] = field(default=())

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Self:
        """The verdict over `findings`, in whatever order they came."""
        return cls(tuple(sorted(set(findings), key=lambda finding: finding.order)))

    @property
    def blocking(self) -> bool:
        """Whether the run has to stop."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    @property
    def codes(self) -> frozenset[str]:
        """The codes of all findings."""
        return frozenset(finding.code for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """How many findings there are of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def __add__(self, other: "Verdict") -> "Verdict":
        return Verdict.of((*self.findings, *other.findings))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def redacted(self, secrets: Iterable[str]) -> "Verdict":
        """The same verdict with every occurrence of a secret text replaced."""
        texts = sorted((text for text in set(secrets) if text.strip()), key=len, reverse=True)
        return Verdict.of(_redacted(finding, texts) for finding in self.findings) if texts else self


def rules() -> tuple[Rule, ...]:
    """Every rule declared by the modules imported so far, by code."""
    return tuple(_REGISTRY[code] for code in sorted(_REGISTRY))


def summary(verdict: Verdict) -> str:
    """One line: how many of what."""
    if not verdict.findings:
        return "no findings: the stack file is fine"
    counts = [(verdict.count(severity), severity.value) for severity in Severity]
    return ", ".join(f"{count} {word}{'s' if count != 1 else ''}" for count, word in counts if count)


def table(verdict: Verdict) -> str:
    """The verdict for a terminal: one block per finding, aligned, ending in the summary. No colours: it goes through logs."""
    blocks = [block(finding) for finding in verdict.findings]
    return "\n\n".join([*blocks, summary(verdict)])


def as_json(verdict: Verdict) -> str:
    """The verdict for machines: `{"blocking": bool, "findings": [{code, severity, path, problem, why, fix, command}]}`."""
    findings = [
        {
            "code": finding.code,
            "severity": finding.severity.value,
            "path": finding.path,
            "problem": finding.problem,
            "why": finding.why,
            "fix": finding.fix,
            "command": finding.command,
        }
        for finding in verdict.findings
    ]
    return json.dumps({"blocking": verdict.blocking, "findings": findings}, indent=2, ensure_ascii=False)


def as_markdown(verdict: Verdict) -> str:
    """The verdict as a Markdown table, for pull requests."""
    lines = ["| severity | code | where | problem | fix |", "|---|---|---|---|---|"]
    for finding in verdict.findings:
        fix = (
            finding.fix if finding.command is None else f"{finding.fix}: `{'`, `'.join(finding.command.splitlines())}`"
        )
        cells = (
            finding.severity.value,
            finding.code,
            f"`{finding.path}`",
            f"{finding.problem}; {finding.why}",
            fix,
        )
        lines.append(table_row(cells))
    head = f"**{summary(verdict)}**"
    return "\n".join([head, "", *lines]) if verdict.findings else head


def table_row(cells: Iterable[str]) -> str:
    """One row of a Markdown table; nothing in a cell can end the cell, the row, or become markup."""
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    plain = " ".join(text.replace("|", "\\|").split())
    outside_code = plain.split("`")
    outside_code[::2] = [part.replace("<", "&lt;") for part in outside_code[::2]]
    return "`".join(outside_code)


def stop(verdict: Verdict) -> NoReturn:
    """End the Pulumi program with the table. The engine prints a `RunError` without a traceback."""
    sys.tracebacklimit = 0  # belt and braces: a host that does not know RunError must not show frames either
    raise pulumi.RunError(f"the stack file has errors\n\n{table(verdict)}")


def block(finding: Finding) -> str:
    """One finding as aligned lines for a terminal, without colours: it goes through logs."""
    lines = [
        f"{finding.severity.value:<7} {finding.code}  {finding.path}",
        f"  problem  {_indented(finding.problem)}",
        f"  why      {_indented(finding.why)}",
        f"  fix      {_indented(finding.fix)}",
    ]
    if finding.command is not None:
        lines.append(f"           {_indented(finding.command)}")
    return "\n".join(lines)


def _bounded(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _indented(text: str) -> str:
    return text.replace("\n", "\n           ")


def _natural(path: str) -> tuple[tuple[int, int, str], ...]:
    """`nodes[10]` after `nodes[9]`: digits compare as numbers, everything else as text."""
    parts: list[tuple[int, int, str]] = []
    text = ""
    digits = ""
    for character in path:
        if character in "0123456789":
            if text:
                parts.append((1, 0, text))
                text = ""
            digits += character
            continue
        if digits:
            parts.append((0, int(digits[:18]), digits))
            digits = ""
        text += character
    if digits:
        parts.append((0, int(digits[:18]), digits))
    if text:
        parts.append((1, 0, text))
    return tuple(parts)


def _redacted(finding: Finding, secrets: list[str]) -> Finding:
    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "[secret]")
        return text

    command = None if finding.command is None else clean(finding.command)
    return replace(finding, problem=clean(finding.problem), fix=clean(finding.fix), command=command)
