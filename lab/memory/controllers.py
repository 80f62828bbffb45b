"""What Kubernetes' own controllers, schedulers and kubelets do, as far as anybody here looks.

Pods of the storage namespace are run by `lab.platform.kubelet`, which executes their real script; all others just run.
Times are real-life seconds on the world's clock.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from cozystack_iac.kube.client import Object, Refused
from cozystack_iac.storage.zfs import NAMESPACE as RUN_FOR_REAL
from lab.memory import fields
from lab.memory.api import MemoryApi
from lab.memory.jobs import COMPLETED_S, Jobs, event
from lab.memory.kinds import Kind
from lab.nodes import POD_RANGE, READY_AFTER, node_object
from lab.platform.effects import CNI_ANNOTATION
from lab.platform.manifests import HELD
from lab.platform.objects import condition, new, owner, timestamp
from lab.world import MachineState, World

POD_START_S = 1.0  # bound to a node -> containers run; images are there
LOST_S = 40.0  # kubelet's last word -> the node controller gives up on it
Handler = Callable[[Object | None, Object | None], None]


class Controllers:
    """Start inside a task group; `register` brings a machine in as a Node."""

    def __init__(self, api: MemoryApi, world: World, tasks: asyncio.TaskGroup) -> None:
        self._api, self._world, self._tasks = api, world, tasks
        self._jobs = Jobs(api, world, self._spawn)
        self._handlers: dict[str, Handler] = {
            "Deployment": self._deployment,
            "Pod": self._pod,
            "Node": self._node,
            "Service": self._service,
            "Job": self._jobs.job,
            "Secret": self._secret,
            "APIService": self._api_service,
        }
        api.on(self._seen)
        world.log.on(lambda event: self._machine(event.subject, event.what))

    def _seen(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        handler = self._handlers.get(kind.name)
        if handler is not None:
            handler(before, after)
        if after is None and before is not None:
            self._collect(before)
        elif kind.name == "Namespace" and after is not None and "deletionTimestamp" in after["metadata"]:
            self._empty(after["metadata"]["name"])

    def _spawn(self, work: Any) -> None:
        try:
            self._tasks.create_task(work)
        except RuntimeError:  # the story is over
            work.close()

    # Garbage ----------------------------------------------------------------------------------------------------------

    def _collect(self, gone: Object) -> None:
        """Delete what the object owned; a namespace that has become empty goes as well."""
        uid = gone["metadata"]["uid"]
        for kind, obj in list(self._api.everything()):
            owners = obj["metadata"].get("ownerReferences") or ()
            if any(each.get("uid") == uid for each in owners):
                self._delete(kind, obj)
        namespace = gone["metadata"].get("namespace")
        space = self._api.of("namespaces").get(("", namespace or ""))
        if space is not None and "deletionTimestamp" in space["metadata"]:
            self._delete(self._api.kinds["", "namespaces"], space)

    def _empty(self, namespace: str) -> None:
        for kind, obj in list(self._api.everything()):
            if obj["metadata"].get("namespace") == namespace:
                self._delete(kind, obj)

    def _delete(self, kind: Kind, obj: Object) -> None:
        meta = obj["metadata"]
        target = self._api.target(
            kind.api_version(kind.versions[0]), kind.plural, meta.get("namespace", ""), meta["name"]
        )
        if target.key in self._api.all(kind):
            self._api.delete(target)

    # Nodes ------------------------------------------------------------------------------------------------------------

    def register(self, machine: MachineState) -> None:
        """The machine's kubelet registers it; it is not ready before the pod network is."""
        assert machine.config is not None
        index = list(self._world.machines).index(machine.name)
        body = node_object(machine, machine.config, index=index, ready_after_s=0, now=timestamp())
        del body["metadata"]["annotations"][READY_AFTER]
        self._api.create(self._api.target("v1", "nodes"), body)
        machine.node_registered = True
        self._world.cluster.node_names[machine.name] = machine.hostname
        machine.touch()
        self._world.log.record(f"node {machine.hostname}", "registered", machine=machine.name)

    def _node(self, before: Object | None, after: Object | None) -> None:
        if after is None:
            return
        connected = (after["metadata"].get("annotations") or {}).get(CNI_ANNOTATION) == "ready"
        if connected and (
            before is None or before["metadata"].get("annotations") != after["metadata"].get("annotations")
        ):
            self._spawn(self._ready(after["metadata"]["name"], self._world.scenario.delays.node_ready))
        if ready(after):
            for pod in list(self._api.of("pods").values()):
                self._pod(None, pod)

    async def _ready(self, name: str, after_s: float) -> None:
        await self._world.clock.sleep(after_s)
        node = self._api.of("nodes").get(("", name))
        machine = self._world.machine_of_node(name)
        if node is None or ready(node) or (machine is not None and not machine.powered):
            return
        pods = (node["metadata"].get("annotations") or {}).get(POD_RANGE)
        spec = {"podCIDR": pods, "podCIDRs": [pods]}
        self._patch("v1", "nodes", "", name, {"spec": spec})
        self._node_condition(name, "True", "KubeletReady", "kubelet is posting ready status")

    def _node_condition(self, name: str, status: str, reason: str, message: str) -> None:
        node = self._api.of("nodes").get(("", name))
        if node is None:
            return
        others = [c for c in (node.get("status") or {}).get("conditions") or () if c["type"] != "Ready"]
        found = condition("Ready", status, reason, message)
        found["lastHeartbeatTime"] = found["lastTransitionTime"]
        self._patch("v1", "nodes", "", name, {"status": {"conditions": [*others, found]}}, "status")
        machine = self._world.machine_of_node(name)
        if machine is not None:
            machine.node_ready = status == "True"
            machine.touch()
        self._world.log.record(f"node {name}", "ready" if status == "True" else "not ready")

    def _machine(self, subject: str, what: str) -> None:
        machine = self._world.machines.get(subject.removeprefix("machine ")) if subject.startswith("machine ") else None
        if machine is None or not machine.node_registered:
            return
        if what == "power off":
            machine.powered = False
            self._spawn(self._lost(machine))
        elif what == "power on":
            machine.powered = True
            self._spawn(self._ready(machine.hostname, self._world.scenario.delays.boot))

    async def _lost(self, machine: MachineState) -> None:
        await self._world.clock.sleep(LOST_S)
        if not machine.powered:
            self._node_condition(
                machine.hostname, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
            )

    # Pods -------------------------------------------------------------------------------------------------------------

    def _pod(self, before: Object | None, after: Object | None) -> None:
        self._jobs.pod(before, after)
        if after is None or after["metadata"]["namespace"] == RUN_FOR_REAL:
            if after is not None and not (after.get("spec") or {}).get("nodeName"):
                self._spawn(self._bind(after))
            return
        if "deletionTimestamp" in after["metadata"]:
            self._spawn(self._stop(after))
        elif phase(after) == "Pending" and (before is None or before.get("spec") != after.get("spec")):
            self._spawn(self._start(after))
        if before is None or phase(before) != phase(after):
            self._endpoints(after["metadata"]["namespace"])

    async def _bind(self, pod: Object) -> None:
        await asyncio.sleep(0)
        node = self._place(pod)
        if node is not None:
            self._patch_pod(pod, {"spec": {"nodeName": node}})

    def _place(self, pod: Object) -> str | None:
        """The first node that fits; tolerations are taken for granted."""
        selector = (pod.get("spec") or {}).get("nodeSelector") or {}
        nodes = [
            node
            for node in self._api.of("nodes").values()
            if selector.items() <= (node["metadata"].get("labels") or {}).items()
        ]
        able = [node for node in nodes if ready(node) or (pod.get("spec") or {}).get("hostNetwork")]
        return str(able[0]["metadata"]["name"]) if able else None

    async def _start(self, pod: Object) -> None:
        await self._world.clock.sleep(POD_START_S)
        meta = pod["metadata"]
        current = self._api.of("pods").get((meta["namespace"], meta["name"]))
        if current is None or current["metadata"]["uid"] != meta["uid"] or phase(current) != "Pending":
            return
        node = (current.get("spec") or {}).get("nodeName") or self._place(current)
        held = (current["metadata"].get("annotations") or {}).get(HELD)
        if node is None or held:  # looked at again when a node becomes ready; `held`: a scenario says how it is
            return
        self._patch_pod(current, {"spec": {"nodeName": node}})
        self._patch_pod(current, {"status": running(current)}, "status")
        if any(each["kind"] == "Job" for each in meta.get("ownerReferences") or ()):
            await self._world.clock.sleep(COMPLETED_S)
            self._patch_pod(current, {"status": {"phase": "Succeeded"}}, "status")

    async def _stop(self, pod: Object) -> None:
        await asyncio.sleep(0)
        meta = pod["metadata"]
        target = self._api.target("v1", "pods", meta["namespace"], meta["name"])
        if target.key in self._api.of("pods"):
            self._api.delete(target, grace_s=0)

    # Workloads --------------------------------------------------------------------------------------------------------

    def _deployment(self, before: Object | None, after: Object | None) -> None:
        if after is not None and (before is None or before["spec"] != after["spec"]):
            self._spawn(self._scale(after))

    async def _scale(self, deployment: Object) -> None:
        await asyncio.sleep(0)
        meta, spec = deployment["metadata"], deployment["spec"]
        digest = hashlib.sha256(json.dumps(spec["template"], sort_keys=True).encode()).hexdigest()[:9]
        wanted = [f"{meta['name']}-{digest}-{number}" for number in range(int(spec.get("replicas", 1)))]
        mine = {
            obj["metadata"]["name"]: obj
            for obj in self._api.of("pods").values()
            if any(each.get("uid") == meta["uid"] for each in obj["metadata"].get("ownerReferences") or ())
        }
        for name in mine.keys() - set(wanted):
            self._delete(self._api.kinds["", "pods"], mine[name])
        template = spec["template"]
        for name in [name for name in wanted if name not in mine]:
            labels = dict((template.get("metadata") or {}).get("labels") or {}) | {"pod-template-hash": digest}
            pod = new("Pod", name, meta["namespace"], labels=labels, owners=[owner(deployment)], spec=template["spec"])
            try:
                self._api.create(self._api.target("v1", "pods", meta["namespace"]), pod)
            except Refused as refused:
                self._api.create(self._api.target("v1", "events"), event(deployment, "FailedCreate", str(refused)))

    def _endpoints(self, namespace: str) -> None:
        for service in list(self._api.of("services").values()):
            if service["metadata"]["namespace"] == namespace:
                self._service(None, service)
        for deployment in list(self._api.of("deployments", "apps").values()):
            if deployment["metadata"]["namespace"] == namespace:
                self._available(deployment)

    def _service(self, before: Object | None, after: Object | None) -> None:
        """EndpointSlices of Services with a selector."""
        del before
        selector = ((after or {}).get("spec") or {}).get("selector")
        if after is None or not selector:
            return
        meta = after["metadata"]
        endpoints = [
            {
                "addresses": [(pod.get("status") or {}).get("podIP") or "10.244.0.1"],
                "conditions": {"ready": phase(pod) == "Running"},
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": meta["namespace"]},
            }
            for pod in self._api.of("pods").values()
            if pod["metadata"]["namespace"] == meta["namespace"]
            and fields.selects(",".join(f"{k}={v}" for k, v in selector.items()), pod["metadata"].get("labels") or {})
        ]
        ports = [
            {"name": p.get("name", ""), "port": p["port"], "protocol": "TCP"} for p in after["spec"].get("ports") or ()
        ]
        labels = {"kubernetes.io/service-name": meta["name"]}
        body = new("EndpointSlice", f"{meta['name']}-pods", meta["namespace"], labels=labels, owners=[owner(after)])
        body |= {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
        target = self._api.target("discovery.k8s.io/v1", "endpointslices", meta["namespace"], body["metadata"]["name"])
        self._api.apply(target, body, manager="endpointslice-controller", force=True)

    def _available(self, deployment: Object) -> None:
        uid = deployment["metadata"]["uid"]
        pods = [
            pod
            for pod in self._api.of("pods").values()
            if any(each.get("uid") == uid for each in pod["metadata"].get("ownerReferences") or ())
        ]
        up = sum(phase(pod) == "Running" for pod in pods)
        wanted = int(deployment["spec"].get("replicas", 1))
        text = (
            "Deployment has minimum availability." if up >= wanted else "Deployment does not have minimum availability."
        )
        known = {c["type"]: c for c in (deployment.get("status") or {}).get("conditions") or ()}
        found = condition(
            "Available",
            str(up >= wanted),
            "MinimumReplicasAvailable" if up >= wanted else "MinimumReplicasUnavailable",
            text,
        )
        if known.get("Available", {}).get("status") == found["status"]:
            found = known["Available"]
        status = {"replicas": len(pods), "readyReplicas": up, "availableReplicas": up, "conditions": [found]}
        status["observedGeneration"] = deployment["metadata"]["generation"]
        meta = deployment["metadata"]
        self._patch("apps/v1", "deployments", meta["namespace"], meta["name"], {"status": status}, "status")

    # Tokens and aggregation -------------------------------------------------------------------------------------------

    def _secret(self, before: Object | None, after: Object | None) -> None:
        """The token controller fills a service account's token."""
        if before is None and after is not None and after.get("type") == "kubernetes.io/service-account-token":
            token = base64.b64encode(f"token-of-the-lab.{secrets.token_urlsafe(24)}".encode()).decode()
            meta = after["metadata"]
            self._patch("v1", "secrets", meta["namespace"], meta["name"], {"data": {"token": token}})

    def _api_service(self, before: Object | None, after: Object | None) -> None:
        """Available means that the Service behind it can be asked; without its CA nobody asks."""
        if after is None or (before is not None and before["spec"] == after["spec"]):
            return
        up = not after["spec"].get("service") or bool(after["spec"].get("caBundle"))
        reason, text = (
            ("Passed", "all checks passed") if up else ("FailedDiscoveryCheck", "failing or missing response")
        )
        status = {"conditions": [condition("Available", str(up), reason, text)]}
        name = after["metadata"]["name"]
        self._patch("apiregistration.k8s.io/v1", "apiservices", "", name, {"status": status}, "status")

    # ------------------------------------------------------------------------------------------------------------------

    def _patch_pod(self, pod: Object, body: Mapping[str, Any], subresource: str = "") -> None:
        meta = pod["metadata"]
        self._patch("v1", "pods", meta["namespace"], meta["name"], body, subresource)

    def _patch(
        self, api_version: str, plural: str, namespace: str, name: str, body: Mapping[str, Any], subresource: str = ""
    ) -> None:
        target = self._api.target(api_version, plural, namespace, name, subresource)
        if target.key in self._api.all(target.kind):
            self._api.update(target, lambda old: dict(fields.merged(old, body)))


def ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def running(pod: Object) -> dict[str, Any]:
    now = timestamp()
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": now}
        for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    statuses = [
        {
            "name": each["name"],
            "image": each.get("image", ""),
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for each in pod["spec"]["containers"]
    ]
    number = int(hashlib.sha256(pod["metadata"]["name"].encode()).hexdigest()[:4], 16)
    address = f"10.244.{number // 250 % 250}.{number % 250 + 2}"
    return {
        "phase": "Running",
        "podIP": address,
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": statuses,
    }
