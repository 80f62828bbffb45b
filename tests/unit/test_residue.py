"""What can speak against a disk: every kind has its own code, reason and commands, and none of them wipes by itself."""

import re

import pytest

from cozystack_iac import residue
from cozystack_iac.residue import Problem
from cozystack_iac.residue.traces import TRACES

WRITES = ("wipe disk", "wipefs", "of=/dev/", "labelclear", "--zero-superblock", "pvremove", "destroy", "purge")
ASKED = (
    "lvm",
    "device-mapper",
    "zfs",
    "zfs-own",
    "drbd",
    "mdraid",
    "filesystem",
    "gpt",
    "gpt-backup",
    "mbr",
    "ceph",
    "unknown",
)


def test_every_class_that_the_issue_names_has_a_code_of_its_own() -> None:
    assert set(ASKED) <= TRACES.keys()
    codes = [trouble.rule.code for trouble in residue.TROUBLES.values()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", residue.TROUBLES)
@pytest.mark.parametrize("talos", [True, False])
def test_commands_are_complete_and_name_the_disk_they_mean(kind: str, talos: bool) -> None:
    lines = residue.commands(kind, talos=talos, device="sdb", disk="serial=B1", address="10.0.0.11", pool="data")
    assert not [line for line in lines if re.search(r"[{}]", line.replace("$((", "").replace("))", ""))]
    writing = [n for n, line in enumerate(lines) if any(word in line for word in WRITES)]
    if writing:
        assert "must still be serial=B1" in lines[0], "the name is checked before anything is written"
        assert min(writing) > 0


@pytest.mark.parametrize("kind", TRACES)
def test_every_trace_tells_how_it_is_wiped_on_either_kind_of_host(kind: str) -> None:
    talos = residue.commands(kind, talos=True, device="sdb", address="10.0.0.11")
    assert any(line.startswith("talosctl wipe disk sdb --nodes 10.0.0.11 ") for line in talos)
    if kind != "zfs-own":
        generic = "\n".join(residue.commands(kind, talos=False, device="sdb"))
        # both edges: what wipefs leaves behind would be refused as unknown
        assert "of=/dev/sdb bs=512 count=2048 conv=fsync\n" in generic
        assert "seek=$(($(sudo blockdev --getsz /dev/sdb) - 2048))" in generic


def test_a_pool_of_our_own_name_is_imported_first() -> None:
    assert "sudo zpool import -d /dev/disk/by-id data" in residue.commands("zfs-own", talos=False, pool="data")


def test_maintenance_mode_takes_no_certificate() -> None:
    assert residue.commands("lvm", talos=True, device="sdb", address="a", insecure=True)[-1].startswith(
        "talosctl wipe disk sdb --insecure --nodes a "
    )


@pytest.mark.parametrize(
    ("device", "disk"),
    [
        ("sdb", "sdb"),
        ("sdb1", "sdb"),
        ("nvme0n1", "nvme0n1"),
        ("nvme0n1p2", "nvme0n1"),
        ("mmcblk0p1", "mmcblk0"),
        ("", "DEVICE"),
    ],
)
def test_a_partition_is_wiped_with_its_disk(device: str, disk: str) -> None:
    problem = Problem("filesystem", "serial=B1", device, "XFS")
    told = list(residue.lines(problem, node="w1", talos=True, address="10.0.0.21"))
    assert told[0].startswith("RES-007 ")
    assert any(f"talosctl wipe disk {disk} --nodes 10.0.0.21" in line for line in told)


def test_a_kind_that_nobody_knows_is_still_told() -> None:
    assert list(residue.lines(Problem("later", "", "sdb", "?"), node="w1", talos=False)) == ["later: sdb: ?"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("lvm2-pv", "lvm"), ("LVM2_member", "lvm"), ("zfs", "zfs"), ("luks", "luks"), ("swap", "swap"), ("extfs", "filesystem"),
        ("xfs", "filesystem"), ("vfat", "filesystem"), ("squashfs", "filesystem"), ("btrfs", "filesystem"),
        ("iso9660", "iso9660"),
        ("bluestore", "ceph"), ("talosmeta", "talos"), ("gpt", "gpt"), ("linux_raid_member", "mdraid"), ("drbd", "drbd"),
        ("vmfs_volume_member", "filesystem"), ("something of Talos 1.20", "unknown"), ("", ""),
    ],
)  # fmt: skip
def test_what_talos_discovers_has_a_kind(content: str, kind: str) -> None:
    assert residue.volume_kind(content) == kind


def test_a_partition_is_never_nothing() -> None:
    assert residue.volume_kind("", partition=True) == "partition"
    assert residue.volume_kind("xfs", partition=True, partition_label="EPHEMERAL") == "talos"
    assert residue.volume_kind("xfs", partition=True, partition_label="data") == "filesystem"
