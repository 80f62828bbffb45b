"""The zpool Jobs as the stage drives them: look on every node first, write only then, one node after the other.

A pool is written by the node's Job, which the engine has declared *suspended*; it is released here. Looking is a copy of that
Job with PHASE=look. The price of the order is time, a few seconds per node. What it buys: a disk that is not as planned stops
the run before anything was written anywhere, and a write that fails stops all that have not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from cozystack_iac.kube.client import Conflict, Kube, KubeError, Object, Ref, Unavailable, Unreachable
from cozystack_iac.storage import zfs
from cozystack_iac.storage.zfs import NAMESPACE, PoolReport
from cozystack_iac.waiting import Progress, pause

JOBS = Ref("batch/v1", "jobs", NAMESPACE)
PODS = Ref("v1", "pods", NAMESPACE)
NODES = Ref("v1", "nodes")
ENFORCE = "pod-security.kubernetes.io/enforce"
ASK_AGAIN_S = 1.0  # after a call that the API server did not answer
NOTICE_EVERY_S = 3.0  # how soon a pod that cannot start, or a node that is gone, is seen

T = TypeVar("T")


class Halted(Exception):
    """A node's answer forbids to go on. The batch's `reports` say which, and what all the others said."""


class Batch:
    """The Jobs (by node) that are to look or write now.

    `reports` holds every node's last word, `trouble` why one is silent, `writing` the node whose Job was released last and
    has not said that all is well.
    """

    def __init__(self, kube: Kube, zpool: str, jobs: Mapping[str, str], progress: Progress) -> None:
        self._kube, self._zpool, self._jobs, self._progress = kube, zpool, dict(sorted(jobs.items())), progress
        self.reports: dict[str, PoolReport] = {}
        self.trouble: dict[str, str] = {}
        self.writing: str | None = None

    async def look(self, welcome: Callable[[PoolReport], bool]) -> None:
        """Read-only, on all nodes at once. Raises Halted unless every answer is `welcome`."""
        await self._others_are_done()
        names = {node: zfs.look_name(job) for node, job in self._jobs.items()}
        for node, job in self._jobs.items():
            await self._anew(names[node], zfs.looking(await self._job(job)))
        self.reports = await self._answers(names, "checking the disks")
        if not all(map(welcome, self.reports.values())):
            raise Halted

    async def write(self) -> None:
        """Make the pools that are missing. Raises Halted at the first that cannot be made."""
        missing = [node for node in self._jobs if self.reports[node].state == "fit"]
        for number, node in enumerate(missing, 1):
            self.writing = node
            await self._release(self._jobs[node])
            answers = await self._answers(
                {node: self._jobs[node]}, f"creating zpool {self._zpool} ({number} of {len(missing)})"
            )
            self.reports |= answers
            if not answers[node].online:
                raise Halted
            self.writing = None

    async def clear(self) -> None:
        """Leave what the engine has declared, so that a refresh finds it unchanged: one Job per node, suspended."""
        for name in self._jobs.values():
            await self._gone(zfs.look_name(name))
            if not (await self._job(name))["spec"].get("suspend"):
                await self._suspend(name, True)

    async def level(self, level: str) -> None:
        """What pods may ask for in the namespace from now on; those that run are not touched by it."""
        labels = {"metadata": {"labels": {ENFORCE: level}}}
        await self._persist(lambda: self._kube.merge_patch(Ref("v1", "namespaces", name=NAMESPACE), labels))

    # ----------------------------------------------------------------------------------------------------------------

    async def _others_are_done(self) -> None:
        """A writer that a killed run has released may still be at work; a second one must not start beside it."""
        async for snapshot in self._kube.watch(JOBS):
            busy = {_label(job, zfs.NODE_LABEL): n for n, job in _by_name(snapshot.objects) if _writes(job, self._jobs)}
            self.trouble = {node: _unended(name) for node, name in busy.items()}
            if not busy:
                return
            self._progress.say(f"waiting for {', '.join(busy.values())}, started by an earlier run")

    async def _job(self, name: str) -> Object:
        return await self._persist(lambda: self._kube.get(JOBS.named(name)))

    async def _release(self, name: str) -> None:
        """Let the Job run; one that has run already is made anew, since Kubernetes would keep its verdict for ever."""
        job = await self._job(name)
        if ended(job):
            await self._anew(name, zfs.released(job))
        else:
            await self._suspend(name, False)

    async def _suspend(self, name: str, yes: bool) -> None:
        await self._persist(lambda: self._kube.merge_patch(JOBS.named(name), {"spec": {"suspend": yes}}))

    async def _anew(self, name: str, body: Object) -> None:
        await self._gone(name)
        try:
            await self._persist(lambda: self._kube.create(JOBS, body))
        except Conflict:
            return  # the answer to an earlier attempt was lost, not its effect

    async def _gone(self, name: str) -> None:
        await self._persist(lambda: self._kube.delete(JOBS.named(name)))
        while await self._persist(lambda: self._kube.find(JOBS.named(name))) is not None:
            await pause(ASK_AGAIN_S / 5)

    async def _answers(self, names: Mapping[str, str], doing: str) -> dict[str, PoolReport]:
        """Wait for the end of the named Jobs (by node) and read what they said."""
        self.trouble = {}
        watcher = asyncio.ensure_future(self._notice(names, doing))
        try:
            waiting = set(names)
            async for snapshot in self._kube.watch(JOBS):
                objects = dict(_by_name(snapshot.objects))
                done = {node for node in waiting if names[node] in objects and ended(objects[names[node]])}
                for node in sorted(done):
                    self.reports[node] = await self._report(node, objects[names[node]])
                waiting -= done
                if not waiting:
                    break
                self._progress.say(f"{doing}: waiting for {', '.join(sorted(waiting))}")
            return {node: self.reports[node] for node in names}
        finally:
            watcher.cancel()

    async def _report(self, node: str, job: Object) -> PoolReport:
        name = job["metadata"]["name"]
        selector = f"batch.kubernetes.io/job-name={name}"
        pods = await self._persist(lambda: self._kube.objects(PODS, selector=selector))
        own = [pod for pod in pods if _owned(pod, job)]
        messages = zfs.terminations(own)
        if messages:
            return zfs.report(node, self._zpool, messages[0])
        return PoolReport(node, self._zpool, "unreadable", reason=f"Job {name} ended without a message: {_last(job)}")

    async def _notice(self, names: Mapping[str, str], doing: str) -> None:
        """Why a node is silent: its pod cannot start, or the node itself is gone. Nothing waits for these answers."""
        while True:
            await pause(NOTICE_EVERY_S)
            try:
                pods = await self._kube.objects(PODS)
                nodes = {n["metadata"]["name"]: n for n in await self._kube.objects(NODES)}
            except KubeError:
                continue
            before = self.trouble
            self.trouble = {n: why for n in names if (why := silence(n, names[n], pods, nodes))}
            for node, why in self.trouble.items():
                if before.get(node) != why:
                    self._progress.say(f"{doing}: {node}: {why}")

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer, whatever it is. Every call made through here may be made twice."""
        while True:
            try:
                return await call()
            except (Unreachable, Unavailable) as error:
                self._progress.say(f"the Kubernetes API does not respond: {error}")
                await pause(ASK_AGAIN_S)


