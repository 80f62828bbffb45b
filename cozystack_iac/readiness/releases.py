"""Are all releases of the platform ready? A judgement over HelmRelease objects, the expected set and time.

Pure: `track` remembers since when something is so, `judge` decides. Nothing here asks the cluster or looks at a clock;
times are seconds on any monotonic scale, the same one in every call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cozystack_iac.readiness import diagnosis
from cozystack_iac.readiness.phases import ON_THEIR_OWN, Item, Phase, Release, ReleaseId, item_of, named_in


@dataclass(frozen=True)
class QueryFailed:
    """The cluster could not be asked, or not all of it."""

    reason: str


@dataclass(frozen=True)
class Expected:
    """What has to be there. `items`: packages that have not written their releases; `floor`: fewer is no platform."""

    releases: Mapping[ReleaseId, str] = field(default_factory=dict)  # release -> subject of the package that writes it
    items: tuple[Item, ...] = ()
    floor: int = 1


@dataclass(frozen=True)
class Limits:
    """How long what may last, in seconds of real life. Sources: facts of the field, see each."""

    settle_s: float = 30.0  # ready has to hold this long: conditions flap when CRDs and webhooks come up
    failing_s: float = 600.0  # longer than one install timeout of the operator (10 min) is no noise
    transient_s: float = 900.0  # known noise; the source-watcher heals itself within 11.5 min
    missing_s: float = 300.0  # the operator writes all releases about 70 s after the Package, budget of its e2e 180 s
    deleting_s: float = 600.0  # uninstall timeout is 5 min; twice that is stuck
    self_healing_s: float = 180.0  # three intervals of tenant-root
    allow_suspended: frozenset[str] = frozenset()  # "namespace/name" of releases a person keeps suspended on purpose

    def scaled(self, factor: float, *, settle_s: float) -> Limits:
        """The same limits in a world that runs `factor` times faster; settling is the caller's own choice."""
        return replace(
            self,
            settle_s=settle_s,
            failing_s=self.failing_s / factor,
            transient_s=self.transient_s / factor,
            missing_s=self.missing_s / factor,
            deleting_s=self.deleting_s / factor,
            self_healing_s=self.self_healing_s / factor,
        )


# By helm-controller's source tenant-root stalls after one failure; upstream's tests saw it converge by itself.
_SELF_HEALING = frozenset({"tenant-root/tenant-root"})


@dataclass(frozen=True)
class Held:
    """Something that is so, unchanged, since a moment."""

    what: str
    since: float


@dataclass(frozen=True)
class Since:
    """Memory between judgements. Only this run counts: an old failure may have been repaired."""

    started: float
    ready: float | None = None
    progress: float | None = None
    count: int = 0
    held: Mapping[str, Held] = field(default_factory=dict)

    def quiet_s(self, now: float) -> float:
        """How long no further release has become ready."""
        return now - (self.started if self.progress is None else self.progress)

    def held_s(self, subject: str, now: float) -> float:
        return now - self.held[subject].since if subject in self.held else 0.0


@dataclass(frozen=True)
class Blocker:
    """A root of what is not ready: nothing else has to happen before it can go on."""

    subject: str
    words: str
    evidence: str
    for_s: float
    behind: int  # releases that wait for it, directly or through others
    cause: str
    remedy: str


@dataclass(frozen=True)
class Ready:
    count: int


