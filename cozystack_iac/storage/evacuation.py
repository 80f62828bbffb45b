"""What LINSTOR keeps on a node that leaves, getting it off, and whether a node may be away for a while.

`linstor node evacuate` comes before the operator's own way (a LinstorSatellite that is deleted is evacuated, too): the operator
makes a satellite anew as long as its Node exists, and would offer the node for new replicas again. Once nothing lives on the
node, deleting the Node is enough: the operator then removes the satellite by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.storage import linstor
from cozystack_iac.storage.controller import Controller, present, satellite

SHOWN = 8  # resources in a message; the rest is counted


@dataclass(frozen=True, slots=True)
class Stored:
    """What lives on one node. `unknown`: why that could not be found out; then the other two say nothing.

    `replicas` can be moved by LINSTOR; `rooted` have no DRBD below them, so LINSTOR cannot copy them anywhere.
    """

    replicas: tuple[str, ...] = ()
    rooted: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def nothing(self) -> bool:
        return not (self.replicas or self.rooted or self.unknown)

    def __str__(self) -> str:
        return self.unknown or named((*self.replicas, *self.rooted)) or "nothing"


async def stored(kube: Kube, node: str) -> Stored:
    """Never raises: an answer that was not got is unknown, and never "nothing"."""
    try:
        if await satellite(kube, node) is None:
            return Stored()
        rows = await (await Controller.find(kube)).resources(node)
    except (KubeError, linstor.Unreadable) as error:
        return Stored(unknown=str(error))
    here = [row for row in rows if row.node == node and not row.diskless]
    return Stored(
        replicas=tuple(str(row) for row in here if row.replicated),
        rooted=tuple(str(row) for row in here if not row.replicated),
    )


async def evacuate(kube: Kube, node: str) -> str:
    """One round: have LINSTOR empty the node, unless it is at it; what is still there, empty when done. Raises KubeError.

    Never says "done" on an answer that was not got.
    """
    found = await stored(kube, node)
    if found.nothing or found.unknown:
        return found.unknown
    try:
        controller = await Controller.find(kube)
        flags = next((row.flags for row in await controller.nodes() if row.node == node), frozenset[str]())
        refused = "" if "EVACUATE" in flags else await controller.evacuate(node)
    except linstor.Unreadable as error:
        return str(error)
    return f"LINSTOR refuses the evacuation: {refused}" if refused else f"LINSTOR is moving {found}"


async def unsettled(kube: Kube) -> str:
    """What LINSTOR still copies, or why that is not known; empty when every replica is up to date. Raises KubeError.

    A node that goes away while another one is still being brought up to date may take the last good copy with it.
    """
    if not await present(kube):
        return ""
    try:
        rows = await (await Controller.find(kube)).resources()
    except linstor.Unreadable as error:
        return f"LINSTOR does not report whether its replicas are up to date: {error}"
    open_ = [f"{row} on {row.node}" for row in rows if not row.settled]
    return f"LINSTOR is syncing replicas: {named(open_)}" if open_ else ""


def named(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(every[:SHOWN]) + more
