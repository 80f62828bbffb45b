"""The lab's disks under the product's own script, and LINSTOR's answers under the product's own reading of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest
import pytest_asyncio

from cozystack_iac.storage import linstor as product
from cozystack_iac.storage import zfs
from lab.control import ControlServer
from lab.platform import catalogue, hostroot, kubelet, toolbox, zpool
from lab.platform.context import Platform
from lab.platform.hub import Store
from lab.platform.linstor import NO_ROUTE, Linstor, WantedPool, wanted_pools
from lab.scenario import Answer, DiskSpec, MachineSpec, Residue, Scenario
from lab.world import MachineState, World

GIB = 2**30


class NoCluster:
    """A hub without an API server: stores stay as the test fills them, writes go nowhere."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}

    def store(self, ref: Any, selector: str = "") -> Store:
        return self.stores.setdefault(ref.plural, Store())


class NoEffects:
    def when_applied(self, ref: str, handler: object) -> None:
        pass


def disk(dev: str, **changes: Any) -> DiskSpec:
    fields = {"size": 100 * GIB, "serial": f"SER-{dev}", "wwid": f"naa.5000{dev}", "model": "LAB SSD"}
    return DiskSpec(**{"dev": dev, **fields, **changes})


def world_with(*disks: DiskSpec, **machine: Any) -> World:
    system = disk("sda", system=True)
    spec = MachineSpec(name="n1", address="127.95.0.11", installed=True, disks=(system, *disks), **machine)
    return World(Scenario(name="storage", machines=(spec,), platform={"ingress": "127.95.1.1"}))


def platform_of(world: World, state: Path) -> tuple[Linstor, NoCluster]:
    hub = NoCluster()
    platform = Platform(world, hub, catalogue.load("1.6.2"), state)  # type: ignore[arg-type]
    return Linstor(platform, NoEffects()), hub  # type: ignore[arg-type]


async def run_job(
    world: World, state: Path, *identities: str, layout: zfs.Layout = "single", least: int = GIB
) -> tuple[int, zfs.PoolReport]:
    """The product's Job, as the lab's kubelet runs it."""
    named = tuple(zfs.DiskIdentity(*identity.split("=", 1)) for identity in identities)  # type: ignore[arg-type]
    job = zfs.job(zfs.PoolPlan("n1", "data", layout, named, least), "image")
    pod = {"metadata": {"name": "job", "uid": "uid"}, "spec": job["spec"]["template"]["spec"]}
    tools = toolbox.install(state / "bin")
    code, message, output = await kubelet.execute(pod, world.machines["n1"], tools, state)
    return code, zfs.report("n1", "data", message or output.decode())


