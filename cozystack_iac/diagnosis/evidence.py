"""Collects what can be seen in a cluster before anybody says what it means. Reads only; bounded in calls and in time.

A question that got no answer is a gap in the evidence and never an exception: this runs when something is broken already.
"""

from __future__ import annotations

import asyncio
import platform as workstation
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from cozystack_iac import record
from cozystack_iac.diagnosis import issuance, signs
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign
from cozystack_iac.kube.client import Kube, KubeError, NotFound, Object, Ref, Refused, Unavailable, Unreachable
from cozystack_iac.redaction import clean

DEADLINE_S = 30.0  # all questions together; a person waits for the message behind it
AT_ONCE = 6  # calls at a time: the API server may be what is suffering
LOGGED = 12  # containers whose log is read
TAIL = 20  # lines

KINDS: Mapping[str, Ref] = {
    "nodes": Ref("v1", "nodes"),
    "releases": Ref("helm.toolkit.fluxcd.io/v2", "helmreleases"),
    "packages": Ref("cozystack.io/v1alpha1", "packages"),
    "package sources": Ref("cozystack.io/v1alpha1", "packagesources"),
    "artifact generators": Ref("source.extensions.fluxcd.io/v1beta1", "artifactgenerators"),
    "OCI repositories": Ref("source.toolkit.fluxcd.io/v1", "ocirepositories"),
    "pods": Ref("v1", "pods"),
    "jobs": Ref("batch/v1", "jobs"),
    "events": Ref("v1", "events"),
    "claims": Ref("v1", "persistentvolumeclaims"),
    "storage classes": Ref("storage.k8s.io/v1", "storageclasses"),
    "validating webhooks": Ref("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
    "mutating webhooks": Ref("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    "endpoint slices": Ref("discovery.k8s.io/v1", "endpointslices"),
    "API services": Ref("apiregistration.k8s.io/v1", "apiservices"),
    "certificates": Ref("cert-manager.io/v1", "certificates"),
    "certificate requests": Ref("cert-manager.io/v1", "certificaterequests"),
    "cluster issuers": Ref("cert-manager.io/v1", "clusterissuers"),
    "orders": Ref("acme.cert-manager.io/v1", "orders"),
    "challenges": Ref("acme.cert-manager.io/v1", "challenges"),
}
OPERATOR = Ref("apps/v1", "deployments", "cozy-system", "cozystack-operator")
HEALTH = ("/readyz?verbose", "/livez?verbose")


@dataclass
class Answers:
    """Objects by question, and the questions without an answer. A kind that does not exist has no objects.

    `away`: some of the gaps may close by themselves, as the API server, or one behind it, did not answer.
    """

    objects: dict[str, list[Object]] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    away: bool = False

    def of(self, *names: str) -> list[Object]:
        return [obj for name in names for obj in self.objects.get(name, ())]

    def issuers(self) -> issuance.Issuers:
        return issuance.Issuers(
            self.of("certificates"),
            self.of("certificate requests"),
            self.of("orders"),
            self.of("challenges"),
            self.of("cluster issuers"),
        )


async def collect(kube: Kube, about: Sequence[str] = (), *, deadline_s: float = DEADLINE_S) -> Evidence:
    """The signs of a cluster. `about`: what is stuck, the most important first; its namespaces' logs are read first."""
    answers, found = Answers(), _Found()
    try:
        async with asyncio.timeout(deadline_s):
            await ask(kube, KINDS, answers)
            if len(answers.gaps) < len(KINDS):
                found.versions = await _versions(kube, answers)
                found.health = await _health(kube)
                found.logs = await _logs(kube, answers.of("pods"), about, found.gaps)
    except TimeoutError:
        found.gaps["the rest"] = f"not everything could be queried within {deadline_s:.0f} s"
    seen = (*read(answers), *found.logs)
    gaps = _summed({**answers.gaps, **found.gaps})
    return Evidence(seen, tuple(about), gaps, _states(answers), found.versions, found.health)


@dataclass
class _Found:
    logs: tuple[Sign, ...] = ()
    gaps: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: {"cozystack-iac": version("cozystack-iac")})
    health: dict[str, str] = field(default_factory=dict)


async def ask(kube: Kube, kinds: Mapping[str, Ref], answers: Answers) -> None:
    """List every kind, a few at a time. When the first questions get no answer at all, nobody waits for the others."""
    gate, silent = asyncio.Semaphore(AT_ONCE), asyncio.Event()

    async def one(name: str, ref: Ref) -> None:
        async with gate:
            if silent.is_set():
                answers.gaps[name] = "the API server does not respond"
                return
            try:
                answers.objects[name] = await kube.objects(ref)
            except NotFound:
                answers.objects[name] = []
            except Unreachable as error:
                answers.away = True
                answers.gaps[name] = f"the API server does not respond: {clean(str(error))[:200]}"
                if not answers.objects and len(answers.gaps) >= AT_ONCE:
                    silent.set()
            except KubeError as error:
                answers.away = answers.away or isinstance(error, Unavailable)
                answers.gaps[name] = clean(str(error))[:200]

    await asyncio.gather(*(one(name, ref) for name, ref in kinds.items()))


# What answers are read by: question, kind, and the prefix without which a name would not tell what it is.
_CONDITIONED = (
    ("releases", Kind.RELEASE, ""),
    ("packages", Kind.PACKAGE, "Package "),
    ("package sources", Kind.ARTIFACT, "PackageSource "),
    ("artifact generators", Kind.ARTIFACT, "ArtifactGenerator "),
    ("OCI repositories", Kind.ARTIFACT, "OCIRepository "),
    ("API services", Kind.API, ""),
    ("cluster issuers", Kind.ISSUER, ""),
)


def read(answers: Answers) -> tuple[Sign, ...]:
    """The signs in what was answered. Pure but for the gaps: what cannot be read is one, and costs the others nothing."""
    found: list[Sign] = []

    def add(title: str, made: Callable[[], Iterable[Sign]]) -> None:
        if title not in answers.objects:
            return
        try:
            found.extend(made())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answers.gaps[title] = f"an object cannot be read: {type(error).__name__}"

    for title, kind, prefix in _CONDITIONED:
        want = "Available" if kind is Kind.API else "Ready"
        add(title, partial(signs.unready, kind, answers.of(title), prefix=prefix, want=want))
    add("nodes", lambda: signs.nodes(answers.of("nodes")))
    add("pods", lambda: signs.pods(filter(is_platform, answers.of("pods"))))
    add("jobs", lambda: signs.jobs(answers.of("jobs")))
    add("claims", lambda: signs.claims(answers.of("claims")))
    add("storage classes", lambda: signs.classes(answers.of("storage classes")))
    # Only with the slices: without them every webhook would look dead.
    hooks = answers.of("validating webhooks", "mutating webhooks")
    add("endpoint slices", lambda: signs.webhooks(hooks, answers.of("endpoint slices")))
    add("certificates", lambda: (sign for each in issuance.pending(answers.issuers()) for sign in each.chain))
    add("events", lambda: signs.events(answers.of("events")))
    return tuple(found)


def _states(answers: Answers) -> tuple[Sign, ...]:
    rows = (*_CONDITIONED, ("nodes", Kind.NODE, ""), ("certificates", Kind.CERTIFICATE, ""))
    readable = ((answers.of(title), kind, prefix) for title, kind, prefix in rows if title not in answers.gaps)
    return tuple(sign for objects, kind, prefix in readable for sign in signs.states(kind, objects, prefix=prefix))


def is_platform_namespace(namespace: str) -> bool:
    """Where the platform's own pods live. Namespaces of tenants hold what people made; that is their business."""
    return namespace.startswith("cozy-") or namespace in ("tenant-root", "kube-system")


def is_platform(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is the platform's own."""
    return is_platform_namespace(str((pod.get("metadata") or {}).get("namespace") or ""))


async def _versions(kube: Kube, answers: Answers) -> dict[str, str]:
    """What runs here. What did not say is not in it."""
    found = {"cozystack-iac": version("cozystack-iac"), "python": workstation.python_version()}
    try:
        found["kubernetes"] = str((await kube.raw("/version")).get("gitVersion") or "")
        operator, asked_for = await kube.find(OPERATOR), await record.read(kube) or {}
    except KubeError:
        operator, asked_for = None, {}
    template = (((operator or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    images = [str(c.get("image") or "") for c in template.get("containers") or ()]
    tags = [m[1] for image in images if (m := re.search(r":v?(\d+\.\d+\.\d+[\w.-]*)", image))]
    tagged = next(iter(tags), asked_for.get("version.cozystack", ""))
    systems = sorted({_system(node) for node in answers.of("nodes")} - {""})
    return found | {k: v for k, v in {"cozystack": tagged, "nodes": "; ".join(systems)}.items() if v}


def _system(node: Mapping[str, Any]) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return ", ".join(filter(None, (str(info.get(k) or "") for k in ("osImage", "kernelVersion", "kubeletVersion"))))


async def _health(kube: Kube) -> dict[str, str]:
    found = {}
    for path in HEALTH:
        try:
            found[path] = clean(await kube.text(path))
        except KubeError as error:
            found[path] = clean(str(error))
    return found


async def _logs(
    kube: Kube, pods: Iterable[Mapping[str, Any]], about: Sequence[str], gaps: dict[str, str]
) -> tuple[Sign, ...]:
    """The last lines of containers that do not run, those before their last restart first: that is where they died."""
    spaces = {subject.partition("/")[0] for subject in about}
    wanted = [(pod, c) for pod in pods if is_platform(pod) for c in signs.containers(pod) if _has_something_to_say(c)]
    wanted.sort(key=lambda pair: str(pair[0]["metadata"].get("namespace")) not in spaces)
    gate = asyncio.Semaphore(AT_ONCE)

    async def tail(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Sign | None:
        subject = f"{signs.name_of(pod)}/{container.get('name')}"
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"
        parts = []
        for previous in ("true", "false") if container.get("restartCount") else ("false",):
            query = f"container={container.get('name')}&tailLines={TAIL}&limitBytes=20000&previous={previous}"
            try:
                async with gate:
                    text = await kube.text(f"{path}?{query}")
            except Refused as error:
                if error.status not in (400, 404):  # 400: it has no earlier container, or it has not started
                    gaps[f"log of {subject}"] = clean(str(error))[:200]
                continue
            except KubeError as error:
                gaps[f"log of {subject}"] = clean(str(error))[:200]
                continue
            parts.append(text)
        # Cleaned as a whole: a block of key material may begin in one part and end in the other.
        text = clean("\n".join(part.rstrip() for part in parts)).strip()
        return Sign(Kind.LOG, subject, "log", text) if text else None

    found = await asyncio.gather(*(tail(pod, container) for pod, container in wanted[:LOGGED]))
    return tuple(sign for sign in found if sign is not None)


def _has_something_to_say(status: Mapping[str, Any]) -> bool:
    state, ended = status.get("state") or {}, (status.get("state") or {}).get("terminated") or {}
    started = bool(state.get("running") or ended or status.get("restartCount"))
    return started and not status.get("ready") and ended.get("exitCode") != 0


def _summed(gaps: Mapping[str, str]) -> dict[str, str]:
    """One row per reason: an API server that is away is said once, not twenty times."""
    rows: dict[str, tuple[list[str], str]] = {}
    for what, why in gaps.items():
        rows.setdefault(why.partition(": ")[0] if why.startswith("the API server") else why, ([], why))[0].append(what)
    if len(gaps) >= len(KINDS) and len(rows) == 1:
        return {"everything": next(iter(gaps.values()))}
    return {", ".join(names): why for names, why in rows.values()}
