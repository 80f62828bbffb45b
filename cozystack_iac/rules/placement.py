"""What is said of single machines: labels, zones, links, static addresses, approvals."""

import re
from collections.abc import Iterator, Sequence

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import Interface, address_in, domain_problem, interface_in
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings import Site

INV_007 = Rule(
    "INV-007",
    ERROR,
    title="Labels and zones are valid in Kubernetes",
    why="the API server rejects the node, or the machine rejects its configuration",
    remedy="use letters, digits, dashes, underscores and dots, at most 63 characters",
)
INV_010 = Rule(
    "INV-010",
    WARNING,
    title="Either every node has a zone, or none does",
    why="replicas are spread across zones, and nodes without a zone count as a zone of their own",
    remedy="set a zone on the remaining nodes",
)
INV_011 = Rule(
    "INV-011",
    ERROR,
    title="Every approval to wipe a machine has a reason",
    why="wiping destroys all data on the machine, and later nobody can tell who wanted it",
    remedy="add a reason, or remove the approval",
)
INV_012 = Rule(
    "INV-012",
    WARNING,
    title="Machines are approved for wiping only when needed",
    why="a machine that already has a configuration would be reset, and its data would be lost",
    remedy="remove `reset` once the machine has joined",
)
INV_013 = Rule(
    "INV-013",
    ERROR,
    title="Static addresses are consistent",
    why="the machine would come up unreachable",
    remedy="set addresses with prefix lengths, including the node's own address, and a gateway in the same network",
)
INV_014 = Rule(
    "INV-014",
    ERROR,
    title="Link names are valid",
    why="no machine has a link of that name",
    remedy="use the name that the machine reports, at most 15 characters",
)
INV_016 = Rule(
    "INV-016",
    ERROR,
    title="Entries in `removed` name nodes that have been removed",
    why="the intent is unclear: the node is still in `nodes`, is listed twice, or is not named",
    remedy="remove the node from `nodes`, or remove the entry",
)

