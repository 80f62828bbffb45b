"""Virtual addresses: one control plane at a time carries them, in the nodes' own layer-2 network."""

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_network

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules import patches
from cozystack_iac.rules.spelling import Address, address_in
from cozystack_iac.rules.survey import Point, Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings.paths import config_set
from cozystack_iac.settings.platform import NAT_PROVIDERS

NET_021 = Rule(
    "NET-021",
    ERROR,
    title="A VIP is not the address of a node",
    why="both the node and the current VIP holder would answer for the address",
    remedy="use a free address in the node network",
)
NET_022 = Rule(
    "NET-022",
    ERROR,
    title="A VIP is a usable unicast address",
    why="Talos accepts the address without an error, but the API is never reachable there",
    remedy="use a free unicast address in the node network",
)
NET_023 = Rule(
    "NET-023",
    ERROR,
    title="VIPs are written in canonical form",
    why="the address is copied into certificates and URLs, where a different spelling does not match",
    remedy="write the plain address: no prefix length, no leading zeros, no brackets",
)
NET_024 = Rule(
    "NET-024",
    ERROR,
    title="VIPs are host addresses in the node network",
    why="the VIP is announced on layer 2, so it is unreachable outside that network",
    remedy="use a free address in nodeCIDR",
)
NET_026 = Rule(
    "NET-026",
    WARNING,
    title="Several control plane nodes share one endpoint",
    why="without a VIP or a load balancer, every node uses the first control plane node and loses the API "
    "when it fails",
    remedy="set talos.vip, or point cluster.endpoint to a load balancer",
)
NET_027 = Rule(
    "NET-027",
    WARNING,
    title="The setting talos.vip is used on Talos clusters only",
    why="the machines of an existing cluster are not configured by this stack, so no machine would hold the VIP",
    remedy="remove it; set cluster.endpoint instead",
)
NET_028 = Rule(
    "NET-028",
    ERROR,
    title="Only control plane nodes have VIPs",
    why="the VIP holder is elected through etcd, which workers do not run, so the VIP never comes up",
    remedy="move it to the control plane nodes",
)
NET_029 = Rule(
    "NET-029",
    ERROR,
    title="Every node lists a VIP only once",
    why="the machine rejects a configuration with two documents for the same VIP",
    remedy="remove one of them",
)
NET_031 = Rule(
    "NET-031",
    WARNING,
    title="The link of a VIP is configured",
    why="without an address of its own in that network, a joining etcd member stays in Preparing",
    remedy="use the node's link, or configure the other link in a patch",
)
NET_032 = Rule(
    "NET-032",
    ERROR,
    title="VIPs use the IP family of the nodes",
    why="the nodes have no network of that family to announce the VIP in",
    remedy="use an address of the nodes' IP family",
)

