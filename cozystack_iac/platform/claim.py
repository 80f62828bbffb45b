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
    title="The installer's objects belong to no other Helm release",
    why="an object can belong to one Helm release only, and taking it over would break upgrades of the other release",
    remedy="continue with that release, or hand its objects over by hand",
)
INS_002 = Rule(
    "INS-002",
    ERROR,
    live=True,
    overridable=True,
    title="A Cozystack installed by someone else is not taken over",
    why="this stack would upgrade and configure it from now on, and its owner may not know",
    remedy="ask its owner, then override INS-002 in the stack file",
)
INS_003 = Rule(
    "INS-003",
    ERROR,
    live=True,
    overridable=True,
    title="The namespace cozy-system belongs to this stack",
    why="the namespace is made privileged, and everything in it becomes part of the platform",
    remedy="delete it if nothing in it is needed, or override INS-003 to install into it as it is",
)
INS_004 = Rule(
    "INS-004",
    ERROR,
    live=True,
    overridable=True,
    title="Existing installer objects have Helm's ownership labels",
    why="Helm does not adopt objects that it did not create (invalid ownership metadata)",
    remedy="delete them, or override INS-004 so that they are labeled for the release",
)
INS_005 = Rule(
    "INS-005",
    ERROR,
    live=True,
    title="No ConfigMap of an older Cozystack overrides the stack file",
    why="the platform prefers the ConfigMap to its package, so the settings of this stack would silently be ignored",
    remedy="remove the key",
)
INS_006 = Rule(
    "INS-006",
    NOTE,
    live=True,
    title="An interrupted Helm operation is cleared",
    why="Helm refuses any further operation while the last revision is pending",
    remedy="No action needed: `pulumi up` marks the revision as failed and continues",
)
INS_007 = Rule(
    "INS-007",
    ERROR,
    live=True,
    overridable=True,
    title="The installed Cozystack release is not downgraded",
    why="migrations cannot be reverted, so the older release would find objects it does not know",
    remedy="set cluster.cozystack to the installed release or a newer one",
)
OIDC_001 = Rule(
    "OIDC-001",
    ERROR,
    live=True,
    overridable=True,
    title="Single sign-on is not disabled by accident",
    why="users who log in through Keycloak would lose access; up to 1.6.0, the change also hangs while "
    "keycloak-configure is deleted (cozystack#3478)",
    remedy="set access.oidc to true, or override OIDC-001",
)

INS_009 = Rule(
    "INS-009",
    ERROR,
    live=True,
    overridable=True,
    title="No objects of another pod network are left over",
    why="the platform's network charts fail halfway (invalid ownership metadata), and no node becomes Ready",
    remedy="delete the leftover objects once nothing uses them any more",
)
OVERRIDABLE = frozenset({INS_002.code, INS_003.code, INS_004.code, INS_007.code, INS_009.code, OIDC_001.code})


@dataclass(frozen=True)
class WantedInstall:
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
class SeenInstall:
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

    def revision(self, wanted: WantedInstall) -> Revision | None:
        """The newest revision of our own release."""
        ours = f"{wanted.release_namespace}/{RELEASE_NAME}"
        return next((found for found in self.revisions if found.release == ours), None)


def objections(wanted: WantedInstall, seen: SeenInstall, *, oidc_before: bool = False) -> Iterator[Finding]:
    """Everything that stands in the way, all at once. `oidc_before`: what this stack last asked for."""
    for finding in _judge(wanted, seen, oidc_before):
        if finding.severity is not ERROR or finding.code not in OVERRIDABLE.intersection(wanted.allowed):
            yield finding


def stuck(wanted: WantedInstall, seen: SeenInstall) -> Revision | None:
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


def _judge(wanted: WantedInstall, seen: SeenInstall, oidc_before: bool) -> Iterator[Finding]:
    ours = seen.cluster == wanted.cluster
    unmarked = seen.unmarked
    helms = dict(seen.objects)
    if wanted.brings_namespace and seen.namespace is not None and _helm_owner(seen.namespace):
        helms[NAMESPACE] = seen.namespace
    foreign = {ref: obj for ref, obj in helms.items() if ref not in unmarked and _is_foreign(obj, wanted)}
    yield from _foreign(wanted, seen, foreign)
    found = seen.revision(wanted)
    if seen.cluster and not ours:
        problem = f"it belongs to the stack of cluster `{seen.cluster}`, but this is the stack of `{wanted.cluster}`"
        fix = f"use that stack, or correct cluster.name; if the cluster was renamed: {_annotate(wanted)}"
        yield INS_002.at(_place(NAMESPACE), problem=problem, fix=fix)
    elif found is not None and not ours:
        problem = f"Helm release {found.release} ({_account(found)}) was not created by this stack"
        yield INS_002.at(f"Helm release {found.release}", problem=problem, fix=INS_002.remedy)
    elif unmarked and not ours:
        yield from _unmarked(wanted, unmarked)
    elif seen.namespace is not None and not ours and not foreign:
        yield _leftover(wanted, seen.namespace)
    if seen.package is not None and not ours and foreign_owner(seen.package, PACKAGE_MARKS):
        problem = f"Package {PLATFORM_PACKAGE} already exists, {foreign_owner(seen.package, PACKAGE_MARKS)}"
        yield INS_002.at(_place(PACKAGE), problem=problem, fix=INS_002.remedy)
    if seen.leftovers and not ours:  # after an uninstallation of ours, CRDs of our own network stay
        yield _left_of_a_network(seen.leftovers)
    yield from _overruled(wanted, seen)
    yield from _condition(wanted, found, seen)
    if not wanted.oidc and (oidc_before or oidc_is_on(seen.package)):
        yield OIDC_001.at(
            "access.oidc", problem="OIDC is enabled in the cluster, but the stack file disables it", fix=OIDC_001.remedy
        )


