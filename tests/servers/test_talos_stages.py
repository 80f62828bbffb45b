"""Rollout and bootstrap on the lab's simulated machines, in this process: the stories of a first run, a second one, and
one that goes wrong."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from cozystack_iac.stages.base import Known
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutOutputs
from cozystack_iac.stages.node_probe import NodeProbeProvider, ProbeInputs
from cozystack_iac.talos import configuration
from cozystack_iac.talos.probe import Target
from cozystack_iac.waiting import StageFailed
from lab.scenario import MachineChange
from lab.talos import RELEASES
from tests.talos_site import Site, api_servers, playing, scenario

pytestmark = pytest.mark.pace(looks=0.1, patience=1 / 60)


async def test_machines_in_maintenance_become_a_cluster_and_a_second_run_touches_nothing() -> None:
    async with playing(scenario("cp1", "cp2", "cp3", "w1")) as site:
        first = await site.rolled_out()
        members = await site.bootstrapped()
        again = await site.rolled_out()
        members_again = await site.bootstrapped()

        assert first == again
        assert members == members_again
        assert set(members.members) == {"cp1", "cp2", "cp3"}
        assert [site.events(name, "config applied") for name in site.world.machines] == [1, 1, 1, 1]
        assert len(site.world.log.find("cluster", "bootstrapped")) == 1


@pytest.mark.parametrize("talos", RELEASES.values())
async def test_every_minor_is_configured_and_bootstrapped(talos: str) -> None:
    async with playing(scenario("cp1", talos=talos)) as site:
        await site.rolled_out()
        assert set((await site.bootstrapped()).members) == {"cp1"}


async def test_a_run_that_was_killed_while_machines_reboot_is_continued_without_a_second_apply() -> None:
    async with playing(scenario("cp1", "cp2", "cp3")) as site:
        run = asyncio.create_task(site.rolled_out())
        await site.world.log.happened("machine cp2", "config applied", timeout_s=5)
        run.cancel()
        await asyncio.wait({run})

        await site.rolled_out()

        assert [site.events(name, "config applied") for name in site.world.machines] == [1, 1, 1]


async def test_a_foreign_machine_stops_everything_before_anything_is_touched() -> None:
    async with playing(scenario("cp1", "cp2")) as site:
        other = Site(site.world)
        await MachineConfigRolloutProvider().establish(
            other.rollout_inputs(machines=[other.ref("cp2")]), other.progress()
        )
        with pytest.raises(StageFailed, match="1 of 2 machines cannot be configured") as failure:
            await site.rolled_out()

        assert "cp2" in failure.value.details
        assert site.events("cp1", "config applied") == 0


async def test_a_refused_configuration_ends_the_batch_with_everybodys_state_and_no_secret() -> None:
    async with playing(scenario("cp1", "cp2")) as site:
        site.changes = {"cp2": {"flavour": "abcdef.0123456789abcdef"}}
        with pytest.raises(StageFailed, match="cp2") as failure:
            await site.rolled_out()

    assert {"cp1", "cp2"} <= set(failure.value.details)
    assert "rejected its configuration" in failure.value.details["cp2"]
    assert "abcdef.0123456789abcdef" not in str(failure.value)


async def test_a_machine_that_never_returns_uses_up_its_own_budget_and_is_named() -> None:
    async with playing(scenario("cp1", "cp2", installed=True)) as site:
        run = asyncio.create_task(site.rolled_out(deadline_s=1.5))
        await site.world.log.happened("machine cp2", "config applied", timeout_s=5)
        site.world.change(MachineChange(name="cp2", power="off"))
        with pytest.raises(StageFailed, match="cp2 did not come back") as failure:
            await run

    assert next(iter(failure.value.details)) == "cp2"
    assert "cp1" in failure.value.details


@pytest.mark.parametrize("talos", ["v1.13.6", "v1.14.0"])  # the last that reboots by itself, the first that does not
async def test_a_later_change_goes_one_control_plane_at_a_time(talos: str) -> None:
    async with playing(scenario("cp1", "cp2", "cp3", "w1", talos=talos)) as site, api_servers(site):
        await site.rolled_out()
        await site.bootstrapped()
        # Read at boot only: every version has to reboot for it, by itself or because it is told to.
        file = {"path": "/var/x", "op": "create", "permissions": 420, "content": "x"}
        site.changes = {name: {"files": [file]} for name in site.world.machines}
        reboots = {name: site.events(name, "rebooting") for name in site.world.machines}
        before = len(site.world.log.events)

        await site.rolled_out(deadline_s=30)

        assert {n: site.events(n, "rebooting") - reboots[n] for n in reboots} == dict.fromkeys(reboots, 1)
        steps = [e for e in site.world.log.events[before:] if e.what in ("config applied", "running")]
        assert [(e.subject.removeprefix("machine "), e.what) for e in steps] == [
            (name, what) for name in ("cp1", "cp2", "cp3", "w1") for what in ("config applied", "running")
        ]


async def test_a_change_that_needs_no_reboot_causes_none() -> None:
    async with playing(scenario("cp1")) as site, api_servers(site):
        await site.rolled_out()
        await site.bootstrapped()
        reboots = site.events("cp1", "rebooting")
        site.changes = {"cp1": {"sysctls": {"vm.swappiness": "1"}}}

        await site.rolled_out()

        assert (site.events("cp1", "rebooting"), site.events("cp1", "config applied")) == (reboots, 2)


async def test_no_control_plane_is_changed_while_another_is_away() -> None:
    async with playing(scenario("cp1", "cp2", "cp3")) as site, api_servers(site):
        await site.rolled_out()
        await site.bootstrapped()
        site.world.change(MachineChange(name="cp3", power="off"))
        await site.world.log.happened("machine cp3", "off", timeout_s=5)
        site.changes = {"cp1": {"sysctls": {"vm.swappiness": "1"}}}
        with pytest.raises(StageFailed) as failure:
            await site.rolled_out(deadline_s=0.7)

        assert "cp3" in failure.value.details
        assert site.events("cp1", "config applied") == 1


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("FAILED_PRECONDITION", "bootstrap is not available yet"),
        ("FAILED_PRECONDITION", "time is not in sync yet"),
        ("UNIMPLEMENTED", "method Bootstrap not implemented"),
        ("UNAVAILABLE", "connection refused"),
        ("UNKNOWN", "etcd data directory is not empty"),
    ],
)
async def test_a_bootstrap_that_is_not_possible_yet_is_tried_again(code: str, text: str) -> None:
    answer = {"Bootstrap": {"code": code, "message": text, "times": 2}}
    async with playing(scenario("cp1", faults=[{"on": "machine cp1", "answer": answer}])) as site:
        await site.rolled_out()
        await site.bootstrapped()

    assert any(text in line for line in site.said)


async def test_a_bootstrap_whose_answer_was_lost_is_adopted() -> None:
    answer = {"Bootstrap": {"code": "UNAVAILABLE", "message": "gone", "times": 1, "performed": True}}
    async with playing(scenario("cp1", faults=[{"on": "machine cp1", "answer": answer}])) as site:
        await site.rolled_out()
        assert set((await site.bootstrapped()).members) == {"cp1"}
        assert len(site.world.log.find("cluster", "bootstrapped")) == 1


async def test_a_bootstrap_that_is_refused_for_good_fails_at_once() -> None:
    answer = {"Bootstrap": {"code": "PERMISSION_DENIED", "message": "not authorized"}}
    async with playing(scenario("cp1", faults=[{"on": "machine cp1", "answer": answer}])) as site:
        await site.rolled_out()
        with pytest.raises(StageFailed, match="rejects the bootstrap"):
            await site.bootstrapped()


async def test_an_etcd_with_strange_members_is_not_adopted() -> None:
    async with playing(scenario("cp1", "cp2")) as site:
        await site.rolled_out()
        await site.bootstrapped()
        with pytest.raises(StageFailed, match="members that are not control plane nodes") as failure:
            await site.bootstrapped(control_planes=[site.ref("cp1")])

    assert "cp2" in failure.value.details["members"]


async def test_a_control_plane_that_joins_later_is_waited_for() -> None:
    async with playing(scenario("cp1", "cp2", "cp3")) as site, api_servers(site):
        only_first = site.rollout_inputs(machines=[site.ref("cp1")])
        await MachineConfigRolloutProvider().establish(only_first, site.progress())
        assert set((await site.bootstrapped(control_planes=[site.ref("cp1")])).members) == {"cp1"}

        await site.rolled_out()

        assert set((await site.bootstrapped()).members) == {"cp1", "cp2", "cp3"}
        assert len(site.world.log.find("cluster", "bootstrapped")) == 1


async def test_refresh_sees_a_configuration_that_was_changed_by_hand() -> None:
    async with playing(scenario("cp1")) as site:
        inputs, made = site.rollout_inputs(), await site.rolled_out()
        provider = MachineConfigRolloutProvider()
        assert await provider.observe(inputs, made) == made

        state = site.world.machines["cp1"]
        assert state.config is not None
        object.__setattr__(state.config, "text", site.secrets.config(hostname="other"))
        seen = await provider.observe(inputs, made)

    assert seen is not None
    assert seen.digests["cp1"] != made.digests["cp1"]


async def test_refresh_without_any_answer_is_an_error_and_not_a_loss() -> None:
    async with playing(scenario("cp1", stage="off")) as site:
        outputs = RolloutOutputs(digests={"cp1": "0"})
        with pytest.raises(StageFailed, match="No machine reports"):
            await MachineConfigRolloutProvider().observe(site.rollout_inputs(), outputs)


async def test_an_unusable_client_certificate_is_a_sentence_without_the_key() -> None:
    async with playing(scenario("cp1")) as site:
        broken = site.client | {"clientKey": base64.b64encode(b"hunter2").decode()}
        with pytest.raises(StageFailed, match="client certificate is not usable") as failure:
            await site.rolled_out(client_configuration=broken)

    assert "hunter2" not in str(failure.value)


# ---- the probe -----------------------------------------------------------------------------------------------------


def target(site: Site, name: str, **changes: Any) -> Target:
    address = site.world.machines[name].address
    given = {
        "name": name,
        "role": "controlPlane" if name.startswith("cp") else "worker",
        "path": f"cozystack:nodes[{list(site.world.machines).index(name)}]",
        "maintenance": address,
        "address": address,
        "internal": address,
        "install_disk": {"serial": "SYS"},
        "data_disks": [{"serial": "DATA"}],
    }
    return Target.model_validate(given | changes)


def probe_inputs(*targets: Target, **changes: Any) -> ProbeInputs:
    given = {"machines": list(targets), "talos": "v1.13.6", "cozystack": "1.6.2", "deadline_s": 1}
    return ProbeInputs(**(given | changes))


@pytest.mark.parametrize(
    ("stage", "code"),
    [("foreign", "NODE-004"), ("not-talos", "NODE-003"), ("silent", "NODE-001"), ("off", "NODE-002")],
)
async def test_a_machine_that_is_not_in_maintenance_stops_the_preview(stage: str, code: str) -> None:
    async with playing(scenario("cp1", stage=stage)) as site:
        findings = await NodeProbeProvider().preflight(probe_inputs(target(site, "cp1")), None)

    assert [f.code for f in findings] == [code]


async def test_machines_in_maintenance_pass_the_preview_and_the_update() -> None:
    async with playing(scenario("cp1", "w1")) as site:
        inputs = probe_inputs(target(site, "cp1"), target(site, "w1"))
        findings = await NodeProbeProvider().preflight(inputs, None)
        made = await NodeProbeProvider().establish(inputs, site.progress())

    assert [f.code for f in findings] == ["NODE-012"]  # the simulated disks of both are called alike
    assert set(made.probed) == {"cp1", "w1"}
    assert made.probed["cp1"].talos == "v1.13.6"


async def test_what_was_let_through_before_is_not_asked_again() -> None:
    async with playing(scenario("cp1", "w1")) as site:
        one = probe_inputs(target(site, "cp1"))
        made = await NodeProbeProvider().establish(one, site.progress())
        site.world.change(MachineChange(name="cp1", power="off"))
        await site.world.log.happened("machine cp1", "off", timeout_s=5)
        both = probe_inputs(target(site, "cp1"), target(site, "w1"))

        assert await NodeProbeProvider().preflight(both, one) == []
        revised = await NodeProbeProvider().revise(both, Known(one, made), site.progress())

    assert set(revised.probed) == {"cp1", "w1"}


async def test_a_disk_swapped_between_preview_and_update_stops_the_update() -> None:
    async with playing(scenario("cp1")) as site:
        inputs = probe_inputs(target(site, "cp1"))
        assert await NodeProbeProvider().preflight(inputs, None) == []
        change = {"name": "cp1", "disk": {"serial": "DATA", "for_serial": "OTHER"}}
        site.world.change(MachineChange.model_validate(change))
        with pytest.raises(StageFailed) as failure:
            await NodeProbeProvider().establish(inputs, site.progress())

    assert "DSK-004 cozystack:nodes[0].dataDisks[0]" in failure.value.details


async def test_offline_checks_say_skipped_and_never_passed() -> None:
    async with playing(scenario("cp1", stage="off")) as site:
        findings = await NodeProbeProvider().preflight(probe_inputs(target(site, "cp1"), checks="offline"), None)

    assert [(f.code, f.severity.value) for f in findings] == [("NODE-017", "note")]


def test_the_same_configuration_in_another_order_is_the_same() -> None:
    assert configuration.digest("a: 1\nb: 2\n") == configuration.digest("b: 2\na: 1\n")
