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
    title="a virtual address belongs to no machine",
    why="the machine and whoever carries the virtual address would both answer for it",
    remedy="use a free address of the node network",
)
NET_022 = Rule(
    "NET-022",
    ERROR,
    title="a virtual address is one a network can carry",
    why="no network carries it, and Talos accepts it without a word: the API would never be reached",
    remedy="use a free unicast address of the node network",
)
NET_023 = Rule(
    "NET-023",
    ERROR,
    title="virtual addresses are written plainly",
    why="the address ends up in certificates and URLs, where another spelling is another address",
    remedy="write the address without prefix length or embedding",
)
NET_024 = Rule(
    "NET-024",
    ERROR,
    title="virtual addresses are hosts of the node network",
    why="it is announced on layer 2: outside that network nobody hears it",
    remedy="use a free address of nodeCIDR",
)
NET_026 = Rule(
    "NET-026",
    WARNING,
    title="several control planes share one address",
    why="without a virtual address or a load balancer every node talks to the first control plane, and loses the API with it",
    remedy="set talos.vip, or cluster.endpoint to a load balancer",
)
NET_027 = Rule(
    "NET-027",
    WARNING,
    title="talos.vip is set on the Talos variant only",
    why="on existing clusters nobody configures the machines, so nobody will carry it",
    remedy="remove it; set cluster.endpoint instead",
)
NET_028 = Rule(
    "NET-028",
    ERROR,
    title="only control planes carry virtual addresses",
    why="the carrier is elected through etcd, and workers have none: the address never comes up there",
    remedy="move it to the control planes",
)
NET_029 = Rule(
    "NET-029",
    ERROR,
    title="a machine names each virtual address once",
    why="the machine refuses a configuration with two documents for one address",
    remedy="remove one of them",
)
NET_031 = Rule(
    "NET-031",
    WARNING,
    title="the link of a virtual address is described",
    why="without an address of its own in that network a joining etcd member stays in Preparing",
    remedy="use the node's link, or describe the other one in a patch",
)
NET_032 = Rule(
    "NET-032",
    ERROR,
    title="virtual addresses are of the nodes' family",
    why="the machines have no network of that family to announce it in",
    remedy="use an address of the nodes' family",
)

NET_033 = Rule(
    "NET-033",
    WARNING,
    title="virtual addresses are used where layer 2 is ours",
    why="clouds deliver an address to the instance they assigned it to and ignore announcements: nobody reaches the virtual one",
    remedy="set cluster.endpoint to the provider's load balancer and leave talos.vip out",
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
            fix = f"write `{meant}`" if meant else "write a free address of the node network"
            command = config_set(path, meant) if meant else None
            problem = f"`{short(point.text)}`: {point.spelled.problem}"
            yield NET_023.at(path, problem=problem, fix=fix, command=command)
        kind = survey.unusable(point.address) if point.address is not None else None
        if kind is not None:
            problem = f"{point} is {kind}"
            yield NET_022.at(path, problem=problem, fix="use a free unicast address of the node network")


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
            yield NET_021.at(path, problem=problem, fix="use an address that no machine has")
    for point in survey.vips:
        if point.address is not None and any(point.address == other.address for other in survey.external):
            problem = f"{point} is an external address too: the ingress would take it from the API"
            yield NET_021.at(survey.site.where(*point.steps), problem=problem, fix="use different addresses")


def _networks(survey: Survey) -> Iterator[Finding]:
    span = survey.node_span
    families = {address.version for address in survey.internal.values()}
    for point in survey.vips:
        address, path = point.address, survey.site.where(*point.steps)
        if address is None or survey.unusable(address):
            continue
        if families and address.version not in families:
            yield NET_032.at(
                path, problem=f"{point} is IPv{address.version}, the nodes are not", fix="use the nodes' family"
            )
        elif span is not None and point is survey.vip and not span.holds(address):
            yield NET_024.at(path, problem=f"{point} is outside {span}", fix="use a free address of nodeCIDR")
        elif span is not None and span.size > 2 and address.version == 4 and address in (span.first, span.last):
            which = "network" if address == span.first else "broadcast"
            problem = f"{point} is the {which} address of {span}"
            yield NET_024.at(path, problem=problem, fix="use a host of nodeCIDR")
        elif span is None and point is survey.vip and _far(address, survey):
            problem = f"{point} shares no /16 with any control plane"
            fix = "use a free address of the nodes' network"
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
            problem = f"{node.name} is a worker and has virtual addresses"
            yield NET_028.at(site.where("nodes", position, "vips"), problem=problem, fix="move them to control planes")
        for index, patch in enumerate(node.patches):
            if not node.is_control_plane and next(patches.virtual_addresses(patch), None) is not None:
                path = site.where("nodes", position, "patches", index)
                problem = f"{node.name} is a worker, and a patch of it claims a virtual address"
                yield NET_028.at(path, problem=problem, fix="move the document to the control planes")


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
                problem = f"{node.name} names {address} more than once"
                key = "vips" if node.vips else "patches"
                path = site.where("nodes", position, key)
                yield NET_029.at(
                    path, problem=problem, fix="remove one; the cluster's own is added to every control plane"
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
                problem = f"{node.name}'s VIP {vip.address} is on {vip.link}, which nothing here describes"
                fix = f"use {node.link or 'the node’s link'}, or add a LinkConfig for {vip.link} to `patches`"
                yield NET_031.at(site.where("nodes", position, "vips", index, "link"), problem=problem, fix=fix)


def _shared(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if not site.existing and len(site.control_planes) > 1 and not site.talos.vip and not site.cluster.endpoint:
        if site.unread("talos", "vip") or site.unread("cluster", "endpoint"):
            return
        problem = f"{len(site.control_planes)} control planes and neither talos.vip nor cluster.endpoint"
        command = config_set("cozystack:talos.vip", "10.0.0.10")
        fix = "set talos.vip to a free address of the node network"
        yield NET_026.at(site.where("talos"), problem=problem, fix=fix, command=command)


def _clouds(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if survey.vip is not None and site.publishing.provider in NAT_PROVIDERS and not site.existing:
        problem = f"{survey.vip} on {site.publishing.provider}"
        fix = "set cluster.endpoint to the provider's load balancer and leave talos.vip out"
        yield NET_033.at(site.where("talos", "vip"), problem=problem, fix=fix)
