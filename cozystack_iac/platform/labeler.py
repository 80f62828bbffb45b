"""Why pods of the installer do not get on: the labeler, which the chart runs before anything else, and the operator.

From 1.4 on a Job in kube-system labels namespace cozy-system before Helm creates anything. Helm waits for it in silence and then
deletes it; what was wrong has to be seen while it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cozystack_iac.kube.client import Kube, KubeError, Object, Ref
from cozystack_iac.platform import installer

JOB = "cozy-system-labeler"
NOTHING = "no pods were seen"


@dataclass(frozen=True)
class Pods:
    """Pods of one workload: where they are and the labels that select them."""

    namespace: str
    selector: str

    @property
    def ref(self) -> Ref:
        return Ref("v1", "pods", self.namespace)


LABELER_PODS = Pods("kube-system", f"job-name={JOB}")
OPERATOR_PODS = Pods(installer.OPERATOR_NAMESPACE, "app=cozystack-operator")

# Recogniser in what a pod, its Job or its log says -> (what it means, what to do).
_KNOWN: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "Failed to pull image"),
        "the nodes cannot pull its image; before the pod network is up, they need their own route to the registry",
        "give the nodes a route to docker.io and ghcr.io, or configure mirrors in network.registries.mirrors",
    ),
    (
        ("violates PodSecurity",),
        "admission in kube-system does not allow pods with hostNetwork",
        "exempt kube-system from pod security, or use cluster.variant hosted if the cluster already has a network",
    ),
    (
        ('namespaces "cozy-system" not found',),
        "the namespace that it labels no longer exists",
        "run `pulumi up` again: it creates the namespace",
    ),
    (
        ("Unschedulable", "nodes are available"),
        "no node accepts the pod",
        "check `kubectl get nodes` and `kubectl -n kube-system describe pods -l job-name=cozy-system-labeler`",
    ),
    (
        ("connection refused", "i/o timeout", "no route to host"),
        "the pod cannot reach the API server from its node",
        (
            "on generic clusters, check that extractedprism runs on that node or that network.apiServerHost "
            "is right; on Talos, check that KubePrism is enabled"
        ),
    ),
)


@dataclass(frozen=True)
class Explanation:
    means: str
    next_step: str


def explained(*texts: str) -> Explanation:
    """What known cause the texts point at."""
    for marks, means, next_step in _KNOWN:
        if any(mark in text for mark in marks for text in texts):
            return Explanation(means, next_step)
    return Explanation(
        "its pods did not complete",
        f"check `kubectl -n kube-system describe job {JOB}` and `kubectl -n kube-system get events`",
    )


def account(pods: Mapping[tuple[str, str], Object]) -> str:
    """One line about pods that are not running or done; empty when all of them are."""
    lines = [f"{name} {state}" for (_, name), pod in sorted(pods.items()) if (state := _state(pod))]
    return "; ".join(lines)


def _state(pod: Mapping[str, Any]) -> str:
    status = pod.get("status") or {}
    phase = status.get("phase") or "Pending"
    if phase == "Succeeded":
        return ""
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            return _worded(waiting)
        if (ended := state.get("terminated")) and ended.get("exitCode"):
            return f"exit code {ended['exitCode']} {ended.get('message') or ended.get('reason') or ''}".strip()
    if phase == "Running":
        return ""
    unscheduled: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c.get("type") == "PodScheduled"), {}
    )
    if unscheduled.get("status") == "False":
        return _worded(unscheduled)
    return str(phase)


def _worded(state: Mapping[str, Any]) -> str:
    reason, message = str(state.get("reason") or ""), str(state.get("message") or "")
    return f"{reason}: {message[:200]}" if message else reason


@dataclass
class Story:
    """The last account of some pods that did not get on."""

    text: str = NOTHING


@asynccontextmanager
async def told(kube: Kube, pods: Pods, story: Story, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Says every new account of these pods while the block runs; trouble in telling it is nobody's trouble."""

    async def follow() -> None:
        async for snapshot in kube.watch(pods.ref, selector=pods.selector):
            text = account(snapshot.objects or {})
            if text and text != story.text:
                story.text = text
                say(text)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def complaints(kube: Kube) -> str:
    """What events say about the labeler, newest last. Empty when there are none, or when nobody answers."""
    try:
        events = await kube.objects(Ref("v1", "events", "kube-system"))
    except KubeError:
        return ""
    about = [e for e in events if str((e.get("involvedObject") or {}).get("name") or "").startswith(JOB)]
    texts = [f"{e.get('reason')}: {e.get('message')}" for e in sorted(about, key=_at) if e.get("type") == "Warning"]
    return "\n".join(list(dict.fromkeys(texts))[-5:])


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
