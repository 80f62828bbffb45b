"""Where one HelmRelease stands, read from its object. Pure; what the whole platform makes of it is in `releases`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple


class ReleaseId(NamedTuple):
    """Namespace and name of a HelmRelease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Condition:
    """One entry of `status.conditions`; `status` is "True", "False" or "Unknown"."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Release:
    """What matters of a HelmRelease object."""

    id: ReleaseId
    generation: int = 1
    observed: int = -1
    suspended: bool = False
    deleting: bool = False
    depends_on: tuple[ReleaseId, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Release:
        """From the object as the API returns it. ValueError when it is none: then the answer is Unknown."""
        try:
            meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
            namespace = str(meta["namespace"])
            return cls(
                id=ReleaseId(namespace, str(meta["name"])),
                generation=int(meta.get("generation", 1)),
                observed=int(status.get("observedGeneration", -1)),
                suspended=bool(spec.get("suspend", False)),
                deleting="deletionTimestamp" in meta,
                depends_on=tuple(
                    ReleaseId(str(d.get("namespace") or namespace), str(d["name"])) for d in spec.get("dependsOn") or ()
                ),
                conditions={
                    str(c["type"]): Condition(str(c["status"]), str(c.get("reason", "")), str(c.get("message", "")))
                    for c in status.get("conditions") or ()
                },
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a HelmRelease that cannot be read: {error!r}") from error


class Phase(Enum):
    """Where a release or package stands, in a person's words."""

    READY = "ready"
    STARTING = "not started yet"
    RUNNING = "installing"
    WAITING = "waiting for its dependencies"
    FETCHING = "waiting for its chart"
    FAILING = "failing"
    STALE = "has not taken in its last change"
    STALLED = "given up by Flux"
    SUSPENDED = "suspended"
    DELETING = "being deleted"
    MISSING = "not created"


# These are roots whatever they depend on: no dependency that turns ready would change them.
ON_THEIR_OWN = frozenset({Phase.STALLED, Phase.SUSPENDED, Phase.DELETING})


@dataclass(frozen=True)
class Item:
    """Anything that has to become ready: a release ("namespace/name") or a package ("Package name")."""

    subject: str
    phase: Phase
    reason: str = ""
    message: str = ""
    waits_for: frozenset[str] = frozenset()

    @property
    def is_package(self) -> bool:
        return self.subject.startswith("Package ")

    @property
    def words(self) -> str:
        action = re.match(r"Running '(\w+)' action", self.message)
        if self.phase is Phase.RUNNING and action:
            return {"install": "installing", "upgrade": "upgrading"}.get(action[1], f"running {action[1]}")
        return f"{self.phase.value}: {self.reason}" if self.phase is Phase.FAILING else self.phase.value


def item_of(release: Release) -> Item:
    """Where one release stands. A release without a Ready condition is not ready, whatever else it says."""
    ready, stalled = release.conditions.get("Ready"), release.conditions.get("Stalled")
    released = release.conditions.get("Released")
    dependencies = frozenset(map(str, release.depends_on))

    def at(phase: Phase, source: Condition | None = ready) -> Item:
        reason, message = (source.reason, source.message) if source else ("", "")
        return Item(str(release.id), phase, reason, message, dependencies | named_in(message))

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


def named_in(message: str) -> frozenset[str]:
    """What a health check of Helm says it still waits for, as far as it is a package or another release."""
    names = re.findall(r"\b(Package|HelmRelease)/(\S+) status: '", message)
    return frozenset(f"Package {name}" if kind == "Package" else name for kind, name in names)
