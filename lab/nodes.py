"""The Node object a simulated machine registers: pure, from the machine and the machine config it runs."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network
from typing import Any

from lab.machines.config import AppliedConfig
from lab.world import MachineState

KUBELET_PORT = 10250
KUBELET = "lab.cozystack-iac/kubelet"
READY_AFTER = "lab.cozystack-iac/ready-after"
POD_RANGE = "lab.cozystack-iac/pod-cidr"
NOT_INITIALIZED = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
    "message:Network plugin returns error: cni plugin not initialized"
)
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_DEFAULT_POD_RANGE = "10.244.0.0/16"  # Talos' default cluster.network.podSubnets
_DEFAULT_MAX_PODS = 110  # kubelet's default
_RESERVED_BYTES = 512 * 2**20  # what Talos keeps for itself and the kubelet, roughly
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def node_object(
    machine: MachineState, config: AppliedConfig, *, index: int, ready_after_s: float, now: str
) -> dict[str, Any]:
    """The Node as its kubelet creates it: NotReady, because no CNI is there yet. `index` picks its pod range.

    `ready_after_s` is how long after the CNI the node turns Ready, in seconds of wall time.
    `now` is an RFC 3339 time. Label and taint rules are those of Talos: the role label always, the taint unless the config
    allows scheduling on control planes.
    """
    name = machine.hostname
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": _labels(machine, config),
            "annotations": {
                POD_RANGE: pod_range(config, index),
                READY_AFTER: f"{ready_after_s * 1000:.0f}ms",
                **config.node_annotations,
            },
        },
        "spec": {"taints": [_taint(key, text) for key, text in config.node_taints.items()]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": machine.own_address},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            **_resources(machine, config),
            "conditions": _conditions(now),
            "nodeInfo": _node_info(machine, config),
        },
    }


def pod_range(config: AppliedConfig, index: int) -> str:
    """The /24 (as kube-controller-manager hands out) number `index` of the cluster's first IPv4 pod range."""
    ranges = config.network.get("podSubnets")
    networks = [ip_network(each, strict=False) for each in ranges or [_DEFAULT_POD_RANGE]]
    first = next((each for each in networks if isinstance(each, IPv4Network)), IPv4Network(_DEFAULT_POD_RANGE))
    if first.prefixlen >= 24:
        return str(first)
    start = int(first.network_address) + (index % 2 ** (24 - first.prefixlen)) * 256
    return str(IPv4Network((start, 24)))


def _labels(machine: MachineState, config: AppliedConfig) -> dict[str, str]:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": machine.hostname,
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
    }
    if config.role == "controlplane":
        labels[_CONTROL_PLANE] = ""
    return labels | config.node_labels


def _taint(key: str, text: str) -> dict[str, str]:
    value, _, effect = text.rpartition(":")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _resources(machine: MachineState, config: AppliedConfig) -> dict[str, Any]:
    extra = config.one("KubeletConfig").get("config") or config.at("machine", "kubelet", "extraConfig") or {}
    system = machine.system_disk
    capacity = {
        "cpu": str(machine.spec.cpus),
        "memory": f"{machine.spec.memory // 1024}Ki",
        "ephemeral-storage": f"{(system.spec.size if system else 0) // 1024}Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": str(extra.get("maxPods", _DEFAULT_MAX_PODS)),
    }
    allocatable = capacity | {"memory": f"{max(machine.spec.memory - _RESERVED_BYTES, 0) // 1024}Ki"}
    return {"capacity": capacity, "allocatable": allocatable}


def _conditions(now: str) -> list[dict[str, str]]:
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    calm = [
        {"type": kind, "status": "False", "reason": why, "message": text, **times} for kind, why, text in _PRESSURES
    ]
    return [
        *calm,
        {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": NOT_INITIALIZED, **times},
    ]


def _node_info(machine: MachineState, config: AppliedConfig) -> dict[str, str]:
    return {
        "architecture": "amd64",
        "bootID": "",
        "containerRuntimeVersion": "containerd://2.1.4" if machine.minor < 13 else "containerd://2.2.1",
        "kernelVersion": "6.12.0-talos" if machine.minor < 12 else "6.18.0-talos",  # the LTS lines Talos ships
        "kubeProxyVersion": "",
        "kubeletVersion": config.kubernetes_version,
        "machineID": "",
        "operatingSystem": "linux",
        "osImage": f"Talos ({machine.talos})",
        "systemUUID": "",
    }
