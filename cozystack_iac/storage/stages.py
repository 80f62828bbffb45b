"""Storage stages: every zpool ONLINE, LINSTOR's controller up, every pool registered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, NotFound, Object, Ref
from cozystack_iac.stage import (
    Known,
    Progress,
    Properties,
    StageFailed,
    StageProvider,
    StageResource,
    budget,
    format_seconds,
)
from cozystack_iac.storage import linstor, zfs

PODS = Ref("v1", "pods")
JOBS = Ref("batch/v1", "jobs", zfs.NAMESPACE)
ENDPOINT_SLICES = Ref("discovery.k8s.io/v1", "endpointslices", linstor.NAMESPACE)
EXEC_EVERY_S = 2.0  # LINSTOR offers no watch; one short command in its own pod


class ZpoolInputs(Properties):
    kubeconfig: str = Field(repr=False)
    zpool: str
    jobs: dict[str, str]  # node -> name of its Job
    deadline_s: float


class ZpoolOutputs(Properties):
    pools: dict[str, str]  # node -> "ONLINE, 200 GiB on /dev/sdb1"


class ZpoolsOnlineProvider(StageProvider[ZpoolInputs, ZpoolOutputs]):
    """Every storage node's Job has said that its pool is there and ONLINE.

    A Job that had already failed when this stage began is run once more: a person has had the time to mend the cause, and
    Kubernetes would keep the verdict for ever.
    """

    inputs = ZpoolInputs
    outputs = ZpoolOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"jobs", "zpool"})

    async def establish(self, inputs: ZpoolInputs, progress: Progress) -> ZpoolOutputs:
        reports: dict[str, zfs.PoolReport] = {}
        waiting = set(inputs.jobs)

        def expired() -> StageFailed:
            return _zpools_failed(inputs, reports, waiting, f"{format_seconds(inputs.deadline_s)} budget used up")

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            await _rerun_failed(kube, inputs.jobs, progress)
            async for snapshot in kube.watch(JOBS):
                for node in sorted(waiting):
                    job = (snapshot.objects or {}).get((zfs.NAMESPACE, inputs.jobs[node]))
                    if job and _ended(job):
                        reports[node] = await _report(kube, node, inputs.zpool, inputs.jobs[node])
                        waiting.discard(node)
                if not waiting:
                    break
                progress.say(
                    f"zpool {inputs.zpool}: {len(reports)} of {len(inputs.jobs)}, waiting for {', '.join(sorted(waiting))}"
                )
        if not all(r.online for r in reports.values()):
            raise _zpools_failed(inputs, reports, waiting, "see below")
        return ZpoolOutputs(pools={node: _text(r) for node, r in sorted(reports.items())})

    async def revise(
        self, inputs: ZpoolInputs, known: Known[ZpoolInputs, ZpoolOutputs], progress: Progress
    ) -> ZpoolOutputs:
        """Only Jobs that are new are waited for: the messages of old ones go with their pods, and nobody needs them again."""
        if known.inputs is None or known.outputs is None or known.inputs.zpool != inputs.zpool:
            return await self.establish(inputs, progress)
        pools, jobs = known.outputs.pools, known.inputs.jobs
        same = {node for node, job in inputs.jobs.items() if jobs.get(node) == job}
        kept = {node: text for node, text in pools.items() if node in same and text.startswith("ONLINE")}
        fresh = {node: job for node, job in inputs.jobs.items() if node not in kept}
        made = (await self.establish(inputs.model_copy(update={"jobs": fresh}), progress)).pools if fresh else {}
        return ZpoolOutputs(pools=dict(sorted({**kept, **made}.items())))


class ZpoolsOnline(StageResource, module="cozystack", name="ZpoolsOnline"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(ZpoolsOnlineProvider(), name, inputs, opts)


def _ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)


def _failed(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Failed" and c.get("status") == "True" for c in conditions)


async def _rerun_failed(kube: Kube, jobs: Mapping[str, str], progress: Progress) -> None:
    for node, name in sorted(jobs.items()):
        job = await kube.find(JOBS.named(name))
        if job is None or not _failed(job):
            continue
        progress.say(f"{node}: its zpool job had failed in an earlier run; running it once more")
        await kube.delete(JOBS.named(name))
        while await kube.find(JOBS.named(name)) is not None:
            await asyncio.sleep(0.2)
        await kube.create(JOBS, _fresh(job))


def _fresh(job: Object) -> Object:
    """The same Job as a new object: what the API server added is left out."""
    metadata = {k: v for k, v in job["metadata"].items() if k in ("name", "namespace", "annotations")}
    metadata["labels"] = _own_labels(job["metadata"])
    template = dict(job["spec"]["template"])
    template["metadata"] = {"labels": _own_labels(template.get("metadata") or {})}
    spec = {k: v for k, v in job["spec"].items() if k not in ("selector", "template")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}}


def _own_labels(metadata: Object) -> dict[str, str]:
    generated = ("batch.kubernetes.io/", "controller-uid", "job-name")
    return {k: v for k, v in (metadata.get("labels") or {}).items() if not k.startswith(generated)}


async def _report(kube: Kube, node: str, zpool: str, job: str) -> zfs.PoolReport:
    pods = await kube.objects(Ref("v1", "pods", zfs.NAMESPACE), selector=f"batch.kubernetes.io/job-name={job}")
    messages = zfs.terminations(pods)
    if not messages:
        return zfs.PoolReport(node, zpool, "unreadable", reason="the job ended, its pods and their messages are gone")
    return zfs.report(node, zpool, messages[0])


def _text(report: zfs.PoolReport) -> str:
    if report.online:
        return f"{report.health}, {report.size_bytes / 1024**3:.1f} GiB on {', '.join(report.devices)}"
    return f"{report.state}: {report.reason or report.health}"


def _zpools_failed(
    inputs: ZpoolInputs, reports: Mapping[str, zfs.PoolReport], waiting: set[str], why: str
) -> StageFailed:
    return StageFailed(
        f"Not every node has its zpool {inputs.zpool} ({why}).",
        details={node: _text(reports[node]) if node in reports else "no answer yet" for node in sorted(inputs.jobs)},
        means="no disk was wiped or overwritten; pools that are ONLINE stay as they are",
        next_step="mend the disks named above (wiping is a person's decision), then run `pulumi up` again",
    )


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
