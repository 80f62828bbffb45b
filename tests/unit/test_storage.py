"""ZFS jobs and their messages."""

import json
from typing import Any

import pytest

from cozystack_iac.storage import zfs
from cozystack_iac.storage.zfs import DiskIdentity, PoolPlan, report


@pytest.mark.parametrize("message", ["", "Killed", "{", '{"pool": "data"}', '{"pool": "data", "state": "fine"}'])
def test_a_message_that_is_not_ours_is_never_a_success(message: str) -> None:
    assert not report("cp1", "data", message).online


def plan(**changes: object) -> PoolPlan:
    base = {
        "node": "cp1",
        "zpool": "data",
        "layout": "single",
        "disks": (DiskIdentity("serial", "B1"),),
        "minimum_bytes": 1,
    }
    return PoolPlan(**{**base, **changes})  # type: ignore[arg-type]


def job(phase: zfs.Phase = "make", **changes: object) -> dict[str, Any]:
    return zfs.job(plan(**changes), "image", phase)


def test_a_changed_plan_is_another_job() -> None:
    names = [made["metadata"]["name"] for made in (job(), job(), job(disks=(DiskIdentity("serial", "B2"),)))]
    assert names[0] == names[1] != names[2]


def test_nothing_but_a_person_or_the_stage_runs_a_job_twice() -> None:
    spec = job()["spec"]
    assert (spec["backoffLimit"], spec["suspend"]) == (0, True)
    assert "ttlSecondsAfterFinished" not in spec
    pod = spec["template"]["spec"]
    assert (pod["nodeName"], pod["restartPolicy"]) == ("cp1", "Never")
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_only_the_writing_job_may_write() -> None:
    phases = [
        entry["value"]
        for made in (job("make"), job("look"))
        for entry in made["spec"]["template"]["spec"]["containers"][0]["env"]
        if entry["name"] == "PHASE"
    ]
    assert phases == ["make", "look"]


@pytest.mark.parametrize(
    ("layout", "count", "fine"),
    [
        ("single", 0, False), ("single", 1, True), ("single", 2, False), ("mirror", 1, False), ("mirror", 2, True),
        ("raidz1", 2, False), ("raidz1", 3, True), ("raidz2", 3, False), ("raidz2", 4, True), ("raidz3", 4, False),
        ("raidz3", 5, True),
    ],
)  # fmt: skip
def test_a_layout_takes_so_many_disks(layout: zfs.Layout, count: int, fine: bool) -> None:
    assert (zfs.arity(layout, count) == "") is fine


def test_a_report_carries_what_the_script_saw() -> None:
    problem = {"kind": "lvm", "disk": "serial=B1", "device": "sdb", "evidence": "LVM physical volume"}
    found = report("cp1", "data", json.dumps({"pool": "data", "state": "refused", "problems": [problem], "omitted": 2}))
    assert (found.state, found.fit, found.online, found.omitted) == ("refused", False, False, 2)
    assert [str(each) for each in found.problems] == ["sdb (serial=B1): LVM physical volume"]


@pytest.mark.parametrize("problems", ["lvm", {"kind": "lvm"}, [{"kind": "lvm"}], [["lvm"]]])
def test_problems_of_another_shape_are_unreadable(problems: object) -> None:
    message = json.dumps({"pool": "data", "state": "fit", "problems": problems})
    assert report("cp1", "data", message).state == "unreadable"


@pytest.mark.parametrize(
    ("state", "talos", "says"),
    [
        ("created", True, ["zpool status -LP data", "zpool destroy data   # destroys its data"]),
        ("created", False, ["ssh cp1 sudo zpool status -LP data", "ssh cp1 sudo zpool destroy data"]),
        ("failed", True, ["zpool status -LP data"]),
        ("present", True, []),
        ("refused", True, []),
        ("fit", True, []),
    ],
)
def test_what_was_made_can_be_taken_back_by_a_person(state: zfs.State, talos: bool, says: list[str]) -> None:
    commands = zfs.backout(zfs.PoolReport("cp1", "data", state), talos)
    assert len(commands) == len(says)
    assert all(part in command for part, command in zip(says, commands, strict=True))
