"""What stands in people's way although every release is ready: pods, the root ingress, certificates. Pure.

Releases say that they were installed, not that they still work. Errors are what blocks people; what only some part of the
platform misses, or what comes by itself once a name exists, is a warning with its way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from cozystack_iac import diagnosis, published
from cozystack_iac.diagnosis import issuance, signs
from cozystack_iac.diagnosis.signs import Sign
from cozystack_iac.findings import ERROR, WARNING, Finding, Rule

Object = Mapping[str, Any]

INGRESS_NAMESPACE, INGRESS_SERVICE, INGRESS_CLASS = "tenant-root", "root-ingress-controller", "tenant-root"
SHOWN = 20  # findings of one rule; the rest is counted
CRASHING = frozenset({"CrashLoopBackOff", "ImagePullBackOff", "InvalidImageName"})  # these were tried more than once

# Where a workload without a single ready pod keeps people out. In tenant-root that is the ingress alone: see `_blocks`.
ON_THE_WAY = frozenset(
    {"cozy-system", "cozy-cilium", "cozy-kubeovn", "cozy-dashboard", "cozy-keycloak", "cozy-linstor", "kube-system"}
)

PST_001 = Rule(
    "PST-001",
    ERROR,
    title="Essential workloads are running",
    why="without them users cannot log in, or nothing new can be started",
    remedy="check the pods named in the finding; run `pulumi up` again when they are running",
)
PST_002 = Rule(
    "PST-002",
    WARNING,
    title="Every pod of the platform is running",
    why="that part of the platform runs with reduced capacity or not at all",
    remedy="check the pods named in the finding",
)
PST_003 = Rule(
    "PST-003",
    ERROR,
    title="The root ingress exists and has ready endpoints",
    why="all published services go through it",
    remedy="check the releases ingress and ingress-nginx-system in tenant-root",
)
PST_004 = Rule(
    "PST-004",
    ERROR,
    title="The root ingress listens on the configured addresses",
    why="nothing responds at the other addresses",
    remedy="compare publishing.externalIPs with the Service; it may have been changed by hand",
)
PST_005 = Rule(
    "PST-005",
    WARNING,
    title="All certificates are issued",
    why="until then browsers show a warning, and clients that verify certificates do not connect",
    remedy="apply the fix in the finding; cert-manager then continues by itself",
)
PST_006 = Rule(
    "PST-006",
    ERROR,
    title="The state of the cluster can be read",
    why="what cannot be read is unknown, and unknown does not mean healthy",
    remedy="use a kubeconfig that may list these kinds cluster-wide, and a stable connection to the API server",
)


@dataclass(frozen=True)
class WantedPlatform:
    """What was asked for. `addresses`: of the root ingress, none when its load balancer has to say."""

    host: str
    ingress: bool
    addresses: tuple[str, ...] = ()
    load_balancer: bool = False
    sign_on: bool = False


@dataclass(frozen=True)
class Patience:
    """How long something may be unready, in seconds. A pod's images come from far; an ACME order takes about 45 s."""

    pods_s: float = 300.0
    certificates_s: float = 120.0


@dataclass(frozen=True)
class SeenPlatform:
    """Objects as the API returned them. `gaps`: kinds it did not show, and why; `away`: asking again may close them."""

    pods: Sequence[Object] = ()
    services: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    ingress_classes: Sequence[Object] = ()
    issuers: issuance.Issuers = field(default_factory=issuance.Issuers)
    gaps: Mapping[str, str] = field(default_factory=dict)
    away: bool = False


@dataclass(frozen=True)
class PlatformStanding:
    """`waiting`: what is not well yet, but young. Findings are final only while nothing waits."""

    findings: tuple[Finding, ...]
    waiting: tuple[str, ...]
    pods: int
    certificates: int


