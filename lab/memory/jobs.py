"""The Job controller: one pod after the other until one succeeds, a policy ends it, or its retries are used up."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from cozystack_iac.kube.client import Object, Refused
from lab.memory import fields
from lab.memory.api import MemoryApi
from lab.platform.objects import condition, new, owner, timestamp
from lab.world import World

BACKOFF_S = 10.0  # first delay before another pod, doubled each time
COMPLETED_S = 1.0  # a pod of a Job that nobody runs for real just ends well


class Jobs:
    def __init__(self, api: MemoryApi, world: World, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._api, self._world, self._spawn = api, world, spawn

    def job(self, before: Object | None, after: Object | None) -> None:
        if after is None or ended(after) or "deletionTimestamp" in after["metadata"]:
            return
        if before is None or before["spec"] != after["spec"]:
            self._spawn(self._look(after["metadata"]["namespace"], after["metadata"]["name"]))

    def pod(self, before: Object | None, after: Object | None) -> None:
        """A pod changed or went; its Job, if it has one, looks at all of them."""
        pod = after or before
        if pod is None or (before and after and before.get("status") == after.get("status")):
            return
        for each in pod["metadata"].get("ownerReferences") or ():
            if each["kind"] == "Job":
                self._spawn(self._look(pod["metadata"]["namespace"], each["name"]))

    async def _look(self, namespace: str, name: str, after_s: float = 0.0) -> None:
        await self._world.clock.sleep(after_s)
        job = self._api.of("jobs", "batch").get((namespace, name))
        if job is None or ended(job) or "deletionTimestamp" in job["metadata"]:
            return
        pods = self._pods(job)
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        active = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
        succeeded = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]
        if job["spec"].get("suspend"):
            for pod in active:
                meta = pod["metadata"]
                self._api.delete(self._api.target("v1", "pods", namespace, meta["name"]))
            self._say(job, [condition("Suspended", "True", "JobSuspended", "Job suspended")], 0, len(failed), 0)
            return
        if succeeded:
            reached = condition(
                "SuccessCriteriaMet", "True", "CompletionsReached", "Reached expected number of succeeded pods"
            )
            done = condition("Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")
            self._say(job, [reached, done], 0, len(failed), len(succeeded))
            return
        verdict = next((text for pod in failed if (text := _policy(job, pod))), "")
        limit = int(job["spec"].get("backoffLimit", 6))
        if verdict or len(failed) > limit:
            reason = "PodFailurePolicy" if verdict else "BackoffLimitExceeded"
            text = verdict or "Job has reached the specified backoff limit"
            conditions = [condition(kind, "True", reason, text) for kind in ("FailureTarget", "Failed")]
            self._say(job, conditions, 0, len(failed), 0)
            return
        if not active:
            waited = failed and not after_s
            if waited:
                self._spawn(self._look(namespace, name, BACKOFF_S * 2 ** (len(failed) - 1)))
            else:
                self._start(job)
        self._say(job, [], 1, len(failed), 0)

    def _pods(self, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self._api.of("pods").values()
            if any(each.get("uid") == uid for each in pod["metadata"].get("ownerReferences") or ())
        ]

    def _start(self, job: Object) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        made = {
            "batch.kubernetes.io/job-name": meta["name"],
            "job-name": meta["name"],
            "batch.kubernetes.io/controller-uid": meta["uid"],
        }
        labels = dict((template.get("metadata") or {}).get("labels") or {}) | made
        name = f"{meta['name']}-{secrets.token_hex(3)[:5]}"
        pod = new("Pod", name, meta["namespace"], labels=labels, owners=[owner(job)], spec=template["spec"])
        try:
            self._api.create(self._api.target("v1", "pods", meta["namespace"]), pod)
        except Refused as refused:
            text = f"Error creating: {refused.message}"
            self._api.create(self._api.target("v1", "events"), event(job, "FailedCreate", text))

    def _say(self, job: Object, conditions: list[dict[str, Any]], active: int, failed: int, succeeded: int) -> None:
        meta = job["metadata"]
        status: dict[str, Any] = {"active": active, "failed": failed, "succeeded": succeeded, "conditions": conditions}
        status["startTime"] = (job.get("status") or {}).get("startTime") or timestamp()
        if succeeded:
            status["completionTime"] = timestamp()
        target = self._api.target("batch/v1", "jobs", meta["namespace"], meta["name"], "status")
        self._api.update(target, lambda old: dict(fields.merged(old, {"status": status})))


def ended(job: Object) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _policy(job: Object, pod: Object) -> str:
    """Why the Job's pod failure policy ends it because of this pod; empty when it does not."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    codes = {s["name"]: ((s.get("state") or {}).get("terminated") or {}).get("exitCode") for s in statuses}
    for index, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or ()):
        asked = rule.get("onExitCodes")
        if asked is None or rule.get("action") != "FailJob":
            continue
        for container, code in codes.items():
            if code is not None and (code in asked["values"]) is (asked["operator"] == "In"):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                return f"Container {container} for pod {name} failed with exit code {code} matching FailJob rule at index {index}"
    return ""


def event(about: Object, reason: str, message: str) -> Object:
    """A warning about an object, as controllers write them."""
    meta = about["metadata"]
    subject = {key: about[key] for key in ("apiVersion", "kind")}
    subject |= {"name": meta["name"], "namespace": meta.get("namespace", ""), "uid": meta["uid"]}
    name = f"{meta['name']}.{secrets.token_hex(6)}"
    times = dict.fromkeys(("firstTimestamp", "lastTimestamp"), timestamp())
    told = {"reason": reason, "message": message, "type": "Warning", "count": 1, "involvedObject": subject}
    metadata = {"name": name, "namespace": meta.get("namespace") or "default"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, **told, **times}
