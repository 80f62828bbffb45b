"""What the plan gate thinks of the machines' answers: findings with place, reason and way out. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.releases import Version
from cozystack_iac.talos.errors import PeerFault, WrongPeer
from cozystack_iac.talos.judgement_disks import judge_disks
from cozystack_iac.talos.probe import Answer, Facts, Standing, Target, listed, who

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
            problem=f"{who(answer)} is in maintenance mode but did not say everything: {answer.seen}",
            fix="preview again; look at the machine's console when it stays",
        )
        return
    yield from _clock(answer)
    yield from _version(answer, answer.facts, contract)
    yield from _network(answer, answer.facts)
    yield from judge_disks(answer, answer.facts)


def _standing(answer: Answer) -> Iterator[Finding]:
    target, name = answer.target, who(answer)
    match answer.standing:
        case Standing.UNREACHABLE:
            yield NODE_001.at(
                target.path,
                problem=f"{name} does not answer: {answer.seen}",
                fix=f"boot it into maintenance mode, and check that this workstation reaches port {target.port}{_lease(target)}",
            )
        case Standing.REFUSED:
            yield NODE_002.at(
                target.path,
                problem=f"{name} refuses connections on port {target.port}",
                fix=f"boot it into Talos' maintenance mode{_lease(target)}",
            )
        case Standing.NOT_TALOS:
            yield NODE_003.at(target.path, problem=f"{name} is not Talos: {answer.seen}", fix="correct the address")
        case Standing.FOREIGN:
            yield _foreign(answer)
        case Standing.TLS_PROBLEM:
            yield _tls(answer)
        case Standing.REBOOTING:
            yield NODE_007.at(
                target.path, problem=f"{name} is on its way: {answer.seen}", fix="preview again in a minute"
            )


def _lease(target: Target) -> str:
    """Whoever gives a static address only would wait for it for ever: the machine gets it with its configuration."""
    if not target.static or target.address != target.maintenance:
        return ""
    return "; before it is configured it has the address DHCP gave it: name that as maintenanceAddress"


def _foreign(answer: Answer) -> Finding:
    target = answer.target
    if target.reset_reason is not None:
        return NODE_005.at(
            target.path,
            problem=f"{who(answer)} is configured and approved for reset ({target.reset_reason})",
            fix="reset it with its own talosconfig, or boot it with talos.experimental.wipe=system; "
            "the rollout waits until it is in maintenance mode",
        )
    return NODE_004.at(
        target.path,
        problem=f"{who(answer)} is {answer.seen}",
        fix="take it out of the inventory; or approve its reset: reset: {approved: true, reason: …}",
    )


def _tls(answer: Answer) -> Finding:
    error = answer.evidence.error
    if isinstance(error, WrongPeer) and error.fault is PeerFault.FINGERPRINT:
        return NODE_008.at(
            answer.target.path,
            problem=f"{who(answer)}: {answer.seen}",
            fix="compare with the fingerprint on the machine's console, and correct the pin if the machine is right",
        )
    return NODE_006.at(
        answer.target.path,
        problem=f"{who(answer)}: {answer.seen}",
        fix="compare the clocks of machine and workstation, and the names in the certificate",
    )


def _clock(answer: Answer) -> Iterator[Finding]:
    if answer.clock_skew is not None:
        minutes = answer.clock_skew.total_seconds() / 60
        yield NODE_018.at(
            answer.target.path,
            problem=f"{who(answer)}: its certificate is {minutes:.0f} min away from this workstation's clock",
            fix="check that it reaches a time server; etcd waits until its time is in sync",
        )


def _version(answer: Answer, facts: Facts, contract: str) -> Iterator[Finding]:
    running, made_for = Version.parse(facts.version), Version.parse(contract)
    if running is None or made_for is None:
        yield NODE_010.at(
            answer.target.path,
            problem=f"{who(answer)} says its version is {facts.version!r}",
            fix=f"boot it from the image of {contract}",
        )
    elif running.series != made_for.series:
        older = running < made_for
        yield NODE_009.at(
            answer.target.path,
            problem=f"{who(answer)} runs Talos {facts.version}, configurations are made for {contract}",
            fix=f"boot it from the image of {contract}{'' if older else ', or set talos.version'}",
            severity=ERROR if older else WARNING,
        )
    elif running != made_for:
        yield NODE_009.at(
            answer.target.path,
            problem=f"{who(answer)} runs Talos {facts.version}, the pin is {contract}",
            fix="nothing now: it is upgraded to the pinned image after the bootstrap",
            severity=NOTE,
        )


def _network(answer: Answer, facts: Facts) -> Iterator[Finding]:
    target = answer.target
    on_machine = {str(a.interface.ip) for a in facts.addresses}
    if not target.static and target.internal not in on_machine:
        yield NODE_015.at(
            target.path,
            problem=f"{who(answer)} has no address {target.internal}; it has {listed(_usable(facts))}",
            fix="correct internalAddress",
        )
    link = next((k for k in facts.links if target.link in (k.name, *k.alt_names)), None) if target.link else None
    if target.link and link is None:
        physical = sorted(k.name for k in facts.links if k.physical or k.kind)
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{who(answer)} has no link {target.link}",
            fix=f"use one of {listed(physical)}",
        )
    elif link is not None and not link.up:
        yield NODE_013.at(
            f"{target.path}.link",
            problem=f"{who(answer)}: link {link.name} is down",
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
        addresses = listed(str(i) for i in there if not i.ip.is_link_local) if there else "none"
        yield NODE_014.at(
            f"{target.path}.link",
            problem=f"{who(answer)}: link {carrier} has no address in the subnet of the VIP {vip} (it has: {addresses})",
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


def _usable(facts: Facts) -> list[str]:
    return [str(a.interface) for a in facts.addresses if a.link != "lo" and not a.interface.is_link_local]
