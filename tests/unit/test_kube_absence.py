"""A node is emptied before its machine goes away, and opened again afterwards; every round on what the API server says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cozystack_iac.kube import absence
from cozystack_iac.kube.client import Kube, Object, Ref, Unavailable


def node(name: str, *, ready: bool = True, closed: bool = False, **annotations: str) -> Object:
    status = "True" if ready else "False"
    return {
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {"unschedulable": True} if closed else {},
        "status": {"conditions": [{"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": "m"}]},
    }


def pod(name: str, on: str, *, kind: str | None = "ReplicaSet") -> Object:
    owners = [{"kind": kind, "controller": True}] if kind else []
    metadata = {"name": name, "namespace": "apps", "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": {"phase": "Running"}}


@dataclass
class Api:
    """What the rounds ask of an API server. Pods in `guarded` have a disruption budget that forbids their eviction."""

    nodes: dict[str, Object]
    pods: list[Object] = field(default_factory=list)
    guarded: set[str] = field(default_factory=set)

    @property
    def kube(self) -> Kube:
        return cast("Kube", self)

    async def objects(self, ref: Ref, *, selector: str = "", fields: str = "") -> list[Object]:
        if ref.plural == "nodes":
            return list(self.nodes.values())
        return [one for one in self.pods if f"spec.nodeName={one['spec']['nodeName']}" == fields]

    async def find(self, ref: Ref) -> Object | None:
        return self.nodes.get(ref.name or "")

    async def merge_patch(self, ref: Ref, body: dict[str, Any]) -> Object:
        one = self.nodes[ref.name or ""]
        for part, values in body.items():
            values = values.get("annotations", values)
            target = one["metadata"]["annotations"] if part == "metadata" else one[part]
            target.update(values)
            for key in [key for key, value in values.items() if value is None]:
                del target[key]
        return one

    async def evict(self, ref: Ref) -> None:
        if ref.name in self.guarded:
            raise Unavailable(
                429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."
            )
        self.pods = [one for one in self.pods if one["metadata"]["name"] != ref.name]


async def test_a_node_is_emptied_and_opened_again() -> None:
    api = Api({"n1": node("n1"), "n2": node("n2")}, [pod("web", "n1"), pod("agent", "n1", kind="DaemonSet")])

    assert await absence.leave(api.kube, "n1") == ""
    assert api.nodes["n1"]["spec"] == {"unschedulable": True}
    assert [one["metadata"]["name"] for one in api.pods] == ["agent"]
    assert await absence.away(api.kube) == ["n1"]

    assert await absence.back(api.kube, "n1") == ""
    assert api.nodes["n1"] == node("n1")
    assert await absence.away(api.kube) == []


async def test_what_a_disruption_budget_holds_is_waited_for_by_name() -> None:
    api = Api({"n1": node("n1"), "n2": node("n2")}, [pod("db", "n1")], {"db"})
    assert await absence.leave(api.kube, "n1") == "these pods are still running: apps/db"

    api.guarded.clear()
    assert await absence.leave(api.kube, "n1") == ""


async def test_a_pod_of_nobody_stays_and_comes_back_with_its_machine() -> None:
    api = Api({"n1": node("n1"), "n2": node("n2")}, [pod("bare", "n1", kind=None)])

    assert await absence.leave(api.kube, "n1") == ""
    assert len(api.pods) == 1


@pytest.mark.parametrize("other", [None, node("n2", ready=False), node("n2", closed=True)])
async def test_where_nobody_else_could_take_the_pods_they_stay(other: Object | None) -> None:
    api = Api({"n1": node("n1")} | ({"n2": other} if other else {}), [pod("web", "n1")])

    assert await absence.leave(api.kube, "n1") == ""
    assert (len(api.pods), api.nodes["n1"]["spec"]) == (1, {})


async def test_a_node_that_was_ready_is_opened_only_when_it_is_again() -> None:
    api = Api({"n1": node("n1"), "n2": node("n2")})
    await absence.leave(api.kube, "n1")
    api.nodes["n1"]["status"] = node("n1", ready=False)["status"]
    assert await absence.back(api.kube, "n1") == "the node is not ready yet"
    assert api.nodes["n1"]["spec"] == {"unschedulable": True}

    api.nodes["n1"]["status"] = node("n1")["status"]
    assert await absence.back(api.kube, "n1") == ""


async def test_before_there_is_a_network_nobody_waits_for_readiness() -> None:
    api = Api({"n1": node("n1", ready=False), "n2": node("n2", ready=False)})

    assert [await absence.leave(api.kube, "n1"), await absence.back(api.kube, "n1")] == ["", ""]
    assert api.nodes["n1"]["metadata"]["annotations"] == {}


async def test_what_a_person_closed_stays_closed() -> None:
    api = Api({"n1": node("n1", closed=True), "n2": node("n2")})
    await absence.leave(api.kube, "n1")
    await absence.back(api.kube, "n1")

    assert api.nodes["n1"] == node("n1", closed=True)


async def test_a_killed_run_remembers_what_the_node_was() -> None:
    api = Api({"n1": node("n1"), "n2": node("n2")})
    await absence.leave(api.kube, "n1")
    await absence.leave(api.kube, "n1")  # again, when it is closed already

    await absence.back(api.kube, "n1")
    assert api.nodes["n1"]["spec"] == {}


async def test_a_machine_without_a_node_keeps_nobody_waiting() -> None:
    api = Api({"n2": node("n2")})
    assert [await absence.leave(api.kube, "n1"), await absence.back(api.kube, "n1")] == ["", ""]
