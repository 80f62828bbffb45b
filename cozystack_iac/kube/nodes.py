"""Which nodes have registered, and what their readiness means before and after a CNI exists. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CNI_MISSING = "cni plugin not initialized"  # kubelet's own words while no network plugin is configured


class NodeState(StrEnum):
    """What one node is to the install."""

    MISSING = "not registered"
    READY = "ready"
    WAITING_FOR_CNI = "registered, waiting for a CNI"
    NOT_READY = "not ready"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeStanding:
    name: str
    state: NodeState
    addresses: tuple[str, ...] = ()
    detail: str = ""

    @property
    def passes_before_cni(self) -> bool:
        """Registered and healthy but for the CNI that the platform brings later; no other reason passes."""
        return self.state in (NodeState.READY, NodeState.WAITING_FOR_CNI)


def standings(expected: Iterable[str], objects: Mapping[str, Mapping[str, Any]]) -> tuple[NodeStanding, ...]:
    """One standing per expected node, in the order asked; `objects` are Node objects by name."""
    return tuple(_standing(name, objects.get(name)) for name in expected)


def _standing(name: str, node: Mapping[str, Any] | None) -> NodeStanding:
    if node is None:
        return NodeStanding(name, NodeState.MISSING)
    status = node.get("status") or {}
    addresses = tuple(a["address"] for a in status.get("addresses") or [] if a.get("type") == "InternalIP")
    ready = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), None)
    if ready is None or ready.get("status") == "Unknown":
        text = str((ready or {}).get("message") or "the kubelet has not reported yet")
        return NodeStanding(name, NodeState.UNKNOWN, addresses, text)
    if ready.get("status") == "True":
        return NodeStanding(name, NodeState.READY, addresses)
    message = f"{ready.get('reason')}: {ready.get('message')}"
    waiting = ready.get("reason") == "KubeletNotReady" and CNI_MISSING in str(ready.get("message"))
    return NodeStanding(name, NodeState.WAITING_FOR_CNI if waiting else NodeState.NOT_READY, addresses, message)


def summary(nodes: Iterable[NodeStanding]) -> str:
    """`cp1 ready, cp2 not registered`."""
    return ", ".join(f"{node.name} {node.state.value}" for node in nodes)
