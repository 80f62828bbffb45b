"""Who is who: names, addresses and labels of the machines, and what a site cannot do without."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import (
    Address,
    address_in,
    domain_problem,
    interface_in,
    is_label,
    label_like,
    label_problem,
)
from cozystack_iac.rules.survey import Point, Survey
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import Step, config_set

CFG_004 = Rule(
    "CFG-004",
    ERROR,
    title="everything that has no default is there",
    why="there is no sensible default for it",
    remedy="add the key",
)
INV_001 = Rule(
    "INV-001",
    ERROR,
    title="node names are lower-case DNS labels",
    why="the kubelet never registers under such a name, or registers under another spelling that later steps do not find",
    remedy="use the suggested spelling",
)
INV_002 = Rule(
    "INV-002",
    ERROR,
    title="node names are unique",
    why="two machines would fight for one Node object, and for one etcd member name",
    remedy="rename one of them",
)
INV_003 = Rule(
    "INV-003",
    ERROR,
    title="addresses are written plainly",
    why="programs read such spellings differently, or not at all",
    remedy="write the address without prefix, padding or embedding",
)
INV_004 = Rule(
    "INV-004",
    ERROR,
    title="machines have addresses that a machine can have",
    why="no other machine can reach it there",
    remedy="give the machine's own unicast address",
)
INV_005 = Rule(
    "INV-005",
    ERROR,
    title="no two machines share an address",
    why="one machine would get the other's configuration",
    remedy="correct one of them",
)
INV_006 = Rule(
    "INV-006",
    ERROR,
    title="internal addresses are of one family",
    why="etcd members and kubelets advertise one family; the others would not be reached",
    remedy="give every node an internal address of the same family",
)
INV_007 = Rule(
    "INV-007",
    ERROR,
    title="labels and zones are valid for Kubernetes",
    why="the API server refuses the node, or the machine refuses its configuration",
    remedy="use letters, digits, dashes, underscores and dots, at most 63 characters",
)
INV_008 = Rule(
    "INV-008",
    ERROR,
    title="the cluster name is a lower-case DNS label",
    why="it names the Talos cluster, contexts and certificates",
    remedy="use the suggested spelling",
)
INV_009 = Rule(
    "INV-009",
    ERROR,
    title="node names are not names every machine has",
    why="rescue systems and unconfigured machines answer to it, so nobody can tell them from this one",
    remedy="choose a name of its own",
)
INV_010 = Rule(
    "INV-010",
    WARNING,
    title="zones are given for all machines or for none",
    why="replicas are spread over zones, and machines without one count as a zone of their own",
    remedy="give the others a zone too",
)
INV_011 = Rule(
    "INV-011",
    ERROR,
    title="approvals to wipe a machine say why",
    why="it destroys what is on the machine, and nobody will know who wanted it",
    remedy="add a reason, or remove the approval",
)
INV_012 = Rule(
    "INV-012",
    WARNING,
    title="machines are not approved for wiping without need",
    why="a machine that answers with a configuration would be reset, and what is on it is lost",
    remedy="remove `reset` once the machine has joined",
)
INV_013 = Rule(
    "INV-013",
    ERROR,
    title="static addresses fit together",
    why="the machine would come up unreachable",
    remedy="give addresses with prefix length, the node's own among them, and a gateway inside",
)
INV_014 = Rule(
    "INV-014",
    ERROR,
    title="link names are valid",
    why="no machine has such a link",
    remedy="use the name the machine shows, at most 15 characters",
)
INV_015 = Rule(
    "INV-015",
    WARNING,
    title="public addresses are public",
    why="nobody outside can reach it there",
    remedy="give the address the provider maps onto the machine",
)

_RESERVED_NAMES = frozenset({"localhost", "talos", "rescue", "ubuntu", "debian"})
_LABEL_VALUE = re.compile(r"^(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", re.ASCII)
_LINK = re.compile(r"^[A-Za-z0-9_.:-]{1,15}$", re.ASCII)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about the inventory."""
    site = survey.site
    yield from _missing(site)
    yield from _cluster_name(site)
    yield from _names(site)
    yield from _spellings(survey)
    yield from _possible(survey)
    yield from _shared(survey)
    yield from _families(survey)
    yield from _labels(site)
    yield from _zones(site)
    yield from _resets(site)
    yield from _static(site)
    yield from _links(site)


