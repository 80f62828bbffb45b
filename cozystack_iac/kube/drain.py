"""Emptying a node: which pods have to go, which stay, and which would be lost for good. Judging is pure.

A drain never deletes a pod: it asks for evictions, so that disruption budgets and live migrations have their say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from cozystack_iac.kube.client import Kube, Object, Ref, Refused

NODES = Ref("v1", "nodes")
PODS = Ref("v1", "pods")
_MIRROR = "kubernetes.io/config.mirror"  # a static pod's image in the API; the kubelet makes it, nobody can move it


class Fate(StrEnum):
    """What a drain does about one pod."""

    GOES = "is being evicted"
    GOING = "is terminating"
    STAYS = "stays"
    LOST = "has no controller that would start it on another node"


@dataclass
class Drain:
    """How far one round of a drain came. `open` says of every pod that is still there what keeps it."""

    open: dict[str, str] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return not self.open

    def __str__(self) -> str:
        shown = [f"{pod}: {why}" for pod, why in list(self.open.items())[:4]]
        return "; ".join(shown) + (f" and {len(self.open) - 4} more" if len(self.open) > 4 else "")


def fate(pod: Object) -> Fate:
    """Pure. Pods of DaemonSets and of the kubelet belong to the node; those that have ended hold nothing."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    owner = next((o for o in metadata.get("ownerReferences") or [] if o.get("controller")), None)
    if _MIRROR in (metadata.get("annotations") or {}) or (owner and owner.get("kind") == "DaemonSet"):
        return Fate.STAYS
    if status.get("phase") in ("Succeeded", "Failed"):
        return Fate.STAYS
    if metadata.get("deletionTimestamp"):
        return Fate.GOING
    return Fate.GOES if owner else Fate.LOST


def drained(node: Object, pods: Iterable[Object]) -> bool:
    """Whether nothing new can come and nothing is left that has to go. Pure."""
    closed = bool((node.get("spec") or {}).get("unschedulable"))
    return closed and all(fate(pod) is Fate.STAYS for pod in pods)


async def pods_on(kube: Kube, node: str) -> list[Object]:
    """Every pod that is bound to the node."""
    return await kube.objects(PODS, fields=f"spec.nodeName={node}")


async def drain(kube: Kube, node: str) -> Drain:
    """One round: close the node, ask every pod to go that can. Returns what is left; raises KubeError but for refusals."""
    await kube.merge_patch(NODES.named(node), {"spec": {"unschedulable": True}})
    left = Drain()
    for pod in await pods_on(kube, node):
        what = fate(pod)
        if what is Fate.STAYS:
            continue
        ref = PODS.named(pod["metadata"]["name"], pod["metadata"]["namespace"])
        left.open[f"{ref.namespace}/{ref.name}"] = await _evicted(kube, ref) if what is Fate.GOES else what.value
    return left


async def _evicted(kube: Kube, pod: Ref) -> str:
    try:
        await kube.evict(pod)
    except Refused as error:  # 429 for a disruption budget; a webhook's refusal says why as well
        return error.message
    return Fate.GOING.value
