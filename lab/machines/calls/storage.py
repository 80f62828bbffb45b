"""storage.StorageService: the legacy disk list and wiping of block devices."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from grpclib import Status

from cozystack_iac.talos.api import storage_pb2 as api
from lab.machines import wiping
from lab.machines.call import Call, refuse
from lab.scenario import DiskSpec
from lab.world import Disk, MachineState


class StorageCalls:
    async def Disks(self, call: Call, request: Empty) -> api.DisksResponse:
        disks = [_disk(disk) for disk in call.node.state.disks.values()]
        return api.DisksResponse(messages=[api.Disks(disks=disks)])

    async def BlockDeviceWipe(self, call: Call, request: api.BlockDeviceWipeRequest) -> api.BlockDeviceWipeResponse:
        for wanted in request.devices:
            _check(call.node.state, wanted)
        for wanted in request.devices:
            wiping.wipe_disk(call.node, wanted.device)
        return api.BlockDeviceWipeResponse(messages=[api.BlockDeviceWipe()])


def _check(state: MachineState, wanted: api.BlockDeviceWipeDescriptor) -> None:
    disk = state.disks.get(wanted.device)
    if disk is None:
        refuse(Status.NOT_FOUND, f'blockdevice "{wanted.device}" not found')
    if disk.spec.cdrom:
        refuse(Status.FAILED_PRECONDITION, f'blockdevice "{disk.dev}" is a CD-ROM')
    if disk.spec.readonly:
        refuse(Status.FAILED_PRECONDITION, f'blockdevice "{disk.dev}" is read-only')
    if disk.system and not wanted.skip_volume_check:
        refuse(Status.FAILED_PRECONDITION, f'blockdevice "{disk.dev}" is in use by volume "EPHEMERAL"')
    if disk.in_use:
        refuse(Status.FAILED_PRECONDITION, f'block device "{disk.dev}" is mounted or in use')


def _disk(disk: Disk) -> api.Disk:
    spec = disk.spec
    return api.Disk(
        size=spec.size, model=spec.model, device_name=disk.path, serial=spec.serial, wwid=spec.wwid, type=_type(spec),
        system_disk=disk.system, subsystem="/sys/class/block", readonly=spec.readonly,
    )  # fmt: skip


def _type(spec: DiskSpec) -> api.Disk.DiskType:
    if spec.cdrom:
        return api.Disk.CD
    if spec.transport == "nvme":
        return api.Disk.NVME
    return api.Disk.HDD if spec.rotational else api.Disk.SSD
