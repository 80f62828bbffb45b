"""The ZFS pool job as data: the script, the Job object, and what its termination message means. Pure.

The job runs before any CNI or LINSTOR exists. It uses the *host's* `zpool` (the zfs extension's on Talos, zfsutils on other
systems), which is made for the host's kernel module; its image only has to bring a shell and `nsenter`. The script first looks
at every disk (`residue.sh`) and writes only when nothing speaks against any of them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, get_args

from cozystack_iac.residue import Problem

NAMESPACE = "cozy-storage-bootstrap"
NODE_LABEL = "cozystack-iac/node"
REFUSED = 3  # exit code of the script: it looked and will not touch this disk; running it again cannot help
ASHIFT = 12  # 4 KiB sectors: right for 4K disks, harmless on 512-byte ones; cannot be changed later

Layout = Literal["single", "mirror", "raidz1", "raidz2", "raidz3"]
Phase = Literal["look", "make"]
_GENERATED = ("batch.kubernetes.io/", "controller-uid", "job-name")  # labels that the Job controller adds
SCRIPT = "".join(files(__package__).joinpath(name).read_text() for name in ("residue.sh", "zpool.sh"))

# Fewest disks of each layout, and the most that one vdev rebuilds in reasonable time.
ARITY: Mapping[Layout, tuple[int, int]] = {
    "single": (1, 1),
    "mirror": (2, 4),
    "raidz1": (3, 12),
    "raidz2": (4, 16),
    "raidz3": (5, 20),
}


def arity(layout: Layout, count: int) -> str:
    """What is wrong with `count` disks in one pool of this layout; empty when nothing is. More than `ARITY` says is no error."""
    least, _ = ARITY[layout]
    if count < least:
        return f"{count} disk{'s' if count != 1 else ''} for layout {layout}, which needs at least {least}"
    if layout == "single" and count > 1:
        return f"{count} disks for layout single, which takes one: with striping, the loss of any disk loses all data"
    return ""


@dataclass(frozen=True)
class DiskIdentity:
    """A disk by what it is, whatever its kernel name is today. `also`: what else the same disk is; all of it has to fit."""

    kind: Literal["serial", "wwid", "byId"]
    value: str
    also: tuple[DiskIdentity, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        return (f"{self.kind}={self.value}", *(part for other in self.also for part in other.parts))


@dataclass(frozen=True)
class PoolPlan:
    """One zpool on one node."""

    node: str
    zpool: str
    layout: Layout
    disks: tuple[DiskIdentity, ...]
    minimum_bytes: int

    @property
    def least_bytes(self) -> int:
        """Raw size of the pool when every disk is as small as it may be; `zpool list` counts parity, but a mirror once."""
        return self.minimum_bytes * (len(self.disks) if self.layout.startswith("raidz") else 1)

    def __str__(self) -> str:
        return f"{self.layout} of {', '.join(str(disk) for disk in self.disks)}"


State = Literal["fit", "created", "present", "refused", "failed", "unreadable"]


@dataclass(frozen=True)
class PoolReport:
    """What the job found or did, from its termination message.

    `fit`: nothing was written, and nothing speaks against it. `refused`: something does (`problems`), nothing was written.
    `failed`: something broke, and a write may have begun. `unreadable`: no message of ours, so nothing is known.
    """

    node: str
    pool: str
    state: State
    health: str = ""
    size_bytes: int = 0
    devices: tuple[str, ...] = ()
    reason: str = ""
    layout: str = ""
    ashift: str = ""
    userland: str = ""  # version of the zpool command
    module: str = ""  # version of the kernel module
    problems: tuple[Problem, ...] = ()
    omitted: int = 0  # problems that the message had no room for

    @property
    def online(self) -> bool:
        return self.state in ("created", "present") and self.health == "ONLINE"

    @property
    def fit(self) -> bool:
        """Whether a look found nothing against making the pool, or the pool itself."""
        return self.state == "fit" or self.online


def report(node: str, zpool: str, message: str) -> PoolReport:
    """A termination message as a report; text that is not ours is "unreadable", never a success."""
    try:
        data = json.loads(message)
        return PoolReport(
            node=node,
            pool=str(data["pool"]),
            state=data["state"] if data["state"] in get_args(State) else "unreadable",
            health=str(data.get("health") or ""),
            size_bytes=int(data.get("size") or 0),
            devices=tuple(str(d) for d in data.get("devices") or ()),
            reason=str(data.get("reason") or ""),
            layout=str(data.get("layout") or ""),
            ashift=str(data.get("ashift") or ""),
            userland=str(data.get("userland") or ""),
            module=str(data.get("module") or ""),
            problems=tuple(_problem(one) for one in data.get("problems") or ()),
            omitted=int(data.get("omitted") or 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return PoolReport(node, zpool, "unreadable", reason=message.strip()[-500:] or "no termination message")


def _problem(data: Mapping[str, Any]) -> Problem:
    return Problem(*(str(data[key]) for key in ("kind", "disk", "device", "evidence")))


def namespace() -> dict[str, Any]:
    """The only namespace in which this project runs privileged pods; the right to do so is granted only while it is needed."""
    labels = {"app.kubernetes.io/part-of": "cozystack-iac"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def job(plan: PoolPlan, image: str, phase: Phase = "make") -> dict[str, Any]:
    """The Job that makes (or confirms) the pool of `plan`, suspended; or the one that only looks whether it could be made.

    It is named by its content: a Job's template is immutable, so another plan, image or script is another, visible object.
    No TTL: a job that deletes itself would be planned again by the next refresh. No retries: whether a write that was cut off
    is repeated is decided by whoever reads its result. Pinned by name, so it runs on a node that is NotReady for want of a CNI.
    """
    environment = {
        "POOL": plan.zpool,
        "LAYOUT": plan.layout,
        "DISKS": "\n".join("\t".join(disk.parts) for disk in plan.disks),
        "MINIMUM_BYTES": str(plan.minimum_bytes),
        "ASHIFT": str(ASHIFT),
        "PHASE": "make",
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
    labels = {"app.kubernetes.io/name": "zpool", NODE_LABEL: plan.node}
    made = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _job_name(plan.node, pod), "namespace": NAMESPACE, "labels": labels},
        "spec": {"backoffLimit": 0, "suspend": True, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
    return made if phase == "make" else looking(made)


def _job_name(node: str, pod: Mapping[str, Any]) -> str:
    """Short enough for a label's value, together with `-look`."""
    content = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:8]
    return f"zpool-{node[:40].rstrip('-.')}-{content}"