def _missing(site: Site) -> Iterator[Finding]:
    needed: list[tuple[tuple[Step, ...], str, object]] = [
        (("cluster", "name"), "the cluster has no name", site.cluster.name),
        (("publishing", "host"), "there is no domain to publish below", site.publishing.host),
    ]
    if site.cluster.variant != "hosted":
        needed.append((("nodes",), "there are no nodes", site.nodes))
    for position, node in enumerate(site.nodes):
        who = node.name or f"node {position + 1}"
        needed.append((("nodes", position, "name"), f"node {position + 1} has no name", node.name))
        needed.append((("nodes", position, "address"), f"{who} has no address", node.address))
        role_given = site.given("nodes", position, "role") or "role" in node.model_fields_set
        needed.append((("nodes", position, "role"), f"{who} has no role", role_given))
    if site.existing:
        access = site.cluster.access
        for key, value in (("kubeconfig", access and access.kubeconfig), ("context", access and access.context)):
            needed.append((("cluster", "access", key), f"the existing cluster's {key} is not named", value))
    for steps, problem, value in needed:
        if not value and not site.unread(*steps):
            key = str(steps[-1])
            command = (
                config_set(f"cozystack:{steps[0]}.{key}", "…") if len(steps) == 2 and steps[0] != "nodes" else None
            )
            yield CFG_004.at(site.where(*steps), problem=problem, fix=f"add `{key}`", command=command)


def _cluster_name(site: Site) -> Iterator[Finding]:
    name = site.cluster.name
    problem = label_problem(name) if name else None
    if problem is not None:
        path, like = site.where("cluster", "name"), label_like(name)
        fix = f"call it `{like}`" if like else "use lower-case letters, digits and dashes"
        command = config_set(path, like) if like else None
        yield INV_008.at(path, problem=f"`{_short(name)}`: {problem}", fix=fix, command=command)


def _names(site: Site) -> Iterator[Finding]:
    by_name: dict[str, list[int]] = defaultdict(list)
    for position, node in enumerate(site.nodes):
        if not node.name:
            continue
        path = site.where("nodes", position, "name")
        like = label_like(node.name)
        problem = label_problem(node.name)
        if problem is None and address_in(node.name).address is not None:
            problem = "it is an address"
        if problem is not None:
            fix = f"call it `{like}`" if like and like != node.name else "use lower-case letters, digits and dashes"
            yield INV_001.at(path, problem=f"`{_short(node.name)}`: {problem}", fix=fix)
        elif node.name in _RESERVED_NAMES:
            yield INV_009.at(path, problem=f"`{node.name}` is a name every machine has", fix="e.g. `cp1`")
        by_name[like or node.name].append(position)
    for name, positions in by_name.items():
        for position in positions[1:]:
            first = site.nodes[positions[0]].name
            other = f"`{_short(first)}`" + ("" if first == site.nodes[position].name else f" (both become `{name}`)")
            problem = f"node {position + 1} is called like node {positions[0] + 1}: {other}"
            yield INV_002.at(site.where("nodes", position, "name"), problem=problem, fix="rename one of them")


def _spellings(survey: Survey) -> Iterator[Finding]:
    for point in (*survey.node_points, *survey.external):
        if point.spelled.problem is not None and not survey.site.unread(*point.steps):
            path = survey.site.where(*point.steps)
            meant = str(point.address) if point.address is not None else None
            fix = f"write `{meant}`" if meant else "write an address such as 10.0.0.11"
            command = config_set(path, meant) if meant else None
            problem = f"`{_short(point.text)}`: {point.spelled.problem}"
            yield INV_003.at(path, problem=problem, fix=fix, command=command)


def _possible(survey: Survey) -> Iterator[Finding]:
    lab = survey.site.lab is not None
    for point in (*survey.node_points, *survey.external):
        kind = unusable(point.address, lab=lab) if point.address is not None else None
        if kind is not None:
            fix = "give an address that other machines can reach"
            yield INV_004.at(survey.site.where(*point.steps), problem=f"{point} is {kind}", fix=fix)
        elif point.kind == "public address" and point.address is not None and _private(point.address) and not lab:
            fix = "give the public one, or remove it: `internalAddress` is for addresses inside"
            yield INV_015.at(survey.site.where(*point.steps), problem=f"{point} is a private address", fix=fix)


def unusable(address: Address, *, lab: bool) -> str | None:
    """Why no machine can have this address, in words; None when one can. The lab's machines live on loopback."""
    if address.is_loopback:
        return None if lab else "a loopback address"
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_link_local:
        return "a link-local address"
    if int(address) == 2**32 - 1 and address.version == 4:
        return "the broadcast address"
    if address.version == 4 and (int(address) >> 24 == 0 or int(address) >> 28 == 15):
        return "a reserved address"
    return None


def _private(address: Address) -> bool:
    # Not `is_private`: that also covers the documentation ranges every example uses.
    if address.version == 6:
        return int(address) >> 121 == 0xFC >> 1
    number = int(address)
    return number >> 24 == 10 or number >> 20 == 0xAC1 or number >> 16 == 0xC0A8


def _shared(survey: Survey) -> Iterator[Finding]:
    owners: dict[Address, list[Point]] = defaultdict(list)
    for point in survey.node_points:
        if point.address is not None:
            owners[point.address].append(point)
    for points in owners.values():
        told: set[int | None] = {points[0].node}
        for point in points[1:]:
            if point.node not in told:
                told.add(point.node)
                other = points[0]
                meant = f" ({point.address})" if point.text != other.text else ""
                who, whom = point.owner or _nth(point), other.owner or _nth(other)
                problem = f"{who}'s {point.kind} {_short(point.text)} is {whom}'s {other.kind}{meant} too"
                yield INV_005.at(survey.site.where(*point.steps), problem=problem, fix="correct one of them")


