"""What the plan gate thinks of the machines' answers: findings with place, reason and way out. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_address, ip_interface

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.releases import Version
from cozystack_iac.settings.nodes import Disk as WantedDisk
from cozystack_iac.talos.errors import PeerFault, WrongPeer
from cozystack_iac.talos.machine import Disk, size
from cozystack_iac.talos.probe import Answer, Facts, Standing
from cozystack_iac.talos.selectors import Unjudged, matching

INSTALL_MINIMUM_BYTES = 10 * 1024**3  # Talos' partitions and a few images; below, EPHEMERAL fails later
INSTALL_COMFORT_BYTES = 50 * 1000**3  # Cozystack's minimal system disk (50 GB)
_TABLES = frozenset({"", "gpt", "dos", "mbr"})  # a partition table alone is no owner; what is inside it is

NODE_001 = Rule(
    "NODE-001",
    ERROR,
    title="every machine answers",
    why="nothing can be checked or configured on a machine that does not answer",
    remedy="switch it on, boot it into maintenance mode, correct the address",
)
NODE_002 = Rule(
    "NODE-002",
    ERROR,
    title="the Talos port is open",
    why="the host is up, but Talos is not listening: another system runs there, or Talos has not come up",
    remedy="boot the machine into Talos' maintenance mode",
)
NODE_003 = Rule(
    "NODE-003",
    ERROR,
    title="it is Talos that answers",
    why="a configuration with all the cluster's secrets would be sent to a stranger",
    remedy="correct the address",
)
NODE_004 = Rule(
    "NODE-004",
    ERROR,
    title="the machine has no configuration yet",
    why="it belongs to another cluster, or to an earlier run that this stack's state no longer knows",
    remedy="reset it, or take it out of the inventory",
)
NODE_005 = Rule(
    "NODE-005",
    WARNING,
    title="a configured machine is approved for reset",
    why="its configuration and its system disk are given up",
    remedy="bring it into maintenance mode",
)
NODE_006 = Rule(
    "NODE-006",
    ERROR,
    title="certificates and clocks fit",
    why="machine and workstation would not trust each other, and etcd does not start with wrong clocks",
    remedy="set the clocks; compare addresses and certificate names",
)
NODE_007 = Rule(
    "NODE-007",
    ERROR,
    title="the machine has come to rest",
    why="what it says now will not be true in a minute",
    remedy="wait until it is back, then preview again",
)
NODE_008 = Rule(
    "NODE-008",
    ERROR,
    title="the machine has the pinned key",
    why="somebody else may be answering in its place",
    remedy="compare with the fingerprint on the machine's console",
)
NODE_009 = Rule(
    "NODE-009",
    ERROR,
    title="the machine runs the Talos its configuration is made for",
    why="an older Talos refuses documents it does not know; a newer one may read them differently",
    remedy="boot the image of the pinned version, or set talos.version",
)
NODE_010 = Rule(
    "NODE-010",
    ERROR,
    title="the machine answers every question",
    why="an answer that could not be had is unknown, not fine",
    remedy="preview again; look at the machine's console when it stays",
)
NODE_011 = Rule(
    "NODE-011",
    ERROR,
    title="no machine is listed twice",
    why="the second configuration would overwrite the first, and etcd would wait for a member that does not exist",
    remedy="correct the addresses",
)
NODE_012 = Rule(
    "NODE-012",
    WARNING,
    title="disks of different machines have different identities",
    why="either a machine is listed twice under two network cards, or cloned disks share a name and cannot be told apart",
    remedy="give virtual disks their own serial numbers",
)
NODE_013 = Rule(
    "NODE-013",
    ERROR,
    title="the link exists",
    why="addresses and the VIP would be configured on a link that the machine does not have",
    remedy="name one of the machine's links",
)
NODE_014 = Rule(
    "NODE-014",
    ERROR,
    title="the VIP's link has an address in the VIP's subnet",
    why="the VIP would be unreachable for the other machines: etcd members would wait in `Preparing` for ever",
    remedy="name the link with the machine's own address, or give the link one",
)
NODE_015 = Rule(
    "NODE-015",
    WARNING,
    title="the internal address is on the machine",
    why="kubelet and etcd would advertise an address that the machine does not have",
    remedy="correct internalAddress; addresses of a 1:1 NAT belong into publicAddress",
)
NODE_016 = Rule(
    "NODE-016",
    ERROR,
    title="nobody carries the VIP yet",
    why="another cluster or machine is using the address: the API would answer from there",
    remedy="choose another VIP, or free this one",
)
NODE_017 = Rule(
    "NODE-017",
    NOTE,
    title="live checks were skipped",
    why="nothing is known about the machines; skipped is not passed",
    remedy="preview with checks: live from a place that reaches the machines",
)
NODE_018 = Rule(
    "NODE-018",
    WARNING,
    title="the machine's clock is right",
    why="etcd does not start before the clocks agree",
    remedy="make a time server reachable for it, or set its hardware clock",
)
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


def judge(answers: Sequence[Answer], contract: str) -> list[Finding]:
    """All findings over all machines. `contract` is the Talos version configurations are made for, e.g. `v1.13.6`."""
    return [*(f for answer in answers for f in _machine(answer, contract)), *_twice(answers), *_vip_taken(answers)]


def skipped(count: int) -> Finding:
    """What a preview without live checks has to say for itself."""
    return NODE_017.at(
        "cozystack:checks", problem=f"{count} machine(s) were not asked", fix="run a preview with checks: live"
    )


def _machine(answer: Answer, contract: str) -> Iterator[Finding]:
    if answer.standing is not Standing.MAINTENANCE:
        yield from _standing(answer)
        return
    if answer.facts is None:
        yield NODE_010.at(
            answer.target.path,
            problem=f"{_who(answer)} is in maintenance mode but did not say everything: {answer.seen}",
            fix="preview again; look at the machine's console when it stays",
        )
        return
    yield from _clock(answer)
    yield from _version(answer, answer.facts, contract)
    yield from _network(answer, answer.facts)
    yield from _disks(answer, answer.facts)


def _standing(answer: Answer) -> Iterator[Finding]:
    target, who = answer.target, _who(answer)
    match answer.standing:
        case Standing.UNREACHABLE:
            moved = target.address == target.maintenance and target.static
            hint = (
                "; before it is configured it has the address DHCP gave it: name that as maintenanceAddress"
                if moved
                else ""
            )
            yield NODE_001.at(
                target.path,
                problem=f"{who} does not answer: {answer.seen}",
                fix=f"boot it into maintenance mode, and check that this workstation reaches port {target.port}{hint}",
                command="make boot-help",
            )
        case Standing.REFUSED:
            yield NODE_002.at(
                target.path,
                problem=f"{who} refuses connections on port {target.port}",
                fix="boot it into Talos' maintenance mode",
                command="make boot-help",
            )
        case Standing.NOT_TALOS:
            yield NODE_003.at(target.path, problem=f"{who} is not Talos: {answer.seen}", fix="correct the address")
        case Standing.FOREIGN:
            yield _foreign(answer)
        case Standing.TLS_PROBLEM:
            yield _tls(answer)
        case Standing.REBOOTING:
            yield NODE_007.at(
                target.path, problem=f"{who} is on its way: {answer.seen}", fix="preview again in a minute"
            )


def _foreign(answer: Answer) -> Finding:
    target = answer.target
    if target.reset_reason is not None:
        return NODE_005.at(
            target.path,
            problem=f"{_who(answer)} is configured and approved for reset ({target.reset_reason})",
            fix="reset it with its own talosconfig, or boot it with talos.experimental.wipe=system; "
            "the rollout waits until it is in maintenance mode",
        )
    return NODE_004.at(
        target.path,
        problem=f"{_who(answer)} is {answer.seen}",
        fix="take it out of the inventory; or approve its reset: reset: {approved: true, reason: …}",
    )


def _tls(answer: Answer) -> Finding:
    error = answer.evidence.error
    if isinstance(error, WrongPeer) and error.fault is PeerFault.FINGERPRINT:
        return NODE_008.at(
            answer.target.path,
            problem=f"{_who(answer)}: {answer.seen}",
            fix="compare with the fingerprint on the machine's console, and correct the pin if the machine is right",
        )
    return NODE_006.at(
        answer.target.path,
        problem=f"{_who(answer)}: {answer.seen}",
        fix="compare the clocks of machine and workstation, and the names in the certificate",
    )


def _clock(answer: Answer) -> Iterator[Finding]:
    if answer.clock_skew is not None:
        minutes = answer.clock_skew.total_seconds() / 60
        yield NODE_018.at(
            answer.target.path,
            problem=f"{_who(answer)}: its certificate is {minutes:.0f} min away from this workstation's clock",
            fix="check that it reaches a time server; etcd waits until its time is in sync",
        )


def _version(answer: Answer, facts: Facts, contract: str) -> Iterator[Finding]:
    running, made_for = Version.parse(facts.version), Version.parse(contract)
    if running is None or made_for is None:
        yield NODE_010.at(
            answer.target.path,
            problem=f"{_who(answer)} says its version is {facts.version!r}",
            fix=f"boot it from the image of {contract}",
        )
    elif running.series != made_for.series:
        older = running < made_for
        yield NODE_009.at(
            answer.target.path,
            problem=f"{_who(answer)} runs Talos {facts.version}, configurations are made for {contract}",
            fix=f"boot it from the image of {contract}{'' if older else ', or set talos.version'}",
            command="make boot-help",
            severity=ERROR if older else WARNING,
        )
    elif running != made_for:
        yield NODE_009.at(
            answer.target.path,
            problem=f"{_who(answer)} runs Talos {facts.version}, the pin is {contract}",
            fix="nothing now: it is upgraded to the pinned image after the bootstrap",
            severity=NOTE,
        )


def _network(answer: Answer, facts: Facts) -> Iterator[Finding]:
    target = answer.target
    on_machine = {str(a.interface.ip) for a in facts.addresses}
    if not target.static and target.internal not in on_machine:
        yield NODE_015.at(
            target.path,
            problem=f"{_who(answer)} has no address {target.internal}; it has {_listed(_usable(facts))}",
            fix="correct internalAddress",
        )
    link = next((k for k in facts.links if target.link in (k.name, *k.alt_names)), None) if target.link else None
    if target.link and link is None:
        physical = sorted(k.name for k in facts.links if k.physical or k.kind)
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{_who(answer)} has no link {target.link}",
            fix=f"use one of {_listed(physical)}",
        )
    elif link is not None and not link.up:
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{_who(answer)}: link {link.name} is down",
            fix="connect it",
            severity=WARNING,
        )
    elif target.vip and not target.static:
        yield from _vip_subnet(answer, facts, link.name if link else None)


def _vip_subnet(answer: Answer, facts: Facts, link: str | None) -> Iterator[Finding]:
    target = answer.target
    vip = ip_address(str(target.vip))
    own = [a for a in facts.addresses if str(a.interface.ip) == target.internal]
    carrier = link or (own[0].link if own else None)
    if carrier is None:
        return  # NODE-015 has said it
    there = [a.interface for a in facts.addresses if a.link == carrier and a.interface.ip != vip]
    if not any(vip in interface.network for interface in there):
        addresses = _listed(str(i) for i in there if not i.ip.is_link_local) if there else "none"
        yield NODE_014.at(
            f"{target.path}.link",
            problem=f"{_who(answer)}: link {carrier} has no address in the subnet of the VIP {vip} (it has: {addresses})",
            fix="name the link that has one",
        )


def _vip_taken(answers: Sequence[Answer]) -> Iterator[Finding]:
    for answer in answers:
        carried = {str(a.interface.ip) for a in answer.facts.addresses} if answer.facts else set()
        if answer.target.vip and answer.target.vip in carried:
            yield NODE_016.at(
                "cozystack:talos.vip",
                problem=f"{answer.target.name} has the VIP {answer.target.vip} as its own address",
                fix="choose an address that no machine has",
            )


def _twice(answers: Sequence[Answer]) -> Iterator[Finding]:
    by_mac: dict[str, list[Answer]] = defaultdict(list)
    by_disk: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        facts = answer.facts
        if facts is None:
            continue
        for mac in {k.permanent_mac or k.mac for k in facts.links if k.physical} - {"", "00:00:00:00:00:00"}:
            by_mac[mac].append(answer)
        for name in {d.wwid or d.serial for d in facts.disks if d.physical} - {""}:
            by_disk[name].append(answer)
    said: set[frozenset[str]] = set()
    for rule, what, groups in ((NODE_011, "network card", by_mac), (NODE_012, "disk", by_disk)):
        for identity, group in sorted(groups.items()):
            names = frozenset(a.target.name for a in group)
            if len(group) < 2 or names in said:
                continue
            said.add(names)
            listed = ", ".join(f"{a.target.name} ({a.at})" for a in group)
            yield rule.at(
                group[1].target.path, problem=f"{listed} have the same {what} {identity}", fix="correct the addresses"
            )


def _disks(answer: Answer, facts: Facts) -> Iterator[Finding]:
    target = answer.target
    install: Disk | None = None
    if target.install_disk is not None:
        place = f"{target.path}.installDisk"
        found = _one(answer, facts, target.install_disk, place, DSK_001, DSK_002)
        yield from found.findings
        install = found.disk
        if install is not None:
            yield from _install_disk(answer, facts, install, place)
    taken: dict[str, str] = {install.name: DSK_006.code} if install else {}
    if facts.system_disk:
        taken[facts.system_disk] = DSK_006.code
    for index, wanted in enumerate(target.data_disks):
        place = f"{target.path}.dataDisks[{index}]"
        found = _one(answer, facts, wanted, place, DSK_004, DSK_005)
        yield from found.findings
        if found.disk is None:
            continue
        if (code := taken.setdefault(found.disk.name, DSK_007.code)) == DSK_006.code:
            yield DSK_006.at(place, problem=f"{_who(answer)}: {found.disk} is its system disk", fix="name another disk")
        elif (
            found.disk.name in (seen := {d.name for d in _earlier(target.data_disks[:index], facts)}) and seen and code
        ):
            yield DSK_007.at(place, problem=f"{_who(answer)}: {found.disk} is listed twice", fix="name each disk once")
        else:
            yield from _data_disk(answer, facts, found.disk, place)


class _Found:
    """The one disk, or why there is none."""

    def __init__(self, disk: Disk | None, *findings: Finding) -> None:
        self.disk = disk
        self.findings = findings


def _one(answer: Answer, facts: Facts, wanted: WantedDisk, place: str, none: Rule, several: Rule) -> _Found:
    try:
        disks = matching(wanted, facts.disks)
    except Unjudged as term:
        return _Found(
            None,
            DSK_003.at(
                place, problem=f"{_who(answer)}: `{term}` cannot be judged here", fix="use wwid, serial or byId"
            ),
        )
    candidates = [d for d in facts.disks if d.physical]
    if not disks:
        problem = f"{_who(answer)}: {wanted} matches none of its {len(candidates)} disks"
        return _Found(None, none.at(place, problem=problem, fix=f"its disks are {_listed(map(str, candidates))}"))
    if len(disks) > 1:
        problem = f"{_who(answer)}: {wanted} matches {len(disks)} disks: {_listed(map(str, disks))}"
        return _Found(None, several.at(place, problem=problem, fix="name it by wwid or serial"))
    if disks[0].readonly:
        return _Found(
            disks[0], DSK_010.at(place, problem=f"{_who(answer)}: {disks[0]} is read-only", fix="choose another")
        )
    return _Found(disks[0])


def _earlier(wanted: Iterable[WantedDisk], facts: Facts) -> Iterator[Disk]:
    for one in wanted:
        try:
            yield from matching(one, facts.disks)
        except Unjudged:
            continue


def _install_disk(answer: Answer, facts: Facts, disk: Disk, place: str) -> Iterator[Finding]:
    if disk.size_bytes < INSTALL_COMFORT_BYTES:
        tiny = disk.size_bytes < INSTALL_MINIMUM_BYTES
        yield DSK_009.at(
            place,
            problem=f"{_who(answer)}: {disk} is small",
            fix=f"use at least {size(INSTALL_MINIMUM_BYTES)}; Cozystack asks for 50 GB",
            severity=ERROR if tiny else WARNING,
        )
    if facts.system_disk and facts.system_disk != disk.name:
        yield DSK_011.at(
            place,
            problem=f"{_who(answer)} runs from /dev/{facts.system_disk}, the inventory says {disk}",
            fix="correct installDisk, or boot it from the ISO",
        )


def _data_disk(answer: Answer, facts: Facts, disk: Disk, place: str) -> Iterator[Finding]:
    residue = residue_of(disk, facts)
    if not residue:
        return
    # A pool may be our own from before; whether it is, its name and the approval decide in the storage stage.
    pool = all("zfs" in text for text in residue)
    yield DSK_008.at(
        place,
        problem=f"{_who(answer)}: {disk} carries {_listed(residue)}",
        fix="if it is this cluster's own pool it is kept as it is; else make sure it is not needed and wipe it"
        if pool
        else "make sure that nobody needs the data, then wipe it",
        command=f"talosctl wipe disk {disk.name} --insecure --nodes {answer.at}",
        severity=WARNING if pool else ERROR,
    )


def residue_of(disk: Disk, facts: Facts) -> tuple[str, ...]:
    """Signatures of an earlier life on a disk and its partitions, e.g. `lvm2-pv`, `sdb1: zfs (data)`."""
    texts = []
    for volume in facts.volumes:
        if volume.name == disk.name and volume.content not in _TABLES:
            texts.append(f"{volume.content}{f' ({volume.label})' if volume.label else ''}")
        elif volume.parent == disk.name:
            label = volume.label or volume.partition_label
            texts.append(f"{volume.name}: {volume.content or 'a partition'}{f' ({label})' if label else ''}")
    return tuple(texts)


def _who(answer: Answer) -> str:
    return f"{answer.target.name} ({answer.at})"


def _usable(facts: Facts) -> list[str]:
    return [str(a.interface) for a in facts.addresses if not (a.interface.is_loopback or a.interface.is_link_local)]


def _listed(texts: Iterable[str], *, most: int = 6) -> str:
    items = list(texts)
    shown = ", ".join(items[:most]) or "none"
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def subnet_of(text: str) -> str:
    """`10.0.0.11/24` -> `10.0.0.0/24`."""
    return str(ip_interface(text).network)
