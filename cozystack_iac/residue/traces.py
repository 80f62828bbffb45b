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
    title="no data disk is an LVM physical volume",
    why="its volume group loses the logical volumes that are on it, and the kernel may activate it at every boot",
    remedy="find out which volume group it belongs to and whose it is; take the disk out of it there, then wipe the disk",
)
RES_002 = Rule(
    "RES-002",
    ERROR,
    title="no data disk is in use by the device mapper",
    why="something runs on it now: a logical volume, an encrypted volume or a cache; it would be torn away",
    remedy="find out what the mapped device is used for and close it; on Talos, wipe the disk in maintenance mode",
)
RES_003 = Rule(
    "RES-003",
    ERROR,
    title="no data disk belongs to another ZFS pool",
    why="the pool of that name and host would lose a device, and be damaged or gone",
    remedy="see on the host it names whether that pool is still wanted; export or destroy it there, then wipe the disk",
)
RES_004 = Rule(
    "RES-004",
    ERROR,
    title="a pool of the wanted name is imported before anything is made",
    why="a pool of this name is on the disk but not imported: making it anew would destroy it and what it holds",
    remedy="import it to keep it: the next run finds it and changes nothing; only when it is not wanted, wipe the disk",
)
RES_005 = Rule(
    "RES-005",
    ERROR,
    title="no data disk is a DRBD replica",
    why="it may be the last good copy of a replicated volume",
    remedy="make sure on its peers that they are UpToDate without it, take it down, then wipe the disk",
)
RES_006 = Rule(
    "RES-006",
    ERROR,
    title="no data disk is a member of a RAID array",
    why="the array loses a member, and the kernel may assemble it again at the next boot",
    remedy="find out what the array holds; stop it and remove this member there, then wipe the disk",
)
RES_007 = Rule(
    "RES-007",
    ERROR,
    title="no data disk carries a file system",
    why="somebody's files may be in it",
    remedy="mount it read-only somewhere, save what is needed, then wipe the disk",
)
RES_008 = Rule(
    "RES-008",
    ERROR,
    title="no data disk is encrypted",
    why="nobody can see what is inside without its key, and wiping the header loses it for ever",
    remedy="ask whoever has the key whether the content is needed; only then wipe the disk",
)
RES_009 = Rule(
    "RES-009",
    ERROR,
    title="no data disk is swap space",
    why="a host that swaps to it crashes; a suspended one loses its memory",
    remedy="see whether a host swaps to it, and switch that off; then wipe the disk",
)
RES_010 = Rule(
    "RES-010",
    ERROR,
    title="no data disk is an installation image",
    why="it is the stick or virtual CD that the machine was started from, or somebody's installation medium",
    remedy="take it out, or detach the image; if it really is the data disk, wipe it",
)
RES_011 = Rule(
    "RES-011",
    ERROR,
    title="no data disk has a GPT partition table",
    why="partitions are somebody's decision, and what is in them may be needed",
    remedy="look into each partition, save what is needed, then wipe the disk",
)
RES_012 = Rule(
    "RES-012",
    ERROR,
    title="no data disk has the backup of a GPT at its end",
    why="only the front was wiped: partitioning tools would offer to restore the old table over the pool",
    remedy="see what the old partitions were, then wipe both ends of the disk",
)
RES_013 = Rule(
    "RES-013",
    ERROR,
    title="no data disk has an MBR partition table or boot sector",
    why="partitions are somebody's decision, and the machine may even start from it",
    remedy="look into each partition, save what is needed, then wipe the disk",
)
RES_014 = Rule(
    "RES-014",
    ERROR,
    title="no data disk is a Ceph OSD",
    why="the Ceph cluster loses its copies on it, and may be short of others",
    remedy="see in that cluster which OSD it is, drain and purge it there, then wipe the disk",
)
RES_015 = Rule(
    "RES-015",
    ERROR,
    title="no data disk carries another Talos installation",
    why="it is another machine's system disk: its configuration, secrets and perhaps an etcd member are on it",
    remedy="make sure that the node it belonged to has left its cluster, then wipe the disk",
)
RES_016 = Rule(
    "RES-016",
    ERROR,
    title="no data disk has partitions",
    why="partitions are somebody's decision, and what is in them may be needed",
    remedy="look into each partition, save what is needed, then wipe the disk",
)
RES_017 = Rule(
    "RES-017",
    ERROR,
    title="what is on a data disk is known",
    why="something wrote to it and nobody here knows what: a raw volume of a virtual machine or a database looks like this",
    remedy="ask whoever used the disk; if nothing on it is needed, wipe it",
)
RES_018 = Rule(
    "RES-018",
    ERROR,
    title="no data disk is mounted or swapped to",
    why="it is in use right now",
    remedy="stop what uses it and unmount it, on Talos by taking it out of the machine configuration",
)
RES_019 = Rule(
    "RES-019",
    ERROR,
    title="no data disk is held by another block device",
    why="it is in use right now, e.g. as a cache",
    remedy="find out what holds it, and release it there",
)

# Shown before any command that writes: kernel names change between boots, so the name is checked first.
_CHECK = "lsblk --nodeps --output NAME,SERIAL,WWN,SIZE,MODEL /dev/{device}   # must still be {disk}"
_TALOS_CHECK = "talosctl get disk {device}{insecure} --nodes {address} --output yaml   # must still be {disk}"
TALOS_LOOK = "talosctl get discoveredvolumes{insecure} --nodes {address}"
_TALOS_WIPE = (
    "talosctl wipe disk {device}{insecure} --nodes {address}   # only when nobody needs what is on it: clears both ends"
)
# `wipefs` removes magic numbers only, and a disk that still carries the rest is `unknown`: the edges have to be zero.
_WIPE = (
    "sudo wipefs --all /dev/{device}   # from here on: only when nobody needs what is on it",
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
        "sudo zpool import   # lists what could be imported, and imports nothing",
        "sudo zdb -l /dev/{device}   # name, host and the other devices of the pool",
    ),
    "zfs-own": Trouble(
        RES_004,
        generic=(_CHECK, "sudo zpool import   # shows it", "sudo zpool import -d /dev/disk/by-id {pool}"),
        talos=(
            _TALOS_CHECK,
            "talosctl reboot --nodes {address}   # Talos imports every pool that it finds at boot",
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
    "gpt-backup": _residue(RES_012, "sudo sgdisk --print /dev/{device}   # reads the backup when the front is gone"),
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
