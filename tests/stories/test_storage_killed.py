"""Runs that die in the storage stage: whatever the moment, the next run ends it, and every pool was created exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.storage import zfs
from cozystack_iac.storage.jobs import ENFORCE, JOBS, Batch, ended
from lab import scenario
from lab.scenario import MachineChange, Scenario
from lab.story.platform import Story, platform_story
from tests.addresses import prefix

DONE = "helm * pending-install"  # the next link of the install has begun
ONE, THREE = ("nodes-1", "nodes-3")


def chosen(name: str) -> Scenario:
    return scenario.load(scenario.FOLDER / "storage" / f"{name}.yaml").relocated(prefix())


def created(told: Story) -> dict[str, int]:
    """How often each machine's pool was created."""
    lines = [line for line in told.events() if line.endswith(" zpool create")]
    return {line.split()[1]: lines.count(line) for line in lines}


# Calls that the stage makes to the API server for one node: those that change something, and what follows from them.
CALLS = {
    "privileges granted": 1,
    "look made": 5,
    "look read": 6,
    "write released": 8,
    "write read": 9,
    "write suspended": 13,
}


class Deadly:
    """Ends the run after the n-th call that the zpool stage makes to the API server has taken effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: Story) -> None:
        self._told, self.left = told, 0
        call = Batch._persist

        async def persist(batch: Batch, ask: Callable[[], Awaitable[Any]]) -> Any:
            answer = await call(batch, ask)
            self.left -= 1
            if self.left == 0:
                told.program.run.end()
                await asyncio.Event().wait()  # the process is dead: nothing of it happens any more
            return answer

        monkeypatch.setattr(Batch, "_persist", persist)

    async def run(self, calls: int) -> bool:
        """An `up` that is killed at that call; False when it needed fewer."""
        self.left = calls
        await self._told.killed_at(DONE)
        return self.left <= 0


async def check_finished(told: Story) -> None:
    """Pools, Jobs and namespace are as after an install that nobody has disturbed."""
    assert set(told.zpools().values()) == {"ONLINE"}
    assert created(told) == dict.fromkeys(told.world.machines, 1)
    jobs = await told.kube().objects(JOBS)
    assert {job["metadata"]["labels"][zfs.NODE_LABEL] for job in jobs if ended(job)} <= set(told.world.machines)
    assert [job["metadata"]["name"] for job in jobs if not job["spec"]["suspend"]] == []
    [space] = [n for n in told.api.of("namespaces").values() if n["metadata"]["name"] == zfs.NAMESPACE]
    assert space["metadata"]["labels"][ENFORCE] == "restricted"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("calls", [pytest.param(n, id=what) for what, n in CALLS.items()])
async def test_a_run_killed_after_any_call_is_ended_by_the_next(
    calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with platform_story(chosen(ONE), tmp_path) as told:
        deadly = Deadly(monkeypatch, told)
        await deadly.run(calls)
        assert created(told).get("cp1", 0) <= 1
        done = await told.until(DONE)
        assert done.succeeded, done.text
        await check_finished(told)


@pytest.mark.timeout(90)
async def test_a_run_that_is_killed_again_and_again_gets_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with platform_story(chosen(THREE), tmp_path) as told:
        deadly = Deadly(monkeypatch, told)
        runs = 0
        while await deadly.run(calls=5 + 3 * runs):
            runs += 1
            assert runs < 30, "it never gets there"
        assert runs > 5
        await check_finished(told)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("moment", ["pod cp2 succeeded", "machine cp1 zpool create", "machine cp2 zpool create"])
async def test_a_run_killed_while_a_node_looks_or_writes_is_ended_by_the_next(moment: str, tmp_path: Path) -> None:
    async with platform_story(chosen(THREE), tmp_path) as told:
        await told.killed_at(moment)
        done = await told.until(DONE)
        assert done.succeeded, done.text
        await check_finished(told)


@pytest.mark.timeout(60)
async def test_a_node_lost_while_it_wrote_has_its_pool_once_it_is_back(tmp_path: Path) -> None:
    lost = scenario.load(scenario.FOLDER / "storage" / "lost-while-writing.yaml").relocated(prefix())
    async with platform_story(lost, tmp_path) as told:
        failed = await told.install()
        assert not failed.succeeded
        told.change(waits={"zpools": "2s"})
        still = await told.until(DONE)
        assert not still.succeeded
        assert "of an earlier run is still running and may be writing" in still.text
        assert "kubectl --namespace cozy-storage-bootstrap delete job zpool-cp2-" in still.text

        told.change(waits={"zpools": "10m"})
        told.world.change(MachineChange(name="cp2", power="on"))
        done = await told.until(DONE)
        assert done.succeeded, done.text
        assert created(told) == {"cp1": 1, "cp2": 1, "cp3": 1}
