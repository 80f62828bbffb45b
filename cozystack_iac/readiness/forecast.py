"""How long the platform will still take: the rest of the critical path. Pure, and never more precise than it can be.

What one installation takes is known for ordinary hardware (`links.typical_s`); the releases that this install has already
finished tell how much slower or faster it is. The estimate is the longest way through what is not ready, or the work
divided by the number of actions that Flux runs side by side, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from cozystack_iac.readiness.graph import needs
from cozystack_iac.readiness.links import RECHECK_S, SLOTS, typical_s
from cozystack_iac.readiness.phases import HelmRelease, Phase
from cozystack_iac.readiness.verdicts import ReleaseStanding

SEEN_ENOUGH = 5  # finished releases without which the pace of this install is a guess
WORTH_COUNTING_S = 20.0  # shorter ones are all queue and polling
FIRST_ATTEMPT_S = 900.0  # the longest action, tenant-root's
LATE = 4.0  # a release that runs this many times longer than usual says nothing about its end any more
_STILL_RUNNING = 0.25  # of the usual duration: what a release that is over it is given

_ON_THE_WAY = frozenset({Phase.STARTING, Phase.RUNNING, Phase.WAITING, Phase.FETCHING, Phase.STALE, Phase.FAILING})


def pace(releases: Collection[HelmRelease]) -> float | None:
    """Seconds that this install needs for a usual second; None while too little has been seen.

    A release took from when it could start, created and its dependencies ready, until it was ready. Counted are first
    installations that succeeded at once, of releases that have workloads to wait for.
    """
    ready_at = {r.id: at for r in releases if (at := _ready_at(r)) is not None}
    seen = usual = 0.0
    samples = 0
    for release in releases:
        if release.created is None or any(needed not in ready_at for needed in (release.id, *release.depends_on)):
            continue
        took = ready_at[release.id] - max([release.created, *(ready_at[d] for d in release.depends_on)])
        typical = typical_s(str(release.id))
        # Outside of these bounds a dependency was away later on, or it was ready long before this run.
        if _installed_at_once(release) and typical >= WORTH_COUNTING_S and 0 <= took <= FIRST_ATTEMPT_S:
            seen, samples = seen + took, samples + 1
            usual += typical + (RECHECK_S if release.depends_on else 0.0)
    return seen / usual if samples >= SEEN_ENOUGH else None


def _installed_at_once(release: HelmRelease) -> bool:
    return release.conditions["Ready"].reason == "InstallSucceeded"  # a later attempt, or a change, is an upgrade


def remaining_s(standings: Sequence[ReleaseStanding], pace: float | None, settle_s: float = 0.0) -> float | None:
    """Seconds until all are ready and settled; None when that cannot be known.

    It cannot be known while releases that are expected do not exist yet (what they wait for is not known either), while
    something fails for another reason than order, is suspended, stuck or unreadable, or is far behind its usual time.
    """
    unready = {s.subject: s for s in standings if s.item.phase is not Phase.READY}
    if not unready:
        return settle_s
    if pace is None or any(not _predictable(s, unready, pace) for s in unready.values()):
        return None
    own = {s: _own_s(standing, pace) for s, standing in unready.items()}
    waits = {s: [n for n in needs(each.item) if n in unready and n != s] for s, each in unready.items()}
    try:
        return max(_longest(waits, own, pace), sum(own.values()) / SLOTS) + settle_s
    except CycleError:
        return None


def about(seconds: float | None) -> str:
    """For a person: `about 6 min left`. Whole minutes, fives from twenty on."""
    if seconds is None:
        return "remaining time unknown"
    if seconds < 45:
        return "less than a minute left"
    minutes = max(1, round(seconds / 60))
    return f"about {minutes if minutes < 20 else 5 * round(minutes / 5)} min left"


def timings(releases: Iterable[HelmRelease], writers: Mapping[str, str], origin: str) -> dict[str, int]:
    """Package -> seconds from the creation of release `origin` until its last release became ready.

    `writers`: release -> what writes it. From the API server's own times; a package that is not ready is left out.
    """
    known = {str(r.id): r for r in releases}
    start = known[origin].created if origin in known else None
    if start is None:
        return {}
    last: dict[str, float | None] = {}
    for release, writer in writers.items():
        at = _ready_at(known[release]) if release in known else None
        before = last.get(writer, at)
        last[writer] = None if at is None or before is None else max(at, before)
    rows = sorted((at, writer) for writer, at in last.items() if at is not None)
    return {writer.removeprefix("Package "): round(max(0.0, at - start)) for at, writer in rows}


def _ready_at(release: HelmRelease) -> float | None:
    ready = release.conditions.get("Ready")
    return ready.since if ready and ready.status == "True" else None


def _predictable(standing: ReleaseStanding, unready: Mapping[str, ReleaseStanding], pace: float) -> bool:
    item = standing.item
    if standing.stuck or item.phase not in _ON_THE_WAY or not item.is_release:
        return False
    if item.phase is Phase.FAILING:  # in order only: it waits for something that is on its way itself
        return any(hint in unready for hint in item.hints)
    return standing.root != "" or standing.free_s <= LATE * pace * (typical_s(item.subject) + 2 * RECHECK_S)


def _own_s(standing: ReleaseStanding, pace: float) -> float:
    usual = pace * typical_s(standing.subject)
    if standing.root or standing.item.phase is not Phase.RUNNING:
        return usual
    return max(usual - standing.for_s, _STILL_RUNNING * usual)


def _longest(waits: Mapping[str, Sequence[str]], own: Mapping[str, float], pace: float) -> float:
    """The longest way: a release's own time after the last of those it waits for, and until Flux looks again."""
    done: dict[str, float] = {}
    for subject in TopologicalSorter(waits).static_order():
        look = min(pace, 1.0) * RECHECK_S if waits[subject] else 0.0  # slow machines do not make Flux poll less often
        done[subject] = max((done[t] for t in waits[subject]), default=0.0) + look + own[subject]
    return max(done.values(), default=0.0)
