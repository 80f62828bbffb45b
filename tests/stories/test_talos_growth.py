"""A running cluster that gets more machines, on the lab's simulated machines in this process: newcomers alone are touched, and
control planes join etcd one after the other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cozystack_iac.stages.base import Known
from cozystack_iac.stages.etcd_bootstrap import BootstrapInputs, BootstrapOutputs, EtcdBootstrapProvider
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutInputs, RolloutOutputs
from cozystack_iac.waiting import StageFailed
from lab.scenario import MachineChange
from tests.talos_site import Site, api_servers, playing, scenario

pytestmark = [pytest.mark.faults, pytest.mark.pace(looks=0.1)]


def rollout_of(site: Site, names: str, **changes: Any) -> RolloutInputs:
    return site.rollout_inputs(machines=[site.ref(name) for name in names.split()], **changes)


def bootstrap_of(site: Site, names: str, **changes: Any) -> BootstrapInputs:
    planes = [site.ref(name) for name in names.split() if name.startswith("cp")]
    given = {"control_planes": planes, "client_configuration": site.client, "deadline_s": 10}
    return BootstrapInputs(**(given | changes))


@asynccontextmanager
async def cluster(born_with: str, *later: str) -> AsyncIterator[tuple[Site, RolloutOutputs, BootstrapOutputs]]:
    """A cluster of the first machines; the others wait in maintenance mode."""
    async with playing(scenario(*born_with.split(), *later)) as site, api_servers(site):
        first = await MachineConfigRolloutProvider().establish(rollout_of(site, born_with), site.progress())
        etcd = await EtcdBootstrapProvider().establish(bootstrap_of(site, born_with), site.progress())
        yield site, first, etcd


def story(site: Site, *names: str) -> list[str]:
    """When the machines were configured and when they voted, in the order of events."""
    told = {"config applied": "configured", "etcd running": "votes"}
    return [
        f"{event.subject.removeprefix('machine ')} {told[event.what]}"
        for event in site.world.log.events
        if event.what in told and event.subject.removeprefix("machine ") in names
    ]


async def test_from_one_control_plane_to_three_one_vote_at_a_time() -> None:
    async with cluster("cp1", "cp2", "cp3", "w1") as (site, first, etcd):
        everybody = "cp1 cp2 cp3 w1"
        known = Known(rollout_of(site, "cp1"), first)
        made = await MachineConfigRolloutProvider().revise(rollout_of(site, everybody), known, site.progress())
        now = await EtcdBootstrapProvider().revise(
            bootstrap_of(site, everybody), Known(bootstrap_of(site, "cp1"), etcd), site.progress()
        )

        assert set(made.digests) == set(everybody.split())
        assert set(now.members) == {"cp1", "cp2", "cp3"}
        assert story(site, "cp2", "cp3") == ["cp2 configured", "cp2 votes", "cp3 configured", "cp3 votes"]
        assert [site.events(name, "config applied") for name in everybody.split()] == [1, 1, 1, 1]
        assert len(site.world.log.find("cluster", "bootstrapped")) == 1


async def test_a_new_worker_is_configured_while_another_one_is_away() -> None:
    async with cluster("cp1 w1", "w2") as (site, first, _):
        site.world.change(MachineChange(name="w1", power="off"))
        known = Known(rollout_of(site, "cp1 w1"), first)
        await MachineConfigRolloutProvider().revise(rollout_of(site, "cp1 w1 w2"), known, site.progress())
        assert [site.events(name, "config applied") for name in ("cp1", "w1", "w2")] == [1, 1, 1]


async def test_nobody_joins_while_a_member_is_away() -> None:
    async with cluster("cp1 cp2 cp3", "cp4") as (site, first, _):
        site.world.change(MachineChange(name="cp2", power="off"))
        known = Known(rollout_of(site, "cp1 cp2 cp3"), first)
        wanted = rollout_of(site, "cp1 cp2 cp3 cp4", deadline_s=1)
        with pytest.raises(StageFailed, match="not healthy before cp4 joins") as failure:
            await MachineConfigRolloutProvider().revise(wanted, known, site.progress())
        assert "cp2: " in str(failure.value)
        assert site.events("cp4", "config applied") == 0


async def test_a_change_waits_for_a_member_that_is_about_to_leave_and_is_away() -> None:
    async with cluster("cp1 cp2 cp3") as (site, first, _):
        site.world.change(MachineChange(name="cp3", power="off"))
        known = Known(rollout_of(site, "cp1 cp2 cp3"), first)
        site.changes = {"cp1": {"sysctls": {"vm.swappiness": "1"}}}
        with pytest.raises(StageFailed, match="not healthy before cp1 is changed"):
            await MachineConfigRolloutProvider().revise(
                rollout_of(site, "cp1 cp2", deadline_s=1), known, site.progress()
            )
        assert site.events("cp1", "config applied") == 1


async def test_members_that_are_about_to_leave_are_no_strangers() -> None:
    async with cluster("cp1 cp2 cp3") as (site, _, etcd):
        known = Known(bootstrap_of(site, "cp1 cp2 cp3"), etcd)
        now = await EtcdBootstrapProvider().revise(bootstrap_of(site, "cp1 cp2"), known, site.progress())
        later = await EtcdBootstrapProvider().revise(
            bootstrap_of(site, "cp1 cp2", deadline_s=9), Known(bootstrap_of(site, "cp1 cp2"), now), site.progress()
        )
        assert set(now.members) == set(later.members) == {"cp1", "cp2", "cp3"}


async def test_an_etcd_that_the_stack_has_seen_is_never_created_again() -> None:
    """The one control plane was exchanged for another in the stack file: its empty successor must not become a new cluster."""
    async with cluster("cp1", "cp2") as (site, _, etcd):
        site.world.change(MachineChange(name="cp1", power="off"))
        await MachineConfigRolloutProvider().establish(rollout_of(site, "cp2"), site.progress())
        known = Known(bootstrap_of(site, "cp1"), etcd)
        with pytest.raises(StageFailed, match="etcd is not complete"):
            await EtcdBootstrapProvider().revise(bootstrap_of(site, "cp2", deadline_s=2), known, site.progress())
        assert len(site.world.log.find("cluster", "bootstrapped")) == 1
        assert site.world.log.find("cluster", "bootstrapped again") == []
        assert site.events("cp2", "bootstrap") == 0


@pytest.mark.parametrize("seed", range(6))
async def test_a_growth_that_was_killed_anywhere_is_continued(seed: int) -> None:
    chance = random.Random(seed)
    async with cluster("cp1", "cp2", "cp3", "w1") as (site, first, etcd):
        known = Known(rollout_of(site, "cp1"), first)
        wanted = rollout_of(site, "cp1 cp2 cp3 w1")
        for _ in range(4):
            run = asyncio.create_task(MachineConfigRolloutProvider().revise(wanted, known, site.progress()))
            await asyncio.wait({run}, timeout=chance.random() * 0.4)
            run.cancel()
            await asyncio.wait({run})
        await MachineConfigRolloutProvider().revise(wanted, known, site.progress())
        growing = Known(bootstrap_of(site, "cp1"), etcd)
        await EtcdBootstrapProvider().revise(bootstrap_of(site, "cp1 cp2 cp3"), growing, site.progress())

        assert [site.events(name, "config applied") for name in ("cp1", "cp2", "cp3", "w1")] == [1, 1, 1, 1]
        voted = [line for line in story(site, "cp2", "cp3") if line.endswith("votes") or line == "cp3 configured"]
        assert voted == ["cp2 votes", "cp3 configured", "cp3 votes"]