def verify(
    wanted: WantedPlatform, seen: SeenPlatform, now: datetime, *, waited_s: float, patience: Patience
) -> PlatformStanding:
    """How the platform stands. `waited_s`: how long somebody has been looking: then even a wrong clock excuses nothing."""
    if seen.away:
        return PlatformStanding((), tuple(f"the list of {kind}: {why}" for kind, why in seen.gaps.items()), 0, 0)
    found = [PST_006.at(kind, problem=why, fix=PST_006.remedy) for kind, why in seen.gaps.items()]
    waiting: list[str] = []
    unready = [w for w in workloads(seen.pods) if w.trouble]
    for workload in unready:
        young = waited_s < patience.pods_s and _age_s(workload.since, now) < patience.pods_s
        if young:
            waiting.append(f"{workload.name} ({workload.ready} of {workload.count} pods ready)")
        else:
            found.append(_unwell(workload))
    problems = list(_ingress(wanted, seen)) if wanted.ingress and not seen.gaps else []
    if problems and waited_s < patience.pods_s:
        waiting += [f"{finding.path}: {finding.problem}" for finding in problems]
    else:
        found += problems
    for each in issuance.pending(seen.issuers):
        if waited_s < patience.certificates_s and _age_s(each.since, now) < patience.certificates_s:
            waiting.append(f"certificate {each.subject}")
        else:
            found.append(_unissued(each, wanted))
    return PlatformStanding(tuple(found), tuple(waiting), len(seen.pods), len(seen.issuers.certificates))


# Pods ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """Pods of one owner. `trouble`: signs of those that do not run; `since`: since when the first of them does not."""

    namespace: str
    name: str  # "Deployment cozy-x/y"
    count: int
    ready: int
    since: str
    trouble: tuple[Sign, ...]


def workloads(pods: Iterable[Object]) -> list[Workload]:
    """Pods by what owns them; finished pods of jobs, and those a later pod replaced, are not missed."""
    owned: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        if "deletionTimestamp" not in (pod.get("metadata") or {}):
            owned.setdefault((str(pod["metadata"].get("namespace") or ""), _owner(pod)), []).append(pod)
    return [_workload(namespace, owner, members) for (namespace, owner), members in sorted(owned.items())]


def _workload(namespace: str, owner: str, pods: Sequence[Object]) -> Workload:
    done = [p for p in pods if _phase(p) == "Succeeded"]
    ready = [p for p in pods if _is_ready(p)]
    rest = [p for p in pods if p not in done and p not in ready]
    is_job = owner.startswith("Job ")
    # Evicted pods and failed attempts stay as a record after others have taken over.
    rest = [p for p in rest if not (_phase(p) == "Failed" and (done or ready))]
    if is_job:
        rest = [p for p in rest if _phase(p) == "Failed"]  # one that runs is at work
    trouble = tuple(signs.pods(rest))
    crashing = any(s.reason in CRASHING for s in trouble)
    since = min((_created(p) if crashing else _unready_since(p) for p in rest), default="")
    return Workload(namespace, owner, len(pods) - len(done), len(ready), since, trouble)


def _owner(pod: Object) -> str:
    meta = pod["metadata"]
    namespace = str(meta.get("namespace") or "")
    for owner in meta.get("ownerReferences") or ():
        kind, name = str(owner.get("kind")), str(owner.get("name"))
        if kind == "ReplicaSet":
            return f"Deployment {namespace}/{name.rpartition('-')[0] or name}"
        if kind != "Node":
            return f"{kind} {namespace}/{name}"
    return f"Pod {namespace}/{meta.get('name')}"


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def _ready_condition(pod: Object) -> Object:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == "Ready"), {})


def _is_ready(pod: Object) -> bool:
    return _phase(pod) == "Running" and _ready_condition(pod).get("status") == "True"