def look_name(job: str) -> str:
    """The name of the Job that only looks, beside the one that writes."""
    return f"{job}-look"


def looking(job: Mapping[str, Any]) -> dict[str, Any]:
    """A writing Job as one that only looks; it runs at once."""
    body = _copy(job, look_name(str(job["metadata"]["name"])))
    for container in body["spec"]["template"]["spec"]["containers"]:
        others = [entry for entry in container.get("env") or [] if entry.get("name") != "PHASE"]
        container["env"] = [*others, {"name": "PHASE", "value": "look"}]
    return body


def released(job: Mapping[str, Any]) -> dict[str, Any]:
    """A writing Job once more, as a new object that runs at once."""
    return _copy(job, str(job["metadata"]["name"]))


def _copy(job: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the API server and its controllers have added is left out."""
    kept = {"labels": _own_labels(job["metadata"]), "annotations": job["metadata"].get("annotations") or {}}
    metadata = {"name": name, "namespace": NAMESPACE, **kept}
    template = copy.deepcopy(job["spec"]["template"])
    template["metadata"] = {"labels": _own_labels(template.get("metadata") or {})}
    spec = {k: v for k, v in job["spec"].items() if k not in ("selector", "template", "suspend")}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {**spec, "suspend": False, "template": template},
    }


def _own_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {k: v for k, v in (metadata.get("labels") or {}).items() if not k.startswith(_GENERATED)}


def terminations(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Termination messages of the job's pods, newest first."""
    ended: list[tuple[str, str]] = []
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            terminated = (status.get("state") or {}).get("terminated")
            if terminated:
                ended.append((str(terminated.get("finishedAt") or ""), str(terminated.get("message") or "")))
    return [message for _, message in sorted(ended, reverse=True)]


def backout(report: PoolReport, talos: bool) -> tuple[str, ...]:
    """How a person takes back what the job did on this node; nothing where nothing was made. Never run by this program."""
    look = f"status -LP {report.pool}"
    match report.state:
        case "created":
            undo = f"destroy {report.pool}"
            return (_by_hand(report.node, look, talos), f"{_by_hand(report.node, undo, talos)}   # destroys its data")
        case "failed":
            return (_by_hand(report.node, look, talos),)
        case _:
            return ()


def _by_hand(node: str, words: str, talos: bool) -> str:
    if not talos:
        return f"ssh {node} sudo zpool {words}"
    pod = f"kubectl debug node/{node} --namespace kube-system --profile sysadmin --image alpine --stdin --tty"
    return f"{pod} -- nsenter --target 1 --mount -- /usr/local/sbin/zpool {words}"
