"""What the plan gate thinks of a machine's disks: the right ones, exactly one each, empty, large enough. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.settings.nodes import Disk as WantedDisk
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.machine import Disk, size
from cozystack_iac.talos.probe import Answer, Facts, listed, who

INSTALL_MINIMUM_BYTES = 10 * 1024**3  # Talos' partitions and a few images; below, EPHEMERAL fails later
INSTALL_COMFORT_BYTES = 50 * 1000**3  # Cozystack's minimal system disk (50 GB)
_TABLES = frozenset({"", "gpt", "dos", "mbr"})  # a partition table alone is no owner; what is inside it is

DSK_001 = Rule(
    "DSK-001",
    ERROR,
    title="the install disk exists",
    why="Talos would not be installed, or on a disk nobody chose",
    remedy="name one of the machine's disks",
)
DSK_002 = Rule(
    "DSK-002",
    ERROR,
    title="the install disk is exactly one",
    why="Talos takes the first that matches, and that may be a data disk",
    remedy="name it by wwid or serial",
)
DSK_003 = Rule(
    "DSK-003",
    ERROR,
    title="disk expressions can be judged",
    why="a disk that could not be checked is not written to",
    remedy="name the disk by wwid, serial or byId",
)
DSK_004 = Rule(
    "DSK-004",
    ERROR,
    title="every data disk exists",
    why="the machine would be left without its part of the storage",
    remedy="name one of the machine's disks",
)
DSK_005 = Rule(
    "DSK-005",
    ERROR,
    title="every data disk is exactly one",
    why="which of them would be given to ZFS is a matter of luck",
    remedy="name it by wwid or serial",
)
DSK_006 = Rule(
    "DSK-006",
    ERROR,
    title="data disks are not the system disk",
    why="the pool would be made over the operating system",
    remedy="name another disk",
)
DSK_007 = Rule(
    "DSK-007",
    ERROR,
    title="data disks are different disks",
    why="a mirror of a disk with itself protects nothing",
    remedy="name each disk once",
)
DSK_008 = Rule(
    "DSK-008",
    ERROR,
    title="data disks are empty",
    why="somebody's data may be on it; nothing is ever wiped on the program's own initiative",
    remedy="make sure that the data is not needed, then wipe the disk yourself",
)
DSK_009 = Rule(
    "DSK-009",
    ERROR,
    title="the install disk is large enough",
    why="the installation succeeds, and images do not fit later",
    remedy="choose a larger disk",
)
DSK_010 = Rule(
    "DSK-010",
    ERROR,
    title="disks can be written",
    why="neither Talos nor ZFS can use it",
    remedy="choose another disk, or remove its write protection",
)
DSK_011 = Rule(
    "DSK-011",
    WARNING,
    title="Talos is on the disk the inventory names",
    why="a machine booted from a disk image is not installed again: it stays on the disk it is on",
    remedy="correct installDisk, or boot from the ISO",
)


def judge_disks(answer: Answer, facts: Facts) -> Iterator[Finding]:
    """Install disk and data disks of one machine against what it reports."""
    target = answer.target
    system = {facts.system_disk} if facts.system_disk else set()
    if target.install_disk is not None:
        place = f"{target.path}.installDisk"
        install, findings = _the_one(answer, facts, target.install_disk, place, DSK_001, DSK_002)
        yield from findings
        if install is not None:
            yield from _install_disk(answer, facts, install, place)
            system.add(install.name)
    given: set[str] = set()
    for index, wanted in enumerate(target.data_disks):
        place = f"{target.path}.dataDisks[{index}]"
        disk, findings = _the_one(answer, facts, wanted, place, DSK_004, DSK_005)
        yield from findings
        if disk is None:
            continue
        if disk.name in system:
            yield DSK_006.at(place, problem=f"{who(answer)}: {disk} is its system disk", fix="name another disk")
        elif disk.name in given:
            yield DSK_007.at(place, problem=f"{who(answer)}: {disk} is listed twice", fix="name each disk once")
        else:
            yield from _residue(answer, facts, disk, place)
        given.add(disk.name)


def _the_one(
    answer: Answer, facts: Facts, wanted: WantedDisk, place: str, none: Rule, several: Rule
) -> tuple[Disk | None, list[Finding]]:
    """The one disk that is meant, or None with the reason."""
    try:
        disks = matching(wanted, facts.disks)
    except Unjudged as term:
        problem = f"{who(answer)}: `{term}` is beyond the expressions that can be judged here"
        return None, [DSK_003.at(place, problem=problem, fix="name the disk by wwid, serial or byId")]
    if not disks:
        candidates = [disk for disk in facts.disks if disk.physical]
        problem = f"{who(answer)}: {wanted} matches none of its {len(candidates)} disks"
        return None, [none.at(place, problem=problem, fix=f"its disks are {listed(map(str, candidates))}")]
    if len(disks) > 1:
        problem = f"{who(answer)}: {wanted} matches {len(disks)} disks: {listed(map(str, disks))}"
        return None, [several.at(place, problem=problem, fix="name it by wwid or serial")]
    [disk] = disks
    readonly = [DSK_010.at(place, problem=f"{who(answer)}: {disk} is read-only", fix="choose another disk")]
    return disk, readonly if disk.readonly else []


def _install_disk(answer: Answer, facts: Facts, disk: Disk, place: str) -> Iterator[Finding]:
    if disk.size_bytes < INSTALL_COMFORT_BYTES:
        yield DSK_009.at(
            place,
            problem=f"{who(answer)}: {disk} is small",
            fix=f"use at least {size(INSTALL_MINIMUM_BYTES)}; Cozystack asks for 50 GB",
            severity=ERROR if disk.size_bytes < INSTALL_MINIMUM_BYTES else WARNING,
        )
    if facts.system_disk and facts.system_disk != disk.name:
        yield DSK_011.at(
            place,
            problem=f"{who(answer)} runs from /dev/{facts.system_disk}, the inventory says {disk}",
            fix="correct installDisk, or boot it from the ISO",
        )


def _residue(answer: Answer, facts: Facts, disk: Disk, place: str) -> Iterator[Finding]:
    found = residue_of(disk, facts)
    if not found:
        return
    # A pool may be this cluster's own from before: the storage stage knows its name and the approvals, and decides.
    pool = all("zfs" in text for text in found)
    yield DSK_008.at(
        place,
        problem=f"{who(answer)}: {disk} carries {listed(found)}",
        fix=next((fix for sign, fix in _NEXT if any(sign in text for text in found)), _UNKNOWN_OWNER),
        command=f"talosctl wipe disk {disk.name} --insecure --nodes {answer.at}",
        severity=WARNING if pool else ERROR,
    )


# What to look at before anybody wipes: the trace says who the owner was.
_NEXT = (
    (
        "zfs",
        "a pool of this cluster is kept as it is; of any other, `zpool import` tells name and host: export or wipe it",
    ),
    (
        "lvm2",
        "a volume group is on it: `vgs` on the machine it came from tells which; remove it there, or wipe the disk",
    ),
    ("drbd", "it is a replica of a DRBD volume: make sure that its peers have the data, then wipe the disk"),
    ("raid", "it is a member of an array: stop the array where it belongs, then wipe the disk"),
    ("luks", "it is encrypted, so nobody can look: ask its former owner, then wipe the disk"),
)
_UNKNOWN_OWNER = "look into it from a live system and save what is needed; then wipe the disk"


def residue_of(disk: Disk, facts: Facts) -> tuple[str, ...]:
    """Signatures of an earlier life on a disk and its partitions, e.g. `lvm2-pv`, `sdb1: zfs (data)`."""
    found = []
    for volume in facts.volumes:
        label = volume.label or volume.partition_label
        named = f" ({label})" if label else ""
        if volume.name == disk.name and volume.content not in _TABLES:
            found.append(f"{volume.content}{named}")
        elif volume.parent == disk.name:
            found.append(f"{volume.name}: {volume.content or 'a partition'}{named}")
    return tuple(found)
