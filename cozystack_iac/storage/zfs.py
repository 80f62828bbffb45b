"""The ZFS pool job as data: the script, the Job object, and what its termination message means. Pure.

The job runs before any CNI or LINSTOR exists. It uses the *host's* `zpool` (the zfs extension's on Talos, zfsutils on other
systems), so userland and kernel module are of one version by construction; its image only has to bring a shell and `nsenter`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

NAMESPACE = "cozy-storage-bootstrap"
REFUSED = 3  # exit code of the script: it looked and will not touch this disk; running it again cannot help
ASHIFT = 12  # 4 KiB sectors: right for 4K disks, harmless on 512-byte ones; cannot be changed later

Layout = Literal["single", "mirror", "raidz1", "raidz2", "raidz3"]
SCRIPT = files(__package__).joinpath("zpool.sh").read_text()


@dataclass(frozen=True)
class DiskIdentity:
    """A disk by what it is, whatever its kernel name is today."""

    kind: Literal["serial", "wwid", "byId"]
    value: str

    def __str__(self) -> str:
        return f"{self.kind}={self.value}"


@dataclass(frozen=True)
class PoolPlan:
    """One zpool on one node."""

    node: str
    zpool: str
    layout: Layout
    disks: tuple[DiskIdentity, ...]
    minimum_bytes: int

    @property
    def job_name(self) -> str:
        """Changes with the plan: a Job's template is immutable, and a new plan must be a new, visible object."""
        text = json.dumps([self.zpool, self.layout, [str(d) for d in self.disks], self.minimum_bytes, SCRIPT])
        return f"zpool-{self.node}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class PoolReport:
    """What the job found or did, from its termination message."""

    node: str
    pool: str
    state: Literal["created", "present", "refused", "failed", "unreadable"]
    health: str = ""
    size_bytes: int = 0
    devices: tuple[str, ...] = ()
    reason: str = ""

    @property
    def online(self) -> bool:
        return self.state in ("created", "present") and self.health == "ONLINE"


def report(node: str, zpool: str, message: str) -> PoolReport:
    """A termination message as a report; text that is not ours is "unreadable", never a success."""
    try:
        data = json.loads(message)
        return PoolReport(
            node=node,
            pool=str(data["pool"]),
            state=data["state"] if data["state"] in ("created", "present", "refused", "failed") else "unreadable",
            health=str(data.get("health") or ""),
            size_bytes=int(data.get("size") or 0),
            devices=tuple(str(d) for d in data.get("devices") or ()),
            reason=str(data.get("reason") or ""),
        )
    except (ValueError, KeyError, TypeError):
        return PoolReport(node, zpool, "unreadable", reason=message.strip()[-500:] or "no termination message")


def namespace() -> dict[str, Any]:
    """The only namespace in which this project runs privileged pods."""
    enforce = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": enforce}}


def job(plan: PoolPlan, image: str) -> dict[str, Any]:
    """The Job that makes (or confirms) `plan`.

    No TTL: a job that deletes itself would be planned again by the next refresh. Refusals end it at once; anything else is
    retried by Kubernetes. Pinned by name, so it runs on a node that is NotReady for want of a CNI.
    """
    environment = {
        "POOL": plan.zpool,
        "LAYOUT": plan.layout,
        "DISKS": " ".join(str(disk) for disk in plan.disks),
        "MINIMUM_BYTES": str(plan.minimum_bytes),
        "ASHIFT": str(ASHIFT),
        "HOST_ROOT": "/proc/1/root",
    }
    container = {
        "name": "zpool",
        "image": image,
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "securityContext": {"privileged": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    pod = {
        "nodeName": plan.node,
        "hostPID": True,  # nsenter into PID 1: the host's zpool sees the host's devices and module
        "hostNetwork": True,  # there is no pod network yet
        "dnsPolicy": "Default",
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": plan.job_name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "zpool"}},
        "spec": {
            "backoffLimit": 4,
            "podFailurePolicy": {
                "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [REFUSED]}}],
            },
            "template": {"metadata": {"labels": {"app.kubernetes.io/name": "zpool"}}, "spec": pod},
        },
    }


def terminations(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Termination messages of the job's pods, newest first."""
    ended: list[tuple[str, str]] = []
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            terminated = (status.get("state") or {}).get("terminated")
            if terminated:
                ended.append((str(terminated.get("finishedAt") or ""), str(terminated.get("message") or "")))
    return [message for _, message in sorted(ended, reverse=True)]
