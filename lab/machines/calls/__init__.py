"""The methods of a machine's gRPC services, one module per subject. Admission and faults are dealt with before."""

from __future__ import annotations

from typing import Any

from lab.machines.calls.cluster import ClusterCalls, TimeCalls
from lab.machines.calls.lifecycle import ImageCalls, LifecycleCalls
from lab.machines.calls.machine import MachineCalls
from lab.machines.calls.state import StateCalls
from lab.machines.calls.storage import StorageCalls


def answers() -> dict[str, Any]:
    """Service -> the object with its methods. They hold no state: one set serves every machine."""
    return {
        "machine.MachineService": MachineCalls(),
        "machine.LifecycleService": LifecycleCalls(),
        "machine.ImageService": ImageCalls(),
        "storage.StorageService": StorageCalls(),
        "cluster.ClusterService": ClusterCalls(),
        "time.TimeService": TimeCalls(),
        "cosi.resource.State": StateCalls(),
    }