def _nth(point: Point) -> str:
    return f"node {(point.node or 0) + 1}"


def _families(survey: Survey) -> Iterator[Finding]:
    families = {address.version for address in survey.internal.values()}
    if len(families) > 1:
        first = next(iter(survey.internal.values())).version
        odd = next(position for position, address in survey.internal.items() if address.version != first)
        node = survey.site.nodes[odd]
        key = "internalAddress" if node.internal_address else "address"
        problem = f"{node.name or f'node {odd + 1}'} has an IPv{10 - first} address, the first node an IPv{first} one"
        fix = "give every node an internal address of the same family"
        yield INV_006.at(survey.site.where("nodes", odd, key), problem=problem, fix=fix)


def _labels(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        for key, value in node.labels.items():
            problem = _label_key_problem(key) or _label_value_problem(value)
            if problem is not None:
                path = site.where("nodes", position, "labels", key)
                yield INV_007.at(path, problem=f"label `{_short(key)}`: {problem}", fix="correct the label")
        if node.zone is not None and (not node.zone or not _LABEL_VALUE.match(node.zone)):
            problem = f"`{_short(node.zone)}` cannot be the value of a label"
            yield INV_007.at(site.where("nodes", position, "zone"), problem=problem, fix="e.g. `zone: a`")


def _label_key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if not name or not _LABEL_VALUE.match(name):
        return "its name has other characters than letters, digits, `-`, `_` and `.`, or is longer than 63"
    if slash and domain_problem(prefix) is not None:
        return "what stands before the slash is not a domain"
    return None


def _label_value_problem(value: str) -> str | None:
    return None if _LABEL_VALUE.match(value) else "its value is not one a label can have"


def _zones(site: Site) -> Iterator[Finding]:
    without = [position for position, node in enumerate(site.nodes) if not node.zone]
    if without and len(without) < len(site.nodes) and not site.partly_unread("nodes"):
        names = listed(site.nodes[position].name or f"node {position + 1}" for position in without)
        fix = "add `zone:` to these, or remove it from the others"
        yield INV_010.at(site.where("nodes", without[0]), problem=f"no zone: {names}", fix=fix)


def _resets(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        if node.reset is None or not node.reset.approved:
            continue
        path = site.where("nodes", position, "reset")
        if not node.reset.reason.strip():
            problem = f"{node.name} may be wiped, and nobody says why"
            yield INV_011.at(path, problem=problem, fix="add `reason:`")
        else:
            problem = f"{node.name} may be wiped if it carries a configuration"
            yield INV_012.at(path, problem=problem, fix="remove `reset` once it has joined")


def _static(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        read = [interface_in(text) for text in node.addresses]
        for index, interface in enumerate(read):
            if interface is None and not site.unread("nodes", position, "addresses", index):
                problem = f"`{_short(node.addresses[index])}` is not an address with prefix length"
                path = site.where("nodes", position, "addresses", index)
                yield INV_013.at(path, problem=problem, fix="e.g. 10.0.0.11/24")
        known = [interface for interface in read if interface is not None]
        own = address_in(node.internal).address
        if known and len(known) == len(read) and own is not None and own not in {interface.ip for interface in known}:
            problem = f"{node.name}'s own address {node.internal} is not among its static addresses"
            yield INV_013.at(
                site.where("nodes", position, "addresses"), problem=problem, fix=f"add {own} with its prefix"
            )
        yield from _gateway(site, position, known)


def _gateway(site: Site, position: int, known: list[object]) -> Iterator[Finding]:
    node = site.nodes[position]
    if not node.gateway:
        return
    path, gateway = site.where("nodes", position, "gateway"), address_in(node.gateway)
    if gateway.problem is not None or gateway.address is None:
        yield INV_013.at(path, problem=f"`{_short(node.gateway)}`: {gateway.problem}", fix="give the router's address")
    elif not node.addresses:
        problem = f"{node.name} has a gateway but no static addresses"
        yield INV_013.at(path, problem=problem, fix="add `addresses`, or leave both to DHCP")
    elif known and not any(gateway.address in getattr(interface, "network", ()) for interface in known):
        problem = f"{node.name}'s gateway {node.gateway} lies in none of its networks"
        yield INV_013.at(path, problem=problem, fix="give a router in the same network")


def _links(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        links = [(("link",), node.link), *((("vips", index, "link"), vip.link) for index, vip in enumerate(node.vips))]
        for steps, link in links:
            if link is not None and (not _LINK.match(link) or link in {".", ".."}):
                path = site.where("nodes", position, *steps)
                yield INV_014.at(path, problem=f"`{_short(link)}` cannot be a link", fix="e.g. ens5, eth0 or bond0")


def listed(names: Iterable[str], limit: int = 3) -> str:
    """`a, b, c and 7 more`."""
    names = list(names)
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def _short(text: Hashable) -> str:
    shown = str(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


__all__ = ["NOTE", "judge", "listed", "unusable"]
