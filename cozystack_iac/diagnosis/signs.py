"""What can be seen in a cluster that is not well, as one kind of statement. Pure: objects of the API go in, signs come out.

A sign is what a person would quote: what, which one, in the API's own words. The known failures are recognised in signs, the
failure message and the support bundle are made of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cozystack_iac.redaction import clean

LONGEST = 600  # characters of one message; a Helm error can be a whole manifest
SHOWN = 6  # signs of one kind in a failure message; the bundle has all


class Kind(StrEnum):
    """What a sign is about, in a person's words."""

    RELEASE = "release"
    PACKAGE = "package"
    ARTIFACT = "artifact"  # PackageSource, ArtifactGenerator, ExternalArtifact, OCIRepository
    POD = "pod"
    LOG = "log"
    EVENT = "event"
    JOB = "job"
    CLAIM = "claim"
    CLASS = "class"
    CERTIFICATE = "certificate"
    ORDER = "order"
    CHALLENGE = "challenge"
    ISSUER = "issuer"
    WEBHOOK = "webhook"
    API = "api"
    NODE = "node"


@dataclass(frozen=True)
class Sign:
    """One statement. `subject`: "namespace/name", or a name; for logs "namespace/pod/container". `at`: RFC 3339, or empty."""

    kind: Kind
    subject: str
    reason: str
    message: str = ""
    at: str = ""
    times: int = 1

    @property
    def namespace(self) -> str:
        return self.subject.partition("/")[0] if "/" in self.subject else ""

    @property
    def text(self) -> str:
        """What recognisers read."""
        return f"{self.reason}: {self.message}"

    def __str__(self) -> str:
        often = f" ({self.times} times)" if self.times > 1 else ""
        return f"{self.subject}: {self.reason}{f': {self.message}' if self.message else ''}{often}"


@dataclass(frozen=True)
class Evidence:
    """What was found out. `about`: subjects that it was collected for, the most important first.

    `gaps`: questions that got no answer, and why: nothing may be concluded from their silence.
    `states`: condition by condition, good ones included; `versions`: what runs here.
    """

    signs: tuple[Sign, ...] = ()
    about: tuple[str, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    states: tuple[Sign, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, str] = field(default_factory=dict)  # the API server's own checks, in its words

    def near(self) -> tuple[Sign, ...]:
        """Signs about the subjects themselves, then those of their namespaces."""
        names = frozenset(self.about)
        spaces = frozenset(s.partition("/")[0] for s in self.about if "/" in s)
        own = [s for s in self.signs if s.subject in names]
        return (*own, *(s for s in self.signs if s.namespace in spaces and s.subject not in names))

    def of(self, *kinds: Kind) -> tuple[Sign, ...]:
        return tuple(s for s in self.signs if s.kind in kinds)

    def details(self) -> dict[str, str]:
        """Rows for a failure message: what was seen around the subjects, and what could not be found out."""
        near = [s for s in self.near() if s.subject not in self.about]
        rows: dict[str, str] = {}
        for title, kinds in _ROWS:
            found = [_brief(s) for s in near if s.kind in kinds]
            if found:
                more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
                rows[title] = "\n".join([*found[:SHOWN], *more])
        # Early in an install there are no classes yet, and nobody misses them.
        missed = (Kind.CLASS,) if self.of(Kind.CLAIM) else ()
        foundations = [_brief(s) for s in self.of(*missed, Kind.WEBHOOK, Kind.API, Kind.NODE)]
        if foundations:
            rows["cluster"] = "\n".join(foundations[:SHOWN])
        if self.gaps:
            rows["unknown"] = "\n".join(f"{what}: {why}" for what, why in self.gaps.items())
        return rows


_ROWS: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("pods", (Kind.POD, Kind.JOB)),
    ("logs", (Kind.LOG,)),
    ("events", (Kind.EVENT,)),
    ("volumes", (Kind.CLAIM,)),
    ("certificates", (Kind.CERTIFICATE, Kind.ORDER, Kind.CHALLENGE, Kind.ISSUER)),
)


def _brief(sign: Sign) -> str:
    if sign.kind is Kind.LOG:
        lines = [line for line in sign.message.splitlines() if line.strip()]
        return "\n".join([f"{sign.subject}:", *(f"  {line[:200]}" for line in lines[-3:])])
    text = str(sign)
    return text if len(text) <= 300 else f"{text[:300]}…"


def said(text: object) -> str:
    """A message of the API as it may be shown: without key material, and not longer than a person reads."""
    cleaned = clean(str(text or "")).strip()
    return cleaned if len(cleaned) <= LONGEST else f"{cleaned[:LONGEST]}…"


def name_of(obj: Mapping[str, Any]) -> str:
    """ "namespace/name", or the name of what has no namespace."""
    meta = obj.get("metadata") or {}
    name, namespace = str(meta.get("name", "")), str(meta.get("namespace") or "")
    return f"{namespace}/{name}" if namespace else name


