"""Simulated machines on their walk from maintenance to a running cluster, and back, as the product's own client sees it."""

from __future__ import annotations

import asyncio

import pytest

from cozystack_iac.talos.errors import AlreadyDone, NotYet, PortClosed, TalosError, Unsupported
from cozystack_iac.talos.machine import Stage
from lab.scenario import MachineChange
from lab.talos import RELEASES
from tests.simulated_machines import DISKS, Start, scenario

# Installation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", RELEASES)
async def test_a_machine_walks_from_maintenance_to_a_running_control_plane(start: Start, minor: int) -> None:
    image = f"ghcr.io/cozystack/cozystack/talos:{RELEASES[minor]}"
    lab = await start(scenario(talos=RELEASES[minor]))
    async with lab.bare() as machine:
        assert (await machine.stage(), await machine.version()) == (Stage.MAINTENANCE, RELEASES[minor])
        assert await machine.system_disk() is None

    await lab.configured(install={"disk": "/dev/sda", "image": image})
    async with lab.ours() as machine:
        assert await machine.stage() is Stage.BOOTING
        await machine.bootstrap()
        await lab.until("cp1", "running")
        assert await machine.stage() is Stage.RUNNING
        assert await machine.system_disk() == "sda"
        assert [member.hostname for member in await machine.etcd_members()] == ["cp1"]

    walk = [what for what in lab.events("machine cp1") if what not in ("bootstrap", "etcd joined", "etcd running")]
    assert walk == ["maintenance", "config applied", "installing", "installed", "rebooting", "booting", "running"]


async def test_an_installed_machine_takes_its_config_without_an_installation(start: Start) -> None:
    lab = await start(scenario(machine={"installed": True}))

    await lab.configured()

    assert lab.events("machine cp1") == ["maintenance", "config applied", "booting"]


async def test_an_install_disk_that_does_not_exist_passes_validation_and_fails_to_install(start: Start) -> None:
    lab = await start(scenario())

    await lab.apply(install={"disk": "/dev/nope", "image": "ghcr.io/cozystack/cozystack/talos:v1.13.6"})

    await lab.until("cp1", "install failed")
    await lab.world_says(lambda: lab.events("machine cp1").count("maintenance") == 2)
    assert lab.world.machines["cp1"].config is None


# Bootstrap -----------------------------------------------------------------------------------------------------------


async def test_three_control_planes_join_one_after_the_other(start: Start) -> None:
    names = ("cp1", "cp2", "cp3")
    lab = await start(scenario(*names))
    await lab.configured(*names)
    async with lab.ours() as machine:
        await machine.bootstrap()
    await asyncio.gather(*(lab.until(name, "running") for name in names))

    async with lab.ours("cp3") as machine:
        members = await machine.etcd_members()

    order = [e.subject for e in lab.world.log.events if e.what in ("etcd joined", "etcd running")]
    assert [member.hostname for member in members] == ["cp1", "cp2", "cp3"]
    assert order == ["machine cp1", "machine cp1", "machine cp2", "machine cp2", "machine cp3", "machine cp3"]


