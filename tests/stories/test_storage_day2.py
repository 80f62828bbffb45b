"""Storage after the first install: nodes that come and go, pools that break, and pools that LINSTOR makes itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.kube.client import Ref
from lab.scenario import FOLDER, Scenario, load
from lab.story.platform import Story, platform_story
from tests.addresses import prefix

CONFIGURATIONS = Ref("piraeus.io/v1", "linstorsatelliteconfigurations")
pytestmark = pytest.mark.timeout(90)
SMALL = {"etcd": False, "monitoring": False, "seaweedfs": False}  # nothing here is about them
WITHOUT = {"nodes": {"cp3": {"dataDisks": None}}, "storage": {"approvedDisks": {"cp3": None}, "replicas": 2}}
WITH = {"nodes": {}, "storage": {"replicas": 2}}


@asynccontextmanager
async def story(
    tmp_path: Path, stack: dict[str, Any], meanwhile: dict[str, Any] | None = None, **linstor: Any
) -> AsyncIterator[Story]:
    """Three machines. `meanwhile`: what happens to them between the last look before the install and LINSTOR's pools."""
    raw = load(FOLDER / "three-nodes.yaml").relocated(prefix()).model_dump(mode="json", by_alias=True)
    platform = {**raw["platform"], "linstor": linstor}
    faults = [{"at": "operator platform source written", "do": meanwhile}] if meanwhile else []
    stack = {"tenant": SMALL, **stack}
    chosen = Scenario.model_validate({**raw, "stack": stack, "platform": platform, "faults": faults})
    async with platform_story(chosen, tmp_path) as told:
        yield told


async def linstor(told: Story, *argv: str) -> None:
    answer = await told.world.queries["linstor"]({"argv": list(argv)})
    assert answer["code"] == 0


async def test_a_node_stops_storing_only_once_linstor_keeps_nothing_there(tmp_path: Path) -> None:
    volumes = [{"name": "pvc-1", "on": ["cp2", "cp3"]}, {"name": "pvc-2", "on": ["cp1", "cp2"]}]
    async with story(tmp_path, WITH, volumes=volumes) as told:
        assert (await told.install()).succeeded
        told.change(**WITHOUT)
        planned = await told.plan()
        refused = await told.install()
        assert "LIN-001" in planned.codes
        assert "cp3 still stores pvc-1" in planned.text
        assert "linstor node evacuate cp3" in planned.text
        assert not refused.succeeded

        await linstor(told, "node", "evacuate", "cp3")
        await told.world.log.happened("volume pvc-1", "moved", timeout_s=10)
        done = await told.install()
        assert done.succeeded, done.text
        left = [c["metadata"]["name"] for c in await told.kube().objects(CONFIGURATIONS)]
        assert sorted(name for name in left if name.startswith("data-")) == ["data-cp1", "data-cp2"]
        assert told.zpools()["cp3/data"] == "ONLINE"


async def test_a_storage_node_that_is_added_is_the_only_one_that_is_touched_and_one_that_breaks_is_drift(
    tmp_path: Path,
) -> None:
    async with story(tmp_path, {**WITHOUT, "waits": {"pools": "3s"}}) as told:
        assert (await told.install()).succeeded
        told.change(**WITH)
        done = await told.install()
        assert done.succeeded, done.text
        assert [name for name in done.changes if "cp1" in name or "cp2" in name] == []
        assert [line for line in told.events() if line.endswith("zpool create")].count("machine cp1 zpool create") == 1
        assert "pool cp3 registered" in told.events()

        assert [name for name in await told.refresh() if "pools" in name] == []
        await linstor(told, "node", "evacuate", "cp2")
        drifted = [name for name in await told.refresh() if name.endswith("pools-registered")]
        broken = await told.install()
        assert len(drifted) == 1
        assert not broken.succeeded
        assert "being evacuated: it is flagged EVACUATE" in broken.failure
        assert "linstor node restore cp2" in broken.failure


async def test_linstor_makes_the_pools_of_approved_disks_without_any_privileged_job(tmp_path: Path) -> None:
    async with story(tmp_path, {"storage": {"provisioner": "linstor"}}) as told:
        assert (await told.install()).succeeded
        created = [e for e in told.world.log.events if e.what == "zpool create"]
        assert [(e.data["by"], e.data["devices"]) for e in created] == [("linstor", ["sdb"])] * 3
        assert not [e for e in told.world.log.events if e.subject.startswith("pod cp")]
        found = [c for c in await told.kube().objects(CONFIGURATIONS) if c["metadata"]["name"] == "data-cp1"]
        [source] = [pool["source"] for c in found for pool in c["spec"]["storagePools"]]
        assert source["hostDevices"][0].startswith("/dev/disk/by-id/")
        second = await told.install()
        assert (second.succeeded, second.changes) == (True, ())


async def test_linstor_is_given_no_disk_that_carries_something(tmp_path: Path) -> None:
    meanwhile = {"machine": {"name": "cp2", "disk": {"dev": "sdb", "residue": "ext4"}}}
    async with story(tmp_path, {"storage": {"provisioner": "linstor"}}, meanwhile) as told:
        done = await told.install()
        assert not done.succeeded
        assert "is not one of the empty disks that LINSTOR reports there" in done.failure
        assert "LIN-005 cp2" in done.failure
        assert not [e for e in told.world.log.events if e.what in ("zpool create", "data overwritten")]
