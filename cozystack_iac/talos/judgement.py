"""What the plan gate thinks of the machines' answers: findings with place, reason and way out. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.releases import Version
from cozystack_iac.talos.errors import PeerFault, WrongPeer
from cozystack_iac.talos.judgement_disks import judge_disks
from cozystack_iac.talos.probe import Answer, Facts, MachineStanding, Target, listed, who

NODE_001 = Rule(
    "NODE-001",
    ERROR,
    title="Every machine responds",
    why="a machine that does not respond can be neither checked nor configured",
    remedy="turn the machine on, boot it into maintenance mode, or correct its address",
)
NODE_002 = Rule(
    "NODE-002",
    ERROR,
    title="The Talos API port is open",
    why="the host is up, but Talos is not listening: either another system is running, or Talos has not started yet",
    remedy="boot the machine into Talos maintenance mode",
)
NODE_003 = Rule(
    "NODE-003",
    ERROR,
    title="The machine runs Talos",
    why="the configuration, with all of the cluster's secrets, would be sent to an unknown host",
    remedy="correct the address",
)
NODE_004 = Rule(
    "NODE-004",
    ERROR,
    title="The machine has no configuration yet",
    why="it belongs to another cluster, or to an earlier run that this stack's state does not contain",
    remedy="reset the machine, or remove it from the inventory",
)
NODE_005 = Rule(
    "NODE-005",
    WARNING,
    title="A configured machine is approved for reset",
    why="its configuration and its system disk are wiped",
    remedy="boot the machine into maintenance mode",
)
NODE_006 = Rule(
    "NODE-006",
    ERROR,
    title="Certificates and clocks are valid",
    why="the machine and this workstation would not trust each other, and etcd does not start with wrong clocks",
    remedy="correct the clocks, and compare the address with the names in the certificate",
)
NODE_007 = Rule(
    "NODE-007",
    ERROR,
    title="The machine has finished booting",
    why="its state is about to change, so its answers are not reliable yet",
    remedy="wait until it is up, then run the preview again",
)
NODE_008 = Rule(
    "NODE-008",
    ERROR,
    title="The certificate fingerprint is the pinned one",
    why="a different host may be answering at this address",
    remedy="compare it with the fingerprint on the machine's console",
)
NODE_009 = Rule(
    "NODE-009",
    ERROR,
    title="The machine runs the Talos version that its configuration is made for",
    why="an older Talos rejects documents it does not know, and a newer one may interpret them differently",
    remedy="boot the image of the pinned version, or set talos.version",
)
NODE_010 = Rule(
    "NODE-010",
    ERROR,
    title="The machine answers every question",
    why="a missing answer means unknown, not healthy",
    remedy="run the preview again; if the problem persists, check the machine's console",
)
NODE_011 = Rule(
    "NODE-011",
    ERROR,
    title="Every machine is listed once",
    why="the second configuration would overwrite the first, and etcd would wait for a member that does not exist",
    remedy="correct the addresses",
)
NODE_012 = Rule(
    "NODE-012",
    WARNING,
    title="Disks of different machines have different identities",
    why="either a machine is listed twice under two network interfaces, or cloned disks share an identity "
    "and cannot be told apart",
    remedy="give virtual disks unique serial numbers",
)
NODE_013 = Rule(
    "NODE-013",
    ERROR,
    title="The link exists",
    why="addresses and the VIP would be configured on a link that the machine does not have",
    remedy="set a link that the machine has",
)
NODE_014 = Rule(
    "NODE-014",
    ERROR,
    title="The VIP's link has an address in the VIP's subnet",
    why="other machines could not reach the VIP, and etcd members would stay in `Preparing`",
    remedy="set the link that has the machine's own address, or give the link an address",
)
NODE_015 = Rule(
    "NODE-015",
    WARNING,
    title="The machine has its internal address",
    why="the kubelet and etcd would advertise an address that the machine does not have",
    remedy="correct internalAddress; 1:1 NAT addresses belong in publicAddress",
)
NODE_016 = Rule(
    "NODE-016",
    ERROR,
    title="The VIP is not in use yet",
    why="another cluster or machine uses the address, so the API would be served from there",
    remedy="choose another VIP, or free this one",
)
NODE_017 = Rule(
    "NODE-017",
    NOTE,
    title="The live checks ran",
    why="the machines were not checked; skipped does not mean passed",
    remedy="run the preview with checks: live from a place that can reach the machines",
)
NODE_018 = Rule(
    "NODE-018",
    WARNING,
    title="The machine's clock is correct",
    why="the etcd service does not start until the clock is synchronized",
    remedy="give the machine access to a time server, or set its hardware clock",
)


def judge_machines(answers: Sequence[Answer], contract: str) -> list[Finding]:
    """All findings over all machines. `contract` is the Talos version configurations are made for, e.g. `v1.13.6`."""
    return [*(f for answer in answers for f in _machine(answer, contract)), *_twice(answers), *_vip_taken(answers)]


def skipped(count: int) -> Finding:
    """What a preview without live checks has to say for itself."""
    return NODE_017.at(
        "cozystack:checks", problem=f"{count} machine(s) were not checked", fix="run a preview with checks: live"
    )


def _machine(answer: Answer, contract: str) -> Iterator[Finding]:
    if answer.standing is not MachineStanding.MAINTENANCE:
        yield from _standing(answer)
        return
    if answer.facts is None:
        yield NODE_010.at(
            answer.target.path,
            problem=f"{who(answer)} is in maintenance mode but did not answer every question: {answer.seen}",
            fix="run the preview again; if the problem persists, check the machine's console",
        )
        return
    yield from _clock(answer)
    yield from _version(answer, answer.facts, contract)
    yield from _network(answer, answer.facts)
    yield from judge_disks(answer, answer.facts)


def _standing(answer: Answer) -> Iterator[Finding]:
    target, name = answer.target, who(answer)
    match answer.standing:
        case MachineStanding.UNREACHABLE:
            yield NODE_001.at(
                target.path,
                problem=f"{name} does not respond: {answer.seen}",
                fix="boot it into maintenance mode, and check that this workstation can reach port "
                f"{target.port}{_lease(target)}",
            )
        case MachineStanding.REFUSED:
            yield NODE_002.at(
                target.path,
                problem=f"{name} refuses connections on port {target.port}",
                fix=f"boot it into Talos maintenance mode{_lease(target)}",
            )
        case MachineStanding.NOT_TALOS:
            yield NODE_003.at(
                target.path, problem=f"{name} is not running Talos: {answer.seen}", fix="correct the address"
            )
        case MachineStanding.FOREIGN:
            yield _foreign(answer)
        case MachineStanding.TLS_PROBLEM:
            yield _tls(answer)
        case MachineStanding.REBOOTING:
            yield NODE_007.at(
                target.path, problem=f"{name} is still booting: {answer.seen}", fix="run the preview again in a minute"
            )


def _lease(target: Target) -> str:
    """Whoever gives a static address only would wait for it for ever: the machine gets it with its configuration."""
    if not target.static or target.address != target.maintenance:
        return ""
    return "; until it is configured it has its DHCP address: set that as maintenanceAddress"


def _foreign(answer: Answer) -> Finding:
    target = answer.target
    if target.reset_reason is not None:
        return NODE_005.at(
            target.path,
            problem=f"{who(answer)} is already configured and approved for reset ({target.reset_reason})",
            fix="reset it with its own talosconfig, or boot it with talos.experimental.wipe=system; the "
            "rollout waits until it is in maintenance mode",
        )
    return NODE_004.at(
        target.path,
        problem=f"{who(answer)} is {answer.seen}",
        fix="remove it from the inventory, or approve its reset: reset: {approved: true, reason: …}",
    )


def _tls(answer: Answer) -> Finding:
    error = answer.evidence.error
    if isinstance(error, WrongPeer) and error.fault is PeerFault.FINGERPRINT:
        return NODE_008.at(
            answer.target.path,
            problem=f"{who(answer)}: {answer.seen}",
            fix="compare it with the fingerprint on the machine's console, and correct the pinned one if the "
            "machine is right",
        )
    return NODE_006.at(
        answer.target.path,
        problem=f"{who(answer)}: {answer.seen}",
        fix="compare the clocks of the machine and this workstation, and the names in the certificate",
    )


def _clock(answer: Answer) -> Iterator[Finding]:
    if answer.clock_skew is not None:
        minutes = answer.clock_skew.total_seconds() / 60
        yield NODE_018.at(
            answer.target.path,
            problem=f"{who(answer)}: its clock is about {minutes:.0f} min off from this workstation's clock",
            fix="make sure that it can reach a time server; etcd waits until its time is in sync",
        )


def _version(answer: Answer, facts: Facts, contract: str) -> Iterator[Finding]:
    running, made_for = Version.parse(facts.version), Version.parse(contract)
    if running is None or made_for is None:
        yield NODE_010.at(
            answer.target.path,
            problem=f"{who(answer)} reports the unknown version {facts.version!r}",
            fix=f"boot it from the {contract} image",
        )
    elif running.series != made_for.series:
        older = running < made_for
        yield NODE_009.at(
            answer.target.path,
            problem=f"{who(answer)} runs Talos {facts.version}, but the configuration is made for {contract}",
            fix=f"boot it from the {contract} image{'' if older else ', or set talos.version'}",
            severity=ERROR if older else WARNING,
        )
    elif running != made_for:
        yield NODE_009.at(
            answer.target.path,
            problem=f"{who(answer)} runs Talos {facts.version}, but {contract} is pinned",
            fix="no action needed: it is upgraded to the pinned image after the bootstrap",
            severity=NOTE,
        )


def _network(answer: Answer, facts: Facts) -> Iterator[Finding]:
    target = answer.target
    on_machine = {str(a.interface.ip) for a in facts.addresses}
    if not target.static and target.internal not in on_machine:
        yield NODE_015.at(
            target.path,
            problem=f"{who(answer)} does not have the address {target.internal}; it has {listed(_usable(facts))}",
            fix="correct internalAddress",
        )
    link = next((k for k in facts.links if target.link in (k.name, *k.alt_names)), None) if target.link else None
    if target.link and link is None:
        physical = sorted(k.name for k in facts.links if k.physical or k.kind)
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{who(answer)} does not have the link {target.link}",
            fix=f"use one of {listed(physical)}",
        )
    elif link is not None and not link.up:
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{who(answer)}: link {link.name} is down",
            fix="connect the cable or the virtual NIC",
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
        addresses = listed(str(i) for i in there if not i.ip.is_link_local) if there else "none"
        yield NODE_014.at(
            f"{target.path}.link",
            problem=f"{who(answer)}: link {carrier} has no address in the subnet of the VIP {vip} (its addresses: "
            f"{addresses})",
            fix="set the link that has one",
        )


def _vip_taken(answers: Sequence[Answer]) -> Iterator[Finding]:
    for answer in answers:
        carried = {str(a.interface.ip) for a in answer.facts.addresses} if answer.facts else set()
        if answer.target.vip and answer.target.vip in carried:
            yield NODE_016.at(
                "cozystack:talos.vip",
                problem=f"{answer.target.name} already has the VIP {answer.target.vip} as one of its addresses",
                fix="choose an address that no machine uses",
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
    for rule, what, groups in ((NODE_011, "network interface", by_mac), (NODE_012, "disk", by_disk)):
        for identity, group in sorted(groups.items()):
            names = frozenset(a.target.name for a in group)
            if len(group) < 2 or names in said:
                continue
            said.add(names)
            listed = ", ".join(f"{a.target.name} ({a.at})" for a in group)
            yield rule.at(
                group[1].target.path, problem=f"{listed} have the same {what}: {identity}", fix="correct the addresses"
            )


def _usable(facts: Facts) -> list[str]:
    return [str(a.interface) for a in facts.addresses if a.link != "lo" and not a.interface.is_link_local]
