"""Upgrade and verification on the lab's simulated machines, in this process: who is upgraded, in which order, and what
happens when one of them does not come through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cozystack_iac.stages.node_verification import NodeVerificationProvider, VerificationInputs
from cozystack_iac.stages.talos_upgrade import RunningMachine, TalosUpgradeProvider, UpgradeInputs, UpgradeOutputs
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.verification import WantedMachine
from cozystack_iac.waiting import StageFailed
from lab.events import Event
from lab.scenario import MachineChange
from lab.talos import RELEASES
from tests.talos_site import NET, Site, api_servers, playing, scenario

pytestmark = [pytest.mark.faults, pytest.mark.pace(looks=0.06)]
MODULES = ("openvswitch", "drbd", "zfs", "spl", "vfio_pci", "vfio_iommu_type1")
LVM = {
    "path": "/etc/lvm/lvm.conf",
    "op": "overwrite",
    "permissions": 0o644,
    "content": 'devices {\n   global_filter = [ "r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|", "r|^/dev/loop.*|" ]\n}\n',
}
PLAIN = ("intel-ucode",)  # what a machine booted from the plain image has


def image(talos: str) -> str:
    return f"ghcr.io/cozystack/cozystack/talos:{talos}"


def wanted(site: Site, talos: str, **changes: Any) -> dict[str, WantedMachine]:
    one = WantedMachine(talos=talos, image=image(talos), extensions=("drbd", "zfs"), modules=MODULES)
    return dict.fromkeys(site.world.machines, one.model_copy(update=changes))


def upgrade_inputs(site: Site, talos: str, **changes: Any) -> UpgradeInputs:
    given = {"machines": site.refs, "wanted": wanted(site, talos), "client_configuration": site.client}
    return UpgradeInputs(**(given | {"settled": True, "deadline_s": 10} | changes))


async def upgraded(site: Site, talos: str, **changes: Any) -> UpgradeOutputs:
    return await TalosUpgradeProvider().establish(upgrade_inputs(site, talos, **changes), site.progress())


def verification_inputs(site: Site, talos: str, **changes: Any) -> VerificationInputs:
    given = {"machines": site.refs, "wanted": wanted(site, talos), "virtual": [], "client_configuration": site.client}
    return VerificationInputs(**(given | {"deadline_s": 2} | changes))


async def running(site: Site) -> None:
    """A cluster, as a first run leaves it: configured, bootstrapped, with everything Cozystack needs in the configurations."""
    modules = {"kernel": {"modules": [{"name": name} for name in MODULES]}, "files": [LVM]}
    site.changes = dict.fromkeys(site.world.machines, modules)
    await site.rolled_out()
    await site.bootstrapped()


def rebooted(site: Site) -> list[str]:
    """Machines in the order in which they left for their upgrade; those of the first run are not counted."""
    upgrading = {"upgrading", "image written"}
    return [e.subject.removeprefix("machine ") for e in site.world.log.events if e.what in upgrading]


def away_together(events: tuple[Event, ...]) -> int:
    """How many control planes were at most without etcd at the same time, after etcd had started once on each."""
    started: set[str] = set()
    away: set[str] = set()
    most = 0
    for event in events:
        name = event.subject.removeprefix("machine ")
        if event.what == "etcd running":
            started.add(name)
            away.discard(name)
        elif event.what in ("rebooting", "off") and name in started:
            away.add(name)
            most = max(most, len(away))
    return most


# ---- upgrades ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "pin"), [("v1.12.7", "v1.13.6"), ("v1.13.0", "v1.13.6"), ("v1.13.6", "v1.14.0")])
async def test_older_machines_are_upgraded_one_by_one_and_verified(before: str, pin: str) -> None:
    async with playing(scenario("w1", "cp1", "cp2", "cp3", talos=before, installed=True)) as site, api_servers(site):
        await running(site)
        made = await upgraded(site, pin)
        verified = await NodeVerificationProvider().establish(verification_inputs(site, pin), site.progress())
        again = await upgraded(site, pin)

        assert rebooted(site) == ["cp1", "cp2", "cp3", "w1"]
        assert away_together(site.world.log.events) == 1
        assert {one.talos for one in made.running.values()} == {pin}
        assert made == again
        assert {(one.talos, *one.findings) for one in verified.verified.values()} == {(pin,)}
        assert [text.split()[0] for text in verified.members] == ["cp1", "cp2", "cp3"]


async def test_only_the_machine_that_lacks_an_extension_is_upgraded() -> None:
    each = {"cp2": {"extensions": PLAIN, "talos": "v1.13.6"}}
    async with playing(scenario("cp1", "cp2", "cp3", each=each, installed=True)) as site, api_servers(site):
        await running(site)
        with pytest.raises(StageFailed, match="1 of 3 machines do not meet") as failure:
            await NodeVerificationProvider().establish(verification_inputs(site, "v1.13.6"), site.progress())
        await upgraded(site, "v1.13.6")
        await NodeVerificationProvider().establish(verification_inputs(site, "v1.13.6"), site.progress())

        assert rebooted(site) == ["cp2"]
        assert "cp2 does not have the extension drbd, zfs" in str(failure.value)
        assert "| verified" not in failure.value.details["1. VRF-004 cp2"]
        assert "cp1" in failure.value.details["machines"]


async def test_a_plain_image_is_not_installed_by_itself() -> None:
    async with playing(scenario("cp1", talos="v1.13.0", installed=True)) as site, api_servers(site):
        await running(site)
        plain = wanted(site, "v1.13.6", image="ghcr.io/siderolabs/installer:v1.13.6")
        await upgraded(site, "v1.13.6", wanted=plain)

        assert rebooted(site) == []


@pytest.mark.parametrize(
    ("before", "answer", "says"),
    [
        (
            "v1.12.7",
            {"Upgrade": {"code": "UNKNOWN", "message": "error validating installer image"}},
            "validating installer",
        ),
        (
            "v1.13.0",
            {"Pull": {"code": "NOT_FOUND", "message": "error pulling image: not found"}},
            "error pulling image",
        ),
        ("v1.13.0", {"Upgrade": {"code": "INTERNAL", "message": "upgrade failed: no space left"}}, "no space left"),
    ],
)
async def test_a_failure_on_the_second_machine_stops_the_upgrade_with_everybodys_state(
    before: str, answer: dict[str, Any], says: str
) -> None:
    faults = [{"on": "machine cp2", "answer": answer}]
    chosen = scenario("cp1", "cp2", "cp3", "w1", faults=faults, talos=before, installed=True)
    async with playing(chosen) as site, api_servers(site):
        await running(site)
        with pytest.raises(StageFailed, match=r"cp2 .* was not upgraded") as failure:
            await upgraded(site, "v1.13.6")

        assert rebooted(site) == ["cp1"]
        assert says in failure.value.details["cp2"]
        assert failure.value.details["cp1"] == "runs v1.13.6"
        assert failure.value.details["cp3"] == f"runs {before} instead of v1.13.6"
        assert failure.value.details["w1"] == f"runs {before} instead of v1.13.6"


async def test_a_machine_that_does_not_return_uses_up_its_budget_and_nobody_else_is_touched() -> None:
    chosen = scenario(
        *("cp1", "cp2", "cp3"),
        faults=[{"at": "machine cp2 image written", "do": {"machine": {"name": "cp2", "power": "off"}}}],
        talos="v1.13.0",
        installed=True,
    )
    async with playing(chosen) as site, api_servers(site):
        await running(site)
        with pytest.raises(StageFailed, match="cp2") as failure:
            await upgraded(site, "v1.13.6", deadline_s=1.5)

        assert next(iter(failure.value.details)) == "cp2"
        assert "timed out after" in failure.value.details["cp2"]
        assert rebooted(site) == ["cp1", "cp2"]
        assert away_together(site.world.log.events) == 1


async def test_a_machine_that_falls_back_to_its_old_image_is_not_sent_again() -> None:
    async with playing(scenario("cp1", talos="v1.13.0", installed=True)) as site, api_servers(site):
        await running(site)

        def fall_back(event: Event) -> None:
            if event.line == "machine cp1 rebooting":
                site.world.machines["cp1"].next_talos = None

        site.world.log.on(fall_back)
        with pytest.raises(StageFailed, match="was not upgraded") as failure:
            await upgraded(site, "v1.13.6")

        assert "came back but runs v1.13.0" in failure.value.details["cp1"]
        assert rebooted(site) == ["cp1"]


async def test_no_control_plane_is_upgraded_while_another_is_away() -> None:
    async with playing(scenario("cp1", "cp2", "cp3", talos="v1.13.0", installed=True)) as site, api_servers(site):
        await running(site)
        site.world.change(MachineChange(name="cp3", power="off"))
        await site.world.log.happened("machine cp3", "off", timeout_s=5)
        with pytest.raises(StageFailed, match="1 of 3 machines do not report their version") as failure:
            await upgraded(site, "v1.13.6", deadline_s=0.7)

        assert "cp3" in failure.value.details
        assert rebooted(site) == []


@pytest.mark.parametrize("before", ["v1.12.7", "v1.13.0"])
async def test_a_run_that_was_killed_is_continued_and_upgrades_nobody_twice(before: str) -> None:
    async with playing(scenario("cp1", "cp2", talos=before, installed=True)) as site, api_servers(site):
        await running(site)
        reboots = {name: site.events(name, "rebooting") for name in ("cp1", "cp2")}
        run = asyncio.create_task(upgraded(site, "v1.13.6"))
        await site.world.log.wait_for(
            lambda e: e.subject == "machine cp2" and e.what in ("upgrading", "image pulled"), timeout_s=5
        )
        run.cancel()
        await asyncio.wait({run})

        made = await upgraded(site, "v1.13.6")

        assert {one.talos for one in made.running.values()} == {"v1.13.6"}
        assert {name: site.events(name, "rebooting") - count for name, count in reboots.items()} == {"cp1": 1, "cp2": 1}
        assert away_together(site.world.log.events) == 1


async def test_an_upgrade_of_somebody_else_is_waited_for() -> None:
    answer = {"Upgrade": {"code": "FAILED_PRECONDITION", "message": "another upgrade is in progress", "times": 2}}
    chosen = scenario("cp1", faults=[{"on": "machine cp1", "answer": answer}], talos="v1.13.0", installed=True)
    async with playing(chosen) as site, api_servers(site):
        await running(site)
        await upgraded(site, "v1.13.6")

    assert any("another upgrade is in progress" in line for line in site.said)


async def test_what_cannot_be_done_in_one_step_is_refused_before_anything_is_touched() -> None:
    each = {"cp2": {"talos": "v1.11.6"}}
    async with playing(scenario("cp1", "cp2", each=each, talos="v1.13.0", installed=True)) as site, api_servers(site):
        await running(site)
        with pytest.raises(StageFailed, match="1 of 2 machines cannot be upgraded in one step") as failure:
            await upgraded(site, "v1.13.6")

        assert "needs every minor version in between" in failure.value.details["cp2"]
        assert rebooted(site) == []


async def test_before_a_rollout_machines_without_our_configuration_are_left_to_it() -> None:
    each: dict[str, dict[str, Any]] = {
        "cp2": {"talos": "v1.13.6", "installed": False},
        "w1": {"stage": "foreign"},
    }
    async with (
        playing(scenario("cp1", "cp2", "w1", each=each, talos="v1.13.0", installed=True)) as site,
        api_servers(site),
    ):
        assert (await upgraded(site, "v1.13.6", settled=False)).running == {}  # all of them are fresh
        await site.rolled_out(machines=[site.ref("cp1")])
        await site.bootstrapped(control_planes=[site.ref("cp1")])

        made = await upgraded(site, "v1.13.6", settled=False)

        assert set(made.running) == {"cp1"}
        assert rebooted(site) == ["cp1"]


# ---- drift ---------------------------------------------------------------------------------------------------------


async def test_refresh_sees_another_version_and_calls_for_another_run() -> None:
    async with playing(scenario("cp1", "w1", talos="v1.13.6", installed=True)) as site, api_servers(site):
        await running(site)
        upgrade, verification = TalosUpgradeProvider(), NodeVerificationProvider()
        inputs, checks = upgrade_inputs(site, "v1.13.6"), verification_inputs(site, "v1.13.6")
        made = await upgrade.establish(inputs, site.progress())
        verified = await verification.establish(checks, site.progress())
        assert (await upgrade.observe(inputs, made), await verification.observe(checks, verified)) == (made, verified)
        assert not upgrade.drifted(inputs, made)
        assert not verification.drifted(checks, verified)

        state = site.world.machines["w1"]
        state.talos, state.extensions = "v1.13.0", ("zfs",)
        seen, judged = await upgrade.observe(inputs, made), await verification.observe(checks, verified)

        assert seen is not None
        assert judged is not None
        assert seen.running["w1"] == RunningMachine(talos="v1.13.0", lacking=["drbd"])
        assert judged.verified["w1"].findings == ["VRF-002", "VRF-004", "VRF-005"]
        assert upgrade.drifted(inputs, seen)
        assert verification.drifted(checks, judged)


async def test_a_silent_machine_is_neither_drift_nor_loss_and_all_silent_is_an_error() -> None:
    async with playing(scenario("cp1", "w1", talos="v1.13.6", installed=True)) as site, api_servers(site):
        await running(site)
        upgrade, verification = TalosUpgradeProvider(), NodeVerificationProvider()
        inputs, checks = upgrade_inputs(site, "v1.13.6"), verification_inputs(site, "v1.13.6")
        made = await upgrade.establish(inputs, site.progress())
        verified = await verification.establish(checks, site.progress())
        site.world.change(MachineChange(name="w1", power="off"))
        await site.world.log.happened("machine w1", "off", timeout_s=5)

        seen, judged = await upgrade.observe(inputs, made), await verification.observe(checks, verified)
        assert seen is not None
        assert judged is not None
        assert seen.running["w1"].talos == ""
        assert judged.verified["w1"].findings == ["VRF-001"]
        assert not upgrade.drifted(inputs, seen)
        assert not verification.drifted(checks, judged)

        site.world.change(MachineChange(name="cp1", power="off"))
        await site.world.log.happened("machine cp1", "off", timeout_s=5)
        with pytest.raises(StageFailed, match="No machine reports its Talos version"):
            await upgrade.observe(inputs, made)
        with pytest.raises(StageFailed, match="No machine reports its Talos version"):
            await verification.observe(checks, verified)


@pytest.mark.parametrize("talos", RELEASES.values())
async def test_every_minor_is_verified(talos: str) -> None:
    async with playing(scenario("cp1", talos=talos, installed=True)) as site:
        await running(site)
        made = await NodeVerificationProvider().establish(verification_inputs(site, talos), site.progress())

    assert made.verified["cp1"].findings == []
    assert set(made.verified["cp1"].modules) == set(MODULES)


async def test_a_machine_that_does_not_answer_fails_the_verification() -> None:
    async with playing(scenario("cp1", "w1", installed=True)) as site:
        await running(site)
        site.world.change(MachineChange(name="w1", power="off"))
        await site.world.log.happened("machine w1", "off", timeout_s=5)
        with pytest.raises(StageFailed, match="1 of 2 machines do not meet") as failure:
            await NodeVerificationProvider().establish(
                verification_inputs(site, "v1.13.6", deadline_s=0.3), site.progress()
            )

    assert f"w1 ({NET}.0.12) does not respond" in failure.value.details["1. VRF-001 w1"]


class NoKubernetes:
    """There are no nodes to empty here: see tests/unit/test_kube_absence.py and the engine's story."""

    def __init__(self, *_: object, **__: object) -> None:
        self.closed: list[str] = []

    async def leave(self, machine: MachineRef) -> None:
        self.closed.append(machine.name)

    async def back(self, machine: MachineRef) -> None:
        self.closed.remove(machine.name)

    async def left_behind(self) -> list[str]:
        assert self.closed == []
        return []


@pytest.fixture(autouse=True)
def without_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cozystack_iac.membership.upgrade.Absences", NoKubernetes)
