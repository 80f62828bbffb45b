"""A node whose machine goes away for a while: emptied before, opened again once it is what it was. One round at a time.

What the node was is noted on the node itself, so that a run that was killed in between is continued by the next one, and a node
that a person had closed stays closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from cozystack_iac.kube.client import Kube, Object
from cozystack_iac.kube.drain import NODES, Fate, drain, fate, pods_on
from cozystack_iac.kube.nodes import NodeState, standings

MARK = "cozystack-iac/away"
_OPEN, _READY = "open", "ready"


async def leave(kube: Kube, name: str) -> str:
    """Close the node and ask its pods to go; what is left to wait for, empty when the machine may go away.

    Where no other node could take them, pods stay and are stopped with the machine. Raises KubeError.
    """
    nodes = {str(node["metadata"]["name"]): node for node in await kube.objects(NODES)}
    if name not in nodes:
        return ""
    if _mark(nodes[name]) is None:
        was = [_OPEN] * _schedulable(nodes[name]) + [_READY] * _ready(name, nodes[name])
        await kube.merge_patch(NODES.named(name), {"metadata": {"annotations": {MARK: " ".join(was)}}})
    if not any(_schedulable(node) and _ready(other, node) for other, node in nodes.items() if other != name):
        return ""
    await drain(kube, name)
    return _listed(pod for pod in await pods_on(kube, name) if fate(pod) in (Fate.GOES, Fate.GOING))


async def back(kube: Kube, name: str) -> str:
    """Open the node again, once it is as ready as it was; what is left to wait for, empty when done. Raises KubeError."""
    node = await kube.find(NODES.named(name))
    was = None if node is None else _mark(node)
    if node is None or was is None:
        return ""
    if _READY in was and not _ready(name, node):
        return "the node is not ready yet"
    opened = {"spec": {"unschedulable": None}} if _OPEN in was else {}
    await kube.merge_patch(NODES.named(name), {"metadata": {"annotations": {MARK: None}}, **opened})
    return ""


async def away(kube: Kube) -> list[str]:
    """Names of the nodes that were emptied and not yet opened again."""
    return sorted(str(node["metadata"]["name"]) for node in await kube.objects(NODES) if _mark(node) is not None)


def _mark(node: Object) -> list[str] | None:
    text = (node["metadata"].get("annotations") or {}).get(MARK)
    return None if text is None else str(text).split()


def _schedulable(node: Object) -> bool:
    return not (node.get("spec") or {}).get("unschedulable")


def _ready(name: str, node: Object) -> bool:
    [standing] = standings([name], {name: node})
    return standing.state is NodeState.READY


def _listed(pods: Iterable[Object], *, most: int = 4) -> str:
    names = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"these pods are still running: {', '.join(names[:most])}{more}" if names else ""