def _conditions(obj: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = (obj.get("status") or {}).get("conditions") or ()
    return [c for c in found if isinstance(c, Mapping)]


def states(kind: Kind, objects: Iterable[Mapping[str, Any]], *, prefix: str = "") -> Iterator[Sign]:
    """Every condition of every object, in the API's words. `prefix`: the kind, where its name alone would not tell."""
    for obj in objects:
        for c in _conditions(obj):
            reason = f"{c.get('type')}={c.get('status')} {c.get('reason', '')}".strip()
            at = str(c.get("lastTransitionTime") or "")
            yield Sign(kind, f"{prefix}{name_of(obj)}", reason, said(c.get("message")), at)


def unready(
    kind: Kind, objects: Iterable[Mapping[str, Any]], *, prefix: str = "", want: str = "Ready"
) -> Iterator[Sign]:
    """Objects whose condition `want` is not True, with the failure that a running retry hides, and what is being deleted."""
    for obj in objects:
        subject, found = f"{prefix}{name_of(obj)}", {str(c.get("type")): c for c in _conditions(obj)}
        main = found.get(want)
        if "deletionTimestamp" in (obj.get("metadata") or {}):
            yield Sign(kind, subject, "Deleting", "; ".join(said(c.get("message")) for c in found.values()))
        elif main is None:
            yield Sign(kind, subject, "NoCondition", f"it does not report {want} yet")
        elif main.get("status") != "True":
            bad = {"Stalled": "True", "Released": "False"}  # what a person looks for behind a Ready that is not True
            told = (main, *(found[t] for t, status in bad.items() if t in found and found[t]["status"] == status))
            # Released repeats what Ready says, unless a retry is running.
            unlike: dict[tuple[Any, Any], Mapping[str, Any]] = {}
            for c in told:
                unlike.setdefault((c.get("reason"), c.get("message")), c)
            for c in unlike.values():
                at = str(c.get("lastTransitionTime") or "")
                yield Sign(kind, subject, str(c.get("reason", "")), said(c.get("message")), at)


def pods(objects: Iterable[Mapping[str, Any]]) -> Iterator[Sign]:
    """Pods that do not run as they should, one sign per container that is to blame."""
    for pod in objects:
        status, meta = pod.get("status") or {}, pod.get("metadata") or {}
        phase = str(status.get("phase") or "Pending")
        at = str(meta.get("creationTimestamp") or "")
        if phase == "Succeeded":
            continue
        node = (pod.get("spec") or {}).get("nodeName")
        where = f" on {node}" if node else ""
        found = [s for c in containers(pod) if (s := _container(name_of(pod), c, phase, where, at))]
        if found:
            yield from found
        elif phase in ("Failed", "Unknown") or "deletionTimestamp" in meta:
            reason = str(status.get("reason") or ("Terminating" if "deletionTimestamp" in meta else phase))
            yield Sign(Kind.POD, name_of(pod), reason, said(f"{status.get('message') or ''}{where}"), at)
        elif scheduled := next((c for c in _conditions(pod) if _is_unscheduled(c)), None):
            reason = str(scheduled.get("reason") or "Unschedulable")
            yield Sign(Kind.POD, name_of(pod), reason, said(scheduled.get("message")), at)
        elif phase == "Pending":
            yield Sign(Kind.POD, name_of(pod), "Pending", f"its containers have not started{where}", at)


def containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Statuses of all containers of a pod, init containers first."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _is_unscheduled(condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == "PodScheduled" and condition.get("status") == "False"


def _container(pod: str, status: Mapping[str, Any], phase: str, where: str, at: str) -> Sign | None:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    restarts = int(status.get("restartCount") or 0)
    history = f", restarted {restarts} times" if restarts else ""
    if last:
        history += f", last ended with {last.get('reason', '')} (exit code {last.get('exitCode')})"
    if waiting:
        reason, more = str(waiting.get("reason") or "Waiting"), str(waiting.get("message") or "")
        if reason == "PodInitializing":
            return None  # an init container has its own status
    elif ended and ended.get("exitCode"):
        reason = str(ended.get("reason") or "Error")
        more = f"exit code {ended['exitCode']} {ended.get('message') or ''}"
    elif state.get("running") and not status.get("ready") and phase == "Running":
        reason, more = "NotReady", "it is running, but not ready"
    else:
        return None
    image = f", image {status['image']}" if status.get("image") and "Image" in reason else ""
    return Sign(Kind.POD, pod, reason, said(f"container {status.get('name')}{where}{history}{image}. {more}"), at)


def jobs(objects: Iterable[Mapping[str, Any]]) -> Iterator[Sign]:
    for job in objects:
        for c in _conditions(job):
            if c.get("type") == "Failed" and c.get("status") == "True":
                at = str(c.get("lastTransitionTime") or "")
                yield Sign(Kind.JOB, name_of(job), str(c.get("reason", "")), said(c.get("message")), at)


def events(objects: Iterable[Mapping[str, Any]], *, most: int = 200) -> tuple[Sign, ...]:
    """Warnings, the latest first; what differs only in numbers and pod suffixes is said once, with how often."""
    kept: dict[tuple[str, str, str, str], Sign] = {}
    for event in sorted(objects, key=_seen_at, reverse=True):
        if event.get("type") != "Warning":
            continue
        about = event.get("involvedObject") or event.get("regarding") or {}
        namespace = str(about.get("namespace") or (event.get("metadata") or {}).get("namespace") or "")
        name = "/".join(part for part in (namespace, str(about.get("name") or "")) if part)
        message = said(event.get("message") or event.get("note"))
        reason = str(event.get("reason") or "")
        same = re.sub(r"[a-z0-9]*\d[a-z0-9]*", "#", message.replace(str(about.get("name") or "\0"), "#"))
        key = (namespace, str(about.get("kind") or ""), reason, same)
        times = int(event.get("count") or (event.get("series") or {}).get("count") or 1)
        if key in kept:
            first = kept[key]
            kept[key] = Sign(first.kind, first.subject, first.reason, first.message, first.at, first.times + times)
        else:
            kept[key] = Sign(Kind.EVENT, name, reason, f"{about.get('kind', '')}: {message}", _seen_at(event), times)
    return tuple(kept.values())[:most]


def _seen_at(event: Mapping[str, Any]) -> str:
    series = (event.get("series") or {}).get("lastObservedTime")
    created = (event.get("metadata") or {}).get("creationTimestamp")
    return str(series or event.get("lastTimestamp") or event.get("eventTime") or created or "")


DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def claims(objects: Iterable[Mapping[str, Any]]) -> Iterator[Sign]:
    for claim in objects:
        phase = str((claim.get("status") or {}).get("phase") or "Pending")
        if phase != "Bound":
            spec = claim.get("spec") or {}
            size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "?")
            wanted = f"class {spec['storageClassName']}" if spec.get("storageClassName") else "no class given"
            yield Sign(Kind.CLAIM, name_of(claim), phase, f"{wanted}, {size}", _created(claim))


