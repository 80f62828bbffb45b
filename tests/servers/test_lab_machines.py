"""Simulated machines, spoken to by the product's own client: TLS, the walk through the stages, answers per minor."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from grpclib.client import Channel
from grpclib.encoding.proto import ProtoCodec
from ruamel.yaml import YAML

from cozystack_iac.talos.api import machine_pb2, state_pb2
from cozystack_iac.talos.api.lifecycle_grpc import LifecycleServiceStub
from cozystack_iac.talos.api.lifecycle_pb2 import LifecycleServiceUpgradeRequest
from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from cozystack_iac.talos.api.state_grpc import StateStub
from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import (
    AlreadyDone,
    Failed,
    NotAuthorized,
    NotThere,
    NotYet,
    PeerFault,
    PortClosed,
    Rejected,
    TalosError,
    Unsupported,
    WrongPeer,
)
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import Applied, ApplyMode, Stage
from cozystack_iac.talos.transport import look
from lab.machines import Machines
from lab.machines.resources import KINDS
from lab.scenario import MachineChange, Scenario
from lab.world import World
from tests.addresses import prefix
from tests.machine_configs import Secrets

NET = prefix()
MINORS = {10: "v1.10.9", 11: "v1.11.6", 12: "v1.12.7", 13: "v1.13.6", 14: "v1.14.0"}
DISKS = [{"dev": "sda", "size": "64GiB", "serial": "SYS"}, {"dev": "sdb", "size": "200GiB", "serial": "DATA"}]


def scenario(*names: str, talos: str = "v1.13.6", **changes: Any) -> Scenario:
    machine = {"talos": talos, "disks": DISKS, **changes.pop("machine", {})}
    named = [{"name": name, "address": f"{NET}.0.{11 + n}", **machine} for n, name in enumerate(names or ("cp1",))]
    body = {"name": "test", "scale": 1000, "machines": named, "platform": {"ingress": f"{NET}.1.1"}}
    return Scenario.model_validate(body | changes)


@dataclass
class Lab:
    """Running machines with the secrets of the cluster they will belong to."""

    world: World
    secrets: Secrets

    def address(self, name: str = "cp1") -> str:
        return self.world.machines[name].address

    def bare(self, name: str = "cp1") -> Machine:
        return Machine(self.address(name))

    def ours(self, name: str = "cp1", role: str = "os:admin", secrets: Secrets | None = None) -> Machine:
        issued = (secrets or self.secrets).client(role)
        return Machine(self.address(name), identity=Identity(self.secrets.os.crt, issued.crt, issued.key))

    async def apply(self, name: str = "cp1", role: str = "controlplane", **changes: Any) -> Applied:
        async with self.bare(name) as machine:
            return await machine.apply(self.secrets.config(role, hostname=name, **changes))

    async def configured(self, *names: str, role: str = "controlplane", **changes: Any) -> None:
        for name in names or ("cp1",):
            await self.apply(name, role, **changes)
        for name in names or ("cp1",):
            await self.until(name, "booting")
            await self.world_says(lambda name=name: self.world.machines[name].services_up)  # type: ignore[misc]
            await self.world_says(lambda name=name: self.world.machines[name].time_synced)  # type: ignore[misc]

    async def world_says(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.005)

    async def until(self, name: str, what: str) -> None:
        await self.world.log.happened(f"machine {name}", what, timeout_s=10)

    def events(self, subject: str) -> list[str]:
        return [event.what for event in self.world.log.find(subject)]


Start = Callable[[Scenario], Coroutine[Any, Any, Lab]]


@pytest.fixture
async def start() -> Any:
    """Starts scenarios; everything is closed at the end of the test."""
    running: list[Machines] = []

    async def begin(chosen: Scenario) -> Lab:
        world = World(chosen)
        machines = Machines(world)
        await machines.__aenter__()
        running.append(machines)
        return Lab(world, Secrets())

    yield begin
    for machines in running:
        await machines.__aexit__(None, None, None)


# ---- TLS ---------------------------------------------------------------------------------------------------------


def insecure(alpn: list[str] | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    if alpn is not None:
        context.set_alpn_protocols(alpn)
    return context


async def test_in_maintenance_the_certificate_says_so_and_its_issuer_has_no_name(start: Start) -> None:
    lab = await start(scenario())

    peer = await look(lab.address())

    assert peer.common_name == "maintenance-service.talos.dev"
    assert (peer.organization, peer.issuer_organization) == ("", "")


async def test_without_alpn_the_handshake_succeeds_and_then_nothing_is_said(start: Start) -> None:
    lab = await start(scenario())

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(None))

    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


async def test_with_alpn_the_server_speaks_first(start: Start) -> None:
    lab = await start(scenario())

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"]))

    assert (await asyncio.wait_for(reader.readexactly(9), 5))[3] == 4  # an HTTP/2 SETTINGS frame
    writer.close()


async def test_tls_1_2_is_not_spoken(start: Start) -> None:
    lab = await start(scenario())

    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"], ssl.TLSVersion.TLSv1_2))


async def test_a_missing_client_certificate_shows_on_the_first_read_not_in_the_handshake(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    reader, writer = await asyncio.open_connection(lab.address(), 50000, ssl=insecure(["h2"]))

    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_a_client_of_another_ca_is_told_that_its_ca_is_unknown(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    with pytest.raises(WrongPeer) as caught:
        await lab.ours(secrets=Secrets()).stage()

    assert caught.value.fault is PeerFault.FOREIGN_CLUSTER


async def test_a_configured_machine_shows_a_certificate_of_its_own_ca(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured(certSANs=["lab.example.org"])

    async with lab.ours() as machine:
        peer = await machine.peer()

    assert (peer.common_name, peer.issuer_organization) == ("cp1", "talos")


@pytest.mark.parametrize(
    ("stage", "error"), [("off", PortClosed), ("not-talos", WrongPeer), ("foreign", WrongPeer), ("silent", TalosError)]
)
async def test_who_else_may_be_at_the_address(start: Start, stage: str, error: type[TalosError]) -> None:
    lab = await start(scenario(machine={"stage": stage}))

    with pytest.raises(error):
        await Machine(lab.address(), deadline_s=1).stage()


# ---- the walk through the stages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", MINORS)
async def test_a_machine_walks_from_maintenance_to_a_running_control_plane(start: Start, minor: int) -> None:
    image = f"ghcr.io/cozystack/cozystack/talos:{MINORS[minor]}"
    lab = await start(scenario(talos=MINORS[minor]))
    async with lab.bare() as machine:
        assert (await machine.stage(), await machine.version()) == (Stage.MAINTENANCE, MINORS[minor])
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
    lab = await start(scenario("cp1", "w1", talos=MINORS[minor], machine={"installed": True}))
    await lab.configured("cp1")
    await lab.configured("w1", role="worker")

    async with lab.ours("w1") as machine:
        with pytest.raises(error, match="control plane node"):
            await machine.bootstrap()
        with pytest.raises(Unsupported, match="member list is only available on control plane nodes"):
            await machine.etcd_members()


async def test_the_kubeconfig_names_the_endpoint_and_comes_without_a_tar_trailer(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    async with lab.ours() as machine:
        text = await machine.kubeconfig()

    assert 'server: "https://127.10.0.10:6443"' in text
    assert 'current-context: "admin@lab"' in text


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


async def test_a_worker_that_is_up_first_waits_for_a_control_plane(start: Start) -> None:
    lab = await start(scenario("cp1", "w1", machine={"installed": True}))
    await lab.apply("w1", "worker")
    await lab.until("w1", "no certificate")

    await lab.configured("cp1")
    await lab.world_says(lambda: lab.world.machines["w1"].door == "secure")

    assert await lab.ours("w1").stage() in (Stage.BOOTING, Stage.RUNNING)


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


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"netwrok": {}}, "unknown keys found during decoding:\nmachine:\n    netwrok: {}"),
        ({"install": {"disk": "", "image": "x:v1.13.6"}}, "either install disk or diskSelector should be defined"),
        (
            {"install": {"diskSelector": {"size": "> 1TB"}}},
            "no disks matched the expression: disk.size > 1000000000000u",
        ),
        ({"kubelet": {"image": "ghcr.io/siderolabs/kubelet:v1.37.0"}}, "is too new to be used with Talos 1.13.6"),
    ],
)
async def test_a_config_the_machine_cannot_use_is_rejected(start: Start, changes: dict[str, Any], says: str) -> None:
    lab = await start(scenario())

    with pytest.raises(Rejected) as caught:
        await lab.apply(**changes)

    assert says in caught.value.text
    assert lab.events("machine cp1") == ["maintenance"]


async def test_a_document_of_a_newer_minor_is_not_known(start: Start) -> None:
    lab = await start(scenario(talos="v1.11.6"))
    config = lab.secrets.config() + "---\napiVersion: v1alpha1\nkind: LinkConfig\nname: ens5\n"

    async with lab.bare() as machine:
        with pytest.raises(Failed, match=r'failed to parse config: "LinkConfig" "v1alpha1": not registered'):
            await machine.apply(config)


async def test_an_install_disk_that_does_not_exist_passes_validation_and_fails_to_install(start: Start) -> None:
    lab = await start(scenario())

    await lab.apply(install={"disk": "/dev/nope", "image": "ghcr.io/cozystack/cozystack/talos:v1.13.6"})

    await lab.until("cp1", "install failed")
    await lab.world_says(lambda: lab.events("machine cp1").count("maintenance") == 2)
    assert lab.world.machines["cp1"].config is None


async def test_a_scripted_answer_replaces_the_real_one_as_often_as_it_says(start: Start) -> None:
    answer = {"ApplyConfiguration": {"code": "UNAVAILABLE", "message": "not now", "times": 1}}
    lab = await start(scenario(faults=[{"on": "machine cp1", "answer": answer}]))

    with pytest.raises(TalosError, match="not now"):
        await lab.apply()
    await lab.apply()

    assert lab.events("machine cp1").count("config applied") == 1


async def test_a_lost_answer_does_not_undo_the_call(start: Start) -> None:
    answer = {"Bootstrap": {"code": "UNAVAILABLE", "performed": True, "times": 1}}
    lab = await start(scenario(faults=[{"on": "machine cp1", "answer": answer}]))
    await lab.configured()

    async with lab.ours() as machine:
        with pytest.raises(TalosError):
            await machine.bootstrap()
        with pytest.raises(AlreadyDone):
            await machine.bootstrap()


# ---- answers of each minor, seen raw -----------------------------------------------------------------------------


async def refused(call: Any) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


def raw(lab: Lab, identity: Identity | None = None, name: str = "cp1") -> Channel:
    context = identity.context if identity is not None else insecure(["h2"])
    return Channel(lab.address(name), 50000, ssl=context, codec=ProtoCodec())


def admin(lab: Lab, role: str = "os:admin") -> Identity:
    issued = lab.secrets.client(role)
    return Identity(lab.secrets.os.crt, issued.crt, issued.key)


OLD = "API is not implemented in maintenance mode"


@pytest.mark.parametrize(
    ("minor", "method", "request_", "answer"),
    [
        (12, "Version", Empty(), (Status.UNIMPLEMENTED, OLD)),
        (12, "Upgrade", machine_pb2.UpgradeRequest(), (Status.UNIMPLEMENTED, OLD)),
        (12, "ServiceList", Empty(), (Status.UNIMPLEMENTED, "method ServiceList not implemented")),
        (12, "Bootstrap", machine_pb2.BootstrapRequest(), (Status.UNIMPLEMENTED, "method Bootstrap not implemented")),
        (13, "Bootstrap", machine_pb2.BootstrapRequest(), (Status.PERMISSION_DENIED, "not authorized")),
        (13, "Reset", machine_pb2.ResetRequest(), (Status.PERMISSION_DENIED, "not authorized")),
        (
            14,
            "EtcdMemberList",
            machine_pb2.EtcdMemberListRequest(),
            (Status.UNIMPLEMENTED, "member list is only available on control plane nodes"),
        ),
    ],
)
async def test_what_maintenance_refuses(
    start: Start, minor: int, method: str, request_: Any, answer: tuple[Status, str]
) -> None:
    lab = await start(scenario(talos=MINORS[minor]))

    async with raw(lab) as channel:
        assert await refused(getattr(MachineServiceStub(channel), method)(request_)) == answer


@pytest.mark.parametrize(("minor", "features"), [(13, False), (14, False)])
async def test_newer_minors_tell_their_version_in_maintenance(start: Start, minor: int, features: bool) -> None:
    lab = await start(scenario(talos=MINORS[minor]))

    async with raw(lab) as channel:
        reply = await MachineServiceStub(channel).Version(Empty())

    assert reply.messages[0].version.tag == MINORS[minor]
    assert reply.messages[0].HasField("features") is features
    assert not reply.messages[0].HasField("metadata")


@pytest.mark.parametrize(
    ("namespace", "type_", "id_", "answer"),
    [
        (
            "runtime",
            "SystemDisks.block.talos.dev",
            "system-disk",
            (
                Status.NOT_FOUND,
                "resource SystemDisks.block.talos.dev(runtime/system-disk@undefined) doesn't exist",
            ),
        ),
        ("runtime", "disks", "sda", (Status.PERMISSION_DENIED, 'resource type "disks" is not supported')),
        ("x", "Disks.block.talos.dev", "sda", (Status.PERMISSION_DENIED, 'namespace "x" is not supported')),
        ("config", "MachineConfigs.config.talos.dev", "v1alpha1", (Status.PERMISSION_DENIED, "not authorized")),
    ],
)
async def test_what_cosi_refuses(
    start: Start, namespace: str, type_: str, id_: str, answer: tuple[Status, str]
) -> None:
    lab = await start(scenario())

    async with raw(lab) as channel:
        request = state_pb2.GetRequest(namespace=namespace, type=type_, id=id_)
        assert await refused(StateStub(channel).Get(request)) == answer


async def test_loaded_modules_are_no_resource_before_1_11(start: Start) -> None:
    lab = await start(scenario(talos="v1.10.9"))

    with pytest.raises(NotAuthorized, match="is not supported"):
        await lab.bare().modules()


async def test_a_reader_may_look_but_not_change(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()

    async with lab.ours(role="os:reader") as machine:
        assert await machine.stage() is Stage.BOOTING
        with pytest.raises(NotAuthorized, match="not authorized"):
            await machine.apply(lab.secrets.config())
        with pytest.raises(NotAuthorized):
            await machine.kubeconfig()


async def test_the_lifecycle_service_is_unknown_before_1_13(start: Start) -> None:
    lab = await start(scenario(talos="v1.12.7"))

    async with raw(lab) as channel:
        upgrade = LifecycleServiceStub(channel).Upgrade
        status, text = await refused(upgrade(LifecycleServiceUpgradeRequest()))

    assert (status, text) == (Status.UNIMPLEMENTED, "unknown service machine.LifecycleService")


@pytest.mark.parametrize(
    ("minor", "mode", "happened"),
    [
        (13, ApplyMode.AUTO, ApplyMode.REBOOT),
        (13, ApplyMode.REBOOT, ApplyMode.REBOOT),
        (14, ApplyMode.AUTO, ApplyMode.NO_REBOOT),
    ],
)
async def test_a_change_that_needs_a_reboot_gets_one_up_to_1_13(
    start: Start, minor: int, mode: ApplyMode, happened: ApplyMode
) -> None:
    lab = await start(scenario(talos=MINORS[minor], machine={"installed": True}))
    await lab.configured()

    async with lab.ours() as machine:
        applied = await machine.apply(lab.secrets.config(env={"http_proxy": "http://127.0.0.1:3128"}), mode)

    assert applied.mode is happened


async def test_1_14_does_not_know_the_reboot_mode_on_a_running_machine(start: Start) -> None:
    lab = await start(scenario(talos="v1.14.0", machine={"installed": True}))
    await lab.configured()

    async with lab.ours() as machine:
        with pytest.raises(Unsupported, match="the REBOOT mode is not supported"):
            await machine.apply(lab.secrets.config(), ApplyMode.REBOOT)


async def test_a_new_san_is_in_the_certificate_without_a_reboot(start: Start) -> None:
    lab = await start(scenario(machine={"installed": True}))
    await lab.configured()
    async with lab.ours() as machine:
        before = await machine.peer()
        applied = await machine.apply(lab.secrets.config(certSANs=["127.0.0.1", "new.example.org"]))

    async with lab.ours() as machine:
        after = await machine.peer()

    assert applied.mode is ApplyMode.NO_REBOOT
    assert b"new.example.org" not in before.der
    assert b"new.example.org" in after.der


async def test_a_dry_run_shows_the_change_and_changes_nothing(start: Start) -> None:
    lab = await start(scenario(machine={"installed": True}))
    await lab.configured()
    before = lab.world.log.find("machine cp1", "config applied")

    async with lab.ours() as machine:
        applied = await machine.apply(lab.secrets.config(nodeLabels={"zone": "a"}), dry_run=True)

    assert lab.world.log.find("machine cp1", "config applied") == before
    assert "zone" in applied.details
    assert lab.secrets.os.key.splitlines()[1] not in applied.details


# ---- routing, watching, files ------------------------------------------------------------------------------------


async def test_a_control_plane_forwards_and_a_worker_does_not(start: Start) -> None:
    lab = await start(scenario("cp1", "w1", machine={"installed": True}))
    await lab.configured("cp1")
    await lab.configured("w1", role="worker")
    there = {"node": lab.address("w1")}

    async with raw(lab, admin(lab)) as channel:
        forwarded = await MachineServiceStub(channel).ServiceList(Empty(), metadata=there)
        both = f"{lab.address('cp1')},{lab.address('w1')}"
        many = await MachineServiceStub(channel).Version(Empty(), metadata={"nodes": both})
        listing = state_pb2.ListRequest(namespace="runtime", type="Disks.block.talos.dev")
        one_to_many = await refused(StateStub(channel).List(listing, metadata={"nodes": both}))
    async with raw(lab, admin(lab), "w1") as channel:
        from_worker = await refused(MachineServiceStub(channel).Version(Empty(), metadata={"node": lab.address("cp1")}))

    assert "trustd" not in {service.id for service in forwarded.messages[0].services}
    assert [message.metadata.hostname for message in many.messages] == both.split(",")
    assert one_to_many == (
        Status.INVALID_ARGUMENT,
        "one-2-many proxying is not supported for method /cosi.resource.State/List",
    )
    assert from_worker == (Status.PERMISSION_DENIED, "no request forwarding")


async def test_a_watch_starts_empty_then_tells_what_is_there_and_what_changes(start: Start) -> None:
    lab = await start(scenario())
    options = state_pb2.WatchOptions(bootstrap_contents=True)
    type_ = "MachineStatuses.runtime.talos.dev"
    request = state_pb2.WatchRequest(namespace="runtime", type=type_, options=options, api_version=1)

    async with raw(lab) as channel, StateStub(channel).Watch.open() as stream:
        await stream.send_message(request, end=True)
        first = [await stream.recv_message() for _ in range(3)]
        lab.world.machines["cp1"].touch()
        lab.world.change(MachineChange(name="cp1", talos="v1.13.9"))
        await stream.cancel()

    kinds = [message.event[0].event_type for message in first[1:] if message is not None]
    assert first[0] is not None
    assert not first[0].event
    assert kinds == [state_pb2.CREATED, state_pb2.BOOTSTRAPPED]


async def test_a_watched_disk_that_leaves_is_destroyed_and_one_that_changes_is_updated(start: Start) -> None:
    lab = await start(scenario())
    request = state_pb2.WatchRequest(namespace="runtime", type="Disks.block.talos.dev")
    gone, swapped = {"dev": "sdb", "gone": True}, {"dev": "sda", "for_serial": "OTHER"}

    async with raw(lab) as channel, StateStub(channel).Watch.open() as stream:
        await stream.send_message(request, end=True)
        await stream.recv_message()
        lab.world.change(MachineChange.model_validate({"name": "cp1", "disk": swapped}))
        updated = await stream.recv_message()
        lab.world.change(MachineChange.model_validate({"name": "cp1", "disk": gone}))
        destroyed = await stream.recv_message()
        await stream.cancel()

    assert updated is not None
    assert destroyed is not None
    assert (updated.event[0].event_type, updated.event[0].resource.metadata.version) == (state_pb2.UPDATED, "2")
    assert "OTHER" in updated.event[0].resource.spec.yaml_spec
    assert (destroyed.event[0].event_type, destroyed.event[0].resource.metadata.id) == (state_pb2.DESTROYED, "sdb")


async def test_watching_what_does_not_exist_says_so_first(start: Start) -> None:
    lab = await start(scenario())
    request = state_pb2.WatchRequest(namespace="runtime", type="SystemDisks.block.talos.dev", id="system-disk")

    async with raw(lab) as channel, StateStub(channel).Watch.open() as stream:
        await stream.send_message(request, end=True)
        await stream.recv_message()
        tombstone = await stream.recv_message()
        await stream.cancel()

    assert tombstone is not None
    event = tombstone.event[0]
    assert (event.event_type, event.resource.metadata.version) == (state_pb2.DESTROYED, "undefined")


async def test_files_of_the_machine_can_be_read(start: Start) -> None:
    lvm = 'devices { global_filter = [ "r|^/dev/drbd.*|" ] }\n' * 40
    lab = await start(scenario())
    await lab.configured(files=[{"path": "/etc/lvm/lvm.conf", "op": "overwrite", "content": lvm}])

    async with lab.ours() as machine:
        assert (await machine.read("/etc/lvm/lvm.conf")).decode() == lvm
        assert (await machine.read("/proc/modules")).decode().split()[0] == "drbd"
        with pytest.raises(NotThere, match="stat /x: no such file or directory"):
            await machine.read("/x")
        with pytest.raises(Failed, match="path must be a regular file"):
            await machine.read("/etc")


async def test_a_data_disk_in_use_is_not_wiped(start: Start) -> None:
    residue = {"residue": "lvm2-pv"}
    disks = [DISKS[0], DISKS[1] | residue, {"dev": "sdc", "size": "1GiB", "pool": "data"}]
    lab = await start(scenario(machine={"disks": disks}))

    async with lab.bare() as machine:
        await machine.wipe_disks(["sdb"])
        with pytest.raises(NotYet, match='block device "sdc" is mounted or in use'):
            await machine.wipe_disks(["sdc"])
        with pytest.raises(NotThere, match='blockdevice "sdz" not found'):
            await machine.wipe_disks(["sdz"])

    assert lab.world.machines["cp1"].disks["sdb"].residue is None


async def test_no_secret_of_a_config_reaches_the_event_log(start: Start) -> None:
    lab = await start(scenario())
    await lab.configured()
    async with lab.ours() as machine:
        await machine.bootstrap()

    told = "".join(event.as_json() for event in lab.world.log.events)

    assert "abcdef.0123456789abcdef" not in told
    assert "PRIVATE KEY" not in told
    assert "PRIVATE KEY" not in repr(lab.world.machines["cp1"])


# ---- against recorded data, and many machines --------------------------------------------------------------------


async def test_replies_have_the_keys_of_a_real_servers(start: Start, vectors: Path) -> None:
    recorded = _recorded_specs(vectors)
    disks = [DISKS[0] | {"wwid": "naa.5000c500a1b2c001", "model": "M", "rotational": True, "system": True}]
    lab = await start(scenario(machine={"installed": True, "disks": disks}))
    await lab.configured()
    async with lab.ours() as machine:
        await machine.bootstrap()
        await lab.until("cp1", "running")

    unknown = {}
    for type_, keys in recorded.items():
        async with raw(lab, admin(lab)) as channel:
            request = state_pb2.ListRequest(namespace=KINDS[type_].namespace, type=type_)
            replies = await StateStub(channel).List(request)
        assert replies, type_
        ours = set().union(*(_keys(reply.resource.spec.yaml_spec) for reply in replies))
        if ours - keys:
            unknown[type_] = ours - keys

    assert unknown == {}


def _recorded_specs(vectors: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for entry in json.loads((vectors / "talos" / "wire.json").read_text()):
        resource = entry["json"].get("resource") or {}
        if spec := resource.get("spec", {}).get("yamlSpec"):
            found.setdefault(resource["metadata"]["type"], set()).update(_keys(spec))
    return found


def _keys(spec: str) -> set[str]:
    value = YAML(typ="safe", pure=True).load(spec)
    return set(value) if isinstance(value, dict) else {f"a bare {type(value).__name__}"}


async def test_a_thousand_machines_fit_in_one_process(start: Start) -> None:
    before = psutil.Process().memory_info().rss
    began = time.process_time()

    lab = await start(Scenario.fleet(1000, prefix=NET))

    assert time.process_time() - began < 5
    assert psutil.Process().memory_info().rss - before < 300 * 2**20
    assert await lab.bare("m1000").stage() is Stage.MAINTENANCE
