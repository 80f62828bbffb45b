"""Node objects of the lab's machines: taints, labels, conditions and sizes as their configs and Talos make them."""

import pytest

from lab import nodes
from lab.machines.config import decode
from lab.scenario import Scenario
from lab.world import MachineState

CONFIG = """
version: v1alpha1
machine:
  type: {role}
  kubelet: {{image: "ghcr.io/siderolabs/kubelet:v1.36.3", extraConfig: {{maxPods: 512}}}}
  network: {{hostname: node-a}}
  nodeLabels: {{rack: r1}}
  nodeTaints: {{dedicated: "db:NoExecute"}}
cluster:
  controlPlane: {{endpoint: "https://127.10.0.10:6443"}}
  network: {{podSubnets: [10.32.0.0/16]}}
  allowSchedulingOnControlPlanes: {schedulable}
"""


def node(role: str, schedulable: str = "false", index: int = 2) -> dict[str, dict[str, object]]:
    machine = MachineState.found(Scenario.fleet(1).machines[0])
    machine.config = decode(CONFIG.format(role=role, schedulable=schedulable), machine.minor)
    return nodes.node_object(machine, machine.config, index=index, ready_after_s=0.1, now="2026-11-30T12:00:00Z")


@pytest.mark.parametrize(
    ("role", "schedulable", "taints"),
    [
        ("controlplane", "false", {"dedicated": "NoExecute", "node-role.kubernetes.io/control-plane": "NoSchedule"}),
        ("controlplane", "true", {"dedicated": "NoExecute"}),
        ("worker", "false", {"dedicated": "NoExecute"}),
    ],
)
def test_taints_are_what_the_config_says(role: str, schedulable: str, taints: dict[str, str]) -> None:
    spec = node(role, schedulable)["spec"]["taints"]
    assert isinstance(spec, list)
    assert {each["key"]: each["effect"] for each in spec} == taints


def test_a_control_plane_node_has_its_role_and_the_configured_labels() -> None:
    labels = node("controlplane")["metadata"]["labels"]
    assert isinstance(labels, dict)
    assert labels.items() >= {"node-role.kubernetes.io/control-plane": "", "rack": "r1"}.items()
    assert "node-role.kubernetes.io/control-plane" not in str(node("worker")["metadata"]["labels"])


def test_a_node_registers_not_ready_for_the_real_reason() -> None:
    status = node("worker")["status"]
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    ready = next(each for each in conditions if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
    assert "cni plugin not initialized" in ready["message"]
    assert {each["type"] for each in conditions} == {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}


def test_a_node_tells_versions_and_size_of_its_machine() -> None:
    status = node("worker")["status"]
    info, capacity = status["nodeInfo"], status["capacity"]
    assert isinstance(info, dict)
    assert isinstance(capacity, dict)
    assert (info["kubeletVersion"], info["osImage"]) == ("v1.36.3", "Talos (v1.13.6)")
    assert (capacity["cpu"], capacity["pods"]) == ("8", "512")


def test_each_node_gets_its_own_pod_range() -> None:
    ranges = [str(node("worker", index=n)["metadata"]["annotations"]) for n in range(3)]
    assert ["10.32.0.0/24" in ranges[0], "10.32.1.0/24" in ranges[1], "10.32.2.0/24" in ranges[2]] == [True] * 3
