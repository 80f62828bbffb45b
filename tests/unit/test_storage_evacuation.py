"""Nodes that leave or go away for a while: nothing LINSTOR keeps there is forgotten, and no answer is never "nothing"."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest

from cozystack_iac.kube.client import Kube, Object
from cozystack_iac.membership import absences
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.pools_registered import Pool, PoolInputs, PoolOutputs, PoolsRegisteredProvider
from cozystack_iac.storage import evacuation
from cozystack_iac.storage.linstor import PoolState
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG
from lab.memory.shell import Shell
from tests.asked import ServedBy

pytestmark = pytest.mark.pace(looks=0.005)

NO_ROUTE = "Error: Unable to connect to linstor+ssl://linstor-controller:3371: [Errno 113] No route to host"
GIB_KIB = 1024**2


class Cluster:
    """A cluster with LINSTOR, as far as its controller is asked."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = set(nodes)
        self.resources: list[Object] = []
        self.evacuating: set[str] = set()
        self.asked: list[str] = []
        self.refusal = ""
        self.output: str | None = None  # instead of every answer
        self.away = False
        self.controller = True
        self.linstor = True

    @property
    def kube(self) -> Kube:
        return Kube(httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="https://api.test"))

    def keeps(
        self, name: str, *nodes: str, layer: str = "DRBD", state: str = "UpToDate", flags: tuple[str, ...] = ()
    ) -> None:
        for node in nodes:
            self.resources.append(
                {
                    "name": name,
                    "node_name": node,
                    "layer_object": {"type": layer},
                    "volumes": [{"state": {"disk_state": state}}],
                    "flags": list(flags),
                }
            )

    def answer(self, request: httpx.Request) -> httpx.Response:
        """The API server, as far as it is asked."""
        asked = request.url.path.rpartition("/")[2]
        if self.away:
            raise httpx.ConnectError("connection refused")
        if asked == "exec":
            shell = Shell(self._command, {}, request.url.params.get_list("command"), lost=lambda: False)
            return httpx.Response(101, extensions={"network_stream": shell})
        if asked == "pods":
            pod = {"metadata": {"name": "linstor-controller-x"}, "status": {"phase": "Running"}}
            return httpx.Response(200, json={"items": [pod] if self.controller else []})
        if self.linstor and asked == "linstorclusters":
            return httpx.Response(200, json={"items": [{}]})
        if self.linstor and asked in self.nodes:
            return httpx.Response(200, json={"metadata": {"name": asked}})
        return httpx.Response(404, json={"reason": "NotFound", "message": "not found"})

    async def _command(self, _pod: Object, argv: list[str]) -> tuple[str, str, int]:
        if self.output is not None:
            return self.output, NO_ROUTE, int(not self.output)
        words = [word for word in argv[4:] if word != "--nodes"]
        self.asked.append(" ".join(words))
        answers: dict[str, Callable[[], list[Object]]] = {
            "node list": self._nodes,
            "storage-pool list": self._pools,
            "resource list": lambda: self._resources(words[2:]),
            "node evacuate": lambda: self._evacuate(words[2]),
            "error-reports list": list,
        }
        rows = answers[" ".join(words[:2])]()
        return json.dumps(rows if words[1] == "evacuate" else [rows]), "", 0

    def _nodes(self) -> list[Object]:
        return [
            {
                "name": n,
                "type": "SATELLITE",
                "connection_status": "ONLINE",
                "flags": ["EVACUATE"] * (n in self.evacuating),
            }
            for n in sorted(self.nodes)
        ]

    def _pools(self) -> list[Object]:
        zpool = {"StorDriver/StorPoolName": "data"}
        common = {"storage_pool_name": "data", "provider_kind": "ZFS", "props": zpool, "total_capacity": 200 * GIB_KIB}
        return [{**common, "node_name": node} for node in sorted(self.nodes)]

    def _resources(self, nodes: list[str]) -> list[Object]:
        """Every time somebody looks one replica has moved."""
        found = [r for r in self.resources if not nodes or r["node_name"] in nodes]
        moved = next((r for r in found if r["node_name"] in self.evacuating), None)
        if moved is not None:
            self.resources.remove(moved)
        return found

    def _evacuate(self, node: str) -> list[Object]:
        if self.refusal:
            return [{"ret_code": -1, "message": self.refusal}]
        self.evacuating.add(node)
        return [{"ret_code": 1, "message": "evacuating"}]


