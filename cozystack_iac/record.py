"""The record of an install, in the cluster itself: when it started, and exactly one of completed and failed.

One ConfigMap, kube-system/cozystack-iac: that namespace is there before the platform and after it. Whoever looks at the cluster
later sees what was asked for, and where a run that went wrong had got to; a run that was killed leaves `started` alone. It
names no person and no workstation, and holds nothing that is secret.

Writing is a courtesy to people: it never decides, never masks a failure, and never takes longer than `WRITE_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

from cozystack_iac import redaction, timeline
from cozystack_iac.kube.client import Conflict, Kube, KubeError, NotFound, Object, Ref
from cozystack_iac.kube.kubeconfig import BadKubeconfig

PLACE = Ref("v1", "configmaps", "kube-system", "cozystack-iac")
LABELS = {"app.kubernetes.io/managed-by": "cozystack-iac", "app.kubernetes.io/component": "install-record"}
WRITE_S = 3.0
SHOWN = 500  # characters of a failure's first line

Data = Mapping[str, str | None]
"""Keys of the ConfigMap: started, completed, failed (UTC times), stage, message, revision, version.*; None takes one away."""


def begun(stage: str, now: datetime) -> Data:
    """A run starts over, at `stage`: whatever became of the one before is no longer the news."""
    return {"started": timeline.stamp(now), "completed": None, "failed": None, "message": None, "stage": stage}


def failed(stage: str, what: str, now: datetime) -> Data:
    """The run ended at `stage`, for the reason that the first line of its failure says."""
    line = redaction.clean(what.strip().partition("\n")[0])
    return {"failed": timeline.stamp(now), "completed": None, "stage": stage, "message": line[:SHOWN]}


def completed(now: datetime) -> Data:
    """The run has come to its end."""
    return {"completed": timeline.stamp(now), "failed": None, "message": None, "stage": None}


def described(versions: Mapping[str, str], revision: str) -> Data:
    """What was asked for."""
    return {"revision": revision, **{f"version.{name}": version for name, version in sorted(versions.items())}}


async def write(kube: Kube, data: Data) -> dict[str, str]:
    """Change the named keys, make the record when there is none; returns all of it. Raises KubeError."""
    try:
        return _data(await kube.merge_patch(PLACE, {"data": dict(data)}))
    except NotFound:
        pass
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PLACE.name, "namespace": PLACE.namespace, "labels": LABELS},
        "data": {key: value for key, value in data.items() if value is not None},
    }
    try:
        return _data(await kube.create(PLACE, body))
    except Conflict:
        return _data(await kube.merge_patch(PLACE, {"data": dict(data)}))  # another stage was faster


async def read(kube: Kube) -> dict[str, str] | None:
    """The record; None when there is none. Raises KubeError."""
    found = await kube.find(PLACE)
    return None if found is None else _data(found)


def _data(found: Object) -> dict[str, str]:
    return {str(key): str(value) for key, value in (found.get("data") or {}).items()}


PROCESS_STARTED = datetime.now(UTC)  # the provider process of this run, which is about as old as the run itself

_runs: set[str] = set()
"""Clusters whose run has begun in this process. All stages of a run share one provider process, and no other run does."""


async def begin(kubeconfig: str, stage: str) -> None:
    """The first stage of a run that reaches the cluster says that the run has started; the others say nothing."""
    cluster = hashlib.sha256(kubeconfig.encode()).hexdigest()
    if cluster in _runs:
        return
    _runs.add(cluster)
    if not await _noted(kubeconfig, begun(stage, datetime.now(UTC))):
        _runs.discard(cluster)


async def fail(kubeconfig: str, stage: str, what: str) -> None:
    """Say where the run ended. Never raises."""
    await _noted(kubeconfig, failed(stage, what, datetime.now(UTC)))


async def _noted(kubeconfig: str, data: Data) -> bool:
    try:
        async with asyncio.timeout(WRITE_S), Kube.connect(kubeconfig, deadline_s=WRITE_S) as kube:
            await write(kube, data)
    except (KubeError, BadKubeconfig, TimeoutError):
        return False
    return True
