"""Whose platform is it? What is in the cluster before we install, judged against what we are about to do. Pure.

Helm decides ownership by marks on objects and by its own records, the platform by a ConfigMap that is older than itself. All of
that is looked at before anything is written, so that nobody's installation is taken over by accident.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cozystack_iac.findings import ERROR, NOTE, Finding, Rule
from cozystack_iac.kube.client import Object, Ref
from cozystack_iac.kube.ownership import foreign_owner
from cozystack_iac.platform import helm_records
from cozystack_iac.platform.helm_records import Revision
from cozystack_iac.platform.installer import OPERATOR_NAMESPACE, PLATFORM_PACKAGE, RELEASE_NAME
from cozystack_iac.releases import Version

CLUSTER = "cozystack-iac/cluster"  # annotation on namespace cozy-system: the cluster of the stack that installs here
RELEASE = "cozystack-iac/release"  # annotation beside it: how far Helm's release is recorded in the stack's state
CLAIMED, RECORDED = "claimed", "recorded"

NAMESPACE = Ref("v1", "namespaces", None, OPERATOR_NAMESPACE)
LEGACY = Ref("v1", "configmaps", OPERATOR_NAMESPACE, "cozystack")
PACKAGE = Ref("cozystack.io/v1alpha1", "packages", None, PLATFORM_PACKAGE)
CHART_OBJECTS = (
    Ref("apps/v1", "deployments", OPERATOR_NAMESPACE, "cozystack-operator"),
    Ref("v1", "serviceaccounts", OPERATOR_NAMESPACE, "cozystack"),
    Ref("rbac.authorization.k8s.io/v1", "clusterrolebindings", None, "cozystack"),
)
SHOWN = 4  # names in a message; the commands have all of them
PACKAGE_MARKS = {"app.kubernetes.io/managed-by": "cozystack-iac"}

INS_001 = Rule(
    "INS-001",
    ERROR,
    live=True,
    title="the installer's objects belong to no other Helm release",
    why="Helm refuses to share an object, and taking it from its release would break whoever upgrades that one",
    remedy="go on with that release instead, or hand its objects over by hand",
)
INS_002 = Rule(
    "INS-002",
    ERROR,
    live=True,
    overridable=True,
    title="a Cozystack that somebody else installed is not taken over",
    why="it would be upgraded and configured by this stack from now on, and whoever made it may not know",
    remedy="ask its owner; then allow INS-002 in the stack file",
)
INS_003 = Rule(
    "INS-003",
    ERROR,
    live=True,
    overridable=True,
    title="namespace cozy-system is ours",
    why="it is made privileged, and what is in it becomes part of the platform",
    remedy="delete it if nothing in it is needed, or allow INS-003 to install into it as it is",
)
INS_004 = Rule(
    "INS-004",
    ERROR,
    live=True,
    overridable=True,
    title="objects of the installer carry Helm's marks",
    why="Helm does not take over what it did not make (invalid ownership metadata)",
    remedy="remove them, or allow INS-004 to have them marked as the release's",
)
INS_005 = Rule(
    "INS-005",
    ERROR,
    live=True,
    title="no ConfigMap of an older Cozystack overrules the stack file",
    why="the platform prefers it to its package, so what this stack asks for would silently not happen",
    remedy="remove the key",
)
INS_006 = Rule(
    "INS-006",
    NOTE,
    live=True,
    title="an interrupted Helm operation is cleared",
    why="Helm refuses every further operation while its last revision is pending",
    remedy="nothing: `pulumi up` marks the revision as failed and goes on",
)
INS_007 = Rule(
    "INS-007",
    ERROR,
    live=True,
    overridable=True,
    title="Cozystack is not downgraded",
    why="its migrations go one way: the older release meets objects it does not know",
    remedy="write the installed release, or a newer one, into cluster.cozystack",
)
OIDC_001 = Rule(
    "OIDC-001",
    ERROR,
    live=True,
    overridable=True,
    title="single sign-on is not switched off in passing",
    why="nobody who logs in through Keycloak gets in any more; up to 1.6.0 the switch also hangs for ever in the deletion of "
    "keycloak-configure (cozystack#3478)",
    remedy="set access.oidc to true, or allow OIDC-001",
)

INS_009 = Rule(
    "INS-009",
    ERROR,
    live=True,
    overridable=True,
    title="no other pod network has left objects behind",
    why="the platform's own network charts meet them half way and stop (invalid ownership metadata), and no node becomes ready",
    remedy="delete what is left of it, once nothing uses it any more",
)
OVERRIDABLE = frozenset({INS_002.code, INS_003.code, INS_004.code, INS_007.code, INS_009.code, OIDC_001.code})


@dataclass(frozen=True)
class Wanted:
    """What is about to be installed.

    `brings_namespace`: the chart itself has the namespace among its objects (up to 1.3), so Helm has to own it. `legacy`: keys
    that older Cozystacks kept in a ConfigMap, with what they should say.
    """

    cluster: str
    release_namespace: str
    brings_namespace: bool
    version: str
    oidc: bool
    legacy: Mapping[str, str]
    written: Collection[str] = ()  # keys among them that this stack writes itself
    allowed: Collection[str] = ()

    @property
    def helm_marks(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/managed-by": "Helm",
            "meta.helm.sh/release-name": RELEASE_NAME,
            "meta.helm.sh/release-namespace": self.release_namespace,
        }


@dataclass(frozen=True)
class Seen:
    """What is there. `revisions` are the newest ones of every release that is named by the objects, or like ours."""

    namespace: Object | None = None
    objects: Mapping[Ref, Object] = field(default_factory=dict)
    revisions: tuple[Revision, ...] = ()
    legacy: Object | None = None
    package: Object | None = None
    leftovers: tuple[
        Ref, ...
    ] = ()  # of another pod network, without Helm's marks; not looked for once our release is there

    @property
    def unmarked(self) -> list[Ref]:
        """The chart's objects that no Helm release owns."""
        return [ref for ref, obj in self.objects.items() if _helm_owner(obj) is None]

    @property
    def cluster(self) -> str:
        """The cluster whose stack has claimed the namespace; empty when none has."""
        return _annotations(self.namespace).get(CLUSTER, "")

    @property
    def recorded(self) -> bool:
        """Whether the run that claimed it got as far as a working operator: Helm's release is then in the stack's state."""
        return _annotations(self.namespace).get(RELEASE) == RECORDED

    def revision(self, wanted: Wanted) -> Revision | None:
        """The newest revision of our own release."""
        ours = f"{wanted.release_namespace}/{RELEASE_NAME}"
        return next((found for found in self.revisions if found.release == ours), None)