@pytest.fixture
def cluster(served_by: ServedBy, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster("n1", "n2", "n3")
    served_by(made.answer)
    return made


def silent(cluster: Cluster, how: str) -> None:
    """Ways in which LINSTOR does not answer."""
    if how == "no API server":
        cluster.away = True
    elif how == "no pod":
        cluster.controller = False
    else:
        cluster.output = {"no route": "", "a table": "| pvc-1 | n3 |"}[how]


SILENCES = pytest.mark.parametrize("how", ["no API server", "no pod", "no route", "a table"])


# What is stored -------------------------------------------------------------------------------------------------------


async def test_what_a_node_stores_is_told_by_what_can_be_done_about_it(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3", "n2")
    cluster.keeps("pvc-local", "n3", layer="STORAGE")
    cluster.keeps("pvc-2", "n3", state="Diskless", flags=("DISKLESS", "TIE_BREAKER"))
    found = await evacuation.stored(cluster.kube, "n3")
    assert (found.replicas, found.rooted, found.unknown) == (("pvc-1",), ("pvc-local",), "")
    assert (await evacuation.stored(cluster.kube, "n1")).nothing


async def test_a_node_without_a_satellite_stores_nothing_and_linstor_need_not_answer(cluster: Cluster) -> None:
    cluster.controller = False
    assert (await evacuation.stored(cluster.kube, "worker")).nothing
    cluster.linstor = False
    assert (await evacuation.stored(cluster.kube, "n1")).nothing


@SILENCES
async def test_no_answer_is_unknown_and_never_nothing(cluster: Cluster, how: str) -> None:
    silent(cluster, how)
    found = await evacuation.stored(cluster.kube, "n3")
    assert not found.nothing
    assert found.unknown


async def test_a_node_is_told_once_to_be_emptied_and_watched_until_it_is(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    cluster.keeps("pvc-2", "n3")
    said = [await evacuation.evacuate(cluster.kube, "n3") for _ in range(4)]
    assert said[0] == "LINSTOR is moving pvc-1, pvc-2"
    assert said[-1] == ""
    assert cluster.asked.count("node evacuate n3") == 1


async def test_linstors_refusal_is_said_in_its_words(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    cluster.refusal = "Not enough available nodes"
    assert await evacuation.evacuate(cluster.kube, "n3") == "LINSTOR refuses the evacuation: Not enough available nodes"


# A node that is away for a while --------------------------------------------------------------------------------------


async def test_the_next_machine_waits_until_every_replica_is_up_to_date(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n1", "n2")
    assert await evacuation.unsettled(cluster.kube) == ""
    cluster.keeps("pvc-2", "n2", state="SyncTarget(43.95%)")
    said = await evacuation.unsettled(cluster.kube)
    assert said == "LINSTOR is syncing replicas: pvc-2 (SyncTarget(43.95%)) on n2"


async def test_without_linstor_nothing_is_waited_for(cluster: Cluster) -> None:
    cluster.linstor = False
    cluster.controller = False
    assert await evacuation.unsettled(cluster.kube) == ""


@pytest.mark.parametrize("how", ["no route", "a table"])
async def test_a_linstor_that_does_not_answer_is_waited_for(cluster: Cluster, how: str) -> None:
    silent(cluster, how)
    assert "LINSTOR does not report" in await evacuation.unsettled(cluster.kube)


async def test_an_upgrade_does_not_take_a_node_while_another_one_is_still_copied_to(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.keeps("pvc-1", "n2", state="Inconsistent")
    monkeypatch.setattr(absences.Absences, "_fetched", _kubeconfig)
    machine: Any = type("M", (), {"name": "n1"})()
    leaving = absences.Absences(cast("Any", None), deadline_s=0.1, progress=Progress("t", write=lambda _: None))
    with pytest.raises(StageFailed, match="could not be drained") as failure:
        await leaving.leave(machine)
    assert "pvc-1 (Inconsistent) on n2" in str(failure.value)


async def _kubeconfig(_self: object) -> str:
    return KUBECONFIG


# A node that stops storing --------------------------------------------------------------------------------------------


def inputs(nodes: str, **changes: Any) -> PoolInputs:
    given = {"kubeconfig": KUBECONFIG, "nodes": nodes.split(), "pool": "data", "zpool": "data", "deadline_s": 1}
    return PoolInputs.model_validate({**given, **changes})


REGISTERED = Pool(state=PoolState.REGISTERED, total_kib=200 * 1024**2)


def known(nodes: str) -> Known[PoolInputs, PoolOutputs]:
    return Known(inputs(nodes), PoolOutputs(pools=dict.fromkeys(nodes.split(), REGISTERED)))


def quiet() -> Progress:
    return Progress("t", write=lambda _: None)


async def codes(new: PoolInputs, before: str) -> list[str]:
    return [finding.code for finding in await PoolsRegisteredProvider().preflight(new, inputs(before))]


async def test_the_preview_refuses_with_the_list_unless_an_evacuation_is_approved(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    assert await codes(inputs("n1 n2"), "n1 n2 n3") == ["LIN-001"]
    assert await codes(inputs("n1 n2", evacuate={"n3": "why"}), "n1 n2 n3") == []
    assert await codes(inputs("n1 n2 n3"), "n1 n2 n3") == []
    assert await codes(inputs("n1 n2", checks="offline"), "n1 n2 n3") == ["LIN-003"]
    cluster.keeps("pvc-local", "n3", layer="STORAGE")
    assert await codes(inputs("n1 n2", evacuate={"n3": "why"}), "n1 n2 n3") == ["LIN-001"]


@SILENCES
async def test_the_preview_refuses_when_linstor_does_not_answer(cluster: Cluster, how: str) -> None:
    silent(cluster, how)
    assert await codes(inputs("n1 n2", evacuate={"n3": "why"}), "n1 n2 n3") == ["LIN-002"]


async def test_the_update_looks_again_and_changes_nothing_it_may_not(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    with pytest.raises(StageFailed, match="must stay storage nodes") as failure:
        await PoolsRegisteredProvider().revise(inputs("n1 n2"), known("n1 n2 n3"), quiet())
    assert "n3 still stores pvc-1" in str(failure.value)
    assert cluster.evacuating == set()


async def test_an_approved_evacuation_is_finished_before_the_stage_is(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    made = await PoolsRegisteredProvider().revise(inputs("n1 n2", evacuate={"n3": "goes"}), known("n1 n2 n3"), quiet())
    assert cluster.resources == []
    assert list(made.pools) == ["n1", "n2"]


async def test_what_a_lost_node_kept_is_not_asked_for_and_linstor_is_told_by_a_person(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    said: list[str] = []
    gone = inputs("n1 n2", lost=["n3"])
    assert await codes(gone, "n1 n2 n3") == []
    await PoolsRegisteredProvider().revise(gone, known("n1 n2 n3"), Progress("t", write=said.append))
    assert "linstor node lost n3" in said[0]
    assert cluster.asked == []


async def test_an_evacuation_that_does_not_end_says_what_is_left(cluster: Cluster) -> None:
    cluster.keeps("pvc-1", "n3")
    cluster.refusal = "Not enough available nodes"
    with pytest.raises(StageFailed, match="did not evacuate every node that leaves") as failure:
        await PoolsRegisteredProvider().revise(
            inputs("n1 n2", evacuate={"n3": "goes"}, deadline_s=0.1), known("n1 n2 n3"), quiet()
        )
    assert "Not enough available nodes" in str(failure.value)


async def test_a_node_that_is_away_keeps_no_other_from_joining(cluster: Cluster) -> None:
    cluster.nodes = {"n1", "n2"}
    made = await PoolsRegisteredProvider().revise(inputs("n1 n2 n3"), known("n2 n3"), quiet())
    assert made.pools == dict.fromkeys(("n1", "n2", "n3"), REGISTERED)


def test_a_gate_that_waits_for_nobody_does_not_exist() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        inputs("")


@SILENCES
async def test_a_refresh_without_an_answer_keeps_what_was_known(cluster: Cluster, how: str) -> None:
    silent(cluster, how)
    with pytest.raises(StageFailed, match="does not report whether"):
        await PoolsRegisteredProvider().observe(inputs("n1"), PoolOutputs(pools={}))
