"""Emptying a node: what has to go, what stays, and what keeps it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cozystack_iac.kube.client import Kube, Object
from cozystack_iac.kube.drain import Fate, drain, drained, fate

OWNER = {"controller": True, "kind": "ReplicaSet"}


def pod(name: str = "web", **changes: Any) -> Object:
    metadata = {"name": name, "namespace": "shop", "ownerReferences": [OWNER], **changes.pop("metadata", {})}
    return {"metadata": metadata, "status": {"phase": "Running"}, **changes}


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (pod(), Fate.GOES),
        (pod(status={"phase": "Pending"}), Fate.GOES),
        (pod(metadata={"ownerReferences": [{"controller": True, "kind": "VirtualMachineInstance"}]}), Fate.GOES),
        (pod(metadata={"ownerReferences": [{"controller": True, "kind": "DaemonSet"}]}), Fate.STAYS),
        (pod(metadata={"annotations": {"kubernetes.io/config.mirror": "a"}, "ownerReferences": []}), Fate.STAYS),
        (pod(status={"phase": "Succeeded"}), Fate.STAYS),
        (pod(status={"phase": "Failed"}, metadata={"ownerReferences": []}), Fate.STAYS),
        (pod(metadata={"deletionTimestamp": "2026-11-30T12:00:00Z"}), Fate.GOING),
        (pod(metadata={"ownerReferences": []}), Fate.LOST),
        (pod(metadata={"ownerReferences": [{"kind": "ReplicaSet"}]}), Fate.LOST),  # an owner that controls nothing
    ],
)
def test_every_pod_has_one_fate(what: Object, expected: Fate) -> None:
    assert fate(what) is expected


def test_a_node_is_drained_when_it_is_closed_and_nothing_is_left_that_has_to_go() -> None:
    closed: Object = {"spec": {"unschedulable": True}}
    stays = pod(status={"phase": "Succeeded"})
    assert drained(closed, [stays])
    assert not drained({"spec": {}}, [stays])
    assert not drained(closed, [stays, pod()])
    assert not drained(closed, [pod(metadata={"deletionTimestamp": "2026-11-30T12:00:00Z"})])


async def test_a_round_closes_the_node_first_and_says_what_keeps_every_pod() -> None:
    asked: list[str] = []
    pods = [pod("a"), pod("b"), pod("c"), pod("alone", metadata={"ownerReferences": []})]

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path}")
        if request.method == "GET":
            assert request.url.params["fieldSelector"] == "spec.nodeName=w1"
            return httpx.Response(200, json={"items": pods})
        if request.url.path.endswith("/b/eviction"):
            return httpx.Response(429, json={"reason": "TooManyRequests", "message": "its budget says no"})
        return httpx.Response(404 if request.url.path.endswith("/c/eviction") else 200, json={})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.test") as http:
        left = await drain(Kube(http), "w1")

    assert asked[0] == "PATCH /api/v1/nodes/w1"
    assert not any("alone" in line for line in asked)
    assert not any(line.startswith("DELETE") for line in asked)
    assert left.open == {
        "shop/a": "is terminating",
        "shop/b": "its budget says no",
        "shop/c": "is terminating",
        "shop/alone": "has no controller that would start it on another node",
    }
    assert "shop/b: its budget says no" in str(left)