NET_033 = Rule(
    "NET-033",
    WARNING,
    title="VIPs are not used in clouds",
    why="clouds deliver an address to the instance it is assigned to and ignore layer 2 announcements, so "
    "the VIP is unreachable",
    remedy="set cluster.endpoint to the provider's load balancer, and remove talos.vip",
    overridable=True,
)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about virtual addresses."""
    yield from _forms(survey)
    yield from _conflicts(survey)
    yield from _networks(survey)
    yield from _carriers(survey)
    yield from _repeated(survey)
    yield from _links(survey)
    yield from _shared(survey)
    yield from _clouds(survey)


def _forms(survey: Survey) -> Iterator[Finding]:
    for point in survey.vips:
        if survey.site.unread(*point.steps):
            continue
        path = survey.site.where(*point.steps)
        if point.spelled.problem is not None:
            meant = str(point.address) if point.address is not None else None
            fix = f"write `{meant}`" if meant else "write a free address in the node network"
            command = config_set(path, meant) if meant else None
            problem = f"`{short(point.text)}` is not a plain IP address: {point.spelled.problem}"
            yield NET_023.at(path, problem=problem, fix=fix, command=command)
        kind = survey.unusable(point.address) if point.address is not None else None
        if kind is not None:
            problem = f"{point} is {kind}"
            yield NET_022.at(path, problem=problem, fix="use a free unicast address in the node network")


def _conflicts(survey: Survey) -> Iterator[Finding]:
    owners = {point.address: point for point in reversed(survey.node_points) if point.address is not None}
    for node_position, node in enumerate(survey.site.nodes):
        for text in node.addresses:
            address = address_in(text.split("/", 1)[0]).address
            if address is not None:
                steps = ("nodes", node_position)
                owners.setdefault(
                    address, Point(node.name, "static address", steps, text, address_in(text), node_position)
                )
    for point in survey.vips:
        owner = owners.get(point.address) if point.address is not None else None
        if owner is not None:
            problem = f"{point} is {owner.owner or 'a node'}'s {owner.kind}"
            path = survey.site.where(*point.steps)
            yield NET_021.at(path, problem=problem, fix="use an address that no node has")
    for point in survey.vips:
        if point.address is not None and any(point.address == other.address for other in survey.external):
            problem = f"{point} is also an external address: the ingress would take it from the API"
            yield NET_021.at(survey.site.where(*point.steps), problem=problem, fix="use two different addresses")


def _networks(survey: Survey) -> Iterator[Finding]:
    span = survey.node_span
    families = {address.version for address in survey.internal.values()}
    for point in survey.vips:
        address, path = point.address, survey.site.where(*point.steps)
        if address is None or survey.unusable(address):
            continue
        if families and address.version not in families:
            yield NET_032.at(
                path,
                problem=f"{point} is IPv{address.version}, but the nodes are not",
                fix="use the IP family of the nodes",
            )
        elif span is not None and point is survey.vip and not span.holds(address):
            yield NET_024.at(path, problem=f"{point} is outside {span}", fix="use a free address in nodeCIDR")
        elif span is not None and span.size > 2 and address.version == 4 and address in (span.first, span.last):
            which = "network" if address == span.first else "broadcast"
            problem = f"{point} is the {which} address of {span}"
            yield NET_024.at(path, problem=problem, fix="use a host address in nodeCIDR")
        elif span is None and point is survey.vip and _far(address, survey):
            problem = f"{point} is not in the same /16 as any control plane node"
            fix = "use a free address in the node network"
            yield NET_024.at(path, problem=problem, fix=fix, severity=WARNING)


def _far(address: Address, survey: Survey) -> bool:
    """Whether an IPv4 address is nowhere near the control planes: without nodeCIDR that is all that can be said."""
    planes = [
        other
        for position, other in survey.internal.items()
        if survey.site.nodes[position].is_control_plane and other.version == 4
    ]
    near = ip_network(f"{address}/16", strict=False) if address.version == 4 else None
    return near is not None and bool(planes) and not any(other in near for other in planes)


def _carriers(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if site.existing and site.talos.vip:
        problem = f"talos.vip is set on an existing cluster ({site.cluster.variant})"
        yield NET_027.at(site.where("talos", "vip"), problem=problem, fix="remove it, or set cluster.endpoint")
    for position, node in enumerate(site.nodes):
        if node.vips and not node.is_control_plane and not site.unread("nodes", position, "role"):
            problem = f"{node.name} is a worker but has VIPs"
            yield NET_028.at(
                site.where("nodes", position, "vips"), problem=problem, fix="move them to the control plane nodes"
            )
        for index, patch in enumerate(node.patches):
            if not node.is_control_plane and next(patches.virtual_addresses(patch), None) is not None:
                path = site.where("nodes", position, "patches", index)
                problem = f"{node.name} is a worker, but one of its patches configures a VIP"
                yield NET_028.at(path, problem=problem, fix="move the document to the control plane nodes")


def _repeated(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    cluster = survey.vip.address if survey.vip is not None else None
    shared = [text for patch in site.talos.patches for text in patches.virtual_addresses(patch)]
    for position, node in enumerate(site.nodes):
        own = [text for patch in node.patches for text in patches.virtual_addresses(patch)]
        if not node.vips and not own and not shared:
            continue
        named: dict[Address, int] = defaultdict(int)
        texts = [*(vip.address for vip in node.vips), *own, *(shared if node.is_control_plane else [])]
        for text in texts:
            address = address_in(text).address
            if address is not None:
                named[address] += 1
        for address, times in named.items():
            if times + (address == cluster and node.is_control_plane) > 1:
                problem = f"{node.name} lists {address} more than once"
                key = "vips" if node.vips else "patches"
                path = site.where("nodes", position, key)
                yield NET_029.at(
                    path,
                    problem=problem,
                    fix="remove one; the cluster VIP is added to every control plane node automatically",
                )


def _links(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    for position, node in enumerate(site.nodes):
        described: set[str] | None = None
        for index, vip in enumerate(node.vips):
            if vip.link is None or vip.link == node.link:
                continue
            if described is None:
                described = set(patches.links((*site.talos.patches, *node.patches)))
            if vip.link not in described:
                problem = f"{node.name}'s VIP {vip.address} is on {vip.link}, which is not configured here"
                fix = f"use {node.link or 'the node’s link'}, or add a LinkConfig for {vip.link} to `patches`"
                yield NET_031.at(site.where("nodes", position, "vips", index, "link"), problem=problem, fix=fix)


def _shared(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if not site.existing and len(site.control_planes) > 1 and not site.talos.vip and not site.cluster.endpoint:
        if site.unread("talos", "vip") or site.unread("cluster", "endpoint"):
            return
        problem = (
            f"the site has {len(site.control_planes)} control plane nodes, but neither talos.vip nor cluster.endpoint"
        )
        command = config_set("cozystack:talos.vip", "10.0.0.10")
        fix = "set talos.vip to a free address in the node network"
        yield NET_026.at(site.where("talos"), problem=problem, fix=fix, command=command)


def _clouds(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if survey.vip is not None and site.publishing.provider in NAT_PROVIDERS and not site.existing:
        problem = f"{survey.vip} is set on {site.publishing.provider}"
        fix = "set cluster.endpoint to the provider's load balancer, and remove talos.vip"
        yield NET_033.at(site.where("talos", "vip"), problem=problem, fix=fix)