def classes(objects: Sequence[Mapping[str, Any]]) -> Iterator[Sign]:
    """What is wrong with the storage classes as a whole."""
    names = [name_of(each) for each in objects]
    default = [
        name_of(o) for o in objects if ((o.get("metadata") or {}).get("annotations") or {}).get(DEFAULT_CLASS) == "true"
    ]
    if not names:
        yield Sign(Kind.CLASS, "storage classes", "NoStorageClass", "there is no storage class")
    elif not default:
        yield Sign(Kind.CLASS, "storage classes", "NoDefaultClass", f"none of {', '.join(names)} is the default")
    elif len(default) > 1:
        yield Sign(
            Kind.CLASS, "storage classes", "SeveralDefaultClasses", f"there are several defaults: {', '.join(default)}"
        )


def webhooks(configurations: Iterable[Mapping[str, Any]], slices: Sequence[Mapping[str, Any]]) -> Iterator[Sign]:
    """Services behind admission webhooks that no ready pod answers for, and webhooks that nobody gave a CA yet."""
    ready = {service_of(s) for s in slices if has_ready_endpoint(s)}
    dead: dict[str, list[str]] = {}
    for configuration in configurations:
        for hook in configuration.get("webhooks") or ():
            client = hook.get("clientConfig") or {}
            service = client.get("service")
            if not service:
                continue
            subject = f"{service.get('namespace')}/{service.get('name')}"
            if subject not in ready:
                dead.setdefault(subject, []).append(str(hook.get("name")))
            elif not client.get("caBundle"):
                yield Sign(Kind.WEBHOOK, subject, "NoCABundle", f"webhook {hook.get('name')} has no CA yet")
    for subject, names in dead.items():
        yield Sign(Kind.WEBHOOK, subject, "NoReadyEndpoints", f"nothing serves {', '.join(sorted(set(names)))}")


def service_of(endpoints: Mapping[str, Any]) -> str:
    """ "namespace/name" of the Service that an EndpointSlice belongs to."""
    meta = endpoints.get("metadata") or {}
    name = (meta.get("labels") or {}).get("kubernetes.io/service-name")
    return f"{meta.get('namespace')}/{name}" if name else ""


def has_ready_endpoint(endpoints: Mapping[str, Any]) -> bool:
    """An endpoint that says nothing about itself is ready: so the API defines it."""
    return any((e.get("conditions") or {}).get("ready") is not False for e in endpoints.get("endpoints") or ())


def nodes(objects: Iterable[Mapping[str, Any]]) -> Iterator[Sign]:
    for node in objects:
        for c in _conditions(node):
            good = c.get("status") == ("True" if c.get("type") == "Ready" else "False")
            if not good:
                reason = f"{c.get('type')}={c.get('status')} {c.get('reason', '')}"
                yield Sign(
                    Kind.NODE, name_of(node), reason, said(c.get("message")), str(c.get("lastTransitionTime") or "")
                )


def _created(obj: Mapping[str, Any]) -> str:
    return str((obj.get("metadata") or {}).get("creationTimestamp") or "")
