"""Are all releases of the platform ready? A judgement over HelmRelease objects, the expected set and time.

Pure: `assess` folds one look at the cluster into what earlier looks remember. Nothing here asks the cluster or looks at a
clock; times are seconds on any monotonic scale, the same one in every call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cozystack_iac import diagnosis
from cozystack_iac.readiness.graph import Expected, circle, gather, needs, roots
from cozystack_iac.readiness.links import link_of
from cozystack_iac.readiness.phases import HelmRelease, Item, Phase
from cozystack_iac.readiness.verdicts import (
    Blocker,
    Held,
    Judgement,
    Progressing,
    QueryFailed,
    Ready,
    ReleaseStanding,
    Since,
    Stale,
    State,
    Stuck,
    StuckClass,
    Suspended,
    Unknown,
    Verdict,
)

FAILING_S = 600.0  # one install timeout of the operator (10 min): shorter is noise. Links may allow more
TRANSIENT_S = 900.0  # known noise; the source-watcher heals itself within 11.5 min
MISSING_S = 300.0  # the operator writes all releases about 70 s after the Package, budget of its e2e 180 s
DELETING_S = 600.0  # uninstall timeout is 5 min; twice that is stuck
SELF_HEALING_S = 180.0  # three intervals of tenant-root
REJECTED_S = 60.0  # what it asks for may be on its way: sources and packages are written side by side
IDLE_S = 1800.0  # five hanging releases hold all slots for 10 min at a time; an action ends after 15 min at the latest

# By helm-controller's source tenant-root stalls after one failure; upstream's tests saw it converge by itself.
_SELF_HEALING = frozenset({"tenant-root/tenant-root"})


@dataclass(frozen=True)
class WaitLimits:
    """How patient to be. `patience`: factor on every limit above; the settling period is given as it is."""

    settle_s: float = 30.0  # ready has to hold this long: conditions flap when CRDs and webhooks come up
    patience: float = 1.0
    allow_suspended: frozenset[str] = frozenset()  # "namespace/name" of releases a person keeps suspended on purpose
    noise: frozenset[str] = frozenset()  # subjects whose failure, evidence says, ends by itself while others move on


Objects = Collection[HelmRelease] | QueryFailed


def assess(
    since: Since, objects: Objects, expected: Expected | QueryFailed, now: float, limits: WaitLimits
) -> Judgement:
    """Whether the platform is ready. `objects`: every release that belongs to the platform, see `expected.belongs`.

    Ready needs every object and every expected release ready, at least `expected.floor` of them, the same set for
    `settle_s`. Stuck names every root that has used up its limit. What could not be read is Unknown, never fine.
    """
    for part in (objects, expected):
        if isinstance(part, QueryFailed):
            return Judgement(Unknown(part.reason), (), replace(since, ready=None))
    assert not isinstance(objects, QueryFailed) and not isinstance(expected, QueryFailed)
    items = gather(objects, expected, limits.allow_suspended)
    behind = roots(items)
    since = _remember(since, items, behind, expected.floor, now)
    standings = _standings(items, behind, expected, since, now, limits)
    return Judgement(_verdict(items, behind, standings, expected.floor, since, now, limits), standings, since)


def _remember(
    since: Since, items: Mapping[str, Item], behind: Mapping[str, frozenset[str]], floor: int, now: float
) -> Since:
    before, held = since.held or {}, {}
    for subject, item in items.items():
        what = _signature(item)
        held[subject] = before[subject] if subject in before and before[subject].what == what else Held(what, now)
    count, names = sum(i.phase is Phase.READY for i in items.values()), frozenset(items)
    whole = count == len(items) and count >= max(floor, 1)
    lasted = since.ready if names == since.names else None
    free = since.free or {}
    return Since(
        started=since.started,
        ready=(now if lasted is None else lasted) if whole else None,
        progress=now if count > since.count else since.progress,
        count=max(count, since.count),
        names=names,
        held=held,
        free={subject: free.get(subject, now) for subject in behind},
    )


def _signature(item: Item) -> str:
    """What stays the same while the same thing goes wrong again: not attempt, verb, revision or addresses."""
    if item.phase not in (Phase.FAILING, Phase.FETCHING, Phase.RUNNING):
        return item.phase.name
    _, chart, error = item.message.partition(" with chart ")
    text = error.partition(": ")[2] or error if chart else item.message
    return re.sub(r"\d+", "#", f"{item.phase.name} {text}")


def _standings(
    items: Mapping[str, Item],
    behind: Mapping[str, frozenset[str]],
    expected: Expected,
    since: Since,
    now: float,
    limits: WaitLimits,
) -> tuple[ReleaseStanding, ...]:
    writers = {str(release): writer for release, writer in expected.releases.items()}
    roots_of = {s: root for root in sorted(behind, key=lambda r: (len(behind[r]), r)) for s in behind[root]}
    found = []
    for subject, item in items.items():
        stuck = _stuck(item, items, since, now, limits) if subject in behind else None
        standing = ReleaseStanding(
            item=item,
            state=State.STUCK if stuck else _state(item),
            package=writers.get(subject, "") if item.is_release else subject,
            for_s=since.held_s(subject, now),
            free_s=since.free_s(subject, now),
            stuck=stuck,
            root="" if subject in behind else roots_of.get(subject, ""),
        )
        found.append(standing)
    return tuple(sorted(found, key=lambda s: s.subject))


_STATES = {
    Phase.READY: State.READY,
    Phase.STALE: State.STALE,
    Phase.SUSPENDED: State.SUSPENDED,
    Phase.UNREADABLE: State.UNKNOWN,
}


def _state(item: Item) -> State:
    return _STATES.get(item.phase, State.PROGRESSING)


def _stuck(item: Item, items: Mapping[str, Item], since: Since, now: float, limits: WaitLimits) -> StuckClass | None:
    """Why a root will not go on by itself any more; None while it may."""
    if item.phase in (Phase.SUSPENDED, Phase.UNREADABLE):
        return None
    if any(n in items for n in needs(item)) and circle(item.subject, items):
        return StuckClass.CIRCLE
    age = since.held_s(item.subject, now) / limits.patience
    free, quiet = since.free_s(item.subject, now) / limits.patience, since.quiet_s(now) / limits.patience
    lasting = min(age, quiet)  # noise ends by itself as long as other releases still become ready
    link = link_of(item.subject)
    found: StuckClass | None = None
    match item.phase:
        case Phase.STALLED if item.subject not in _SELF_HEALING or age >= SELF_HEALING_S:
            found = StuckClass.GIVEN_UP
        case Phase.REJECTED if age >= REJECTED_S:
            found = StuckClass.REJECTED
        case Phase.DELETING if age >= DELETING_S:
            found = StuckClass.DELETING
        case Phase.MISSING if min(free, quiet) >= MISSING_S:
            found = StuckClass.MISSING
        case Phase.FETCHING | Phase.STALE if lasting >= TRANSIENT_S:
            found = StuckClass.OVERDUE
        case Phase.RUNNING | Phase.STARTING if not item.is_release and lasting >= link.budget_s:
            found = StuckClass.OVERDUE
        case Phase.FAILING if item.subject in limits.noise or _is_noise(item):
            found = StuckClass.REPEATING if min(free, lasting) >= max(TRANSIENT_S, link.budget_s) else None
        case Phase.FAILING if min(age, free) >= max(FAILING_S, link.budget_s):
            found = StuckClass.REPEATING
    return found or (StuckClass.OVERDUE if min(free, quiet) >= IDLE_S else None)


def _is_noise(item: Item) -> bool:
    known = diagnosis.explain(item.subject, item.reason, item.message)
    return known is not None and known.transient


def _verdict(
    items: Mapping[str, Item],
    behind: Mapping[str, frozenset[str]],
    standings: Sequence[ReleaseStanding],
    floor: int,
    since: Since,
    now: float,
    limits: WaitLimits,
) -> Verdict:
    releases = [i for i in items.values() if i.is_release]
    ready, total = sum(i.phase is Phase.READY for i in releases), max(len(releases), floor)
    unready = sorted((s for s in standings if s.subject in behind), key=lambda s: (-len(behind[s.subject]), s.subject))
    states = {s.state for s in unready}

    def blockers(*wanted: State) -> tuple[Blocker, ...]:
        return tuple(_blocker(s, behind[s.subject], items) for s in unready if s.state in wanted)

    if State.STUCK in states:
        return Stuck(ready, total, blockers(State.STUCK, State.SUSPENDED))
    if State.UNKNOWN in states:
        first = next(s.item for s in unready if s.state is State.UNKNOWN)
        return Unknown(f"{first.subject} cannot be read: {first.message}", ready, total)
    if states == {State.SUSPENDED}:
        return Suspended(ready, total, blockers(State.SUSPENDED))
    if states == {State.STALE}:
        return Stale(ready, total, blockers(State.STALE))
    if unready:
        return Progressing(ready, total, blockers(*State))
    if len(releases) < max(floor, 1):
        return Progressing(ready, total, note=f"{len(releases)} releases exist, but at least {floor} are expected")
    held = 0.0 if since.ready is None else now - since.ready
    if since.ready is None or held < limits.settle_s:
        return Progressing(
            ready, total, note=f"all ready for {held:.0f} s; they must stay ready for {limits.settle_s:.0f} s"
        )
    return Ready(ready)


_GENERIC: dict[Phase, tuple[str, str]] = {
    Phase.SUSPENDED: (
        "it was suspended by a person or a tool: Flux does not reconcile it, whatever its last state shows",
        'resume it: kubectl -n {ns} patch {kind} {name} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    Phase.STALLED: (
        "Flux does not retry it without a person",
        (
            "remove the cause, then run: kubectl -n {ns} annotate {kind} {name} --overwrite "
            "reconcile.fluxcd.io/requestedAt=now reconcile.fluxcd.io/resetAt=now"
        ),
    ),
    Phase.MISSING: (
        "the operator has not created it",
        "check kubectl get packages and kubectl -n cozy-system logs deploy/cozystack-operator",
    ),
    Phase.DELETING: (
        "its uninstall does not finish",
        "check what it is still waiting for: kubectl -n {ns} describe {kind} {name}",
    ),
    Phase.STALE: (
        "Flux has not processed the last change, so its status is out of date",
        "check kubectl -n cozy-fluxcd get pods and kubectl -n {ns} describe {kind} {name}",
    ),
}
_OTHERWISE = (
    "it matches no known failure",
    "check kubectl -n {ns} describe {kind} {name} and kubectl -n cozy-fluxcd logs deploy/flux -c helm-controller",
)
_OPERATORS = "check kubectl get {kind} {name} -o yaml and kubectl -n cozy-system logs deploy/cozystack-operator"
_REPOSITORY = (
    "the platform's source cannot be pulled",
    "check the network path from the cluster to its registry, then kubectl -n {ns} describe {kind} {name}",
)


def _blocker(standing: ReleaseStanding, behind: frozenset[str], items: Mapping[str, Item]) -> Blocker:
    item = standing.item
    says_why = item.phase not in (Phase.SUSPENDED, Phase.STALE)  # these keep the words of better days
    known = diagnosis.explain(item.subject, item.reason, item.message) if says_why else None
    kind, _, path = item.subject.rpartition(" ")
    namespace, _, name = path.rpartition("/")
    cause, remedy = _GENERIC.get(item.phase, _REPOSITORY if kind == "OCIRepository" else _OTHERWISE)
    if not namespace and item.phase is not Phase.MISSING:
        remedy = _OPERATORS  # cluster-wide objects are the operator's
    if standing.stuck is StuckClass.CIRCLE:
        others = ", ".join(sorted(circle(item.subject, items) - {item.subject}))
        cause = f"it depends on itself, through {others}" if others else "it lists itself as a dependency"
        remedy = "break the cycle (ignoreDependencies of one of the Packages), and report it to Cozystack"
    elif known:
        cause, remedy = known.cause, known.remedy
    else:
        remedy = remedy.format(ns=namespace, name=name, kind=kind.lower() or "helmrelease")
    return Blocker(
        subject=item.subject,
        words=item.words,
        reason=item.reason,
        evidence=item.message,
        for_s=standing.for_s,
        dependants=tuple(sorted(behind)),
        cause=cause,
        remedy=remedy,
        stuck=standing.stuck,
    )