def judge(wanted: Wanted, seen: Seen, *, oidc_before: bool = False) -> Iterator[Finding]:
    """Everything that stands in the way, all at once. `oidc_before`: what this stack last asked for."""
    for finding in _judge(wanted, seen, oidc_before):
        if finding.severity is not ERROR or finding.code not in OVERRIDABLE.intersection(wanted.allowed):
            yield finding


def stuck(wanted: Wanted, seen: Seen) -> Revision | None:
    """Our revision that Helm would refuse to go on from: under way with nobody at work, or done by a run that could not note it.

    A failed one is none: Helm itself goes on from there.
    """
    found = seen.revision(wanted)
    if found is None or seen.cluster != wanted.cluster:
        return None
    unnoted = found.status == helm_records.DEPLOYED and not seen.recorded
    return found if found.under_way or unnoted else None


def oidc_is_on(package: Object | None) -> bool:
    """Whether the Package asks for OIDC."""
    return (authentication_of(package).get("oidc") or {}).get("enabled") is True


def authentication_of(package: Object | None) -> dict[str, Any]:
    """The `authentication` part of the platform's values in a Package."""
    component = (((package or {}).get("spec") or {}).get("components") or {}).get("platform") or {}
    found = (component.get("values") or {}).get("authentication")
    return found if isinstance(found, dict) else {}


