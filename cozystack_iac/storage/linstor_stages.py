"""LINSTOR stages: its controller answers, every pool is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, NotFound, Ref
from cozystack_iac.stage import (
    Progress,
    Properties,
    StageFailed,
    StageProvider,
    StageResource,
    budget,
    format_seconds,
)
from cozystack_iac.storage import linstor

ENDPOINT_SLICES = Ref("discovery.k8s.io/v1", "endpointslices", linstor.NAMESPACE)
EXEC_EVERY_S = 2.0  # LINSTOR offers no watch; one short command in its own pod


class LinstorReadyInputs(Properties):
    kubeconfig: str = Field(repr=False)
    deadline_s: float


class LinstorReadyOutputs(Properties):
    ready: bool


class LinstorReadyProvider(StageProvider[LinstorReadyInputs, LinstorReadyOutputs]):
    """LINSTOR's controller has a ready endpoint. The release being Ready says less: the controller comes minutes later."""

    inputs = LinstorReadyInputs
    outputs = LinstorReadyOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset()

    async def establish(self, inputs: LinstorReadyInputs, progress: Progress) -> LinstorReadyOutputs:
        last = "the platform has not brought LINSTOR yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"LINSTOR's controller did not come up ({format_seconds(inputs.deadline_s)} budget used up).",
                details={"last seen": last},
                means="zpools are there and untouched; without the controller there is no storage for the platform",
                next_step=f"look at the releases in {linstor.NAMESPACE} and cozy-cert-manager, then run `pulumi up` again",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            selector = f"kubernetes.io/service-name={linstor.CONTROLLER}"
            async for snapshot in kube.watch(ENDPOINT_SLICES, selector=selector):
                if linstor.ready_endpoint((snapshot.objects or {}).values()):
                    return LinstorReadyOutputs(ready=True)
                last = "service without a ready endpoint" if snapshot.objects else "no service linstor-controller yet"
                progress.say(f"waiting for {linstor.NAMESPACE}/{linstor.CONTROLLER}: {last}")
        raise expired()


class LinstorReady(StageResource, module="cozystack", name="LinstorReady"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(LinstorReadyProvider(), name, inputs, opts)


class PoolInputs(Properties):
    kubeconfig: str = Field(repr=False)
    nodes: list[str]
    pool: str
    zpool: str
    deadline_s: float


class PoolOutputs(Properties):
    pools: dict[str, str]  # node -> "registered, 200.0 GiB"


class PoolsRegisteredProvider(StageProvider[PoolInputs, PoolOutputs]):
    """LINSTOR itself lists the pool on every storage node: of kind ZFS, on the right zpool, with capacity, without error."""

    inputs = PoolInputs
    outputs = PoolOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"nodes", "pool", "zpool"})

    async def establish(self, inputs: PoolInputs, progress: Progress) -> PoolOutputs:
        seen: tuple[linstor.PoolStanding, ...] = ()
        trouble = "no answer yet"

        def expired() -> StageFailed:
            details = {s.node: f"{s.state.value} {s.detail}".strip() for s in seen} or {"last answer": trouble}
            return StageFailed(
                f"LINSTOR does not list pool {inputs.pool} on every node ({format_seconds(inputs.deadline_s)} budget used up).",
                details=details,
                means="the zpools are there; volumes cannot be placed on the nodes above",
                next_step="see `kubectl describe linstorsatellite NODE`, mend the cause, then run `pulumi up` again",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:
                try:
                    seen = await pool_standings(kube, inputs)
                    trouble = linstor.pools_summary(seen)
                    if seen and all(s.state is linstor.PoolState.REGISTERED for s in seen):
                        return PoolOutputs(pools={s.node: f"registered, {s.total_kib / 1024**2:.1f} GiB" for s in seen})
                except (KubeError, linstor.Unreadable) as error:
                    seen, trouble = (), f"unknown: {error}"
                progress.say(f"pool {inputs.pool}: {trouble}")
                await asyncio.sleep(EXEC_EVERY_S)

    async def observe(self, inputs: PoolInputs, outputs: PoolOutputs) -> PoolOutputs | None:
        async with Kube.connect(inputs.kubeconfig) as kube:
            seen = await pool_standings(kube, inputs)
        return PoolOutputs(pools={s.node: f"{s.state.value}, {s.total_kib / 1024**2:.1f} GiB" for s in seen})


class PoolsRegistered(StageResource, module="cozystack", name="PoolsRegistered"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(PoolsRegisteredProvider(), name, inputs, opts)


async def pool_standings(kube: Kube, inputs: PoolInputs) -> tuple[linstor.PoolStanding, ...]:
    """Ask the controller, in its own pod: its API wants client certificates that live only there."""
    pod = await _controller_pod(kube)
    answer = await kube.exec(linstor.NAMESPACE, pod, linstor.CONTROLLER, linstor.LIST_POOLS)
    if not answer.ok:
        raise linstor.Unreadable(answer.stderr.strip()[:300] or answer.stdout.strip()[:300] or "the command failed")
    return linstor.pool_standings(inputs.nodes, inputs.pool, inputs.zpool, linstor.pool_rows(answer.stdout))


async def _controller_pod(kube: Kube) -> str:
    selector = f"app.kubernetes.io/component={linstor.CONTROLLER}"
    pods = await kube.objects(Ref("v1", "pods", linstor.NAMESPACE), selector=selector)
    running = [
        p
        for p in pods
        if (p.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]
    ]
    if not running:
        raise NotFound(404, "NotFound", "no running pod of linstor-controller")
    return str(running[0]["metadata"]["name"])
