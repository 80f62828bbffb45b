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
    title="data disks are reached over one path",
    why="the disk is one of several paths to the same device: two pools' worth of writes could meet on it",
    remedy="ZFS on multipath devices is not supported here: use local disks, or take this device out of multipath",
)
RES_031 = Rule(
    "RES-031",
    ERROR,
    title="data disks are disks",
    why="a device of the device mapper, an array, a zvol or a loop stands on other disks, and ZFS would not see them fail",
    remedy="name the disk itself by serial, wwid or byId",
)
RES_032 = Rule(
    "RES-032",
    ERROR,
    title="every named disk is in its node",
    why="the disk was pulled, died, or is in another node; no other disk is taken in its place",
    remedy="see which disks the node has; mend the disk, or correct dataDisks and approvedDisks in the stack file",
)
RES_033 = Rule(
    "RES-033",
    ERROR,
    title="an identity means one disk",
    why="which of them would be written would be a matter of luck",
    remedy="name the disk by an identity that only it has",
)
RES_034 = Rule(
    "RES-034",
    ERROR,
    title="a disk is named once",
    why="a mirror of a disk with itself protects nothing",
    remedy="remove one of the two entries, or name the disk that was meant",
)
RES_035 = Rule(
    "RES-035",
    ERROR,
    title="data disks are large enough",
    why="the platform's own volumes would fill it during the install",
    remedy="use a larger disk, or lower storage.minimumSize when you know that it suffices",
)
RES_036 = Rule(
    "RES-036",
    ERROR,
    title="data disks can be written",
    why="the kernel refuses to write: a switch, a worn-out drive, or a setting of the hypervisor",
    remedy="see the kernel log for the reason",
)
RES_037 = Rule(
    "RES-037",
    ERROR,
    title="data disks can be read",
    why="what it carries is unknown, and unknown is never empty",
    remedy="see the kernel log; a drive that cannot be read is replaced",
)
RES_038 = Rule(
    "RES-038",
    ERROR,
    title="the number of disks suits the layout",
    why="zpool would refuse it, or make a pool that survives less than it seems",
    remedy="add disks, or choose another layout",
)
RES_039 = Rule(
    "RES-039",
    ERROR,
    title="the zpool command fits the kernel module",
    why="a pool made by tools of another version may have features that the module cannot import after a reboot",
    remedy="Talos: use an image whose zfs extension was built for its kernel; else update zfsutils and reboot",
)
RES_040 = Rule(
    "RES-040",
    ERROR,
    title="every storage node has ZFS",
    why="no pool can be made",
    remedy="Talos: use an image with the zfs extension and load the module zfs; else install zfsutils-linux",
)
RES_041 = Rule(
    "RES-041",
    ERROR,
    title="a pool of the wanted name is on the wanted disks",
    why="the pool that is there is not the one that the stack file describes; it may be somebody's",
    remedy="correct dataDisks to the disks of that pool, or choose another storage.zpool, or remove that pool yourself",
)
RES_042 = Rule(
    "RES-042",
    ERROR,
    title="a pool of the wanted name has the wanted layout",
    why="it would survive the loss of fewer disks than the stack file promises, and a layout cannot be changed later",
    remedy="correct layout in the stack file to what the pool is, or save its data and remove it yourself",
)
RES_043 = Rule(
    "RES-043",
    ERROR,
    title="pools use 4 KiB sectors",
    why="writes of 512 bytes to a disk with 4 KiB sectors are read, changed and written back: several times slower for ever",
    remedy="it cannot be changed: save the pool's data and make it anew",
)
RES_044 = Rule(
    "RES-044",
    ERROR,
    title="disks stay the same while they are looked at",
    why="a disk came, went or changed its name between the look and the write",
    remedy="nothing was written: see the kernel log for what was plugged, then run `pulumi up` again",
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
    known = {"node": "NODE", "device": "DEVICE", "disk": "the disk that was meant", "address": "NODE", "pool": "POOL"}
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