async def test_a_cluster_is_bootstrapped_once(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    async with lab.ours() as machine:
        await machine.bootstrap()
        with pytest.raises(AlreadyDone, match="etcd data directory is not empty"):
            await machine.bootstrap()

    cluster = lab.world.cluster
    assert lab.events("cluster") == ["bootstrapped"]
    assert (cluster.name, cluster.endpoint) == ("lab", "https://127.10.0.10:6443")
    assert cluster.ca_crt == lab.secrets.kubernetes.crt
    assert "PRIVATE KEY" in cluster.ca_key


async def test_bootstrapping_a_second_machine_too_early_is_on_record(start: Start) -> None:
    lab = await start(scenario("cp1", "cp2", delays={"etcd_start": "1h"}))
    await lab.configured("cp1", "cp2")

    for name in ("cp1", "cp2"):
        async with lab.ours(name) as machine:
            await machine.bootstrap()

    assert lab.events("cluster") == ["bootstrapped", "bootstrapped again"]


async def test_bootstrap_is_not_available_before_cri_nor_before_time_is_in_sync(start: Start) -> None:
    lab = await start(scenario(machine={"time_synced": False}, delays={"services_up": "10m"}))
    await lab.apply()
    await lab.until("cp1", "booting")

    async with lab.ours() as machine:
        with pytest.raises(NotYet, match="bootstrap is not available yet"):
            await machine.bootstrap()
        await lab.world_says(lambda: lab.world.machines["cp1"].services_up)
        with pytest.raises(NotYet, match="time is not in sync yet"):
            await machine.bootstrap()


async def test_a_file_that_cannot_be_written_keeps_bootstrap_unavailable(start: Start) -> None:
    lab = await start(scenario())
    await lab.apply(files=[{"path": "/etc/foo.conf", "op": "create", "content": "x"}])
    await lab.until("cp1", "boot failed")

    async with lab.ours() as machine:
        with pytest.raises(NotYet, match="bootstrap is not available yet"):
            await machine.bootstrap()


@pytest.mark.parametrize(("minor", "error"), [(12, NotYet), (13, Unsupported)])
async def test_a_worker_cannot_be_bootstrapped(start: Start, minor: int, error: type[TalosError]) -> None:
    lab = await start(scenario("cp1", "w1", talos=RELEASES[minor], machine={"installed": True}))
    await lab.configured("cp1")
    await lab.configured("w1", role="worker")

    async with lab.ours("w1") as machine:
        with pytest.raises(error, match="control plane node"):
            await machine.bootstrap()
        with pytest.raises(Unsupported, match="member list is only available on control plane nodes"):
            await machine.etcd_members()


async def test_a_worker_that_is_up_first_waits_for_a_control_plane(start: Start) -> None:
    lab = await start(scenario("cp1", "w1", machine={"installed": True}))
    await lab.apply("w1", "worker")
    await lab.until("w1", "no certificate")

    await lab.configured("cp1")
    await lab.world_says(lambda: lab.world.machines["w1"].door == "secure")

    assert await lab.ours("w1").stage() in (Stage.BOOTING, Stage.RUNNING)


async def test_the_kubeconfig_names_the_endpoint_and_comes_without_a_tar_trailer(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    async with lab.ours() as machine:
        text = await machine.kubeconfig()

    assert 'server: "https://127.10.0.10:6443"' in text
    assert 'current-context: "admin@lab"' in text


async def test_no_secret_of_a_config_reaches_the_event_log(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()
    async with lab.ours() as machine:
        await machine.bootstrap()

    told = "".join(event.as_json() for event in lab.world.log.events)

    assert "abcdef.0123456789abcdef" not in told
    assert "PRIVATE KEY" not in told
    assert "PRIVATE KEY" not in repr(lab.world.machines["cp1"])


# Power, reset and upgrade --------------------------------------------------------------------------------------------


async def test_a_rebooted_member_comes_back_without_joining_again(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()
    async with lab.ours() as machine:
        await machine.bootstrap()
        await lab.until("cp1", "running")
        await machine.reboot()
    await lab.world_says(lambda: lab.events("machine cp1").count("running") == 2)

    assert lab.events("machine cp1").count("etcd joined") == 1
    assert lab.world.cluster.leader == "cp1"


async def test_the_port_is_closed_while_the_power_is_off(start: Start) -> None:
    lab = await start(scenario())
    lab.world.change(MachineChange(name="cp1", power="off"))
    await lab.until("cp1", "off")

    with pytest.raises(PortClosed):
        await lab.bare().stage()


async def test_a_power_cut_while_installing_ends_in_maintenance_again(start: Start) -> None:
    cut = {"at": "machine cp1 installing", "do": {"machine": {"name": "cp1", "power": "off"}, "for": "30s"}}
    lab = await start(scenario(faults=[cut]))

    await lab.apply()
    await lab.world_says(lambda: lab.events("machine cp1").count("maintenance") == 2)

    assert lab.world.machines["cp1"].config is None
    assert "installed" not in lab.events("machine cp1")


async def test_the_first_member_survives_a_power_cut(start: Start) -> None:
    cut = {"at": "cluster bootstrapped", "do": {"machine": {"name": "cp1", "power": "cycle"}}}
    lab = await start(scenario(faults=[cut]))
    await lab.configured()

    with pytest.raises(TalosError):
        async with lab.ours() as machine:
            await machine.bootstrap()
            await machine.stage()
    await lab.until("cp1", "running")

    assert lab.events("cluster") == ["bootstrapped"]


async def test_resetting_state_brings_a_machine_back_to_maintenance_with_its_data_disk(start: Start) -> None:
    lab = await start(scenario(machine={"disks": [DISKS[0], DISKS[1] | {"pool": "data"}]}))
    await lab.configured()

    async with lab.ours() as machine:
        await machine.reset(graceful=False)
    await lab.world_says(lambda: lab.events("machine cp1").count("maintenance") == 2)

    async with lab.bare() as machine:
        assert await machine.system_disk() == "sda"
        assert any(volume.content == "zfs" for volume in await machine.volumes())


async def test_upgrading_to_an_image_without_extensions_loses_the_modules(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()
    async with lab.ours() as machine:
        assert {"drbd", "drbd_transport_tcp", "zfs", "spl"} <= {module.name for module in await machine.modules()}
        image = await machine.pull_image("ghcr.io/siderolabs/installer:v1.13.9")
        await machine.lifecycle_upgrade(image)
        assert await machine.version() == "v1.13.6"
        await machine.reboot()
    await lab.world_says(lambda: lab.events("machine cp1").count("booting") == 2)

    await lab.world_says(lambda: lab.world.machines["cp1"].services_up)
    async with lab.ours() as machine:
        assert await machine.version() == "v1.13.9"
        assert [module.name for module in await machine.modules()] == ["openvswitch"]