def ended(job: Object) -> bool:
    """Whether a Job has come to its end, good or bad."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions)


def silence(node: str, job: str, pods: Iterable[Object], nodes: Mapping[str, Object]) -> str:
    """Why nothing is heard of a node's Job; empty when there is no reason to see. Pure."""
    ready = _condition(nodes[node], "Ready") if node in nodes else None
    if ready is None:
        return "the Node no longer exists"
    if ready.get("status") == "Unknown":  # NotReady for want of a CNI is "False", and normal here
        return f"the kubelet has not responded since {ready.get('lastTransitionTime')}"
    own = [pod for pod in pods if _label(pod, "batch.kubernetes.io/job-name") == job]
    if not own:
        return "its pod has not been created: check `kubectl -n " + f"{NAMESPACE} describe job {job}`"
    statuses = (own[-1].get("status") or {}).get("containerStatuses") or []
    waiting: Mapping[str, Any] = ((statuses[0].get("state") or {}).get("waiting") or {}) if statuses else {}
    return f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": ") if waiting.get("reason") else ""


def _unended(job: str) -> str:
    remove = f"kubectl --namespace {NAMESPACE} delete job {job}"
    return f"{job} of an earlier run is still running and may be writing; if you are sure that it is not: `{remove}`"


def _writes(job: Object, jobs: Mapping[str, str]) -> bool:
    looks = str(job["metadata"]["name"]) in {zfs.look_name(name) for name in jobs.values()}
    suspended = bool((job.get("spec") or {}).get("suspend"))
    concerned = _label(job, zfs.NODE_LABEL) in jobs
    return concerned and not looks and not suspended and not ended(job)


def _by_name(objects: Mapping[tuple[str, str], Object] | None) -> list[tuple[str, Object]]:
    return [(name, job) for (_, name), job in sorted((objects or {}).items())]


def _owned(pod: Object, job: Object) -> bool:
    """Not by name alone: pods of a Job that was deleted and made anew may still be on their way out."""
    owners = {owner.get("uid") for owner in pod["metadata"].get("ownerReferences") or []}
    return job["metadata"].get("uid") in owners


def _condition(item: Object, kind: str) -> Mapping[str, Any] | None:
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {} if not conditions else None)


def _last(job: Object) -> str:
    failed = _condition(job, "Failed") or _condition(job, "Complete") or {}
    return f"{failed.get('reason') or 'no reason given'} {failed.get('message') or ''}".strip()


def _label(item: Object, name: str) -> str:
    return str((item["metadata"].get("labels") or {}).get(name) or "")
