"""The kubelet of the storage namespace: really runs the product's job, against the machine's simulated disks.

KWOK leaves the pods of `cozy-storage-bootstrap` alone. Each one's own command runs here in a subprocess, with its own
environment, the stub tools first on PATH and the machine's file system instead of the host's.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cozystack_iac.kube.client import Object
from cozystack_iac.storage.zfs import NAMESPACE
from lab.platform import hostroot
from lab.platform.context import Platform
from lab.platform.objects import kind_ref, timestamp
from lab.world import MachineState

LONGEST_S = 120.0  # wall seconds after which a script that hangs is ended
MESSAGE_BYTES = 4096  # the kubelet's own limit for a termination message
LOST = 137  # exit code of a container that a kubelet finds gone


class Kubelet:
    def __init__(self, platform: Platform, tools: Path) -> None:
        self._platform = platform
        self._tools = tools
        self._pods = platform.hub.store(kind_ref("Pod", NAMESPACE))
        self._running: dict[str, asyncio.Task[None] | None] = {}
        self._pulled: set[tuple[str, str]] = set()  # node and image

    async def run(self) -> None:
        self._pods.on(self._seen)
        await asyncio.Event().wait()

    def _seen(self, before: Object | None, after: Object | None) -> None:
        if after is None:
            if before is not None and (task := self._running.pop(before["metadata"]["uid"], None)) is not None:
                task.cancel()
            return
        uid = after["metadata"]["uid"]
        if "deletionTimestamp" in after["metadata"]:
            self._platform.hub.spawn(self._remove(after))
        elif (after.get("spec") or {}).get("nodeName") and _phase(after) == "Pending" and uid not in self._running:
            self._running[uid] = self._platform.hub.spawn(self._execute(after), name=f"pod {uid}")

    async def _remove(self, pod: Object) -> None:
        """What the kubelet does at the end of a graceful deletion: confirm it with grace period 0."""
        task = self._running.pop(pod["metadata"]["uid"], None)
        if task is not None:
            task.cancel()
        ref = kind_ref("Pod", NAMESPACE, pod["metadata"]["name"])
        await self._platform.hub.force_delete(ref)

    async def _execute(self, pod: Object) -> None:
        node = pod["spec"]["nodeName"]
        world = self._platform.world
        machine = world.machine_of_node(node) or world.machines.get(node)
        if machine is None:
            return  # bound to a node without a machine: stays Pending, as with a dead kubelet
        await _powered(machine)
        await self._pull(node, pod["spec"]["containers"][0].get("image", ""))
        started = timestamp()
        await self._status(pod, "Running", {"running": {"startedAt": started}})
        code, message, log = await execute(pod, machine, self._tools, self._platform.state)
        if not machine.powered:  # nobody is there to say how it ended; the kubelet of the next boot finds it gone
            await _powered(machine)
            code, message = LOST, ""
        state = {
            "terminated": {
                "exitCode": code,
                "reason": "Completed" if code == 0 else "Unknown" if code == LOST else "Error",
                "message": message,
                "startedAt": started,
                "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        }
        self._keep_log(pod, log)
        world.log.record(f"pod {node}", "succeeded" if code == 0 else "failed", code=code, message=message)
        await self._status(pod, "Succeeded" if code == 0 else "Failed", state)

    async def _pull(self, node: str, image: str) -> None:
        if (node, image) not in self._pulled:
            await self._platform.sleep(self._platform.world.scenario.delays.image_pull)
            self._pulled.add((node, image))

    def _keep_log(self, pod: Object, log: bytes) -> None:
        path = self._platform.state / "logs" / "pods" / f"{pod['metadata']['name']}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(log)

    async def _status(self, pod: Object, phase: str, state: dict[str, Any]) -> None:
        container = pod["spec"]["containers"][0]
        ready = "True" if phase == "Running" else "False"
        conditions = [
            {"type": kind, "status": value, "lastTransitionTime": timestamp()}
            for kind, value in (
                ("Initialized", "True"),
                ("PodScheduled", "True"),
                ("Ready", ready),
                ("ContainersReady", ready),
            )
        ]
        body = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container.get("image", ""),
                    "imageID": "",
                    "ready": phase == "Running",
                    "started": phase == "Running",
                    "restartCount": 0,
                    "state": state,
                }
            ],
        }
        await self._platform.hub.status(kind_ref("Pod", NAMESPACE, pod["metadata"]["name"]), body)


async def _powered(machine: MachineState) -> None:
    while not machine.powered:
        await machine.changed.wait()


async def execute(pod: Object, machine: MachineState, tools: Path, state: Path) -> tuple[int, str, bytes]:
    """Run the pod's only container on `machine`: exit code, termination message and output."""
    container = pod["spec"]["containers"][0]
    folder = state / "hosts" / machine.name
    root = await asyncio.to_thread(hostroot.build, folder / "root", machine, tools)
    note = folder / f"{pod['metadata']['uid']}.termination"
    note.write_text("", encoding="utf-8")
    argv = [*(container.get("command") or ()), *(container.get("args") or ())]
    declared = {item["name"]: str(item.get("value") or "") for item in container.get("env") or ()}
    env = {
        **declared,
        "PATH": os.pathsep.join([str(tools), os.environ.get("PATH", os.defpath)]),
        "HOST_ROOT": str(root),
        "TERMINATION_LOG": str(note),
        "LAB_MACHINE": machine.name,
        "LAB_STATE": str(state),
    }
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=root, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LONGEST_S)
    except TimeoutError:
        output = b"the lab ended this script: it ran too long\n"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    code = process.returncode or 0
    message = note.read_bytes()[-MESSAGE_BYTES:].decode(errors="replace")
    if not message and code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        message = output[-2048:].decode(errors="replace")
    return code, message, output


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")