def _unready_since(pod: Object) -> str:
    return str(_ready_condition(pod).get("lastTransitionTime") or _created(pod))


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _age_s(since: str, now: datetime) -> float:
    """Seconds since an RFC 3339 time; none for what does not say when: then only the time of the wait itself counts."""
    try:
        then = datetime.fromisoformat(since.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()


def _unwell(workload: Workload) -> Finding:
    known = diagnosis.explain_sign(*workload.trouble)
    rule = PST_001 if workload.ready == 0 and _blocks(workload) else PST_002
    problem = f"{workload.ready} of {workload.count} pods are ready: {'; '.join(map(str, workload.trouble[:3]))}"
    place = workload.trouble[0].subject.partition("/")[2]
    command = f"kubectl -n {workload.namespace} describe pod {place}"
    if known is None:
        return rule.at(workload.name, problem=problem, fix="check the pod and its log", command=command)
    return rule.at(workload.name, problem=f"{problem}. {known.cause}", fix=known.remedy, command=command)


def _blocks(workload: Workload) -> bool:
    if workload.namespace == INGRESS_NAMESPACE:
        return workload.name.endswith(f"/{INGRESS_SERVICE}")
    return workload.namespace in ON_THE_WAY and not workload.name.startswith("Job ")


# Root ingress -------------------------------------------------------------------------------------------------------


def _ingress(wanted: WantedPlatform, seen: SeenPlatform) -> Iterator[Finding]:
    place = f"Service {INGRESS_NAMESPACE}/{INGRESS_SERVICE}"
    look = f"kubectl -n {INGRESS_NAMESPACE} get helmreleases,pods,services"
    if INGRESS_CLASS not in {signs.name_of(c) for c in seen.ingress_classes}:
        yield PST_003.at(f"IngressClass {INGRESS_CLASS}", problem="it does not exist", fix=PST_003.remedy, command=look)
    service = next((s for s in seen.services if signs.name_of(s) == f"{INGRESS_NAMESPACE}/{INGRESS_SERVICE}"), None)
    if service is None:
        yield PST_003.at(place, problem="it does not exist", fix=PST_003.remedy, command=look)
        return
    if not any(signs.has_ready_endpoint(s) for s in seen.slices if signs.service_of(s) == signs.name_of(service)):
        yield PST_003.at(place, problem="it has no ready pod", fix=PST_003.remedy, command=look)
    yield from _addresses(wanted, service, place)


def _addresses(wanted: WantedPlatform, service: Object, place: str) -> Iterator[Finding]:
    spec = service.get("spec") or {}
    show = f"kubectl -n {INGRESS_NAMESPACE} get service {INGRESS_SERVICE} -o yaml"
    if wanted.load_balancer:
        given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress")
        if not given:
            problem = "no load balancer has assigned an address to it"
            fix = (
                "provide a load balancer (MetalLB address pool or the cloud's controller), or use "
                "publishing.externalIPs"
            )
            yield PST_004.at(place, problem=problem, fix=fix, command=show)
        return
    # The API server takes no loopback addresses here: only a lab asks for them, and listens on them by itself.
    asked = [a for a in wanted.addresses if not ip_address(a).is_loopback]
    missing = sorted(set(asked) - set(map(str, spec.get("externalIPs") or ())))
    if missing:
        yield PST_004.at(place, problem=f"it does not listen on {', '.join(missing)}", fix=PST_004.remedy, command=show)


# Certificates -------------------------------------------------------------------------------------------------------


def _unissued(certificate: issuance.Pending, wanted: WantedPlatform) -> Finding:
    known = diagnosis.explain_sign(*certificate.chain)
    seen = next((s for s in certificate.chain if s.message), certificate.chain[-1])
    names = ", ".join(certificate.names)
    problem = (
        f"the certificate for {names} has not been issued: {known.cause if known else 'the cause is unknown'} ({seen})"
    )
    if wanted.sign_on and any(published.is_of(name, published.KEYCLOAK) for name in certificate.names):
        problem += "; until then kubectl cannot log in through Keycloak"
    namespace, _, name = certificate.subject.partition("/")
    command = f"kubectl -n {namespace} describe certificate {name}"
    fix = known.remedy if known else "check its challenges, which show what the CA is waiting for"
    return PST_005.at(f"Certificate {certificate.subject}", problem=problem, fix=fix, command=command)
