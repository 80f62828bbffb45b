"""What can speak against writing to a disk, or against a pool that is there. Pure.

Two recognisers name the kinds: the job's script, which reads the device itself (`residue.sh`), and `volume_kind`, which reads
what Talos has discovered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cozystack_iac.findings import ERROR, Rule
from cozystack_iac.residue.traces import TALOS_LOOK, TRACES, Trouble

RES_030 = Rule(
    "RES-030",
    ERROR,
    title="Data disks are not multipath devices",
    why="the disk is one of several paths to the same device, so two pools could write to it",
    remedy="use local disks, or remove this device from multipath; ZFS on multipath devices is not supported here",
)
RES_031 = Rule(
    "RES-031",
    ERROR,
    title="Data disks are physical disks",
    why="device-mapper devices, RAID arrays, zvols and loop devices use other disks, whose failures ZFS would not see",
    remedy="identify the disk itself by serial, wwid or byId",
)
RES_032 = Rule(
    "RES-032",
    ERROR,
    title="Every listed disk is in its node",
    why="the disk was removed, has failed, or is in another node; no other disk is used in its place",
    remedy="list the disks of the node; replace the disk, or correct dataDisks and approvedDisks in the stack file",
)
RES_033 = Rule(
    "RES-033",
    ERROR,
    title="Every identity matches one disk",
    why="which of the disks is written would be a matter of chance",
    remedy="identify the disk by something that only this disk has",
)
RES_034 = Rule(
    "RES-034",
    ERROR,
    title="Every disk is listed once",
    why="mirroring a disk with itself protects nothing",
    remedy="remove one of the two entries, or correct it to the intended disk",
)
RES_035 = Rule(
    "RES-035",
    ERROR,
    title="Data disks are large enough",
    why="the platform's own volumes would fill the disk during the install",
    remedy="use a larger disk, or lower storage.minimumSize if you know that this size is enough",
)
RES_036 = Rule(
    "RES-036",
    ERROR,
    title="Data disks are writable",
    why="the kernel does not allow writes: a write-protect switch, a worn-out drive, or a hypervisor setting",
    remedy="check the kernel log for the reason",
)
RES_037 = Rule(
    "RES-037",
    ERROR,
    title="Data disks are readable",
    why="the content of the disk is unknown, and unknown is never treated as empty",
    remedy="check the kernel log, and replace a drive that cannot be read",
)
RES_038 = Rule(
    "RES-038",
    ERROR,
    title="The number of disks fits the layout",
    why="the zpool command rejects the layout, or creates a pool with less redundancy than expected",
    remedy="add disks, or choose another layout",
)
RES_039 = Rule(
    "RES-039",
    ERROR,
    title="The zpool command matches the kernel module",
    why="a pool created by another version may have features that the module cannot import after a reboot",
    remedy="on Talos, use an image whose zfs extension was built for its kernel; elsewhere, update zfsutils and reboot",
)
RES_040 = Rule(
    "RES-040",
    ERROR,
    title="Every storage node has ZFS",
    why="no pool can be created without ZFS",
    remedy="on Talos, use an image with the zfs extension and load the zfs module; elsewhere, install zfsutils-linux",
)
RES_041 = Rule(
    "RES-041",
    ERROR,
    title="An existing pool of this name is on the configured disks",
    why="the existing pool is not the one that the stack file describes, and may belong to someone else",
    remedy="set dataDisks to the disks of that pool, choose another storage.zpool, or remove that pool yourself",
)
RES_042 = Rule(
    "RES-042",
    ERROR,
    title="An existing pool of this name has the configured layout",
    why="the pool survives fewer disk failures than the stack file promises, and its layout cannot be changed",
    remedy="set layout in the stack file to that of the pool, or save its data and remove the pool yourself",
)
RES_043 = Rule(
    "RES-043",
    ERROR,
    title="Pools use 4 KiB sectors",
    why="512-byte writes to a 4 KiB disk cause read-modify-write cycles, which makes the pool several times slower",
    remedy="the sector size cannot be changed: save the data and recreate the pool",
)
RES_044 = Rule(
    "RES-044",
    ERROR,
    title="Disks do not change during the check",
    why="a disk appeared, disappeared or changed its name between the check and the write",
    remedy="check the kernel log for hot-plugged disks, then run `pulumi up` again; nothing was written",
)

_TALOS_STATUS = (
    "kubectl debug node/{node} --namespace kube-system --profile sysadmin --image alpine --stdin --tty -- "
    "nsenter --target 1 --mount -- /usr/local/sbin/zpool status -LP {pool}"
)

TROUBLES: Mapping[str, Trouble] = {
    **TRACES,
    "multipath": Trouble(
        RES_030,
        generic=("sudo multipath -ll", "sudo multipath -w /dev/{device} && sudo multipath -r   # stops treating it so"),
        talos=(TALOS_LOOK,),
    ),
    "virtual": Trouble(
        RES_031,
        generic=("lsblk --nodeps --output NAME,SERIAL,WWN,SIZE,MODEL; ls -l /dev/disk/by-id",),
        talos=("talosctl get disks --nodes {address}",),
    ),
    "missing": Trouble(
        RES_032,
        generic=("lsblk --nodeps --output NAME,SERIAL,WWN,SIZE,MODEL; ls -l /dev/disk/by-id",),
        talos=("talosctl get disks --nodes {address} --output yaml",),
    ),
    "ambiguous": Trouble(
        RES_033,
        generic=("lsblk --nodeps --output NAME,SERIAL,WWN,SIZE,MODEL; ls -l /dev/disk/by-id",),
        talos=("talosctl get disks --nodes {address} --output yaml",),
    ),
    "twice": Trouble(RES_034),
    "small": Trouble(RES_035),
    "read-only": Trouble(
        RES_036, generic=("sudo dmesg | grep {device}",), talos=("talosctl dmesg --nodes {address} | grep {device}",)
    ),
    "unreadable": Trouble(
        RES_037,
        generic=("sudo dmesg | grep {device}", "sudo smartctl --all /dev/{device}"),
        talos=("talosctl dmesg --nodes {address} | grep {device}",),
    ),
    "layout": Trouble(RES_038),
    "versions": Trouble(
        RES_039,
        generic=("zpool version", "cat /sys/module/zfs/version"),
        talos=("talosctl get extensions --nodes {address}", "talosctl read /sys/module/zfs/version --nodes {address}"),
    ),
    "no-zfs": Trouble(
        RES_040,
        generic=("sudo apt-get install zfsutils-linux && sudo modprobe zfs",),
        talos=("talosctl get extensions --nodes {address}",),
    ),
    "elsewhere": Trouble(RES_041, generic=("zpool status -LP {pool}",), talos=(_TALOS_STATUS,)),
    "other-layout": Trouble(RES_042, generic=("zpool status -LP {pool}",), talos=(_TALOS_STATUS,)),
    "ashift": Trouble(
        RES_043, generic=("sudo zdb -C {pool} | grep ashift", "zpool get ashift {pool}"), talos=(_TALOS_STATUS,)
    ),
    "changed": Trouble(RES_044, generic=("sudo dmesg | tail",), talos=("talosctl dmesg --nodes {address} | tail",)),
}

# Talos' names of what it discovers (its own prober, and what later versions added), and those of libblkid.
_VOLUMES: Mapping[str, str] = {
    "lvm2-pv": "lvm", "LVM2_member": "lvm",
    "zfs": "zfs", "zfs_member": "zfs",
    "drbd": "drbd",
    "linux-raid": "mdraid", "linux_raid_member": "mdraid", "mdraid": "mdraid", "md": "mdraid",
    "luks": "luks", "crypto_LUKS": "luks",
    "swap": "swap", "swsuspend": "swap",
    "iso9660": "iso9660",
    "gpt": "gpt",
    "dos": "mbr", "mbr": "mbr",
    "bluestore": "ceph", "ceph_bluestore": "ceph",
    "talosmeta": "talos",
    "extfs": "filesystem", "ext2": "filesystem", "ext3": "filesystem", "ext4": "filesystem", "xfs": "filesystem",
    "btrfs": "filesystem", "ntfs": "filesystem", "exfat": "filesystem", "vfat": "filesystem", "squashfs": "filesystem",
    "f2fs": "filesystem", "vmfs": "filesystem", "vmfs_volume_member": "filesystem",
}  # fmt: skip
_TALOS_PARTITIONS = frozenset({"META", "STATE", "EPHEMERAL"})


@dataclass(frozen=True)
class Problem:
    """One thing that speaks against using a disk, as the script saw it. `kind` is a key of `residue.TROUBLES`."""

    kind: str
    disk: str = ""  # the identity that was asked for: serial=…
    device: str = ""  # its kernel name at that moment
    evidence: str = ""

    def __str__(self) -> str:
        where = f"{self.device} ({self.disk})" if self.device and self.disk else self.device or self.disk
        return f"{where}: {self.evidence}" if where else self.evidence


def volume_kind(content: str, *, partition: bool = False, partition_label: str = "") -> str:
    """The kind of a volume that Talos discovered: "" when the whole disk carries nothing that Talos knows.

    A name that a later Talos may come up with is `unknown`, never nothing. A partition is a trace even when it is empty.
    """
    if partition and partition_label in _TALOS_PARTITIONS:
        return "talos"
    if content:
        return _VOLUMES.get(content, "unknown")
    return "partition" if partition else ""


def commands(kind: str, *, talos: bool, insecure: bool = False, **words: str) -> tuple[str, ...]:
    """The commands of a kind for a person, filled in with node, device, disk, address and pool. `insecure`: maintenance mode."""
    trouble = TROUBLES[kind]
    known = {"node": "NODE", "device": "DEVICE", "disk": "the intended disk", "address": "NODE", "pool": "POOL"}
    given = {name: word for name, word in words.items() if word}
    filled = {**known, **given, "insecure": " --insecure" if insecure else ""}
    return tuple(line.format_map(filled) for line in (trouble.talos if talos else trouble.generic))


def lines(problem: Problem, *, node: str, talos: bool, address: str = "", pool: str = "") -> Iterator[str]:
    """A problem as a person reads it: code and evidence, why it matters, what to do, commands."""
    trouble = TROUBLES.get(problem.kind)
    if trouble is None:
        yield f"{problem.kind}: {problem}"
        return
    yield f"{trouble.rule.code} {problem}"
    yield f"  why   {trouble.rule.why}"
    yield f"  next  {trouble.rule.remedy}"
    words = {"node": node, "device": _disk_of(problem.device), "disk": problem.disk, "pool": pool}
    for command in commands(problem.kind, talos=talos, insecure=False, address=address or node, **words):
        yield f"        {command}"


def _disk_of(device: str) -> str:
    """sdb of sdb1, nvme0n1 of nvme0n1p2: wiping is a decision about the whole disk."""
    bare = device.rstrip("0123456789")
    if bare == device:
        return device
    if bare.endswith("p") and bare[:-1] and bare[-2].isdigit():
        return bare[:-1]
    return device if device.startswith(("nvme", "mmcblk")) else bare
