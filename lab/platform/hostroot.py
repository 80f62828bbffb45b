"""A simulated machine's file system, as far as a privileged pod looks at it: /sys/block, /dev, /usr/local/sbin/zpool.

Disks are sparse files of their real size; what a former life left on a disk is really written into it, so that a script that
looks for labels finds them by reading.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from lab.platform.zpool import partition
from lab.world import Disk, MachineState

SECTOR = 512  # /sys/block/*/size counts these, whatever the disk's own sector is
# What marks a disk as used: offset and bytes of each signature.
_SIGNATURES: Mapping[str, tuple[int, bytes]] = {
    "gpt": (512, b"EFI PART"),
    "lvm2-pv": (512, b"LABELONE\x00\x00\x00\x00\x00\x00\x00\x00LVM2 001"),
    "zfs": (16 * 1024, b"version\x00name\x00state\x00pool_guid"),
    "luks": (0, b"LUKS\xba\xbe\x00\x02"),
    "xfs": (0, b"XFSB"),
    "ext4": (1080, b"\x53\xef"),
    "vfat": (54, b"FAT16   "),
    "swap": (4086, b"SWAPSPACE2"),
    "linux-raid": (4096, b"\xfc\x4e\x2b\xa9"),
    "drbd": (4096, b"\x83\x74\x02\x6b"),
    "unknown": (65536, b"\x01left by something"),
}
_SYSTEM_PARTITIONS = ("EFI", "BOOT", "META", "STATE", "EPHEMERAL")


def build(root: Path, machine: MachineState, tools: Path) -> Path:
    """Make the tree afresh for the machine as it is now; returns `root`."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "dev/disk/by-id").mkdir(parents=True)
    (root / "sys/block").mkdir(parents=True)
    sbin = root / "usr/local/sbin"
    sbin.mkdir(parents=True)
    if "zfs" in machine.spec.extensions:
        for name in ("zpool",):
            shutil.copy(tools / name, sbin / name)
            (sbin / name).chmod(0o755)
    for disk in machine.disks.values():
        _disk(root, disk)
    return root


def _disk(root: Path, disk: Disk) -> None:
    device = root / "dev" / disk.dev
    with device.open("wb") as file:
        file.truncate(disk.spec.size)
    residue = "zfs" if disk.pool else "gpt" if disk.system else disk.residue
    if residue is not None:
        offset, signature = _SIGNATURES[residue]
        with device.open("r+b") as file:
            file.seek(offset)
            file.write(signature)
    _sysfs(root / "sys/block" / disk.dev, disk)
    for name in _links(disk):
        (root / "dev/disk/by-id" / name).symlink_to(f"../../{disk.dev}")


def _sysfs(folder: Path, disk: Disk) -> None:
    (folder / "device").mkdir(parents=True)
    (folder / "holders").mkdir()
    spec = disk.spec
    _write(folder / "size", spec.size // SECTOR)
    _write(folder / "ro", int(spec.readonly))
    if spec.transport == "virtio":
        _write(folder / "serial", spec.serial)
    elif spec.transport == "nvme":
        _write(folder / "device/serial", spec.serial.ljust(20))
    elif spec.serial:
        (folder / "device/vpd_pg80").write_bytes(b"\x00\x80\x00" + bytes([len(spec.serial)]) + spec.serial.encode())
    if spec.wwid:
        _write(folder / ("wwid" if spec.transport == "nvme" else "device/wwid"), spec.wwid)
    for name in _partitions(disk):
        (folder / name).mkdir()
    if disk.residue == "lvm2-pv":
        (folder / "holders/dm-0").mkdir()  # the volume group was activated at boot


def _partitions(disk: Disk) -> list[str]:
    first = partition(disk.dev)
    if disk.system:
        return [f"{first[:-1]}{number}" for number in range(1, len(_SYSTEM_PARTITIONS) + 1)]
    if disk.pool:
        return [first, f"{first[:-1]}9"]
    return []


def _links(disk: Disk) -> list[str]:
    spec = disk.spec
    prefix = {"nvme": "nvme", "virtio": "virtio", "sas": "scsi", "usb": "usb"}.get(spec.transport, "ata")
    model = spec.model.replace(" ", "_")
    names = [f"{prefix}-{model}_{spec.serial}" if model else f"{prefix}-{spec.serial}"] if spec.serial else []
    if spec.wwid.startswith("naa."):
        names.append(f"wwn-0x{spec.wwid.removeprefix('naa.')}")
    return names


def _write(path: Path, value: object) -> None:
    path.write_text(f"{value}\n", encoding="utf-8")


def executable(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
