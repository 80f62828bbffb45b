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
    title="labels and zones are valid for Kubernetes",
    why="the API server refuses the node, or the machine refuses its configuration",
    remedy="use letters, digits, dashes, underscores and dots, at most 63 characters",
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
INV_016 = Rule(
    "INV-016",
    ERROR,
    title="approvals for removed machines name machines that are removed",
    why="nobody can tell what is wanted: the machine is still one of the nodes, or it is named twice or not at all",
    remedy="take the machine out of `nodes`, or remove the entry",
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
                yield INV_007.at(path, problem=f"label `{short(key)}`: {problem}", fix="correct the label")
        if node.zone is not None and (not node.zone or not _LABEL_VALUE.match(node.zone)):
            problem = f"`{short(node.zone)}` cannot be the value of a label"
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


def _removed(site: Site) -> Iterator[Finding]:
    nodes = {node.name for node in site.nodes}
    names = [entry.name for entry in site.removed]
    for position, entry in enumerate(site.removed):
        path = site.where("removed", position)
        if not entry.name:
            yield INV_016.at(path, problem=f"entry {position + 1} names no machine", fix="add `name:`")
        elif entry.name in nodes:
            yield INV_016.at(path, problem=f"`{short(entry.name)}` is still one of the nodes", fix=INV_016.remedy)
        elif entry.name in names[:position]:
            yield INV_016.at(path, problem=f"`{short(entry.name)}` is named twice", fix="make one entry of the two")
        approvals = (("reset", entry.reset), ("evacuate", entry.evacuate), ("lost", entry.lost))
        for key, approval in approvals:
            if approval is not None and approval.approved and not approval.reason.strip():
                what = _APPROVED[key]
                where = site.where("removed", position, key)
                yield INV_011.at(where, problem=f"{entry.name} may be {what}, and nobody says why", fix="add `reason:`")


def _static(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        read = [interface_in(text) for text in node.addresses]
        for index, interface in enumerate(read):
            if interface is None and not site.unread("nodes", position, "addresses", index):
                problem = f"`{short(node.addresses[index])}` is not an address with prefix length"
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


def _gateway(site: Site, position: int, known: Sequence[Interface]) -> Iterator[Finding]:
    node = site.nodes[position]
    if not node.gateway:
        return
    path, gateway = site.where("nodes", position, "gateway"), address_in(node.gateway)
    if gateway.problem is not None or gateway.address is None:
        yield INV_013.at(path, problem=f"`{short(node.gateway)}`: {gateway.problem}", fix="give the router's address")
    elif not node.addresses:
        problem = f"{node.name} has a gateway but no static addresses"
        yield INV_013.at(path, problem=problem, fix="add `addresses`, or leave both to DHCP")
    elif known and not any(gateway.address in interface.network for interface in known):
        problem = f"{node.name}'s gateway {node.gateway} lies in none of its networks"
        yield INV_013.at(path, problem=problem, fix="give a router in the same network")


def _links(site: Site) -> Iterator[Finding]:
    for position, node in enumerate(site.nodes):
        links = [(("link",), node.link), *((("vips", index, "link"), vip.link) for index, vip in enumerate(node.vips))]
        for steps, link in links:
            if link is not None and (not LINK.match(link) or link in {".", ".."}):
                path = site.where("nodes", position, *steps)
                yield INV_014.at(path, problem=f"`{short(link)}` cannot be a link", fix="e.g. ens5, eth0 or bond0")