def _foreign(wanted: WantedInstall, seen: SeenInstall, foreign: Mapping[Ref, Object]) -> Iterator[Finding]:
    by_owner: dict[str, list[Ref]] = {}
    for ref, obj in foreign.items():
        by_owner.setdefault(str(_helm_owner(obj)), []).append(ref)
    for owner, refs in by_owner.items():
        known = next((found for found in seen.revisions if found.release == owner), None)
        account = f" ({_account(known)})" if known else ", which Helm has no record of"
        namespace, _, name = owner.partition("/")
        names = ", ".join(map(str, refs))
        commands = [f"kubectl annotate --overwrite {_target(ref)} {_marks(wanted)}" for ref in refs]
        gone = f"kubectl -n {namespace} delete secret -l owner=helm,name={name}"
        fix = "\n".join(
            ["continue with that release, or hand its objects over and delete its records:", *commands, gone]
        )
        problem = f"{names} belong to Helm release {owner}{account}"
        yield INS_001.at(f"Helm release {owner}", problem=problem, fix=fix)


def _unmarked(wanted: WantedInstall, refs: list[Ref]) -> Iterator[Finding]:
    for ref in refs:
        commands = (
            f"kubectl label --overwrite {_target(ref)} app.kubernetes.io/managed-by=Helm",
            f"kubectl annotate --overwrite {_target(ref)} {_marks(wanted)}",
        )
        fix = "\n".join(["override INS-004 to have it labeled, or label it yourself:", *commands])
        yield INS_004.at(_place(ref), problem="it already exists, but belongs to no Helm release", fix=fix)


def _leftover(wanted: WantedInstall, namespace: Object) -> Finding:
    owner = _helm_owner(namespace)
    made = (namespace.get("metadata") or {}).get("creationTimestamp")
    problem = f"it has existed since {made}, {f'left over from Helm release {owner}' if owner else 'and has no owner'}"
    look = f"kubectl -n {OPERATOR_NAMESPACE} get all,secrets,configmaps"
    fix = "\n".join(
        ["check its content:", look, "then delete it, override INS-003, or annotate it yourself:", _annotate(wanted)]
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
    fix = "\n".join(["once nothing uses them any more, delete them:", *commands])
    return INS_009.at("cluster", problem=f"{shown}{more} already exist, but belong to no Helm release", fix=fix)


def _overruled(wanted: WantedInstall, seen: SeenInstall) -> Iterator[Finding]:
    data = (seen.legacy or {}).get("data") or {}
    own = wanted.written if _annotations(seen.legacy).get(CLUSTER) == wanted.cluster else ()
    for key, value in wanted.legacy.items():
        there = str(data.get(key) or "")
        if there and there != value and key not in own:
            patch = f"kubectl -n {OPERATOR_NAMESPACE} patch configmap {LEGACY.name} --type json"
            command = f"""{patch} -p '[{{"op": "remove", "path": "/data/{key}"}}]'"""
            problem = f"`{key}` is `{there}` there, but `{value}` in the stack file"
            yield INS_005.at(
                _place(LEGACY), problem=problem, fix="remove the key if nothing else needs it", command=command
            )


def _condition(wanted: WantedInstall, found: Revision | None, seen: SeenInstall) -> Iterator[Finding]:
    if found is None or seen.cluster != wanted.cluster:
        return
    if found.under_way:
        problem = f"revision {found.number} has been {found.status} since {found.since:%Y-%m-%d %H:%M:%S %Z}"
        yield INS_006.at(f"Helm release {found.release}", problem=problem, fix=INS_006.remedy)
    installed, asked = Version.parse(found.version), Version.parse(wanted.version)
    if installed is not None and asked is not None and asked < installed:
        problem = f"{installed} is installed, but the stack file asks for {asked}"
        yield INS_007.at("cluster.cozystack", problem=problem, fix=INS_007.remedy)


def _is_foreign(obj: Object, wanted: WantedInstall) -> bool:
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


def _marks(wanted: WantedInstall) -> str:
    return f"meta.helm.sh/release-name={RELEASE_NAME} meta.helm.sh/release-namespace={wanted.release_namespace}"


def _annotate(wanted: WantedInstall) -> str:
    return f"kubectl annotate --overwrite namespace {OPERATOR_NAMESPACE} {CLUSTER}={wanted.cluster}"


def _target(ref: Ref) -> str:
    """An object as kubectl names it."""
    return f"{ref.plural} {ref.name}" + (f" -n {ref.namespace}" if ref.namespace else "")


def _place(ref: Ref) -> str:
    return str(ref)
