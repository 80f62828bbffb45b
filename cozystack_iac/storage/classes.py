"""The storage classes Cozystack documents and creates nowhere itself. Pure.

`local` is the default class (class-less claims of the platform use it), `replicated` is named by VictoriaLogs: the root
tenant's monitoring needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.kube.ownership import foreign_owner

CLS_001 = Rule(
    "CLS-001",
    ERROR,
    title="Storage classes to be created do not already exist",
    why="the class would change under its owner, and `destroy` would delete it",
    remedy="use it as it is with `storage.classes: adopt`, delete it, or set `skip`",
)
CLS_002 = Rule(
    "CLS-002",
    ERROR,
    title="An adopted storage class is compatible",
    why="the platform's PersistentVolumeClaims would stay Pending, or its volumes would be placed on a different pool",
    remedy="make the class compatible, or delete it so that this stack creates it",
)
CLS_003 = Rule(
    "CLS-003",
    WARNING,
    title="An adopted storage class matches Cozystack's documentation",
    why="volumes behave differently from Cozystack's documentation when replicas lose contact with each other",
    remedy="compare it with the documented class",
)
CLS_004 = Rule(
    "CLS-004",
    ERROR,
    title="Only one storage class is the default",
    why="Kubernetes uses the newest default class, so the platform's databases may be placed on the wrong one",
    remedy="remove the default annotation from all but one",
)
CLS_005 = Rule(
    "CLS-005",
    ERROR,
    title="There is a default storage class",
    why="claims without a class (Keycloak's database, etcd, Grafana) would stay Pending",
    remedy="make one of the classes the default",
)
CLS_006 = Rule(
    "CLS-006",
    ERROR,
    title="The storage classes of the cluster are readable",
    why="only the cluster knows whether a class belongs to someone else or is a second default",
    remedy="check that the API server is reachable from here",
)

PROVISIONER = "linstor.csi.linbit.com"
DEFAULT_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
_OLD_DEFAULT_ANNOTATION = "storageclass.beta.kubernetes.io/is-default-class"  # Kubernetes still honours it
MANAGED = {"app.kubernetes.io/managed-by": "cozystack-iac"}
NAMES = ("local", "replicated")

# What DRBD does when replicas lose each other: suspend rather than lie (Cozystack documentation and its own e2e suite).
_DRBD = {
    "property.linstor.csi.linbit.com/DrbdOptions/auto-quorum": "suspend-io",
    "property.linstor.csi.linbit.com/DrbdOptions/Resource/on-no-data-accessible": "suspend-io",
    "property.linstor.csi.linbit.com/DrbdOptions/Resource/on-suspended-primary-outdated": "force-secondary",
    "property.linstor.csi.linbit.com/DrbdOptions/Net/rr-conflict": "retry-connect",
}


def storage_classes(pool: str, copies: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """`local` and `replicated` on one LINSTOR pool."""
    local = {
        f"{PROVISIONER}/storagePool": pool,
        f"{PROVISIONER}/layerList": "storage",
        f"{PROVISIONER}/allowRemoteVolumeAccess": "false",
    }
    replicated = {
        f"{PROVISIONER}/storagePool": pool,
        f"{PROVISIONER}/autoPlace": str(copies),
        f"{PROVISIONER}/layerList": "drbd storage",
        f"{PROVISIONER}/allowRemoteVolumeAccess": "true",
        **_DRBD,
    }
    return (
        _storage_class("local", local, "WaitForFirstConsumer", {DEFAULT_ANNOTATION: "true"}),
        _storage_class("replicated", replicated, "Immediate", {}),
    )


def _storage_class(name: str, parameters: dict[str, str], binding: str, annotations: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "labels": dict(MANAGED), "annotations": annotations},
        "provisioner": PROVISIONER,
        "parameters": parameters,
        "volumeBindingMode": binding,
        "allowVolumeExpansion": True,
    }


def defaults(classes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of the classes marked as default. More than one makes the default a matter of luck."""
    return sorted(str(c["metadata"]["name"]) for c in classes if _is_default(c))


def _is_default(found: Mapping[str, Any]) -> bool:
    marks = found["metadata"].get("annotations") or {}
    return any(marks.get(name) == "true" for name in (DEFAULT_ANNOTATION, _OLD_DEFAULT_ANNOTATION))


