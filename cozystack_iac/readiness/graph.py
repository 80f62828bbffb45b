"""What waits for what: everything that has to become ready, and the roots of what is not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from cozystack_iac.readiness.phases import ON_THEIR_OWN, HelmRelease, Item, Phase, ReleaseId, is_release


@dataclass(frozen=True)
class Expected:
    """What has to be there.

    `releases`: each with the subject that writes it, a package or the release whose chart does. `items`: packages that have
    not written theirs. `sources`: what charts come from, as far as it says that it is not ready; explains, never blocks.
    `floor`: fewer releases are no platform.
    """

    releases: Mapping[ReleaseId, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    floor: int = 1
    sources: Mapping[str, Item] = field(default_factory=dict)


def gather(objects: Iterable[HelmRelease], expected: Expected, allow: Collection[str]) -> dict[str, Item]:
    """Everything that counts, by subject; what is expected and not there counts as missing.

    `allow`: "namespace/name" of releases that may be suspended.
    """
    found = {r.item.subject: r.item for r in objects}
    items = {s: i for s, i in found.items() if not (i.phase is Phase.SUSPENDED and s in allow)}
    writers = {str(release): writer for release, writer in expected.releases.items()}
    for subject, writer in writers.items():
        if subject not in found:
            note = f"{'the chart of ' if is_release(writer) else ''}{writer} should have created it"
            items[subject] = Item(subject, Phase.MISSING, "ReleaseMissing", note, hints=frozenset({writer}))
    items |= {i.subject: i for i in expected.items}
    for item in [i for i in items.values() if i.phase is not Phase.READY and i.phase not in ON_THEIR_OWN]:
        for subject in [s for s in item.waits_for if s not in items and s not in found]:
            items[subject] = Item(subject, Phase.MISSING, "DependencyMissing", f"{item.subject} depends on it")
    return items | _sources(items, writers, expected.sources)


def _sources(items: Mapping[str, Item], writers: Mapping[str, str], sources: Mapping[str, Item]) -> dict[str, Item]:
    """The sources of charts that are waited for, as far as they are not ready, and those items, now pointing there."""
    found: dict[str, Item] = {}
    for item in items.values():
        if item.phase is Phase.FETCHING and item.is_release:
            source = writers.get(item.subject, "").replace("Package ", "PackageSource ", 1)
            if source in sources:
                found[item.subject] = replace(item, hints=item.hints | {source})
                found[source] = sources[source]
                found |= {s: sources[s] for s in sources[source].hints if s in sources}
    return found


def roots(items: Mapping[str, Item]) -> dict[str, frozenset[str]]:
    """Roots of what is not ready -> the subjects behind each. A cycle is a root, named by its first member."""
    unready = {s: i for s, i in items.items() if i.phase is not Phase.READY}
    waits = {s: [n for n in needs(i) if n in unready and n != s] for s, i in unready.items()}
    dependants: dict[str, set[str]] = {s: set() for s in unready}
    for subject, targets in waits.items():
        for target in targets:
            dependants[target].add(subject)
    found = {s: _reach(s, dependants) for s, targets in waits.items() if not targets}
    rest = unready.keys() - found.keys() - frozenset().union(*found.values())
    for subject in sorted(rest):
        if subject in rest:
            found[subject] = _reach(subject, dependants)
            rest = rest - found[subject] - {subject}
    return {s: behind - {s} for s, behind in found.items()}


def needs(item: Item) -> frozenset[str]:
    """What an item waits for, declared or not."""
    return frozenset() if item.phase in ON_THEIR_OWN else item.waits_for | item.hints


def circle(subject: str, items: Mapping[str, Item]) -> frozenset[str]:
    """Members of the declared cycle that `subject` is in; empty when there is none. What messages hint at proves nothing."""
    declared = {s: i.waits_for for s, i in items.items() if i.phase is not Phase.READY and i.phase not in ON_THEIR_OWN}
    return frozenset(s for s in _reach(subject, declared) if subject in _reach(s, declared))


def _reach(start: str, edges: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Everything that can be got to from `start`; itself only when a way leads back."""
    seen: set[str] = set()
    queue = [start]
    while queue:
        new = set(edges.get(queue.pop(), ())) - seen
        seen |= new
        queue.extend(new)
    return frozenset(seen)