def _judge(wanted: Wanted, seen: Seen, oidc_before: bool) -> Iterator[Finding]:
    ours = seen.cluster == wanted.cluster
    unmarked = seen.unmarked
    helms = dict(seen.objects)
    if wanted.brings_namespace and seen.namespace is not None and _helm_owner(seen.namespace):
        helms[NAMESPACE] = seen.namespace
    foreign = {ref: obj for ref, obj in helms.items() if ref not in unmarked and _is_foreign(obj, wanted)}
    yield from _foreign(wanted, seen, foreign)
    found = seen.revision(wanted)
    if seen.cluster and not ours:
        problem = f"it is claimed by the stack of cluster `{seen.cluster}`, this one is of `{wanted.cluster}`"
        fix = f"use that stack, or correct cluster.name; a cluster that was renamed: {_annotate(wanted)}"
        yield INS_002.at(_place(NAMESPACE), problem=problem, fix=fix)
    elif found is not None and not ours:
        problem = f"Helm release {found.release} ({_account(found)}) was not made by this stack"
        yield INS_002.at(f"Helm release {found.release}", problem=problem, fix=INS_002.remedy)
    elif unmarked and not ours:
        yield from _unmarked(wanted, unmarked)
    elif seen.namespace is not None and not ours and not foreign:
        yield _leftover(wanted, seen.namespace)
    if seen.package is not None and not ours and foreign_owner(seen.package, PACKAGE_MARKS):
        problem = f"Package {PLATFORM_PACKAGE} exists, {foreign_owner(seen.package, PACKAGE_MARKS)}"
        yield INS_002.at(_place(PACKAGE), problem=problem, fix=INS_002.remedy)
    if seen.leftovers and not ours:  # after an uninstallation of ours, CRDs of our own network stay
        yield _left_of_a_network(seen.leftovers)
    yield from _overruled(wanted, seen)
    yield from _condition(wanted, found, seen)
    if not wanted.oidc and (oidc_before or oidc_is_on(seen.package)):
        yield OIDC_001.at(
            "access.oidc", problem="it is on in the cluster, and the stack file switches it off", fix=OIDC_001.remedy
        )


def _foreign(wanted: Wanted, seen: Seen, foreign: Mapping[Ref, Object]) -> Iterator[Finding]:
    by_owner: dict[str, list[Ref]] = {}
    for ref, obj in foreign.items():
        by_owner.setdefault(str(_helm_owner(obj)), []).append(ref)
    for owner, refs in by_owner.items():
        known = next((found for found in seen.revisions if found.release == owner), None)
        account = f" ({_account(known)})" if known else ", of which Helm has no record"
        namespace, _, name = owner.partition("/")
        names = ", ".join(map(str, refs))
        commands = [f"kubectl annotate --overwrite {_target(ref)} {_marks(wanted)}" for ref in refs]
        gone = f"kubectl -n {namespace} delete secret -l owner=helm,name={name}"
        fix = "\n".join(["go on with that release; or hand its objects over and forget it:", *commands, gone])
        problem = f"{names} belong to Helm release {owner}{account}"
        yield INS_001.at(f"Helm release {owner}", problem=problem, fix=fix)


def _unmarked(wanted: Wanted, refs: list[Ref]) -> Iterator[Finding]:
    for ref in refs:
        commands = (
            f"kubectl label --overwrite {_target(ref)} app.kubernetes.io/managed-by=Helm",
            f"kubectl annotate --overwrite {_target(ref)} {_marks(wanted)}",
        )
        fix = "\n".join(["allow INS-004 to have it marked, or mark it yourself:", *commands])
        yield INS_004.at(_place(ref), problem="it exists, and no Helm release owns it", fix=fix)


def _leftover(wanted: Wanted, namespace: Object) -> Finding:
    owner = _helm_owner(namespace)
    made = (namespace.get("metadata") or {}).get("creationTimestamp")
    problem = f"it exists since {made}, {f'left behind by Helm release {owner}' if owner else 'and nobody owns it'}"
    look = f"kubectl -n {OPERATOR_NAMESPACE} get all,secrets,configmaps"
    fix = "\n".join(
        ["see what is in it:", look, "then delete it, allow INS-003, or mark it yourself:", _annotate(wanted)]
    )
    return INS_003.at(_place(NAMESPACE), problem=problem, fix=fix)


