"""The zpool stage: every storage node's pool ONLINE, or a list of what every node said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, Object, Ref
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
from cozystack_iac.storage import zfs

JOBS = Ref("batch/v1", "jobs", zfs.NAMESPACE)


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
