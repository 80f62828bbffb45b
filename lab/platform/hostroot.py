"""A simulated machine's file system, as far as a privileged pod looks at it: /sys/block, /dev, /usr/local/sbin/zpool.

Disks are sparse files of their real size; what a former life left on a disk is really written into it, so that a script that
looks for labels finds them by reading.
"""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from lab.machines.selector import symlinks
from lab.platform.signatures import SIGNATURES, Marks, zfs
from lab.platform.zpool import partition
from lab.world import Disk, MachineState

SECTOR = 512  # /sys/block/*/size counts these, whatever the disk's own sector is
_SYSTEM_PARTITIONS = ("EFI", "BOOT", "META", "STATE", "EPHEMERAL")
_PARTITION_BYTES = 64 * 2**20


def build(root: Path, machine: MachineState, tools: Path) -> Path:
    """Make the tree afresh for the machine as it is now; returns `root`."""
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("dev/disk/by-id", "sys/block", "sys/module", "usr/local/sbin", "proc/1"):
        (root / folder).mkdir(parents=True)
    if "zfs" in machine.spec.extensions:
        shutil.copy(tools / "zpool", root / "usr/local/sbin/zpool")
        executable(root / "usr/local/sbin/zpool")
        (root / "sys/module/zfs").mkdir()
        _write(root / "sys/module/zfs/version", machine.spec.zfs.module)
    for disk in machine.disks.values():
        _disk(root, machine, disk)
    for number, name in enumerate(dict.fromkeys(d.spec.held for d in machine.disks.values() if d.spec.held)):
        mapper = root / "sys/block" / f"dm-{number}"
        (mapper / "dm").mkdir(parents=True)
        _write(mapper / "dm/name", name)
        _write(mapper / "dm/uuid", f"{'mpath' if name.startswith('mpath') else 'LVM'}-3600a0b80000f7bd4")
        for disk in machine.disks.values():
            if disk.spec.held == name:
                (root / "sys/block" / disk.dev / "holders" / mapper.name).mkdir()
    return root


def _disk(root: Path, machine: MachineState, disk: Disk) -> None:
    size = disk.spec.size
    parts = _partitions(machine, disk)
    made = "gpt" if parts else disk.residue
    _device(root / "dev" / disk.dev, size, SIGNATURES[made](size) if made else {})
    folder = root / "sys/block" / disk.dev
    _sysfs(folder, disk)
    for name, label, marks in parts:
        _block(folder / name, _PARTITION_BYTES, readonly=False)
        _write(folder / name / "partition", name.removeprefix(disk.dev).lstrip("p"))
        _write(folder / name / "uevent", f"DEVNAME={name}" + (f"\nPARTNAME={label}" if label else ""))
        _device(root / "dev" / name, _PARTITION_BYTES, marks)
    for link in symlinks(disk.spec):
        path = root / link.lstrip("/")
        path.symlink_to(f"../../{disk.dev}")
        for name, _, _ in parts:
            path.with_name(f"{path.name}-part{name.removeprefix(disk.dev).lstrip('p')}").symlink_to(f"../../{name}")


def _device(path: Path, size: int, marks: Marks) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in marks.items():
            file.seek(offset)
            file.write(data)


def _sysfs(folder: Path, disk: Disk) -> None:
    spec = disk.spec
    _block(folder, spec.size, readonly=spec.readonly)
    (folder / "device").mkdir()
    if spec.transport == "virtio":
        _write(folder / "serial", spec.serial)
    elif spec.transport in ("nvme", "mmc"):
        _write(folder / "device/serial", spec.serial.ljust(20))
    elif spec.serial:
        (folder / "device/vpd_pg80").write_bytes(b"\x00\x80\x00" + bytes([len(spec.serial)]) + spec.serial.encode())
    if spec.wwid:
        _write(folder / ("wwid" if spec.transport == "nvme" else "device/wwid"), spec.wwid)


def _block(folder: Path, size: int, *, readonly: bool) -> None:
    (folder / "holders").mkdir(parents=True)
    _write(folder / "size", size // SECTOR)
    _write(folder / "ro", int(readonly))


def _partitions(machine: MachineState, disk: Disk) -> list[tuple[str, str, Marks]]:
    """Name, label and content of each partition."""
    first = partition(disk.dev)
    if disk.system:
        return [(f"{first[:-1]}{n}", label, {}) for n, label in enumerate(_SYSTEM_PARTITIONS, start=1)]
    if disk.pool:
        labels = zfs(disk.pool, machine.hostname, "active")(_PARTITION_BYTES)
        return [(first, "zfs-8b0f6f1d7d9f", labels), (f"{first[:-1]}9", "", {})]
    return []


def _write(path: Path, value: object) -> None:
    path.write_text(f"{value}\n", encoding="utf-8")


def executable(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
