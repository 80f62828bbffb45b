"""Machines that leave a running cluster, on the lab's simulated machines in this process and a small Kubernetes API: who is
drained, who leaves etcd, what is never touched, and what a run that was killed anywhere leaves to the next one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pytest

from cozystack_iac.kube.client import Object, routed
from cozystack_iac.kube.kubeconfig import ApiAccess
from cozystack_iac.membership.approval import Approval
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.cluster_membership import ClusterMembershipProvider, MembershipInputs, MembershipOutputs
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.waiting import StageFailed
from lab.memory.shell import Shell
from lab.scenario import MachineChange
from tests.talos_site import NET, Site, playing, scenario

T = TypeVar("T")

pytestmark = [pytest.mark.faults, pytest.mark.pace(looks=0.1, patience=0.03, calls=0.2)]
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
NOTHING = MembershipOutputs(departed={}, open=[])
RESET = Approval(reset="goes back to the vendor")
LOST = Approval(lost="burnt, seen by Jana")
EVACUATE = Approval(evacuate="its disks go elsewhere")


@dataclass
class Api:
    """Nodes and pods, as far as a drain looks at them."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    stored: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by node, as LINSTOR lists resources
    moving: set[str] = field(default_factory=set)
    linstor: bool = True  # whether its controller answers

    def replica(self, name: str, node: str, *, layers: str = "DRBD STORAGE") -> None:
        outer, *inner = layers.split()
        layer = {"type": outer, "children": [{"type": one} for one in inner]}
        volumes = [{"volume_number": 0, "state": {"disk_state": "UpToDate"}}]
        self.stored.setdefault(node, []).append(
            {"name": name, "node_name": node, "layer_object": layer, "volumes": volumes}
        )

    async def command(self, _pod: Object, argv: list[str]) -> tuple[str, str, int]:
        if not self.linstor:
            return "", "Error: Unable to connect to linstor-controller: [Errno 113] No route to host", 1
        words = [word for word in argv[4:] if not word.startswith("-")]
        if words[:2] == ["node", "evacuate"]:
            self.calls.append(f"linstor node evacuate {words[2]}")
            self.moving.add(words[2])
        if words[:2] == ["node", "list"]:
            rows = [
                {
                    "name": n,
                    "type": "SATELLITE",
                    "connection_status": "ONLINE",
                    "flags": ["EVACUATE"] * (n in self.moving),
                }
                for n in self.stored
            ]
            return json.dumps([rows]), "", 0
        if words[:2] == ["resource", "list"]:
            found = json.dumps([self.stored.get(words[2], [])])
            if words[2] in self.moving:
                self.stored[words[2]] = self.stored[words[2]][1:]  # one replica a round
            return found, "", 0
        return "[]", "", 0

    def pod(self, name: str, node: str, *, owner: str | None = "ReplicaSet", **more: Any) -> None:
        owners = [{"kind": owner, "controller": True}] if owner else []
        metadata = {"namespace": "default", "name": name, "ownerReferences": owners, **more}
        self.pods[name] = {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}

    def answer(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.split("/")
        if request.method != "GET":
            self.calls.append(f"{request.method} {request.url.path.removeprefix('/api/v1/')}")
        if parts[-1] == "exec":
            shell = Shell(self.command, {}, request.url.params.get_list("command"), lost=lambda: False)
            return httpx.Response(101, extensions={"network_stream": shell})
        if parts[-1] == "eviction":
            return self._evict(parts[-2])
        if parts[2] == "piraeus.io":
            return self._ok({}) if parts[-1] in self.stored else httpx.Response(404, json={"message": "not found"})
        if parts[3:5] == ["namespaces", "cozy-linstor"]:
            pod = {"metadata": {"name": "linstor-controller-x"}, "status": {"phase": "Running"}}
            return self._ok({"items": [pod]})
        if parts[3] == "pods":
            wanted = str(request.url.params.get("fieldSelector")).removeprefix("spec.nodeName=")
            return self._ok({"items": [p for p in self.pods.values() if p["spec"]["nodeName"] == wanted]})
        return self._node(parts[-1], request)

    def _node(self, name: str, request: httpx.Request) -> httpx.Response:
        if name not in self.nodes:
            return httpx.Response(404, json={"reason": "NotFound", "message": "not found"})
        node = self.nodes[name]
        if request.method == "DELETE":
            del self.nodes[name]
        elif request.method == "PATCH":
            patch = json.loads(request.content)
            node.setdefault("spec", {}).update(patch.get("spec", {}))
            node["metadata"].setdefault("annotations", {}).update(patch.get("metadata", {}).get("annotations", {}))
        return self._ok(node)

    def _evict(self, name: str) -> httpx.Response:
        if name in self.protected:
            return httpx.Response(429, json={"reason": "TooManyRequests", "message": BUDGET})
        self.pods.pop(name, None)
        return self._ok({})

    @staticmethod
    def _ok(body: Any) -> httpx.Response:
        return httpx.Response(200, json=body)


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()

    def route(access: ApiAccess) -> httpx.AsyncBaseTransport:
        assert access.client_key_pem
        return httpx.MockTransport(made.answer)

    with routed(route):
        yield made


@asynccontextmanager
async def cluster(api: Api, *names: str) -> AsyncIterator[Site]:
    """These machines as a cluster, as a first run leaves it."""
    async with playing(scenario(*names)) as site:
        await site.rolled_out()
        await site.bootstrapped()
        api.nodes = {name: {"metadata": {"name": name}} for name in names}
        yield site


def inputs(site: Site, without: str = "", **changes: Any) -> MembershipInputs:
    machines = [ref for ref in site.refs if ref.name not in without.split()]
    given = {"machines": machines, "approvals": {}, "client_configuration": site.client, "deadline_s": 5}
    return MembershipInputs(**(given | changes))


async def departed(site: Site, without: str, **changes: Any) -> MembershipOutputs:
    known = Known(inputs(site), NOTHING)
    return await ClusterMembershipProvider().revise(inputs(site, without, **changes), known, site.progress())


def members(site: Site) -> set[str]:
    return set(site.world.cluster.members)


def happened(site: Site, name: str) -> list[str]:
    interesting = {"etcd left", "etcd removed", "resetting", "maintenance"}
    return [e.what for e in site.world.log.find(f"machine {name}") if e.what in interesting and e.time > 0][1:]


async def test_a_worker_is_drained_and_its_node_deleted_and_the_machine_is_left_alone(api: Api) -> None:
    async with cluster(api, "cp1", "w1", "w2") as site:
        api.pod("web-1", "w1")
        api.pod("web-2", "w2")
        api.pod("agent", "w1", owner="DaemonSet")
        api.pod("static", "w1", owner="Node", annotations={"kubernetes.io/config.mirror": "x"})
        made = await departed(site, "w1")

        assert made.departed == {"w1": "is drained, its Node is deleted"}
        assert set(api.nodes) == {"cp1", "w2"}
        assert set(api.pods) == {"web-2", "agent", "static"}
        assert api.calls == ["PATCH nodes/w1", "POST namespaces/default/pods/web-1/eviction", "DELETE nodes/w1"]
        assert happened(site, "w1") == []
        assert [ref.name for ref in made.open] == ["w1"]


@pytest.mark.parametrize(
    ("owner", "why"), [("ReplicaSet", BUDGET), (None, "has no controller that would start it on another node")]
)
async def test_what_cannot_be_evicted_is_named_and_keeps_the_node(api: Api, owner: str | None, why: str) -> None:
    async with cluster(api, "cp1", "w1") as site:
        api.pod("db-0", "w1", owner=owner)
        api.protected = {"db-0"}
        with pytest.raises(StageFailed, match="draining w1 timed out after 1 s") as failure:
            await departed(site, "w1", deadline_s=1)

        assert f"default/db-0: {why}" in str(failure.value)
        assert "w1" in api.nodes
        assert "db-0" in api.pods


async def test_a_machine_that_stores_replicas_is_emptied_before_it_goes_and_only_with_approval(api: Api) -> None:
    async with cluster(api, "cp1", "w1") as site:
        api.replica("pvc-1", "w1")
        api.replica("pvc-2", "w1")
        refusing = await ClusterMembershipProvider().preflight(inputs(site, "w1"), inputs(site))
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "w1")
        assert [f.code for f in refusing] == ["MEM-006", "MEM-008"]
        assert "w1 still stores pvc-1, pvc-2" in str(failure.value)
        assert "{name: w1, evacuate: {approved: true, reason: …}}" in str(failure.value)
        assert refusing[1].command is not None
        assert refusing[1].command.endswith("-- linstor resource list --nodes w1")
        assert api.calls == []
        assert set(api.nodes) == {"cp1", "w1"}

        made = await departed(site, "w1", approvals={"w1": EVACUATE})
        assert made.departed == {"w1": "is drained, has its replicas moved to other nodes, its Node is deleted"}
        assert api.stored["w1"] == []
        assert api.calls == ["PATCH nodes/w1", "linstor node evacuate w1", "DELETE nodes/w1"]


