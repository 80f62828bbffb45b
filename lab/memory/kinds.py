"""The kinds a cluster serves before any CustomResourceDefinition, and how a CRD adds one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cozystack_iac.kube.client import Object
from lab.platform.manifests import plural


@dataclass(frozen=True)
class Kind:
    """One kind of object. `status`: it has a status subresource, so the two are written apart."""

    name: str
    group: str
    plural: str
    versions: tuple[str, ...]
    namespaced: bool = True
    status: bool = True

    @property
    def resource(self) -> str:
        """How messages call it: `helmreleases.helm.toolkit.fluxcd.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


_NAMESPACED: Mapping[str, str] = {
    "v1": "Pod Service Secret ConfigMap ServiceAccount Event Endpoints PersistentVolumeClaim ResourceQuota LimitRange",
    "batch/v1": "Job CronJob",
    "apps/v1": "Deployment StatefulSet DaemonSet ReplicaSet",
    "networking.k8s.io/v1": "Ingress NetworkPolicy",
    "discovery.k8s.io/v1": "EndpointSlice",
    "events.k8s.io/v1": "Event",
    "coordination.k8s.io/v1": "Lease",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding",
}
_CLUSTER_WIDE: Mapping[str, str] = {
    "v1": "Namespace Node PersistentVolume",
    "storage.k8s.io/v1": "StorageClass CSIDriver CSINode VolumeAttachment",
    "networking.k8s.io/v1": "IngressClass",
    "scheduling.k8s.io/v1": "PriorityClass",
    "apiregistration.k8s.io/v1": "APIService",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
    "ValidatingWebhookConfiguration MutatingWebhookConfiguration",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding",
}
_WITHOUT_STATUS = frozenset(
    {
        *("Secret", "ConfigMap", "ServiceAccount", "Event", "Endpoints", "EndpointSlice", "Lease", "LimitRange"),
        *("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "StorageClass", "CSIDriver", "CSINode"),
        *("IngressClass", "PriorityClass", "NetworkPolicy", "ValidatingAdmissionPolicyBinding"),
        *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    }
)


def built_in() -> dict[tuple[str, str], Kind]:
    """By (group, plural)."""
    found: dict[tuple[str, str], Kind] = {}
    for table, namespaced in ((_NAMESPACED, True), (_CLUSTER_WIDE, False)):
        for api_version, names in table.items():
            group, _, version = api_version.rpartition("/")
            for name in names.split():
                kind = Kind(name, group, plural(name), (version,), namespaced, name not in _WITHOUT_STATUS)
                found[group, kind.plural] = kind
    return found


def of_crd(crd: Object) -> Kind:
    """The kind a CustomResourceDefinition describes."""
    spec: Mapping[str, Any] = crd["spec"]
    versions = [v for v in spec["versions"] if v.get("served")]
    return Kind(
        name=str(spec["names"]["kind"]),
        group=str(spec["group"]),
        plural=str(spec["names"]["plural"]),
        versions=tuple(str(v["name"]) for v in sorted(versions, key=lambda v: not v.get("storage"))),
        namespaced=spec["scope"] == "Namespaced",
        status=any("status" in (v.get("subresources") or {}) for v in versions),
    )
