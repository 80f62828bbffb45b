"""The zpool Jobs and what is said about them: their shape, why a node is silent, health by the kernel's word."""

from __future__ import annotations

from typing import Any

import pytest

from cozystack_iac.kube.client import ExecResult, Kube, Object, Ref
from cozystack_iac.stages import zpools_online
from cozystack_iac.stages.zpools_online import Zpool, ZpoolInputs, ZpoolOutputs, ZpoolsOnlineProvider
from cozystack_iac.storage import health, zfs
from cozystack_iac.storage.jobs import silence
from cozystack_iac.storage.zfs import DiskIdentity, PoolPlan

GIB = 1024**3


def plan(node: str = "w1", layout: zfs.Layout = "mirror", **changes: Any) -> PoolPlan:
    disks = (DiskIdentity("serial", "A"), DiskIdentity("wwid", "naa.1"))
    given: dict[str, Any] = {"zpool": "data", "disks": disks, "minimum_bytes": 50 * GIB} | changes
    return PoolPlan(node=node, layout=layout, **given)


def phase(job: Object) -> str:
    environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
    return str({entry["name"]: entry["value"] for entry in environment}["PHASE"])


# Jobs ---------------------------------------------------------------------------------------------------------------


def test_a_job_that_writes_is_made_asleep_and_never_written_twice() -> None:
    job = zfs.job(plan(), "image")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["suspend"] is True
    assert spec["backoffLimit"] == 0
    assert "ttlSecondsAfterFinished" not in spec
    assert (pod["restartPolicy"], pod["nodeName"], pod["hostNetwork"], pod["dnsPolicy"]) == (
        "Never",
        "w1",
        True,
        "Default",
    )
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert job["metadata"]["namespace"] == "cozy-storage-bootstrap"
    assert phase(job) == "make"


def test_the_namespace_is_not_privileged_by_itself() -> None:
    assert not [name for name in zfs.namespace()["metadata"]["labels"] if "pod-security" in name]


def test_a_job_that_looks_is_the_same_but_for_its_phase() -> None:
    job = zfs.job(plan(), "image")
    live = {
        **job,
        "metadata": {**job["metadata"], "uid": "1", "labels": {**job["metadata"]["labels"], "controller-uid": "1"}},
        "spec": {**job["spec"], "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "1"}}},
    }
    look = zfs.looking(live)
    assert look["metadata"]["name"] == f"{job['metadata']['name']}-look"
    assert phase(look) == "look"
    assert look["spec"]["suspend"] is False
    assert "selector" not in look["spec"]
    assert look["metadata"]["labels"] == job["metadata"]["labels"]
    assert zfs.released(live)["spec"]["template"] == job["spec"]["template"]
    assert phase(live) == "make"


@pytest.mark.parametrize(
    "changed",
    [
        {"zpool": "tank"},
        {"minimum_bytes": 1},
        {"disks": (DiskIdentity("serial", "B"),)},
        {"node": "w2"},
        {"layout": "raidz1"},
    ],
    ids=str,
)
def test_another_plan_is_another_job(changed: dict[str, Any]) -> None:
    assert zfs.job(plan(**changed), "image")["metadata"]["name"] != zfs.job(plan(), "image")["metadata"]["name"]


def test_another_image_is_another_job_and_the_same_content_the_same() -> None:
    names = [zfs.job(plan(), image)["metadata"]["name"] for image in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]


def test_names_stay_short_enough_for_labels() -> None:
    name = zfs.job(plan("n" * 63), "image")["metadata"]["name"]
    assert len(zfs.look_name(name)) <= 63


@pytest.mark.parametrize(
    ("layout", "count", "least"), [("single", 1, 50), ("mirror", 2, 50), ("raidz1", 3, 150), ("raidz3", 5, 250)]
)
def test_a_pool_has_at_least_the_size_of_its_disks(layout: zfs.Layout, count: int, least: int) -> None:
    disks = tuple(DiskIdentity("serial", str(number)) for number in range(count))
    assert plan(layout=layout, disks=disks).least_bytes == least * GIB


# Why a node is silent -----------------------------------------------------------------------------------------------


def node(ready: str, since: str = "2026-11-30T17:00:00Z") -> Object:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": since}]
    return {"metadata": {"name": "w1"}, "status": {"conditions": conditions}}


def pod(**waiting: str) -> Object:
    statuses = [{"state": {"waiting": waiting}}] if waiting else []
    labels = {"batch.kubernetes.io/job-name": "job"}
    return {"metadata": {"name": "p", "labels": labels}, "status": {"containerStatuses": statuses}}


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        ({}, [pod()], "the Node no longer exists"),
        ({"w1": node("Unknown")}, [pod()], "has not responded since 2026-11-30T17:00:00Z"),
        ({"w1": node("False")}, [], "describe job job"),
        (
            {"w1": node("False")},
            [pod(reason="ErrImagePull", message="no route to host")],
            "ErrImagePull: no route to host",
        ),
    ],
    ids=["no node", "lost", "no pod", "no image"],
)
def test_silence_has_a_reason(nodes: dict[str, Object], pods: list[Object], said: str) -> None:
    assert said in silence("w1", "job", pods, nodes)


