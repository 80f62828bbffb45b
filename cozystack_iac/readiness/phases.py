"""Where one object of the platform stands, read from its status. Pure; what the whole platform makes of it is in `releases`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from cozystack_iac.readiness.links import providers_in


class ReleaseId(NamedTuple):
    """Namespace and name of a HelmRelease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Condition:
    """One entry of `status.conditions`; `status` is "True", "False" or "Unknown". `since`: last transition, epoch seconds."""

    status: str
    reason: str
    message: str
    since: float | None = None

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Condition:
        """From the entry as the API returns it. KeyError, TypeError or AttributeError when it is none."""
        since = _epoch(obj.get("lastTransitionTime"))
        return cls(str(obj["status"]), str(obj.get("reason", "")), str(obj.get("message", "")), since)


@dataclass(frozen=True)
class HelmRelease:
    """What matters of a HelmRelease object. `unreadable`: it exists, and what it says makes no sense (why)."""

    id: ReleaseId
    generation: int = 1
    observed: int = -1
    suspended: bool = False
    deleting: bool = False
    depends_on: tuple[ReleaseId, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    created: float | None = None  # epoch seconds
    unreadable: str = ""

    @cached_property
    def item(self) -> Item:
        """`item_of` this release, found out once: it is asked for at every look, and a release never changes."""
        return item_of(self)

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> HelmRelease:
        """From the object as the API returns it. ValueError when not even its name can be read."""
        try:
            key = ReleaseId(str(obj["metadata"]["namespace"]), str(obj["metadata"]["name"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a HelmRelease cannot be read: {error!r}") from error
        try:
            return cls._parse(key, obj)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return cls(key, unreadable=repr(error))

    @classmethod
    def _parse(cls, key: ReleaseId, obj: Mapping[str, Any]) -> HelmRelease:
        meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        needs = spec.get("dependsOn") or ()
        return cls(
            id=key,
            generation=int(meta.get("generation", 1)),
            observed=int(status.get("observedGeneration", -1)),
            suspended=bool(spec.get("suspend", False)),
            deleting="deletionTimestamp" in meta,
            depends_on=tuple(ReleaseId(str(d.get("namespace") or key.namespace), str(d["name"])) for d in needs),
            conditions={str(c["type"]): Condition.parse(c) for c in status.get("conditions") or ()},
            created=_epoch(meta.get("creationTimestamp")),
        )


def _epoch(stamp: object) -> float | None:
    return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) and stamp else None


class Phase(Enum):
    """Where a release or package stands, in a person's words."""

    READY = "ready"
    STARTING = "not started yet"
    RUNNING = "installing"
    WAITING = "waiting for its dependencies"
    FETCHING = "waiting for its chart"
    FAILING = "failing"
    STALE = "has not processed its last change"
    STALLED = "given up by Flux"
    REJECTED = "rejected by the operator"
    SUSPENDED = "suspended"
    DELETING = "being deleted"
    MISSING = "not created"
    UNREADABLE = "cannot be read"


# These are roots whatever they depend on: no dependency that turns ready would change them.
ON_THEIR_OWN = frozenset({Phase.STALLED, Phase.REJECTED, Phase.SUSPENDED, Phase.DELETING, Phase.UNREADABLE})
# Reasons of the operator that stand until somebody changes what it was asked for.
REJECTIONS = frozenset({"VariantNotFound", "DependsOnFailed", "InvalidConfiguration", "SourceRefNotSet"})


@dataclass(frozen=True)
class Item:
    """Anything that has to become ready: a release ("namespace/name") or what releases come from ("Package name").

    `waits_for` is declared: without those it cannot go on. `hints` are read from its messages: where those are not ready
    either, they are the reason.
    """

    subject: str
    phase: Phase
    reason: str = ""
    message: str = ""
    waits_for: frozenset[str] = frozenset()
    hints: frozenset[str] = frozenset()

    @property
    def is_release(self) -> bool:
        return is_release(self.subject)

    @property
    def words(self) -> str:
        usual: str = self.phase.value
        if self.phase is Phase.FAILING:
            return f"{usual}: {self.reason}"
        if not self.is_release:
            return _WORDS_OF_SOURCES.get(self.phase, usual)
        action = re.match(r"Running '(\w+)' action", self.message)
        if self.phase is Phase.RUNNING and action:
            return {"install": "installing", "upgrade": "upgrading"}.get(action[1], f"running {action[1]}")
        return usual


_WORDS_OF_SOURCES = {Phase.RUNNING: "being built", Phase.FETCHING: "waiting for its source"}


def is_release(subject: str) -> bool:
    """Whether a subject names a HelmRelease; all others carry their kind in front."""
    return " " not in subject


def item_of(release: HelmRelease) -> Item:
    """Where one release stands. A release without a Ready condition is not ready, whatever else it says."""
    ready, stalled = release.conditions.get("Ready"), release.conditions.get("Stalled")
    released = release.conditions.get("Released")
    dependencies = frozenset(map(str, release.depends_on))

    def at(phase: Phase, source: Condition | None = ready) -> Item:
        reason, message = (source.reason, source.message) if source else ("", "")
        return Item(str(release.id), phase, reason, message, dependencies, hints_in(message))

    if release.unreadable:
        return Item(str(release.id), Phase.UNREADABLE, "Unreadable", release.unreadable)
    if release.deleting:
        return at(Phase.DELETING)
    if release.suspended:
        return at(Phase.SUSPENDED)
    if stalled and stalled.status == "True":
        evidence = [stalled.message, *([ready.message] if ready and ready.status != "True" else [])]
        return replace(at(Phase.STALLED, stalled), message="; ".join(dict.fromkeys(evidence)))
    if ready is None:
        return at(Phase.STARTING)
    if ready.status == "True":
        return at(Phase.READY if release.observed == release.generation else Phase.STALE)
    if ready.reason == "RetriesExceeded" or "retries exhausted" in ready.message:
        return at(Phase.STALLED)
    if ready.reason == "DependencyNotReady":
        return at(Phase.WAITING)
    # While a retry runs, Ready is Unknown again; Released keeps the failure of the last attempt.
    if released and released.status == "False":
        return at(Phase.FAILING, released)
    if ready.reason in {"ArtifactFailed", "SourceNotReady", "ValuesError"}:
        return at(Phase.FETCHING)
    return at(Phase.FAILING if ready.status == "False" else Phase.RUNNING)


def source_item(kind: str, obj: Mapping[str, Any]) -> Item:
    """Where an object stands that charts come from: PackageSource, ArtifactGenerator, ExternalArtifact or OCIRepository.

    ValueError when it cannot be read.
    """
    try:
        meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        scope = f"{meta['namespace']}/" if meta.get("namespace") else ""
        raw = {str(c["type"]): c for c in status.get("conditions") or ()}
        conditions = {name: Condition.parse(c) for name, c in raw.items()}
        generation = int(meta.get("generation", 1))
        observed = raw.get("Ready", {}).get("observedGeneration") or status.get("observedGeneration") or generation
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"a {kind} cannot be read: {error!r}") from error
    subject, ready = f"{kind} {scope}{meta['name']}", conditions.get("Ready")
    reason, message = (ready.reason, ready.message) if ready else ("", "")
    phase = _source_phase(conditions, stale=int(observed) != generation)
    if "deletionTimestamp" in meta:
        phase = Phase.DELETING
    elif spec.get("suspend") is True:
        phase = Phase.SUSPENDED
    return Item(subject, phase, reason, message, hints=hints_in(message))


def _source_phase(conditions: Mapping[str, Condition], *, stale: bool) -> Phase:
    ready, stalled = conditions.get("Ready"), conditions.get("Stalled")
    if stalled and stalled.status == "True":
        return Phase.STALLED
    if ready is None:
        return Phase.STARTING
    if ready.status == "True":
        return Phase.STALE if stale else Phase.READY
    if ready.reason in REJECTIONS:
        return Phase.REJECTED
    if ready.reason == "SourceWatcherStalled":  # the operator has used up its own attempts to heal it
        return Phase.STALLED
    if ready.reason == "SourceFetchFailed":
        return Phase.FETCHING
    return Phase.FAILING if ready.status == "False" else Phase.RUNNING


def hints_in(message: str) -> frozenset[str]:
    """Subjects that a message blames: what a health check still waits for, a repository, the bringer of an unknown kind."""
    if "/" not in message and "no matches for kind" not in message:
        return frozenset()  # most messages, and this is asked of every release at every look
    named = re.findall(r"\b(Package|PackageSource|HelmRelease)/(\S+) status: '", message)
    repositories = re.findall(r"\bOCIRepository/([^'\s]+)", message)
    return (
        frozenset(name if kind == "HelmRelease" else f"{kind} {name}" for kind, name in named)
        | frozenset(f"OCIRepository {name}" for name in repositories)
        | providers_in(message)
    )
