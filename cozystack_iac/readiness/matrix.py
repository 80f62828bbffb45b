"""The readiness matrix: one row per package, and in which state its releases are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cozystack_iac.readiness.phases import Phase
from cozystack_iac.readiness.verdicts import ReleaseStanding, State

# A package is what the worst of its releases is.
_WORST_FIRST = (State.STUCK, State.UNKNOWN, State.SUSPENDED, State.PROGRESSING, State.STALE, State.READY)
UNOWNED = "of unknown origin"


@dataclass(frozen=True)
class ReleaseRow:
    """One package: how many of its releases are ready, its state, and what is to be said of those that are not."""

    package: str
    ready: int
    total: int
    state: State
    notes: tuple[str, ...]


def rows(standings: Iterable[ReleaseStanding]) -> tuple[ReleaseRow, ...]:
    """The worst first, then by name. Releases that charts create are rows of the release whose chart does."""
    packages: dict[str, list[ReleaseStanding]] = {}
    for standing in standings:
        packages.setdefault(standing.package or UNOWNED, []).append(standing)
    found = [_row(name.removeprefix("Package "), members) for name, members in packages.items()]
    return tuple(sorted(found, key=lambda row: (_WORST_FIRST.index(row.state), row.package)))


def _row(package: str, members: Sequence[ReleaseStanding]) -> ReleaseRow:
    releases = [s for s in members if s.item.is_release]
    ready = sum(s.item.phase is Phase.READY for s in releases)
    state = min((s.state for s in members), key=_WORST_FIRST.index)
    notes = tuple(_note(s) for s in members if s.item.phase is not Phase.READY)
    return ReleaseRow(package, ready, len(releases), state, notes)


def _note(standing: ReleaseStanding) -> str:
    name = standing.subject.rpartition("/")[2]
    where = f", blocked by {standing.root}" if standing.root else ""
    return f"{name} {standing.item.words}{where}"


def render(standings: Iterable[ReleaseStanding], *, limit: int | None = None) -> str:
    """The matrix as plain text: packages that are a reason themselves. What only waits, or is ready, is counted.

    `limit`: rows to show.
    """
    every = tuple(standings)
    reasons = {s.package or UNOWNED for s in every if s.item.phase is not Phase.READY and not s.root}
    found = rows(replace(s, root="") for s in every)
    open_ = [row for row in found if row.state is not State.READY]
    guilty = [row for row in open_ if row.package in {name.removeprefix("Package ") for name in reasons}]
    shown = guilty[:limit]
    width = max((len(row.package) for row in shown), default=0)
    lines = [
        f"{row.package.ljust(width)}  {row.ready:>2} of {row.total:<2}  {row.state:<11}  {'; '.join(row.notes)}".rstrip()
        for row in shown
    ]
    counts = {
        "more like these": len(guilty) - len(shown),
        "waiting for others": len(open_) - len(guilty),
        f"of {len(found)} packages ready": len(found) - len(open_),
    }
    return "\n".join(
        [*lines, ", ".join(f"{count} {what}" for what, count in counts.items() if count or "ready" in what)]
    )
