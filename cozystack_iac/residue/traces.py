"""What an earlier life leaves on a disk: each class with its code, its meaning, and commands for a person. Pure data.

Nothing here or elsewhere wipes anything: every command below is printed for somebody to decide about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cozystack_iac.findings import ERROR, Rule

RES_001 = Rule(
    "RES-001",
    ERROR,
    title="No data disk is an LVM physical volume",
    why="its volume group would lose the logical volumes on this disk, and the kernel may activate it at every boot",
    remedy="find out which volume group uses the disk and who owns it; remove the disk from the group, then wipe it",
)
RES_002 = Rule(
    "RES-002",
    ERROR,
    title="No data disk is in use by device mapper",
    why="a logical volume, an encrypted volume or a cache is running on the disk and would be destroyed",
    remedy="find out what uses the mapped device and close it; on Talos, wipe the disk in maintenance mode",
)
RES_003 = Rule(
    "RES-003",
    ERROR,
    title="No data disk belongs to another ZFS pool",
    why="that pool would lose a device and be damaged or lost",
    remedy="check on the named host whether that pool is still needed; export or destroy it there, then wipe the disk",
)
RES_004 = Rule(
    "RES-004",
    ERROR,
    title="An existing pool of this name is imported",
    why="a pool of this name is on the disk but not imported, and creating it again would destroy its data",
    remedy="import the pool to keep it (the next run then uses it unchanged); wipe the disk only if the pool is "
    "not needed",
)
RES_005 = Rule(
    "RES-005",
    ERROR,
    title="No data disk is a DRBD replica",
    why="it may be the last good copy of a replicated volume",
    remedy="make sure that its peers are UpToDate without it, take it down, then wipe the disk",
)
RES_006 = Rule(
    "RES-006",
    ERROR,
    title="No data disk is a RAID member",
    why="the array would lose a member, and the kernel may assemble it again at the next boot",
    remedy="find out what the array holds; stop it, remove this member, then wipe the disk",
)
RES_007 = Rule(
    "RES-007",
    ERROR,
    title="No data disk has a file system",
    why="the file system may hold someone's files",
    remedy="mount it read-only, save what is needed, then wipe the disk",
)
RES_008 = Rule(
    "RES-008",
    ERROR,
    title="No data disk is encrypted",
    why="the content cannot be seen without the key, and wiping the header destroys it permanently",
    remedy="ask the owner of the key whether the data is needed; only then wipe the disk",
)
RES_009 = Rule(
    "RES-009",
    ERROR,
    title="No data disk is swap space",
    why="a host that uses it for swap would crash, and a suspended host would lose its memory",
    remedy="check whether a host swaps to it, turn swap off there, then wipe the disk",
)
RES_010 = Rule(
    "RES-010",
    ERROR,
    title="No data disk is an installation medium",
    why="it is the USB stick or virtual CD that the machine was booted from, or another installation medium",
    remedy="remove the medium, or detach the image; if it really is the data disk, wipe it",
)
RES_011 = Rule(
    "RES-011",
    ERROR,
    title="No data disk has a GPT partition table",
    why="someone created these partitions, and their data may still be needed",
    remedy="check every partition, save what is needed, then wipe the disk",
)
RES_012 = Rule(
    "RES-012",
    ERROR,
    title="No data disk has a backup GPT at its end",
    why="only the start of the disk was wiped, and partitioning tools would offer to restore the old table "
    "over the pool",
    remedy="check what the old partitions were, then wipe both ends of the disk",
)
RES_013 = Rule(
    "RES-013",
    ERROR,
    title="No data disk has an MBR partition table or boot sector",
    why="someone created these partitions, and the machine may even boot from the disk",
    remedy="check every partition, save what is needed, then wipe the disk",
)
RES_014 = Rule(
    "RES-014",
    ERROR,
    title="No data disk is a Ceph OSD",
    why="the Ceph cluster would lose its replicas on this disk, and may have no others",
    remedy="find out which OSD it is, drain and purge it in its Ceph cluster, then wipe the disk",
)
RES_015 = Rule(
    "RES-015",
    ERROR,
    title="No data disk holds another Talos installation",
    why="it is another machine's system disk, with its configuration, its secrets and perhaps an etcd member",
    remedy="make sure that its node has left its cluster, then wipe the disk",
)
RES_016 = Rule(
    "RES-016",
    ERROR,
    title="No data disk has partitions",
    why="someone created these partitions, and their data may still be needed",
    remedy="check every partition, save what is needed, then wipe the disk",
)
RES_017 = Rule(
    "RES-017",
    ERROR,
    title="The content of every data disk is known",
    why="the data has an unknown format, for example a raw volume of a virtual machine or a database",
    remedy="ask whoever used the disk; if the data is not needed, wipe it",
)
RES_018 = Rule(
    "RES-018",
    ERROR,
    title="No data disk is mounted or used as swap",
    why="the disk is in use right now",
    remedy="stop whatever uses it and unmount it (on Talos, remove it from the machine configuration)",
)
RES_019 = Rule(
    "RES-019",
    ERROR,
    title="No data disk is held by another block device",
    why="the disk is in use right now, for example as a cache",
    remedy="find out what holds it, and release it there",
)

# Shown before any command that writes: kernel names change between boots, so the name is checked first.
_CHECK = "lsblk --nodeps --output NAME,SERIAL,WWN,SIZE,MODEL /dev/{device}   # must still be {disk}"
_TALOS_CHECK = "talosctl get disk {device}{insecure} --nodes {address} --output yaml   # must still be {disk}"
TALOS_LOOK = "talosctl get discoveredvolumes{insecure} --nodes {address}"
_TALOS_WIPE = (
    "talosctl wipe disk {device}{insecure} --nodes {address}   # only if nobody needs the data: clears both ends"
)
# `wipefs` removes magic numbers only, and a disk that still carries the rest is `unknown`: the edges have to be zero.
_WIPE = (
    "sudo wipefs --all /dev/{device}   # from here on: only if nobody needs the data",
    "sudo dd if=/dev/zero of=/dev/{device} bs=512 count=2048 conv=fsync",
    "sudo dd if=/dev/zero of=/dev/{device} bs=512 count=2048 conv=fsync seek=$(($(sudo blockdev --getsz /dev/{device}) - 2048))",
)


@dataclass(frozen=True)
class Trouble:
    """One kind. `generic` and `talos` are commands in order; braces name device, disk, address, pool and insecure."""

    rule: Rule
    generic: tuple[str, ...] = ()
    talos: tuple[str, ...] = ()


def _residue(rule: Rule, *release: str) -> Trouble:
    """Check the name, look, release what is in use, then wipe."""
    return Trouble(rule, (_CHECK, *release, *_WIPE), (_TALOS_CHECK, TALOS_LOOK, _TALOS_WIPE))


TRACES: Mapping[str, Trouble] = {
    "lvm": _residue(
        RES_001,
        "sudo pvs --options pv_name,vg_name,pv_size,pv_used /dev/{device}",
        "sudo lvs --options lv_name,lv_size,lv_active $(sudo pvs --noheadings --options vg_name /dev/{device})",
        "sudo vgchange --activate n $(sudo pvs --noheadings --options vg_name /dev/{device})",
    ),
    "device-mapper": _residue(RES_002, "sudo dmsetup ls --tree", "sudo lsblk /dev/{device}"),
    "zfs": _residue(
        RES_003,
        "sudo zpool import   # lists pools that can be imported, and imports nothing",
        "sudo zdb -l /dev/{device}   # shows name, host and the other devices of the pool",
    ),
    "zfs-own": Trouble(
        RES_004,
        generic=(_CHECK, "sudo zpool import   # shows it", "sudo zpool import -d /dev/disk/by-id {pool}"),
        talos=(
            _TALOS_CHECK,
            "talosctl reboot --nodes {address}   # Talos imports every pool it finds at boot",
            _TALOS_WIPE,
        ),
    ),
    "drbd": _residue(
        RES_005,
        "sudo drbdadm status all",
        "sudo drbdadm down RESOURCE   # the one that names /dev/{device} in `drbdadm dump all`",
    ),
    "mdraid": _residue(
        RES_006,
        "sudo mdadm --examine /dev/{device}",
        "cat /proc/mdstat",
        "sudo mdadm --stop /dev/mdN   # the array that lists {device}",
    ),
    "filesystem": _residue(RES_007, "sudo mount --options ro /dev/{device} /mnt && ls -la /mnt; sudo umount /mnt"),
    "luks": _residue(
        RES_008,
        "sudo cryptsetup luksDump /dev/{device}",
        "sudo cryptsetup close NAME   # if `lsblk /dev/{device}` shows it open",
    ),
    "swap": _residue(RES_009, "cat /proc/swaps", "sudo swapoff /dev/{device}"),
    "iso9660": _residue(RES_010),
    "gpt": _residue(RES_011, "sudo sfdisk --list /dev/{device}"),
    "gpt-backup": _residue(
        RES_012, "sudo sgdisk --print /dev/{device}   # reads the backup table when the primary is gone"
    ),
    "mbr": _residue(RES_013, "sudo sfdisk --list /dev/{device}"),
    "ceph": _residue(
        RES_014,
        "sudo ceph-volume lvm list /dev/{device} || sudo ceph-bluestore-tool show-label --dev /dev/{device}",
        "ceph osd safe-to-destroy osd.N && ceph osd purge osd.N   # on the Ceph cluster",
    ),
    "talos": _residue(RES_015, "sudo lsblk --output NAME,PARTLABEL,SIZE /dev/{device}"),
    "partition": _residue(RES_016, "sudo lsblk --output NAME,FSTYPE,LABEL,SIZE,MOUNTPOINTS /dev/{device}"),
    "unknown": _residue(RES_017, "sudo dd if=/dev/{device} bs=1M count=1 | hexdump -C | head -n 40"),
    "mounted": _residue(RES_018, "sudo umount /dev/{device} || sudo swapoff /dev/{device}"),
    "holder": _residue(RES_019, "sudo lsblk --inverse; ls /sys/block/{device}/holders"),
}