def is_left_of_a_network(obj: Object, kind: str) -> bool:
    """Whether a cluster-wide object (by its plural) is one of Cilium's or Kube-OVN's, and no Helm release owns it."""
    name = str(obj["metadata"]["name"])
    if kind == "customresourcedefinitions":
        known = name.endswith((".cilium.io", ".kubeovn.io"))
    else:
        known = name.startswith(("cilium", "hubble", "kube-ovn", "ovn"))
    return known and _helm_owner(obj) is None


def _left_of_a_network(refs: tuple[Ref, ...]) -> Finding:
    shown = ", ".join(map(str, refs[:SHOWN]))
    more = f" and {len(refs) - SHOWN} more" if len(refs) > SHOWN else ""
    by_kind = {
        kind: [str(ref.name) for ref in refs if ref.plural == kind] for kind in dict.fromkeys(r.plural for r in refs)
    }
    commands = [f"kubectl delete {kind} {' '.join(names)}" for kind, names in by_kind.items()]
    fix = "\n".join(["once nothing uses them any more:", *commands])
    return INS_009.at("cluster", problem=f"{shown}{more} are there, and no Helm release owns them", fix=fix)


def _overruled(wanted: Wanted, seen: Seen) -> Iterator[Finding]:
    data = (seen.legacy or {}).get("data") or {}
    own = wanted.written if _annotations(seen.legacy).get(CLUSTER) == wanted.cluster else ()
    for key, value in wanted.legacy.items():
        there = str(data.get(key) or "")
        if there and there != value and key not in own:
            patch = f"kubectl -n {OPERATOR_NAMESPACE} patch configmap {LEGACY.name} --type json"
            command = f"""{patch} -p '[{{"op": "remove", "path": "/data/{key}"}}]'"""
            problem = f"`{key}` is `{there}` there, the stack file says `{value}`"
            yield INS_005.at(
                _place(LEGACY), problem=problem, fix="remove the key, if nothing else needs it", command=command
            )


def _condition(wanted: Wanted, found: Revision | None, seen: Seen) -> Iterator[Finding]:
    if found is None or seen.cluster != wanted.cluster:
        return
    if found.under_way:
        problem = f"revision {found.number} is {found.status} since {found.since:%Y-%m-%d %H:%M:%S %Z}"
        yield INS_006.at(f"Helm release {found.release}", problem=problem, fix=INS_006.remedy)
    installed, asked = Version.parse(found.version), Version.parse(wanted.version)
    if installed is not None and asked is not None and asked < installed:
        problem = f"{installed} is installed, the stack file asks for {asked}"
        yield INS_007.at("cluster.cozystack", problem=problem, fix=INS_007.remedy)


def _is_foreign(obj: Object, wanted: Wanted) -> bool:
    return _helm_owner(obj) != f"{wanted.release_namespace}/{RELEASE_NAME}"


def _helm_owner(obj: Object) -> str | None:
    """`namespace/name` of the Helm release whose marks an object carries."""
    marks = _annotations(obj)
    name = marks.get("meta.helm.sh/release-name")
    return f"{marks.get('meta.helm.sh/release-namespace')}/{name}" if name else None


def owners(objects: Mapping[Ref, Object]) -> set[tuple[str, str]]:
    """(namespace, name) of every Helm release that the objects name."""
    found = {_helm_owner(obj) for obj in objects.values()}
    return {(owner.partition("/")[0], owner.partition("/")[2]) for owner in found if owner}


def _annotations(obj: Object | None) -> dict[str, str]:
    return ((obj or {}).get("metadata") or {}).get("annotations") or {}


def _account(found: Revision) -> str:
    chart = f"{found.chart}, " if found.chart else ""
    return f"{chart}revision {found.number} {found.status} since {found.since:%Y-%m-%d %H:%M %Z}"


def _marks(wanted: Wanted) -> str:
    return f"meta.helm.sh/release-name={RELEASE_NAME} meta.helm.sh/release-namespace={wanted.release_namespace}"


def _annotate(wanted: Wanted) -> str:
    return f"kubectl annotate --overwrite namespace {OPERATOR_NAMESPACE} {CLUSTER}={wanted.cluster}"


def _target(ref: Ref) -> str:
    """An object as kubectl names it."""
    return f"{ref.plural} {ref.name}" + (f" -n {ref.namespace}" if ref.namespace else "")


def _place(ref: Ref) -> str:
    return str(ref)