@dataclass(frozen=True)
class Progressing:
    """`waiting`: the roots, the one with most behind it first. Empty while all are ready and only have to stay so."""

    ready: int
    total: int
    waiting: tuple[Blocker, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Stuck:
    """`blockers`: every root that cannot go on by itself, the one with most behind it first."""

    ready: int
    total: int
    blockers: tuple[Blocker, ...]

    @property
    def reason(self) -> str:
        return f"{self.blockers[0].subject} is {self.blockers[0].words}"

    @property
    def remedy(self) -> str:
        return self.blockers[0].remedy


@dataclass(frozen=True)
class Unknown:
    reason: str


Verdict = Ready | Progressing | Stuck | Unknown
Objects = Collection[Release] | QueryFailed


def _signature(item: Item) -> str:
    """What stays the same while the same thing goes wrong again: not attempt, verb, revision or addresses."""
    if item.phase not in (Phase.FAILING, Phase.FETCHING, Phase.RUNNING):
        return item.phase.name
    _, chart, error = item.message.partition(" with chart ")
    text = error.partition(": ")[2] or error if chart else item.message
    return re.sub(r"\d+", "#", f"{item.phase.name} {text}")


def _items(objects: Iterable[Release], expected: Expected, allow: Collection[str]) -> dict[str, Item]:
    items = {i.subject: i for i in map(item_of, objects) if not (i.phase is Phase.SUSPENDED and i.subject in allow)}
    packages = {i.subject: i for i in expected.items}
    found = {str(r.id) for r in objects}
    for release, package in expected.releases.items():
        if str(release) not in found:
            behind = frozenset({package}) if package in packages else frozenset()
            note = "" if behind else f"{package} should have written it"
            items[str(release)] = Item(str(release), Phase.MISSING, "ReleaseMissing", note, behind)
    items |= packages
    unready = [i for i in items.values() if i.phase is not Phase.READY and i.phase not in ON_THEIR_OWN]
    for item in unready:
        for subject in item.waits_for - items.keys() - found - named_in(item.message):
            items[subject] = Item(subject, Phase.MISSING, "DependencyMissing", f"{item.subject} depends on it")
    return items


def _roots(items: Mapping[str, Item]) -> dict[str, frozenset[str]]:
    """Roots of what is not ready -> the subjects behind each. A cycle is a root, named by its first member."""
    unready = {s: i for s, i in items.items() if i.phase is not Phase.READY}
    waits = {
        s: frozenset() if i.phase in ON_THEIR_OWN else i.waits_for & unready.keys() - {s} for s, i in unready.items()
    }
    dependants: dict[str, set[str]] = {s: set() for s in unready}
    for subject, targets in waits.items():
        for target in targets:
            dependants[target].add(subject)

    def behind(root: str) -> frozenset[str]:
        seen, queue = {root}, [root]
        while queue:
            new = dependants[queue.pop()] - seen
            seen |= new
            queue.extend(new)
        return frozenset(seen - {root})

    roots = {s: behind(s) for s, targets in waits.items() if not targets}
    rest = unready.keys() - roots.keys() - frozenset().union(*roots.values())
    for subject in sorted(rest):
        if subject in rest:
            roots[subject] = behind(subject)
            rest = rest - roots[subject] - {subject}
    return roots


def _in_circle(item: Item, behind: frozenset[str]) -> bool:
    return bool(item.waits_for & behind) and item.phase not in ON_THEIR_OWN


def track(since: Since, objects: Objects, expected: Expected | QueryFailed, now: float, limits: Limits) -> Since:
    """The memory after looking at `objects`. An answer that was not got changes nothing but ends "all ready"."""
    if isinstance(objects, QueryFailed) or isinstance(expected, QueryFailed):
        return replace(since, ready=None)
    items = _items(objects, expected, limits.allow_suspended)
    held: dict[str, Held] = {}
    for subject, item in items.items():
        what, before = _signature(item), since.held.get(subject)
        held[subject] = before if before and before.what == what else Held(what, now)
    count = sum(i.phase is Phase.READY for i in items.values())
    whole = count == len(items) and count >= expected.floor and count > 0
    return Since(
        started=since.started,
        ready=(since.ready if since.ready is not None else now) if whole else None,
        progress=now if count > since.count else since.progress,
        count=max(count, since.count),
        held=held,
    )


def _is_over(item: Item, since: Since, now: float, limits: Limits) -> bool:
    """Whether a root will not go on by itself any more."""
    age = since.held_s(item.subject, now)
    lasting = min(age, since.quiet_s(now))  # noise ends by itself as long as other releases still become ready
    match item.phase:
        case Phase.SUSPENDED:
            return True
        case Phase.STALLED:
            return item.subject not in _SELF_HEALING or age >= limits.self_healing_s
        case Phase.DELETING:
            return age >= limits.deleting_s
        case Phase.MISSING:
            return lasting >= limits.missing_s
        case Phase.FETCHING:
            return lasting >= limits.transient_s
        case Phase.FAILING:
            known = diagnosis.explain(item.subject, item.reason, item.message)
            return lasting >= limits.transient_s if known and known.transient else age >= limits.failing_s
        case _:
            return False


_GENERIC: dict[Phase, tuple[str, str]] = {
    Phase.SUSPENDED: (
        "somebody suspended it: Flux does not look after it, whatever its last state says",
        'resume it: kubectl -n {ns} patch helmrelease {name} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',
    ),
    Phase.STALLED: (
        "Flux needs a person: it does not try again by itself",
        (
            "remove the cause, then kubectl -n {ns} annotate helmrelease {name} --overwrite "
            "reconcile.fluxcd.io/requestedAt=now reconcile.fluxcd.io/resetAt=now"
        ),
    ),
    Phase.MISSING: (
        "the operator has not written it",
        "look at kubectl get packages and kubectl -n cozy-system logs deploy/cozystack-operator",
    ),
    Phase.DELETING: (
        "its uninstall does not finish",
        "look at what it still waits for: kubectl -n {ns} describe helmrelease {name}",
    ),
}
_OTHERWISE = (
    "no known failure",
    "kubectl -n {ns} describe helmrelease {name}, and kubectl -n cozy-fluxcd logs deploy/flux -c helm-controller",
)
_PACKAGE_REMEDY = "kubectl get package {name} -o yaml, and kubectl -n cozy-system logs deploy/cozystack-operator"


def _blocker(item: Item, behind: frozenset[str], items: Mapping[str, Item], since: Since, now: float) -> Blocker:
    known = diagnosis.explain(item.subject, item.reason, item.message) if item.phase is not Phase.SUSPENDED else None
    cause, remedy = _GENERIC.get(item.phase, _OTHERWISE)
    if _in_circle(item, behind):
        cause = "it waits for itself, through " + ", ".join(sorted(behind & item.waits_for))
    elif known:
        cause, remedy = known.cause, known.remedy
    elif item.is_package:
        remedy = _PACKAGE_REMEDY.format(name=item.subject.removeprefix("Package "))
    else:
        namespace, _, name = item.subject.partition("/")
        remedy = remedy.format(ns=namespace, name=name)
    return Blocker(
        subject=item.subject,
        words=item.words,
        evidence=item.message,
        for_s=since.held_s(item.subject, now),
        behind=sum(not items[s].is_package for s in behind),
        cause=cause,
        remedy=remedy,
    )


def judge(objects: Objects, expected: Expected | QueryFailed, now: float, since: Since, limits: Limits) -> Verdict:
    """Whether the platform is ready. `objects`: every release that belongs to the platform, see `expected.belongs`.

    Ready needs every object and every expected release ready, at least `expected.floor` of them, for `settle_s`.
    Stuck names every root that has used up its limit. What could not be asked is Unknown, never fine.
    """
    for part in (objects, expected):
        if isinstance(part, QueryFailed):
            return Unknown(part.reason)
    assert not isinstance(objects, QueryFailed) and not isinstance(expected, QueryFailed)
    items = _items(objects, expected, limits.allow_suspended)
    releases = [i for i in items.values() if not i.is_package]
    ready, total = sum(i.phase is Phase.READY for i in releases), max(len(releases), expected.floor)
    roots = _roots(items)
    order = sorted(roots, key=lambda s: (-len(roots[s]), s))
    over = [s for s in order if _in_circle(items[s], roots[s]) or _is_over(items[s], since, now, limits)]

    def blockers(subjects: Sequence[str]) -> tuple[Blocker, ...]:
        return tuple(_blocker(items[s], roots[s], items, since, now) for s in subjects)

    if over:
        return Stuck(ready, total, blockers(over))
    if roots:
        return Progressing(ready, total, blockers(order))
    if len(releases) < expected.floor or not releases:
        return Progressing(ready, total, note=f"{len(releases)} releases exist, at least {expected.floor} are expected")
    held = 0.0 if since.ready is None else now - since.ready
    if since.ready is None or held < limits.settle_s:
        return Progressing(ready, total, note=f"all ready, for {held:.0f} s; has to hold for {limits.settle_s:.0f} s")
    return Ready(ready)