def test_a_node_without_a_cni_that_works_is_no_trouble() -> None:
    assert silence("w1", "job", [pod()], {"w1": node("False")}) == ""


# Health -------------------------------------------------------------------------------------------------------------


class Satellites(Kube):
    """Satellites by node, and what `cat` says in each."""

    def __init__(self, answers: dict[str, ExecResult]) -> None:
        self._answers = answers

    async def objects(self, ref: Ref, *, selector: str = "", fields: str = "") -> list[Object]:
        name = fields.removeprefix("spec.nodeName=")
        found = {"metadata": {"name": f"linstor-satellite.{name}", "namespace": ref.namespace}}
        return [{**found, "status": {"phase": "Running"}}] if name in self._answers else []

    async def exec(
        self, namespace: str, pod: str, container: str, argv: list[str], *, deadline_s: float = 30
    ) -> ExecResult:
        assert (namespace, container, argv) == (
            "cozy-linstor",
            "linstor-satellite",
            ["cat", "/proc/spl/kstat/zfs/data/state"],
        )
        return self._answers[pod.removeprefix("linstor-satellite.")]


async def test_satellites_say_what_their_kernel_says() -> None:
    kube = Satellites(
        {
            "ok": ExecResult("ONLINE\n", "", ok=True),
            "bad": ExecResult("DEGRADED\n", "", ok=True),
            "gone": ExecResult("", "cat: /proc/spl/kstat/zfs/data/state: No such file or directory", ok=False),
            "odd": ExecResult("", "permission denied", ok=False),
            "mute": ExecResult("", "", ok=True),
        }
    )
    seen = await health.of_satellites(kube, ["ok", "bad", "gone", "odd", "mute", "none"], "data")
    assert seen == {
        "ok": "ONLINE",
        "bad": "DEGRADED",
        "gone": health.NOT_IMPORTED,
        "odd": None,
        "mute": None,
        "none": None,
    }


@pytest.mark.parametrize(
    ("seen", "now", "drifted"),
    [
        ("ONLINE", "ONLINE", False),
        ("DEGRADED", "DEGRADED", True),
        ("SUSPENDED", "SUSPENDED", True),
        (health.NOT_IMPORTED, "not imported", True),
        (None, "ONLINE", False),
    ],
)
async def test_health_is_drift_unless_it_is_online_or_unknown(
    seen: str | None, now: str, drifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answers(*_: object) -> dict[str, str | None]:
        return {"w1": seen}

    monkeypatch.setattr(zpools_online, "_health", answers)
    inputs = ZpoolInputs(kubeconfig="", zpool="data", jobs={}, deadline_s=1)
    known = ZpoolOutputs(pools={"w1": Zpool(health="ONLINE", size_bytes=2**30, devices=["/dev/sdb1"])})
    after = await ZpoolsOnlineProvider().observe(inputs, known)
    assert after is not None
    assert after.pools == {"w1": Zpool(health=now, size_bytes=2**30, devices=["/dev/sdb1"])}
    assert ZpoolsOnlineProvider().drifted(inputs, after) is drifted
