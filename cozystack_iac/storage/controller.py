"""Asking LINSTOR's controller, in its own pod: its API wants client certificates that live only there.

Every question raises `Unreadable` for an answer that is none and KubeError where no answer was got; a controller that is
restarting gives one of the two (`No route to host`, no running pod, exec refused), and asking again later is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cozystack_iac.kube.client import Kube, NotFound, Object, Ref
from cozystack_iac.storage import linstor

PODS = Ref("v1", "pods", linstor.NAMESPACE)
CLUSTERS = Ref("piraeus.io/v1", "linstorclusters")
SATELLITES = Ref("piraeus.io/v1", "linstorsatellites")
SHELL = f"kubectl -n {linstor.NAMESPACE} exec deploy/{linstor.CONTROLLER} -c {linstor.CONTROLLER} -- linstor"
"""How a person runs a command of the LINSTOR client."""

T = TypeVar("T")


class Controller:
    """The controller's running pod. Find one anew for every round of questions: it moves."""

    def __init__(self, kube: Kube, pod: str) -> None:
        self._kube, self._pod = kube, pod

    @classmethod
    async def find(cls, kube: Kube) -> Controller:
        """Raises NotFound when no pod of it runs."""
        pods = await kube.objects(PODS, selector=f"app.kubernetes.io/component={linstor.CONTROLLER}")
        running = [pod for pod in pods if _runs(pod)]
        if not running:
            raise NotFound(404, "NotFound", "there is no running linstor-controller pod")
        return cls(kube, str(running[0]["metadata"]["name"]))

    async def nodes(self) -> tuple[linstor.NodeRow, ...]:
        return await self._ask(linstor.LIST_NODES, linstor.node_rows)

    async def pools(self) -> tuple[linstor.PoolRow, ...]:
        return await self._ask(linstor.LIST_POOLS, linstor.pool_rows)

    async def devices(self) -> tuple[linstor.DeviceRow, ...]:
        return await self._ask(linstor.LIST_DEVICES, linstor.device_rows)

    async def resources(self, node: str | None = None) -> tuple[linstor.ResourceRow, ...]:
        """What lives on one node, or everywhere."""
        return await self._ask(linstor.list_resources(node) if node else linstor.LIST_RESOURCES, linstor.resource_rows)

    async def errors(self, node: str) -> tuple[str, ...]:
        return await self._ask(linstor.list_errors(node), linstor.error_texts)

    async def evacuate(self, node: str) -> str:
        """Why LINSTOR refuses to empty the node; empty when it has begun."""
        return await self._ask(linstor.evacuate_node(node), linstor.refusal)

    async def _ask(self, argv: list[str], read: Callable[[str], T]) -> T:
        answer = await self._kube.exec(linstor.NAMESPACE, self._pod, linstor.CONTROLLER, argv)
        if not answer.ok and not answer.stdout.lstrip().startswith("["):  # a refusal in machine form says more
            raise linstor.Unreadable(answer.stderr.strip()[:300] or answer.stdout.strip()[:300] or "the command failed")
        return read(answer.stdout)


async def present(kube: Kube) -> bool:
    """Whether this cluster has LINSTOR at all; without the operator's object nothing can be stored in it."""
    try:
        return bool(await kube.objects(CLUSTERS))
    except NotFound:
        return False


async def satellite(kube: Kube, node: str) -> Object | None:
    """The operator's object of one node's satellite."""
    return await kube.find(SATELLITES.named(node))


def _runs(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
