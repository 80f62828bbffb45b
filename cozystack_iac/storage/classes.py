"""The storage classes Cozystack documents and creates nowhere itself. Pure.

`local` is the default class (class-less claims of the platform use it), `replicated` is named by VictoriaLogs: the root
tenant's monitoring needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PROVISIONER = "linstor.csi.linbit.com"
DEFAULT_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
MANAGED = {"app.kubernetes.io/managed-by": "cozystack-iac"}
NAMES = ("local", "replicated")

# What DRBD does when replicas lose each other: suspend rather than lie (Cozystack documentation and its own e2e suite).
_DRBD = {
    "property.linstor.csi.linbit.com/DrbdOptions/auto-quorum": "suspend-io",
    "property.linstor.csi.linbit.com/DrbdOptions/Resource/on-no-data-accessible": "suspend-io",
    "property.linstor.csi.linbit.com/DrbdOptions/Resource/on-suspended-primary-outdated": "force-secondary",
    "property.linstor.csi.linbit.com/DrbdOptions/Net/rr-conflict": "retry-connect",
}


def replicas(storage_nodes: int, wanted: int | None = None) -> int:
    """Copies of a replicated volume: three, or as many as there are nodes to put them on."""
    return max(1, min(wanted or 3, storage_nodes))


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
    return sorted(
        str(c["metadata"]["name"])
        for c in classes
        if (c["metadata"].get("annotations") or {}).get(DEFAULT_ANNOTATION) == "true"
    )
