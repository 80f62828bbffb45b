"""Objects that only a scenario puts there: what people, charts and controllers outside the simulation left behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cozystack_iac.kube.client import Object, Ref
from lab.platform.context import Platform
from lab.scenario import Effect

HELD = "lab.cozystack-iac/held"  # the pod stays as it is written: nobody starts it
LOG = "lab.cozystack-iac/log"  # what its containers have logged
_WITHOUT_NAMESPACE = frozenset(
    {
        *("Namespace", "Node", "PersistentVolume", "StorageClass", "IngressClass", "PriorityClass", "ClusterIssuer"),
        *("CustomResourceDefinition", "APIService", "ClusterRole", "ClusterRoleBinding", "Package", "PackageSource"),
        *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "CSIDriver", "LinstorCluster"),
        *("LinstorSatellite", "LinstorSatelliteConfiguration", "ValidatingAdmissionPolicy"),
    }
)


class Manifests:
    """Carries out `create` and `delete`, and makes the scenario's own `objects`."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        platform.world.faults.handle("create", self._create)
        platform.world.faults.handle("delete", self._delete)

    async def found(self) -> None:
        """What is there before anything else happens."""
        for body in self._platform.world.scenario.objects:
            await self._put(body)

    def _create(self, effect: Effect) -> None:
        for body in effect.create:
            self._platform.hub.spawn(self._put(body))

    def _delete(self, effect: Effect) -> None:
        for each in effect.delete:
            ref = _ref(each.apiVersion, each.kind, each.name, each.namespace)
            self._platform.hub.spawn(self._platform.hub.delete(ref))

    async def _put(self, body: Mapping[str, Any]) -> None:
        hub, metadata = self._platform.hub, dict(body["metadata"])
        if body["kind"] == "Pod" and "status" in body:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), HELD: "true"}
        wanted: Object = {**body, "metadata": metadata}
        ref = _ref(body["apiVersion"], body["kind"], metadata["name"], metadata.get("namespace"))
        await hub.put(ref, wanted)
        if "status" in body:
            await hub.status(ref, body["status"])
        self._platform.world.log.record(f"object {ref}", "created")


def _ref(api_version: str, kind: str, name: str, namespace: str | None) -> Ref:
    return Ref(api_version, plural(kind), None if kind in _WITHOUT_NAMESPACE else namespace or "default", name)


def plural(kind: str) -> str:
    """How the API calls a collection of this kind; holds for every kind anybody here writes."""
    lower = kind.lower()
    if lower == "endpoints":
        return lower
    if lower.endswith("y") and lower[-2] not in "aeiou":
        return lower[:-1] + "ies"
    return lower + ("es" if lower.endswith("s") else "s")
