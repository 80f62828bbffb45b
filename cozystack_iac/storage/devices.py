"""Disks that LINSTOR itself makes pools of: named by links that survive a reboot, and empty by LINSTOR's own word. Pure.

LINSTOR calls `zpool create -f`, which overwrites what it finds. Whether a disk is empty is therefore asked before LINSTOR is
told about it: `linstor physical-storage list` leaves out every device that carries a signature of any kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cozystack_iac.findings import ERROR, Finding, Rule
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.storage.linstor import DeviceRow
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.machine import ReportedDisk

BY_ID = "/dev/disk/by-id/"

LIN_004 = Rule(
    "LIN-004",
    ERROR,
    title="A disk for a LINSTOR pool is the approved disk",
    why="LINSTOR overwrites whatever is at the path it receives",
    remedy="read the disk's identity on the machine, and correct the stack file",
)
LIN_005 = Rule(
    "LIN-005",
    ERROR,
    title="A disk for a LINSTOR pool is empty",
    why="LINSTOR forces the creation of the pool, so existing data would be lost; this program never wipes a disk",
    remedy="make sure that the data is not needed, then wipe the disk yourself, or use `storage.provisioner: job`",
)
LIN_006 = Rule(
    "LIN-006",
    ERROR,
    title="A disk for a LINSTOR pool has a link in /dev/disk/by-id",
    why="LINSTOR stores a path, and kernel names change between boots",
    remedy="set the disk's `byId`",
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A wanted disk on its node: the link LINSTOR is given, and what else is known of it; empty texts are not known."""

    node: str
    link: str
    device: str = ""
    serial: str = ""
    wwid: str = ""


def on_talos(node: str, wanted: Disk, disks: Iterable[ReportedDisk]) -> Resolved | Finding:
    """The wanted disk as the machine reports it now, or why it is not the one."""
    there = tuple(disks)
    try:
        found = matching(wanted, there)
    except Unjudged as term:
        problem = f"the selector `{term}` cannot be evaluated here"
        return LIN_004.at(node, problem=f"{node}: {problem}", fix="identify the disk by wwid, serial or byId")
    if len(found) != 1:
        listed = "; ".join(str(disk) for disk in there if disk.physical) or "none"
        problem = f"{node}: {wanted} now matches {'no disk' if not found else f'{len(found)} disks'} of the machine"
        return LIN_004.at(node, problem=problem, fix=f"use one of its disks: {listed}")
    [disk] = found
    links = sorted(link for link in disk.symlinks if link.startswith(BY_ID))
    given = _link(wanted)
    link = given if given in links else next(iter(links), "")
    if not link:
        return LIN_006.at(
            node,
            problem=f"{node}: {disk} has no link in /dev/disk/by-id",
            fix="use `storage.provisioner: job` for this disk",
        )
    return Resolved(node, link, disk.path, disk.serial, disk.wwid)


def as_written(node: str, wanted: Disk) -> Resolved | Finding:
    """The wanted disk by the stack file alone, for hosts whose disks nobody can ask about."""
    link = _link(wanted)
    if not link:
        return LIN_006.at(node, problem=f"{node}: {wanted} has no by-id link", fix="add `byId`")
    return Resolved(node, link, "", wanted.serial or "", wanted.wwid or "")


def _link(wanted: Disk) -> str:
    return BY_ID + wanted.by_id.removeprefix(BY_ID) if wanted.by_id else ""


def judge_device(disk: Resolved, offered: Sequence[DeviceRow]) -> Finding | None:
    """Why LINSTOR must not be given the disk; None when LINSTOR itself lists it as empty."""
    here = [row for row in offered if row.node == disk.node]
    matches = [row for row in here if _is(disk, row)]
    named = f"{disk.node}: {disk.link}" + (f" ({disk.device})" if disk.device else "")
    if len(matches) == 1:
        return None
    if len(matches) > 1:
        devices = ", ".join(row.device for row in matches)
        problem = f"{named} could be any of {devices}: its known identities do not tell them apart"
        return LIN_004.at(disk.node, problem=problem, fix="set `serial` and `wwid` in addition to `byId`")
    empty = ", ".join(f"{row.device} (serial {row.serial or 'unknown'})" for row in here) or "none"
    problem = f"{named} is not one of the empty disks that LINSTOR reports there ({empty})"
    fix = (
        "check what is on it (`lsblk -f`, `wipefs --no-act`); if the data is not needed, wipe it "
        "yourself, otherwise use another disk"
        if disk.device
        else (
            "if the disk is present and empty, set its `serial` as shown by `lsblk -o name,serial,wwn`; "
            "otherwise check what is on it (`lsblk -f`), and wipe it yourself if the data is not needed"
        )
    )
    return LIN_005.at(disk.node, problem=problem, fix=fix)


def _is(disk: Resolved, row: DeviceRow) -> bool:
    """By device and every identity both sides know; without a device, by an identity or by what the link's name spells."""
    if disk.serial and row.serial and disk.serial.strip() != row.serial.strip():
        return False
    if disk.wwid and row.wwn and _plain(disk.wwid) != _plain(row.wwn):
        return False
    if disk.device:
        return disk.device == row.device
    if (disk.serial and row.serial) or (disk.wwid and row.wwn):
        return True
    name = disk.link.removeprefix(BY_ID)
    return bool(row.serial and name.endswith(f"_{row.serial.strip()}")) or bool(
        row.wwn and _plain(name.partition("-")[2]) == _plain(row.wwn)
    )


def _plain(wwn: str) -> str:
    """`naa.5000c500a1b2c3d4`, `0x5000c500a1b2c3d4` and `wwn-0x5000…` are one."""
    text = wwn.strip().lower()
    for prefix in ("wwn-", "naa.", "eui.", "0x"):
        text = text.removeprefix(prefix)
    return text
