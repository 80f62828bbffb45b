"""What the plan gate thinks of a machine's disks: the right ones, exactly one each, empty, large enough. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.residue import commands, volume_kind
from cozystack_iac.residue.traces import TRACES
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.machine import ReportedDisk, size
from cozystack_iac.talos.probe import Answer, Facts, MachineStanding, listed, who

INSTALL_MINIMUM_BYTES = 10 * 1024**3  # Talos' partitions and a few images; below, EPHEMERAL fails later
INSTALL_COMFORT_BYTES = 50 * 1000**3  # Cozystack's minimal system disk (50 GB)

DSK_001 = Rule(
    "DSK-001",
    ERROR,
    title="The install disk exists",
    why="Talos would not be installed, or would be installed on the wrong disk",
    remedy="set one of the machine's disks",
)
DSK_002 = Rule(
    "DSK-002",
    ERROR,
    title="The install disk matches exactly one disk",
    why="Talos takes the first match, which may be a data disk",
    remedy="identify it by wwid or serial",
)
DSK_003 = Rule(
    "DSK-003",
    ERROR,
    title="Disk selectors can be evaluated",
    why="the program does not write to a disk that it could not check",
    remedy="identify the disk by wwid, serial or byId",
)
DSK_004 = Rule(
    "DSK-004",
    ERROR,
    title="Every data disk exists",
    why="the node would not have its part of the storage",
    remedy="set one of the machine's disks",
)
DSK_005 = Rule(
    "DSK-005",
    ERROR,
    title="Every data disk matches exactly one disk",
    why="which of the disks ZFS gets would be a matter of chance",
    remedy="identify it by wwid or serial",
)
DSK_006 = Rule(
    "DSK-006",
    ERROR,
    title="Data disks are not the system disk",
    why="the pool would overwrite the operating system",
    remedy="set a different disk",
)
DSK_007 = Rule(
    "DSK-007",
    ERROR,
    title="Every data disk is listed once",
    why="mirroring a disk with itself protects nothing",
    remedy="list each disk once",
)
DSK_009 = Rule(
    "DSK-009",
    ERROR,
    title="The install disk is large enough",
    why="the installation succeeds, but later the disk has no room for images",
    remedy="choose a larger disk",
)
DSK_010 = Rule(
    "DSK-010",
    ERROR,
    title="Disks are writable",
    why="neither Talos nor ZFS can use a read-only disk",
    remedy="choose another disk, or remove its write protection",
)
DSK_011 = Rule(
    "DSK-011",
    WARNING,
    title="Talos runs from the disk named in the inventory",
    why="Talos is not reinstalled on a machine that was booted from a disk image; it stays on its current disk",
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
            yield DSK_006.at(place, problem=f"{who(answer)}: {disk} is its system disk", fix="set a different disk")
        elif disk.name in given:
            yield DSK_007.at(place, problem=f"{who(answer)}: {disk} is listed twice", fix="list each disk once")
        else:
            yield from _residue(answer, facts, disk, place)
        given.add(disk.name)


def _the_one(
    answer: Answer, facts: Facts, wanted: Disk, place: str, none: Rule, several: Rule
) -> tuple[ReportedDisk | None, list[Finding]]:
    """The one disk that is meant, or None with the reason."""
    try:
        disks = matching(wanted, facts.disks)
    except Unjudged as term:
        problem = f"{who(answer)}: the selector `{term}` cannot be evaluated here"
        return None, [DSK_003.at(place, problem=problem, fix="identify the disk by wwid, serial or byId")]
    if not disks:
        candidates = [disk for disk in facts.disks if disk.physical]
        problem = f"{who(answer)}: {wanted} matches none of its {len(candidates)} disks"
        return None, [none.at(place, problem=problem, fix=f"use one of its disks: {listed(map(str, candidates))}")]
    if len(disks) > 1:
        problem = f"{who(answer)}: {wanted} matches {len(disks)} disks: {listed(map(str, disks))}"
        return None, [several.at(place, problem=problem, fix="identify it by wwid or serial")]
    [disk] = disks
    readonly = [DSK_010.at(place, problem=f"{who(answer)}: {disk} is read-only", fix="choose another disk")]
    return disk, readonly if disk.readonly else []


def _install_disk(answer: Answer, facts: Facts, disk: ReportedDisk, place: str) -> Iterator[Finding]:
    if disk.size_bytes < INSTALL_COMFORT_BYTES:
        yield DSK_009.at(
            place,
            problem=f"{who(answer)}: {disk} is too small",
            fix=f"use at least {size(INSTALL_MINIMUM_BYTES)}; Cozystack recommends 50 GB",
            severity=ERROR if disk.size_bytes < INSTALL_MINIMUM_BYTES else WARNING,
        )
    if facts.system_disk and facts.system_disk != disk.name:
        yield DSK_011.at(
            place,
            problem=f"{who(answer)} runs from /dev/{facts.system_disk}, but the inventory names {disk}",
            fix="correct installDisk, or boot the machine from the ISO",
        )


_KEPT = "if this is the cluster's own pool on exactly the disks listed here, it is kept as it is; otherwise "


def _residue(answer: Answer, facts: Facts, disk: ReportedDisk, place: str) -> Iterator[Finding]:
    """One finding for each class of what is on the disk, with its own next step. Talos knows fewer classes than the job."""
    found = residue_of(disk, facts)
    # A pool may be this cluster's own from before: the storage stage knows its name and the approvals, and decides.
    pool = "zfs" in found and set(found) <= {"zfs", "gpt"}
    insecure = answer.standing is MachineStanding.MAINTENANCE  # a configured machine asks for a certificate
    words = {"device": disk.name, "disk": disk.identity, "address": answer.at}
    for kind, evidence in found.items():
        if pool and kind == "gpt":
            continue
        yield TRACES[kind].rule.at(
            place,
            problem=f"{who(answer)}: {disk} contains {listed(evidence)}",
            fix=(_KEPT if pool else "") + TRACES[kind].rule.remedy,
            command="\n".join(commands(kind, talos=True, insecure=insecure, **words)),
            severity=WARNING if pool else ERROR,
        )


def residue_of(disk: ReportedDisk, facts: Facts) -> dict[str, tuple[str, ...]]:
    """What an earlier life left on a disk and its partitions, by class: `{"lvm": ("lvm2-pv",), "zfs": ("sdb1: zfs (data)",)}`.

    An empty partition beside a pool's is the room that ZFS reserves at the end of a whole disk, and part of that pool.
    """
    found: dict[str, list[str]] = {}
    empty: list[str] = []
    for volume in facts.volumes:
        label = volume.label or volume.partition_label
        named = f" ({label})" if label else ""
        inside = volume.parent == disk.name
        if not inside and volume.name != disk.name:
            continue
        kind = volume_kind(volume.content, partition=inside, partition_label=volume.partition_label)
        text = f"{volume.name}: {volume.content or 'a partition'}{named}" if inside else f"{volume.content}{named}"
        if kind == "partition" and not label:
            empty.append(text)
        elif kind:
            found.setdefault(kind, []).append(text)
    if empty and "zfs" not in found:
        found["partition"] = [*found.get("partition", []), *empty]
    if found.keys() - {"gpt", "mbr", "zfs"}:  # a table says nothing beside what is in its partitions
        found.pop("gpt", None)
    return {kind: tuple(texts) for kind, texts in found.items()}
