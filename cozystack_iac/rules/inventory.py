"""Who is who: names, addresses and labels of the machines, and what a site cannot do without."""

from collections import defaultdict
from collections.abc import Iterator

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import (
    Address,
    address_in,
    label_like,
    label_problem,
    private,
)
from cozystack_iac.rules.survey import Point, Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import Step, config_set

CFG_004 = Rule(
    "CFG-004",
    ERROR,
    title="Every required setting is present",
    why="there is no sensible default for it",
    remedy="add the key",
)
INV_001 = Rule(
    "INV-001",
    ERROR,
    title="Node names are lowercase DNS labels",
    why="the kubelet cannot register under this name, or registers under another spelling and the run waits "
    "for the wrong node",
    remedy="use the suggested name",
)
INV_002 = Rule(
    "INV-002",
    ERROR,
    title="Every node name is unique",
    why="two machines would compete for the same Node object and the same etcd member name",
    remedy="rename one of them",
)
INV_003 = Rule(
    "INV-003",
    ERROR,
    title="Addresses are written in canonical form",
    why="programs parse such spellings differently or not at all",
    remedy="write the plain address: no prefix length, no leading zeros, no brackets",
)
INV_004 = Rule(
    "INV-004",
    ERROR,
    title="Node addresses are usable unicast addresses",
    why="other machines cannot reach the node at this address",
    remedy="set the machine's own unicast address",
)
INV_005 = Rule(
    "INV-005",
    ERROR,
    title="Every address belongs to one node",
    why="one machine would receive the other's configuration",
    remedy="correct one of the two nodes",
)
INV_006 = Rule(
    "INV-006",
    ERROR,
    title="All internal addresses use the same IP family",
    why="only one IP family is advertised by etcd and the kubelets, so nodes of the other family are unreachable",
    remedy="give every node an internal address of the same IP family",
)
INV_008 = Rule(
    "INV-008",
    ERROR,
    title="The cluster name is a lowercase DNS label",
    why="it is used in the Talos cluster name, in kubeconfig contexts and in certificates",
    remedy="use the suggested name",
)
INV_009 = Rule(
    "INV-009",
    ERROR,
    title="Node names are specific to one machine",
    why="rescue systems and unconfigured machines use this name too, so the node cannot be told apart from them",
    remedy="choose a specific name, for example cp1",
)
INV_015 = Rule(
    "INV-015",
    WARNING,
    title="Public addresses are public",
    why="nobody outside the site can reach the node at this address",
    remedy="set the address that the provider maps to the machine",
)

_RESERVED_NAMES = frozenset({"localhost", "talos", "rescue", "ubuntu", "debian"})


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


def _missing(site: Site) -> Iterator[Finding]:
    needed: list[tuple[tuple[Step, ...], str, object]] = [
        (("cluster", "name"), "the cluster has no name", site.cluster.name),
        (("publishing", "host"), "publishing.host, the domain of the platform, is missing", site.publishing.host),
    ]
    if site.cluster.variant != "hosted":
        needed.append((("nodes",), "the inventory has no nodes", site.nodes))
    for position, node in enumerate(site.nodes):
        who = node.name or f"node {position + 1}"
        needed.append((("nodes", position, "name"), f"node {position + 1} has no name", node.name))
        needed.append((("nodes", position, "address"), f"{who} has no address", node.address))
        role_given = "role" in node.model_fields_set
        needed.append((("nodes", position, "role"), f"{who} has no role", role_given))
    if site.existing:
        access = site.cluster.access
        for key, given in (("kubeconfig", access and access.kubeconfig), ("context", access and access.context)):
            needed.append((("cluster", "access", key), f"{key} of the existing cluster is missing", given))
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
        fix = f"rename it to `{like}`" if like else "use lowercase letters, digits and dashes"
        command = config_set(path, like) if like else None
        yield INV_008.at(
            path, problem=f"`{short(name)}` is not a valid cluster name: {problem}", fix=fix, command=command
        )


def _names(site: Site) -> Iterator[Finding]:
    by_name: dict[str, list[int]] = defaultdict(list)
    for position, node in enumerate(site.nodes):
        if not node.name:
            continue
        path = site.where("nodes", position, "name")
        like = label_like(node.name)
        problem = label_problem(node.name)
        if problem is None and address_in(node.name).address is not None:
            problem = "it is an IP address"
        if problem is not None:
            fix = f"rename it to `{like}`" if like and like != node.name else "use lowercase letters, digits and dashes"
            yield INV_001.at(path, problem=f"`{short(node.name)}` is not a valid node name: {problem}", fix=fix)
        elif node.name in _RESERVED_NAMES:
            yield INV_009.at(
                path,
                problem=f"`{node.name}` is a name that every unconfigured machine has",
                fix="choose a specific name such as `cp1`",
            )
        by_name[like or node.name].append(position)
    for name, positions in by_name.items():
        for position in positions[1:]:
            first = site.nodes[positions[0]].name
            other = f"`{short(first)}`" + ("" if first == site.nodes[position].name else f" (both become `{name}`)")
            problem = f"node {position + 1} has the same name as node {positions[0] + 1}: {other}"
            yield INV_002.at(site.where("nodes", position, "name"), problem=problem, fix="rename one of them")


def _spellings(survey: Survey) -> Iterator[Finding]:
    for point in (*survey.node_points, *survey.external):
        if point.spelled.problem is not None and not survey.site.unread(*point.steps):
            path = survey.site.where(*point.steps)
            meant = str(point.address) if point.address is not None else None
            fix = f"write `{meant}`" if meant else "write an address such as 10.0.0.11"
            command = config_set(path, meant) if meant else None
            problem = f"`{short(point.text)}` is not a plain IP address: {point.spelled.problem}"
            yield INV_003.at(path, problem=problem, fix=fix, command=command)


def _possible(survey: Survey) -> Iterator[Finding]:
    for point in (*survey.node_points, *survey.external):
        kind = survey.unusable(point.address) if point.address is not None else None
        if kind is not None:
            fix = "use an address that other machines can reach"
            yield INV_004.at(survey.site.where(*point.steps), problem=f"{point} is {kind}", fix=fix)
        elif point.kind == "public address" and point.address is not None and private(point.address):
            fix = "set the public address, or remove it; internal addresses belong in `internalAddress`"
            yield INV_015.at(survey.site.where(*point.steps), problem=f"{point} is a private address", fix=fix)


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
                problem = f"{who}'s {point.kind} {short(point.text)} is also {whom}'s {other.kind}{meant}"
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
        problem = (
            f"{node.name or f'node {odd + 1}'} has an IPv{10 - first} address, but the first node has an "
            f"IPv{first} address"
        )
        fix = "give every node an internal address of the same IP family"
        yield INV_006.at(survey.site.where("nodes", odd, key), problem=problem, fix=fix)
