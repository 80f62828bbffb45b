"""A zpool's health by the kernel's own word, read where nothing of ours needs privileges.

Talos lets its administrators read files of the machine; elsewhere LINSTOR's satellite runs on every storage node and sees the
same /proc. An answer that could not be had is None: unknown, and never taken for ONLINE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cozystack_iac.kube.client import Kube, Ref
from cozystack_iac.talos.errors import NotThere, TalosError
from cozystack_iac.talos.fleet import Fleet, MachineRef

NOT_IMPORTED = "not imported"
SATELLITES = Ref("v1", "pods", "cozy-linstor")
SATELLITE = "linstor-satellite"  # component label of its pods, and name of the container


def state_file(zpool: str) -> str:
    """ONLINE, DEGRADED, FAULTED, …; not there when the kernel knows no such pool."""
    return f"/proc/spl/kstat/zfs/{zpool}/state"


async def of_machines(fleet: Fleet, zpool: str) -> dict[str, str | None]:
    """By the API of the machines themselves, all at once. Never raises."""
    answers = await asyncio.gather(*(_machine(fleet, machine, zpool) for machine in fleet.machines))
    return {machine.name: answer for machine, answer in zip(fleet.machines, answers, strict=True)}


async def _machine(fleet: Fleet, machine: MachineRef, zpool: str) -> str | None:
    try:
        return (await fleet.ask(machine, lambda client: client.read(state_file(zpool)))).decode().strip() or None
    except NotThere:
        return NOT_IMPORTED
    except (TalosError, UnicodeDecodeError):
        return None


async def of_satellites(kube: Kube, nodes: Iterable[str], zpool: str) -> dict[str, str | None]:
    """By LINSTOR's satellites, all at once. Raises KubeError."""
    nodes = list(nodes)
    answers = await asyncio.gather(*(_satellite(kube, node, zpool) for node in nodes))
    return dict(zip(nodes, answers, strict=True))


async def _satellite(kube: Kube, node: str, zpool: str) -> str | None:
    selector = f"app.kubernetes.io/component={SATELLITE}"
    pods = await kube.objects(SATELLITES, selector=selector, fields=f"spec.nodeName={node}")
    running = [pod["metadata"] for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    if not running:
        return None
    argv = ["cat", state_file(zpool)]
    answer = await kube.exec(str(running[0]["namespace"]), str(running[0]["name"]), SATELLITE, argv)
    if answer.ok:
        return answer.stdout.strip() or None
    return NOT_IMPORTED if "No such file" in answer.stderr else None
