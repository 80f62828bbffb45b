"""What a person reads of a judgement: one line while it goes on, a whole account when it ends badly. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cozystack_iac.readiness.matrix import render
from cozystack_iac.readiness.verdicts import (
    Blocker,
    Progressing,
    Ready,
    ReleaseStanding,
    Stuck,
    Suspended,
    Unknown,
    Unready,
    Verdict,
)
from cozystack_iac.waiting import StageFailed, format_seconds

SHOWN = 5  # blockers in a message; the rest is counted
NAMED = 8  # of what waits for one
ROWS = 12  # of the matrix in a message
PACKAGES = "packages"  # the matrix's own label


def line(verdict: Verdict) -> str:
    """`41 of 89 ready, waiting for cozy-cert-manager/cert-manager (installing, 34 s) and 3 more`."""
    match verdict:
        case Ready(count):
            return f"all {count} releases ready"
        case Unknown(reason, _, 0):
            return f"unknown: {reason}"
        case Unknown(reason, ready, total):
            return f"unknown: {reason}; {ready} of {total} ready"
        case Progressing(ready, total, (), note):
            return f"{ready} of {total} ready; {note}"
    first, others = verdict.blockers[0], len(verdict.blockers) - 1
    more = f" and {others} more" if others else ""
    return f"{verdict.ready} of {verdict.total} ready, waiting for {first.subject} ({_state(first)}){more}"


def essence(verdict: Verdict) -> str:
    """What has to differ for a line to be worth saying: not how long something lasts already."""
    match verdict:
        case Progressing(_, _, (), _):
            return "settling"
        case Ready() | Unknown():
            return line(verdict)
    return f"{verdict.ready} of {verdict.total}, {verdict.reason}"


def failure(
    verdict: Stuck | Suspended, standings: Sequence[ReleaseStanding], evidence: Mapping[str, str]
) -> StageFailed:
    """Every root with what waits for it and its cause, what the cluster shows around it, and the way out of the first."""
    roots = accounts(verdict, standings)
    details = {**roots, **evidence, PACKAGES: roots[PACKAGES]}
    count = f"{verdict.ready} of {verdict.total} releases are ready"
    if isinstance(verdict, Suspended):
        what, means = "is waiting for a person", "nothing reconciles suspended releases; everything else is done"
    else:
        what, means = "is stuck", "these releases cannot recover by themselves; what is ready stays ready"
    return StageFailed(
        f"The platform {what}, {count}: {verdict.reason}.",
        details=details,
        means=means,
        next_step=f"{verdict.remedy}; then run `pulumi up` again: it continues from here",
    )


def accounts(verdict: Verdict, standings: Sequence[ReleaseStanding]) -> dict[str, str]:
    """Rows of a failure message: one per root, and the matrix below them."""
    if not isinstance(verdict, Unready):
        return {}
    shown = verdict.blockers[:SHOWN]
    rows = {b.subject: account(b) for b in shown}
    if len(verdict.blockers) > len(shown):
        rows["and"] = f"{len(verdict.blockers) - len(shown)} more"
    return {**rows, PACKAGES: render(standings, limit=ROWS)}


def account(blocker: Blocker) -> str:
    """One root: since when it is so, what it says, why, what to do, and everything that waits for it."""
    names = blocker.dependants[:NAMED]
    more = f" and {len(blocker.dependants) - len(names)} more" if len(blocker.dependants) > len(names) else ""
    waits = f"{blocker.behind} wait for it: {', '.join(names)}{more}" if names else ""
    rows = [
        f"{_state(blocker)}" + (f"; {blocker.stuck.value}" if blocker.stuck else ""),
        blocker.evidence[:400],
        f"cause: {blocker.cause}",
        f"fix: {blocker.remedy}",
        waits,
    ]
    return "\n".join(row for row in rows if row)


def _state(blocker: Blocker) -> str:
    return f"{blocker.words}, {format_seconds(blocker.for_s)}"