def is_ours(found: Mapping[str, Any]) -> bool:
    """Whether this project made the class."""
    labels = found["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in MANAGED.items())


def missing(existing: Iterable[Mapping[str, Any]], wanted: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The wanted classes that nobody has made yet; where somebody else's class is the default, it stays that."""
    there = list(existing)
    names = {c["metadata"]["name"] for c in there}
    new = [dict(body) for body in wanted if body["metadata"]["name"] not in names]
    if not defaults(there):
        return new
    return [{**body, "metadata": {**body["metadata"], "annotations": {}}} for body in new]


# What is there already ------------------------------------------------------------------------------------------------


def judge_classes(
    existing: Iterable[Mapping[str, Any]],
    wanted: Sequence[Mapping[str, Any]],
    mode: Literal["create", "adopt"],
    copies: int,
) -> list[Finding]:
    """Every conflict between the classes of a cluster and those that are wanted. `copies`: what the nodes can hold at most."""
    there = {str(c["metadata"]["name"]): c for c in existing}
    findings: list[Finding] = []
    for body in wanted:
        found = there.get(body["metadata"]["name"])
        if found is None or (is_ours(found) and mode == "create"):
            continue  # ours may differ: the engine changes it
        findings += _taken(body, found) if mode == "create" else _unfit(body, found, copies)
    # What will be there is judged: with `create` ours are as they will be made, else what is missing is added.
    free = [b for b in wanted if (name := b["metadata"]["name"]) not in there or is_ours(there[name])]
    made = free if mode == "create" else missing(there.values(), wanted)
    planned = there | {str(body["metadata"]["name"]): body for body in made}
    return findings + _default(defaults(planned.values()))


def _taken(body: Mapping[str, Any], found: Mapping[str, Any]) -> list[Finding]:
    name = body["metadata"]["name"]
    differences = [*hard_differences(body, found, None), *soft_differences(body, found)]
    differs = "; ".join(differences) or "it is identical to the class this stack would create"
    problem = (
        f"class {name} already exists and does not belong to this stack "
        f"({foreign_owner(found, MANAGED) or 'ours'}): {differs}"
    )
    keep = "set `storage.classes: adopt` to use it as it is"
    remove = f"delete it (`kubectl delete storageclass {name}`; volumes and claims are kept)"
    fix = f"1. {keep}\n2. {remove}\n3. set `storage.classes: skip` and manage both classes yourself"
    return [
        CLS_001.at(f"storageclass/{name}", problem=problem, fix=fix, command=f"kubectl get storageclass {name} -o yaml")
    ]


def _unfit(body: Mapping[str, Any], found: Mapping[str, Any], copies: int) -> Iterable[Finding]:
    name = body["metadata"]["name"]
    place, look = f"storageclass/{name}", f"kubectl get storageclass {name} -o yaml"
    hard, soft = hard_differences(body, found, copies), soft_differences(body, found)
    if hard:
        remove = (
            f"delete it (`kubectl delete storageclass {name}`; volumes and claims are kept), and this stack "
            "creates it again"
        )
        fix = f"1. {remove}\n2. make it compatible\n3. set `storage.classes: skip` and manage both classes yourself"
        yield CLS_002.at(place, problem=f"class {name} is not compatible: {'; '.join(hard)}", fix=fix, command=look)
    if soft:
        fix = "no action needed if this is intended"
        yield CLS_003.at(
            place, problem=f"class {name} is used as it is, although {'; '.join(soft)}", fix=fix, command=look
        )


def _default(names: list[str]) -> list[Finding]:
    if len(names) == 1:
        return []
    if not names:
        fix = f"run `kubectl annotate storageclass local {DEFAULT_ANNOTATION}=true`"
        return [CLS_005.at("storageclasses", problem="no storage class is the default", fix=fix)]
    others = [name for name in names if name != "local"] or names[1:]
    commands = "; ".join(f"kubectl annotate storageclass {name} {DEFAULT_ANNOTATION}-" for name in others)
    problem = f"{len(names)} classes are, or would become, the default: {', '.join(names)}"
    fix = (
        "1. remove the default annotation from all but one (command below)\n2. stop whatever creates the "
        "other one (k3s: `--disable=local-storage`; otherwise it comes back at every start)\n3. set "
        "`storage.classes: skip`"
    )
    return [CLS_004.at("storageclasses", problem=problem, fix=fix, command=commands)]


def hard_differences(body: Mapping[str, Any], found: Mapping[str, Any], copies: int | None) -> list[str]:
    """What makes a class useless here. `copies`: with fewer or as many the class still places; None: has to be the same."""
    if found.get("provisioner") != PROVISIONER:
        return [f"its provisioner is {found.get('provisioner')} instead of {PROVISIONER}"]
    wanted, given = _parameters(body), _parameters(found)
    differences = [
        _difference(key, wanted[key], given.get(key))
        for key in ("storagePool", "layerList")
        if given.get(key, "").split() != wanted[key].split()
    ]
    place, asked = given.get("autoPlace", "1"), wanted.get("autoPlace", "1")
    if copies is None and place != asked:
        differences.append(_difference("autoPlace", asked, place))
    elif copies is not None and not (place.isdigit() and 1 <= int(place) <= copies):
        differences.append(
            f"it asks for {place} replicas, but there are nodes for only {copies}, so volumes can never be placed"
        )
    return differences


def soft_differences(body: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """What a class may do differently and still work."""
    wanted, given = _parameters(body), _parameters(found)
    decisive = {"storagePool", "layerList", "autoPlace"}
    keys = sorted((wanted.keys() | given.keys()) - decisive)
    differences = [_difference(k, wanted.get(k), given.get(k)) for k in keys if wanted.get(k) != given.get(k)]
    for field, usual in (
        ("volumeBindingMode", "Immediate"),
        ("allowVolumeExpansion", False),
        ("reclaimPolicy", "Delete"),
    ):
        here, there = body.get(field, usual), found.get(field, usual)
        if here != there:
            differences.append(_difference(field, here, there))
    return differences


def _difference(key: str, wanted: object, given: object) -> str:
    if given is None:
        return f"{key} is not set (would be {wanted})"
    return f"{key} is {given}" + (f" (would be {wanted})" if wanted is not None else " (would not be set)")


def _parameters(body: Mapping[str, Any]) -> dict[str, str]:
    """Parameters without linstor-csi's prefix, which it does not insist on; `placementCount` is another word for `autoPlace`."""
    plain = {str(k).removeprefix(f"{PROVISIONER}/"): str(v) for k, v in (body.get("parameters") or {}).items()}
    if "placementCount" in plain:
        plain["autoPlace"] = plain.pop("placementCount")
    return plain