async def test_what_linstor_cannot_copy_keeps_the_machine_whatever_is_approved(api: Api) -> None:
    async with cluster(api, "cp1", "w1") as site:
        api.replica("pvc-local", "w1", layers="STORAGE")
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "w1", approvals={"w1": EVACUATE})
        assert "w1 stores pvc-local, which LINSTOR cannot copy" in str(failure.value)
        assert api.calls == []


async def test_no_answer_from_linstor_is_not_taken_for_an_empty_machine(api: Api) -> None:
    async with cluster(api, "cp1", "w1") as site:
        api.replica("pvc-1", "w1")
        api.linstor = False
        planned = await ClusterMembershipProvider().preflight(inputs(site, "w1"), inputs(site))
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "w1", approvals={"w1": EVACUATE})
        assert [f.code for f in planned] == ["MEM-006", "MEM-009"]
        assert "No route to host" in str(failure.value)
        assert api.calls == []


async def test_a_control_plane_leaves_etcd_before_it_is_reset_and_its_node_deleted(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3") as site:
        leader = site.world.cluster.leader or ""
        made = await departed(site, leader, approvals={leader: RESET})
        await site.world.log.happened(f"machine {leader}", "maintenance", timeout_s=5)

        assert made.departed == {leader: "is drained, leaves etcd, is reset, its Node is deleted"}
        assert members(site) == {"cp1", "cp2", "cp3"} - {leader}
        assert site.world.cluster.leader in members(site)
        assert happened(site, leader)[:2] == ["etcd left", "resetting"]
        assert leader not in api.nodes
        assert made.open == []
        assert any("goes back to the vendor" in line for line in site.said)


async def test_without_approval_a_control_plane_keeps_its_disk(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3") as site:
        made = await departed(site, "cp3")
        assert made.departed == {"cp3": "is drained, leaves etcd, its Node is deleted"}
        assert happened(site, "cp3") == ["etcd left"]


async def test_a_reset_that_is_approved_later_is_done_then(api: Api) -> None:
    async with cluster(api, "cp1", "w1") as site:
        first = await departed(site, "w1")
        known = Known(inputs(site, "w1"), first)
        later = inputs(site, "w1", approvals={"w1": RESET})
        made = await ClusterMembershipProvider().revise(later, known, site.progress())

        assert made.departed == {"w1": "is reset"}
        assert made.open == []
        assert happened(site, "w1")[:1] == ["resetting"]


async def test_a_machine_that_is_only_silent_is_not_given_up(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3") as site:
        site.world.change(MachineChange(name="cp3", power="off"))
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "cp3", losses_only=True)
        assert "cp3 is to be removed but does not respond" in str(failure.value)
        assert "lost: {approved: true" in str(failure.value)
        assert members(site) == {"cp1", "cp2", "cp3"}
        assert set(api.nodes) == {"cp1", "cp2", "cp3"}


async def test_a_lost_control_plane_is_forgotten_by_the_early_stage(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3", "w1") as site:
        site.world.change(MachineChange(name="cp3", power="off"))
        early = await departed(site, "cp3 w1", losses_only=True, approvals={"cp3": LOST})
        assert members(site) == {"cp1", "cp2"}
        assert set(api.nodes) == {"cp1", "cp2", "w1"}
        assert early.departed["cp3"] == "its etcd member is removed, its Node is deleted"

        late = await departed(site, "cp3 w1", approvals={"cp3": LOST})
        assert late.departed == {"w1": "is drained, its Node is deleted"}


async def test_a_removal_that_would_cost_the_quorum_touches_nothing(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3") as site:
        site.world.change(MachineChange(name="cp2", power="off"))
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "cp3")
        assert "etcd member cp2 is not healthy: only 1 of 2 voting members would be healthy, but 2 are needed" in str(
            failure.value
        )
        assert members(site) == {"cp1", "cp2", "cp3"}
        assert api.calls == []


async def test_the_last_control_plane_stays(api: Api) -> None:
    async with cluster(api, "cp1", "w1") as site:
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "cp1", approvals={"cp1": RESET})
        assert "no control plane node would be left" in str(failure.value)
        assert happened(site, "cp1") == []


async def test_the_plan_says_what_will_happen_and_what_forbids_it(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "cp3", "w1") as site:
        provider = ClusterMembershipProvider()
        harmless = await provider.preflight(inputs(site, "w1"), inputs(site))
        site.world.change(MachineChange(name="cp2", power="off"))
        harmful = await provider.preflight(inputs(site, "cp3"), inputs(site))
        unchanged = await provider.preflight(inputs(site), inputs(site))
        offline = await provider.preflight(inputs(site, "cp3", checks="offline"), inputs(site))

        assert [(f.code, f.path) for f in harmless] == [("MEM-006", "w1")]
        assert "it keeps its configuration" in harmless[0].problem
        assert {f.code for f in harmful} == {"MEM-002", "MEM-006"}
        assert unchanged == []
        assert [f.code for f in offline] == ["MEM-006", "MEM-007"]
        assert api.calls == []


async def test_an_inventory_may_be_corrected_before_there_is_a_cluster(api: Api) -> None:
    async with playing(scenario("cp1", "cp2", "cp3")) as site:
        await site.rolled_out()
        made = await _once_etcd_is_known(lambda: departed(site, "cp3", losses_only=True))
        assert [ref.name for ref in made.open] == ["cp3"]


async def _once_etcd_is_known(change: Callable[[], Awaitable[T]]) -> T:
    """A machine that boots cannot say yet whether it has an etcd; until then every change is refused."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await change()
            except StageFailed as refused:
                assert "MEM-005" in str(refused)
                await asyncio.sleep(0.1)


async def test_a_machine_that_got_another_address_is_refused(api: Api) -> None:
    async with cluster(api, "cp1", "cp2", "w1") as site:
        moved = [ref.model_copy(update=_at(ref, f"{NET}.0.99")) if ref.name == "w1" else ref for ref in site.refs]
        with pytest.raises(StageFailed, match="block this change") as failure:
            await departed(site, "", machines=moved)
        assert "MEM-004 w1" in str(failure.value)


def _at(ref: MachineRef, address: str) -> dict[str, str]:
    return {"address": address, "internal": address, "maintenance": address}


@pytest.mark.parametrize("seed", range(8))
async def test_a_departure_that_was_killed_anywhere_is_continued(api: Api, seed: int) -> None:
    """Killed again and again, at any await; each step is done once, and never two votes are away."""
    chance = random.Random(seed)
    async with cluster(api, "cp1", "cp2", "cp3", "w1") as site:
        api.pod("web-1", "cp3")
        api.pod("web-2", "w1")
        approvals = {"cp3": RESET, "w1": RESET}
        for _ in range(6):
            run = asyncio.create_task(departed(site, "cp3 w1", approvals=approvals))
            await asyncio.wait({run}, timeout=chance.random() * 0.4)
            if run.done():
                break
            run.cancel()
            await asyncio.wait({run})
        made = await departed(site, "cp3 w1", approvals=approvals)

        assert made.open == []
        assert members(site) == {"cp1", "cp2"}
        assert set(api.nodes) == {"cp1", "cp2"}
        assert api.pods == {}
        assert [happened(site, name).count("resetting") for name in ("cp3", "w1")] == [1, 1]
        assert happened(site, "cp3").count("etcd left") == 1
        assert api.calls.count("DELETE nodes/cp3") == 1
