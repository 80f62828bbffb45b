"""What simulated machines answer: versions, changes of their config, resources as they are and as they change, files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest
from google.protobuf.empty_pb2 import Empty
from grpclib import Status
from ruamel.yaml import YAML

from cozystack_iac.talos.api import state_pb2
from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from cozystack_iac.talos.api.state_grpc import StateStub
from cozystack_iac.talos.errors import Failed, NotThere
from cozystack_iac.talos.machine import ApplyMode, Stage
from lab.machines.resources import KINDS
from lab.scenario import MachineChange, Scenario
from lab.talos import RELEASES
from tests.simulated_machines import DISKS, NET, Start, admin, raw, refused, scenario

# Versions and changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("minor", "features"), [(13, False), (14, False)])
async def test_newer_minors_tell_their_version_in_maintenance(start: Start, minor: int, features: bool) -> None:
    lab = await start(scenario(talos=RELEASES[minor]))

    async with raw(lab) as channel:
        reply = await MachineServiceStub(channel).Version(Empty())

    assert reply.messages[0].version.tag == RELEASES[minor]
    assert reply.messages[0].HasField("features") is features
    assert not reply.messages[0].HasField("metadata")


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
    lab = await start(scenario(talos=RELEASES[minor], machine={"installed": True}))
    await lab.configured()

    async with lab.ours() as machine:
        applied = await machine.apply(lab.secrets.config(env={"http_proxy": "http://127.0.0.1:3128"}), mode)

    assert applied.mode is happened


async def test_a_dry_run_shows_the_change_and_changes_nothing(start: Start) -> None:
    lab = await start(scenario(machine={"installed": True}))
    await lab.configured()
    before = lab.world.log.find("machine cp1", "config applied")

    async with lab.ours() as machine:
        applied = await machine.apply(lab.secrets.config(nodeLabels={"zone": "a"}), dry_run=True)

    assert lab.world.log.find("machine cp1", "config applied") == before
    assert "zone" in applied.details
    assert lab.secrets.os.key.splitlines()[1] not in applied.details


# Routing, watching, files --------------------------------------------------------------------------------------------


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


# Against recorded data, and many machines ----------------------------------------------------------------------------


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
