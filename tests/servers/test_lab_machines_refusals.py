"""What simulated machines refuse, in the words of each Talos minor, and what a lab may let them answer instead."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.empty_pb2 import Empty
from grpclib import Status

from cozystack_iac.talos.api import machine_pb2, state_pb2
from cozystack_iac.talos.api.lifecycle_grpc import LifecycleServiceStub
from cozystack_iac.talos.api.lifecycle_pb2 import LifecycleServiceUpgradeRequest
from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from cozystack_iac.talos.api.state_grpc import StateStub
from cozystack_iac.talos.api.storage_grpc import StorageServiceStub
from cozystack_iac.talos.api.storage_pb2 import BlockDeviceWipeDescriptor, BlockDeviceWipeRequest
from cozystack_iac.talos.errors import (
    AlreadyDone,
    Failed,
    NotAuthorized,
    Rejected,
    TalosError,
    Unsupported,
)
from cozystack_iac.talos.machine import ApplyMode, Stage
from lab.talos import RELEASES
from tests.simulated_machines import DISKS, Start, raw, refused, scenario

# Configs -------------------------------------------------------------------------------------------------------------


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


# Scripted answers ----------------------------------------------------------------------------------------------------


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


# Calls ---------------------------------------------------------------------------------------------------------------


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
    lab = await start(scenario(talos=RELEASES[minor]))

    async with raw(lab) as channel:
        assert await refused(getattr(MachineServiceStub(channel), method)(request_)) == answer


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


async def test_1_14_does_not_know_the_reboot_mode_on_a_running_machine(start: Start) -> None:
    lab = await start(scenario(talos="v1.14.0", machine={"installed": True}))
    await lab.configured()

    async with lab.ours() as machine:
        with pytest.raises(Unsupported, match="the REBOOT mode is not supported"):
            await machine.apply(lab.secrets.config(), ApplyMode.REBOOT)


def _wiped(device: str) -> BlockDeviceWipeRequest:
    return BlockDeviceWipeRequest(devices=[BlockDeviceWipeDescriptor(device=device)])


async def test_a_data_disk_in_use_is_not_wiped(start: Start) -> None:
    residue = {"residue": "lvm2-pv"}
    disks = [DISKS[0], DISKS[1] | residue, {"dev": "sdc", "size": "1GiB", "pool": "data"}]
    lab = await start(scenario(machine={"disks": disks}))

    async with raw(lab) as channel:
        wipe = StorageServiceStub(channel).BlockDeviceWipe
        await wipe(_wiped("sdb"))
        in_use = (Status.FAILED_PRECONDITION, 'block device "sdc" is mounted or in use')
        assert await refused(wipe(_wiped("sdc"))) == in_use
        assert await refused(wipe(_wiped("sdz"))) == (Status.NOT_FOUND, 'blockdevice "sdz" not found')

    assert lab.world.machines["cp1"].disks["sdb"].residue is None