@pytest_asyncio.fixture
async def asking(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Starts a control socket for a world, so that the stub tools get answers."""
    servers: list[ControlServer] = []

    async def start(world: World) -> Path:
        linstor, _ = platform_of(world, tmp_path)
        toolbox.answer(world, linstor)
        server = ControlServer(world, tmp_path / "control.sock")
        await server.__aenter__()
        servers.append(server)
        return tmp_path

    yield start
    for server in servers:
        await server.__aexit__(None, None, None)


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["sata", "nvme", "virtio", "mmc"])
async def test_the_job_makes_the_pool_and_confirms_it_afterwards(asking: Any, transport: str) -> None:
    world = world_with(disk("sdb", transport=transport))
    state = await asking(world)

    code, made = await run_job(world, state, "serial=SER-sdb")
    assert (code, made.state, made.health, made.devices) == (0, "created", "ONLINE", ("/dev/sdb1",))
    code, again = await run_job(world, state, "serial=SER-sdb")

    assert (code, again.state) == (0, "present")
    assert [e.data["devices"] for e in world.log.find("machine n1", "zpool create")] == [["sdb"]]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("residue", "kind"), [("lvm2-pv", "lvm"), ("zfs-data", "zfs-own"), ("drbd", "drbd"), ("gpt-backup", "gpt-backup")]
)
async def test_whatever_a_disk_carries_the_job_refuses_it(asking: Any, residue: str, kind: str) -> None:
    world = world_with(disk("sdb", residue=residue))
    state = await asking(world)

    code, report = await run_job(world, state, "wwid=naa.5000sdb")

    assert (code, report.state) == (zfs.REFUSED, "refused")
    assert [(problem.kind, problem.device) for problem in report.problems] == [(kind, "sdb")]
    assert world.log.find("machine n1", "zpool create") == []


@pytest.mark.parametrize("residue", get_args(Residue))
def test_every_residue_is_really_on_the_disk(tmp_path: Path, residue: str) -> None:
    machine = world_with(disk("sdb", residue=residue), disk("sdc")).machines["n1"]
    root = hostroot.build(tmp_path / "root", machine, toolbox.install(tmp_path / "bin"))
    assert (root / "dev/sdb").stat().st_size == 100 * GIB
    used, blank = (edges(root / "dev" / name) for name in ("sdb", "sdc"))
    assert used.strip(b"\x00") != b""
    assert blank.strip(b"\x00") == b""


def edges(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(2**20)
        file.seek(-(2**20), 2)
        return head + file.read()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "identity", "kinds"),
    [
        ({}, "serial=OTHER", {"missing"}),
        ({}, "serial=SER-sda", {"gpt", "partition", "talos"}),
        ({"readonly": True}, "serial=SER-sdb", {"read-only"}),
        ({"size": GIB // 2}, "serial=SER-sdb", {"small"}),
        ({"pool": "tank"}, "serial=SER-sdb", {"gpt", "partition", "zfs"}),
        ({"held": "vg--old-root"}, "serial=SER-sdb", {"device-mapper"}),
        ({"held": "mpatha"}, "serial=SER-sdb", {"multipath"}),
    ],
)
async def test_a_disk_that_does_not_fit_is_refused(
    asking: Any, change: dict[str, Any], identity: str, kinds: set[str]
) -> None:
    world = world_with(disk("sdb", **change))
    code, report = await run_job(world, await asking(world), identity)
    assert (code, report.state) == (zfs.REFUSED, "refused")
    assert {problem.kind for problem in report.problems} == kinds


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("machine", "kind"),
    [({"extensions": ("drbd",)}, "no-zfs"), ({"zfs": {"userland": "2.2.7-1", "module": "2.4.3-1"}}, "versions")],
)
async def test_a_machine_whose_zfs_does_not_fit_is_refused(asking: Any, machine: dict[str, Any], kind: str) -> None:
    world = world_with(disk("sdb"), **machine)
    code, report = await run_job(world, await asking(world), "serial=SER-sdb")
    assert (code, report.state) == (zfs.REFUSED, "refused")
    assert [problem.kind for problem in report.problems] == [kind]


@pytest.mark.asyncio
async def test_a_create_that_breaks_off_has_perhaps_written_and_the_next_run_knows(asking: Any) -> None:
    answer = {"code": "INTERNAL", "message": "connection lost", "performed": True, "times": 1}
    world = world_with(disk("sdb"))
    world.faults.script("machine n1", {"zpool create": Answer.model_validate(answer)})
    state = await asking(world)

    code, broken = await run_job(world, state, "serial=SER-sdb")
    assert (code, broken.state) == (1, "failed")
    assert "connection lost; pools are now: data" in broken.reason
    assert (await run_job(world, state, "serial=SER-sdb"))[1].state == "present"
    assert len(world.log.find("machine n1", "zpool create")) == 1


@pytest.mark.asyncio
async def test_a_pool_with_other_sectors_than_asked_for_is_not_taken(asking: Any) -> None:
    world = world_with(disk("sdb"), zfs={"ashift": 9})
    code, report = await run_job(world, await asking(world), "serial=SER-sdb")
    assert (code, report.state, [problem.kind for problem in report.problems]) == (3, "refused", ["ashift"])


@pytest.mark.asyncio
async def test_a_mirror_is_made_of_every_named_disk(asking: Any) -> None:
    world = world_with(disk("nvme0n1"), disk("nvme1n1"))
    code, report = await run_job(
        world, await asking(world), "serial=SER-nvme0n1", "serial=SER-nvme1n1", layout="mirror"
    )
    assert (code, report.devices) == (0, ("/dev/nvme0n1p1", "/dev/nvme1n1p1"))
    assert world.machines["n1"].zpools["data"].layout == "mirror"


@pytest.mark.asyncio
async def test_a_degraded_pool_fails_the_job(asking: Any) -> None:
    world = world_with(disk("sdb", pool="data"))
    zpool.damage(world.machines["n1"], "data", "DEGRADED")
    code, report = await run_job(world, await asking(world), "serial=SER-sdb")
    assert (code, report.state) == (1, "failed")
    assert "DEGRADED" in report.reason


@pytest.mark.asyncio
async def test_a_stub_tool_outside_a_lab_says_so(tmp_path: Path) -> None:
    tools = toolbox.install(tmp_path / "bin")
    process = await asyncio.create_subprocess_exec(
        tools / "linstor", "node", "list", env={"LAB_STATE": str(tmp_path)}, stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 70
    assert b"the lab does not answer" in error


# The command itself --------------------------------------------------------------------------------------------------


def machine_with(*disks: DiskSpec) -> tuple[World, MachineState]:
    world = world_with(*disks)
    return world, world.machines["n1"]


def test_no_pools_read_differently_by_machines_and_people() -> None:
    world, machine = machine_with(disk("sdb"))
    assert zpool.command(world, machine, ["list", "-H", "-o", "name"]).stdout == ""
    assert zpool.command(world, machine, ["list"]).stdout == "no pools available\n"
    assert zpool.command(world, machine, ["list", "-H", "data"]).code == 1


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["create", "data", "/dev/sdb"], "pool already exists"),
        (["create", "other", "/dev/sdb"], "Device or resource busy"),
        (["create", "other", "/dev/sdx"], "no such device"),
        (["create", "other", "/dev/sdc"], "contains a filesystem of type 'ext4'"),
        (["create", "other"], "missing pool name or vdev"),
        (["destroy", "data"], "unrecognized command"),
    ],
)
def test_create_refuses_as_zfs_does(argv: list[str], error: str) -> None:
    world, machine = machine_with(disk("sdb", pool="data"), disk("sdc", residue="ext4"))
    answer = zpool.command(world, machine, argv)
    assert answer.code != 0
    assert error in answer.stderr
    assert set(machine.zpools) == {"data"}


# LINSTOR -------------------------------------------------------------------------------------------------------------


def controller(tmp_path: Path, *, pools: dict[tuple[str, str], str]) -> tuple[World, Linstor]:
    world = world_with(disk("sdb", pool="data"))
    linstor, hub = platform_of(world, tmp_path)
    node = {"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "127.95.0.11"}]}}
    hub.store(product_ref("nodes")).update({("", "n1"): node})
    linstor._platform.pools.update(pools)
    linstor.registry.nodes.add("n1")
    linstor.registry.online.add("n1")
    linstor.reachable = True
    return world, linstor


def product_ref(plural: str) -> Any:
    return type("Ref", (), {"plural": plural})()


def test_the_product_reads_a_registered_pool(tmp_path: Path) -> None:
    world, linstor = controller(tmp_path, pools={("n1", "data"): "data"})
    answer = linstor.command(product.LIST_POOLS[1:])
    (row,) = product.pool_rows(answer.stdout)
    assert (row.node, row.pool, row.provider, row.zpool, row.errors) == ("n1", "data", "ZFS", "data", ())
    assert row.total_kib == zpool.pool_bytes(world.machines["n1"], world.machines["n1"].zpools["data"]) // 1024
    assert json.loads(answer.stdout)[0][0]["provider_kind"] == "DISKLESS"


def test_a_pool_whose_zpool_broke_is_reported_with_an_error(tmp_path: Path) -> None:
    world, linstor = controller(tmp_path, pools={("n1", "data"): "data"})
    zpool.damage(world.machines["n1"], "data", "FAULTED")
    rows = product.pool_rows(linstor.command(product.LIST_POOLS[1:]).stdout)
    assert product.pool_standings(["n1"], "data", "data", rows)[0].state is product.PoolState.FAULTY


def test_an_unreachable_controller_answers_as_linstor_does(tmp_path: Path) -> None:
    _, linstor = controller(tmp_path, pools={})
    linstor.reachable = False
    answer = linstor.command(product.LIST_POOLS[1:])
    assert (answer.stdout, answer.stderr.strip(), answer.code) == ("", NO_ROUTE, 20)


@pytest.mark.parametrize(("argv", "names"), [(["--nodes", "n1"], ["n1"]), (["-n", "n2"], []), (["-s", "data"], ["n1"])])
def test_lists_can_be_narrowed(tmp_path: Path, argv: list[str], names: list[str]) -> None:
    _, linstor = controller(tmp_path, pools={("n1", "data"): "data"})
    rows = json.loads(linstor.command(["-m", "storage-pool", "list", *argv]).stdout)[0]
    assert sorted({row["node_name"] for row in rows}) == names


def test_nodes_are_listed_with_their_satellite_port(tmp_path: Path) -> None:
    _, linstor = controller(tmp_path, pools={})
    (row,) = json.loads(linstor.command(["-m", "node", "list"]).stdout)[0]
    assert (row["name"], row["connection_status"]) == ("n1", "ONLINE")
    assert row["net_interfaces"][0]["satellite_port"] == 3367


def test_a_configuration_asks_only_on_the_nodes_it_selects() -> None:
    configuration = product.satellite_configuration("n1", "data", "tank")
    assert list(wanted_pools(configuration, "n1", {})) == [WantedPool("n1", "data", "tank")]
    assert list(wanted_pools(configuration, "n2", {})) == []
    everywhere = {"spec": {"storagePools": [{"name": "thin", "zfsThinPool": {"zPool": "tank/thin"}}]}}
    assert list(wanted_pools(everywhere, "n2", {})) == [WantedPool("n2", "thin", "tank/thin", thin=True)]


@pytest.mark.asyncio
async def test_a_pool_is_registered_only_once_its_zpool_is_online(tmp_path: Path) -> None:
    world, linstor = controller(tmp_path, pools={})
    said: list[str] = []

    async def say(node: str, available: str, text: str, configured: str, configured_text: str) -> None:
        said.append(configured_text)

    linstor._say = say  # type: ignore[method-assign]
    configuration = product.satellite_configuration("n1", "data", "data")
    linstor._configurations.update({("", "data-n1"): {"metadata": {"name": "data-n1"}, **configuration}})
    zpool.damage(world.machines["n1"], "data", "UNAVAIL")

    assert await linstor._register()
    assert "zpool 'data' not found" in said[-1]
    zpool.damage(world.machines["n1"], "data", "ONLINE")
    while await linstor._register():
        await asyncio.sleep(0.02)

    assert linstor._platform.pools == {("n1", "data"): "data"}
    assert world.log.has("pool n1", "registered")
    assert said[-1] == "Pools configured"