_LABEL_VALUE = re.compile(r"^(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", re.ASCII)
_APPROVED = {"reset": "wiped", "evacuate": "emptied of its replicas", "lost": "given up as lost"}
LINK = re.compile(r"^[A-Za-z0-9_.:-]{1,15}$", re.ASCII)  # IFNAMSIZ of Linux, without its final zero


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about what is said of single machines."""
    site = survey.site
    yield from _labels(site)
    yield from _zones(site)
    yield from _resets(site)
    yield from _removed(site)
    yield from _static(site)
    yield from _links(site)


def _labels(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        for key, value in node.labels.items():
            problem = _label_key_problem(key) or _label_value_problem(value)
            if problem is not None:
                path = site.where("nodes", position, "labels", key)
                yield INV_007.at(path, problem=f"label `{short(key)}` is not valid: {problem}", fix="correct the label")
        if node.zone is not None and (not node.zone or not _LABEL_VALUE.match(node.zone)):
            problem = f"`{short(node.zone)}` is not a valid label value"
            yield INV_007.at(
                site.where("nodes", position, "zone"), problem=problem, fix="write, for example, `zone: a`"
            )


def _label_key_problem(key: str) -> str | None:
    prefix, slash, name = key.rpartition("/")
    if not name or not _LABEL_VALUE.match(name):
        return (
            "its name contains characters other than letters, digits, `-`, `_` and `.`, or is longer than 63 characters"
        )
    if slash and domain_problem(prefix) is not None:
        return "its prefix before the slash is not a domain"
    return None


def _label_value_problem(value: str) -> str | None:
    return None if _LABEL_VALUE.match(value) else "its value is not a valid label value"


def _zones(site: Site) -> Iterator[Finding]:
    without = [position for position, node in enumerate(site.nodes) if not node.zone]
    if without and len(without) < len(site.nodes) and not site.partly_unread("nodes"):
        names = listed(site.nodes[position].name or f"node {position + 1}" for position in without)
        fix = "add `zone:` to these nodes, or remove it from the others"
        yield INV_010.at(site.where("nodes", without[0]), problem=f"these nodes have no zone: {names}", fix=fix)


def _resets(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        if node.reset is None or not node.reset.approved:
            continue
        path = site.where("nodes", position, "reset")
        if not node.reset.reason.strip():
            problem = f"{node.name} may be wiped, but no reason is given"
            yield INV_011.at(path, problem=problem, fix="add `reason:`")
        else:
            problem = f"{node.name} may be wiped if it already has a configuration"
            yield INV_012.at(path, problem=problem, fix="remove `reset` once the node has joined")


def _removed(site: Site) -> Iterator[Finding]:
    nodes = {node.name for node in site.nodes}
    names = [entry.name for entry in site.removed]
    for position, entry in enumerate(site.removed):
        path = site.where("removed", position)
        if not entry.name:
            yield INV_016.at(path, problem=f"entry {position + 1} has no machine name", fix="add `name:`")
        elif entry.name in nodes:
            yield INV_016.at(path, problem=f"`{short(entry.name)}` is still listed in `nodes`", fix=INV_016.remedy)
        elif entry.name in names[:position]:
            yield INV_016.at(path, problem=f"`{short(entry.name)}` is listed twice", fix="merge the two entries")
        approvals = (("reset", entry.reset), ("evacuate", entry.evacuate), ("lost", entry.lost))
        for key, approval in approvals:
            if approval is not None and approval.approved and not approval.reason.strip():
                what = _APPROVED[key]
                where = site.where("removed", position, key)
                yield INV_011.at(
                    where, problem=f"{entry.name} may be {what}, but no reason is given", fix="add `reason:`"
                )


def _static(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        read = [interface_in(text) for text in node.addresses]
        for index, interface in enumerate(read):
            if interface is None and not site.unread("nodes", position, "addresses", index):
                problem = f"`{short(node.addresses[index])}` is not an address with a prefix length"
                path = site.where("nodes", position, "addresses", index)
                yield INV_013.at(path, problem=problem, fix="write, for example, 10.0.0.11/24")
        known = [interface for interface in read if interface is not None]
        own = address_in(node.internal).address
        if known and len(known) == len(read) and own is not None and own not in {interface.ip for interface in known}:
            problem = f"{node.name}'s own address {node.internal} is not one of its static addresses"
            yield INV_013.at(
                site.where("nodes", position, "addresses"), problem=problem, fix=f"add {own} with its prefix length"
            )
        yield from _gateway(site, position, known)


def _gateway(site: Site, position: int, known: Sequence[Interface]) -> Iterator[Finding]:
    node = site.nodes[position]
    if not node.gateway:
        return
    path, gateway = site.where("nodes", position, "gateway"), address_in(node.gateway)
    if gateway.problem is not None or gateway.address is None:
        yield INV_013.at(
            path,
            problem=f"`{short(node.gateway)}` is not a valid gateway: {gateway.problem}",
            fix="set the router's address",
        )
    elif not node.addresses:
        problem = f"{node.name} has a gateway but no static addresses"
        yield INV_013.at(path, problem=problem, fix="add `addresses`, or remove the gateway and use DHCP")
    elif known and not any(gateway.address in interface.network for interface in known):
        problem = f"{node.name}'s gateway {node.gateway} is in none of its networks"
        yield INV_013.at(path, problem=problem, fix="set a router in one of the node's networks")


def _links(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        links = [(("link",), node.link), *((("vips", index, "link"), vip.link) for index, vip in enumerate(node.vips))]
        for steps, link in links:
            if link is not None and (not LINK.match(link) or link in {".", ".."}):
                path = site.where("nodes", position, *steps)
                yield INV_014.at(
                    path,
                    problem=f"`{short(link)}` is not a valid link name",
                    fix="use a name such as ens5, eth0 or bond0",
                )
