"""The storage stage over time: rights that come and go, disks that fail, machines and disks that are added."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.storage import zfs
from cozystack_iac.storage.jobs import ENFORCE
from lab import scenario
from lab.events import Event
from lab.platform import zpool
from lab.story.platform import Outcome, Story, platform_story
from tests.addresses import prefix

ONLINE = ("pulumi-python:dynamic/cozystack:ZpoolsOnline", "lab-zpools-online")

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def telling(name: str, state: Path, **stack: Any) -> AsyncIterator[Story]:
    chosen = scenario.load(scenario.FOLDER / "storage" / f"{name}.yaml").relocated(prefix())
    async with platform_story(chosen.model_copy(update={"stack": {**chosen.stack, **stack}}), state) as told:
        yield told


async def tried(told: Story) -> Outcome:
    """An `up` that ends where the installer would begin: storage has said all it has to say."""

    async def end() -> None:
        while not any(name.startswith("lab-installer") for _, name in told.program.run.seen):
            await asyncio.sleep(0.005)
        told.program.run.end()

    told.program.run.seen.clear()
    watcher = asyncio.ensure_future(end())
    done = await told.install()
    watcher.cancel()
    return replace(done, succeeded=not told.program.run.failures)


async def up(told: Story) -> str:
    done = await tried(told)
    assert done.succeeded, done.text
    return done.text


def level(told: Story) -> str:
    """What pods may do in the namespace of the jobs."""
    return str(told.api.of("namespaces")["", zfs.NAMESPACE]["metadata"]["labels"].get(ENFORCE, ""))


def pods(told: Story) -> list[str]:
    """Nodes on which a job's pod has run, in order."""
    return [event.subject.removeprefix("pod ") for event in told.world.log.events if event.subject.startswith("pod ")]


def health(told: Story) -> dict[str, str]:
    return {node: pool["health"] for node, pool in told.program.state[ONLINE].outputs["pools"].items()}


async def test_privileges_are_there_only_while_the_jobs_run_and_a_second_up_runs_none(tmp_path: Path) -> None:
    async with telling("nodes-1", tmp_path) as told:
        levels: list[str] = []

        def watch(event: Event) -> None:
            if event.what == "zpool create":
                levels.append(level(told))

        told.world.log.on(watch)
        await up(told)
        ran = pods(told)
        assert levels == ["privileged"]
        assert level(told) == "restricted"

        await up(told)
        assert pods(told) == ran
        assert ONLINE[1] not in told.program.run.changes
        assert not [name for name in told.program.run.changes if name.startswith("lab-zpools")]


async def test_an_api_server_that_forbids_it_is_quoted_and_nothing_was_written(tmp_path: Path) -> None:
    async with telling("nodes-1", tmp_path) as told:
        told.api.refuse("PATCH namespaces", 403, "Forbidden", "namespaces is forbidden to deployer", times=99)
        failed = await tried(told)
        assert not failed.succeeded
        assert "namespaces is forbidden to deployer" in failed.text
        assert "nothing was written to any disk on any node" in failed.text
        assert told.zpools() == {}


async def test_privileges_can_stay_and_be_dropped_later_without_another_job(tmp_path: Path) -> None:
    async with telling("nodes-1", tmp_path, storage={"dropPrivileges": False}) as told:
        await up(told)
        ran = pods(told)
        assert level(told) == "privileged"
        told.change(storage={})
        await up(told)
        assert level(told) == "restricted"
        assert pods(told) == ran


async def test_a_degraded_pool_is_drift_with_its_reason_and_stops_nobody_who_mends_it(tmp_path: Path) -> None:
    async with telling("nodes-2", tmp_path) as told:
        await up(told)
        machine, ran = told.world.machines["w1"], pods(told)
        zpool.damage(machine, "data", "DEGRADED")
        assert ONLINE[1] in await told.refresh()
        assert health(told)["w1"] == "DEGRADED"
        assert health(told)["cp1"] == "ONLINE"

        text = await up(told)
        assert "w1: zpool data is DEGRADED" in text
        assert pods(told) == [*ran, "w1"]
        assert health(told)["w1"] == "DEGRADED"

        zpool.damage(machine, "data", "ONLINE")
        await up(told)
        assert health(told)["w1"] == "ONLINE"
        assert await told.refresh() == []


async def test_a_faulted_pool_stops_the_run_and_is_never_offered_for_destruction(tmp_path: Path) -> None:
    async with telling("nodes-2", tmp_path) as told:
        await up(told)
        zpool.damage(told.world.machines["w1"], "data", "FAULTED")
        await told.refresh()
        failed = await tried(told)
        assert not failed.succeeded
        assert "pool data exists and is FAULTED" in failed.text
        assert "to undo" not in failed.text
        assert "zpool destroy" not in failed.text


async def test_a_pool_that_is_gone_is_seen_and_not_made_over_what_is_left_of_it(tmp_path: Path) -> None:
    async with telling("nodes-1", tmp_path) as told:
        await up(told)
        del told.world.machines["cp1"].zpools["data"]
        assert ONLINE[1] in await told.refresh()
        assert health(told)["cp1"] == "not imported"
        failed = await tried(told)
        assert not failed.succeeded
        assert "RES-004" in failed.text
        assert told.events().count("machine cp1 zpool create") == 1


async def test_a_storage_node_that_is_added_is_the_only_one_that_is_touched(tmp_path: Path) -> None:
    without = {"w2": {"dataDisks": None}}
    approved = {"cp1": ["CP1DATA1"], "cp2": ["CP2DATA1"], "cp3": ["CP3DATA1"], "w1": ["W1DATA1"]}
    async with telling("nodes-5", tmp_path, nodes=without, storage={"approvedDisks": {**approved, "w2": None}}) as told:
        await up(told)
        ran, before = pods(told), health(told)
        told.change(nodes={}, storage={"approvedDisks": {**approved, "w2": ["W2DATA1"]}})
        planned = await told.plan()
        assert "approved by W2DATA1" in planned.text
        assert "approved by W1DATA1" not in planned.text
        await up(told)
        assert pods(told) == [*ran, "w2", "w2"]
        assert set(health(told)) - set(before) == {"w2"}
        changed = [name for name in told.program.run.changes if name.startswith(("lab-ledger", "lab-zpools"))]
        assert [name.rpartition("-")[0] for name in changed] == ["lab", "lab-zpools-w2", "lab-zpools"]


async def test_a_disk_that_is_added_to_a_node_concerns_that_node_alone(tmp_path: Path) -> None:
    """A pool does not grow by itself: how it becomes a mirror is a person's decision, and refused with what it is now."""
    async with telling("nodes-2", tmp_path) as told:
        await up(told)
        ran = pods(told)
        added = scenario.DiskSpec(dev="sdz", size=200 * 1024**3, serial="NEW", model="LAB SSD 200")
        told.world.change(scenario.MachineChange(name="w1", add_disk=added))
        both = {"layout": "mirror", "dataDisks": [{"serial": "W1DATA1"}, {"serial": "NEW"}]}
        told.change(nodes={"w1": both}, storage={"approvedDisks": {"cp1": ["CP1DATA1"], "w1": ["W1DATA1", "NEW"]}})
        failed = await tried(told)
        assert not failed.succeeded
        assert "pool data is single, but the stack file says mirror" in failed.text
        assert pods(told) == [*ran, "w1"]
