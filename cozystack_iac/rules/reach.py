"""Single addresses against ranges: nodes, virtual and external addresses where pods, services or others live."""

from collections.abc import Iterator
from ipaddress import ip_network

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules.ranges import CGNAT, Addresses, free_range
from cozystack_iac.rules.spelling import address_in
from cozystack_iac.rules.survey import Survey, span_of
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings.paths import config_set

NET_010 = Rule(
    "NET-010",
    ERROR,
    title="No address of the site is inside a cluster range",
    why="packets to that address would go to the pod network instead of the machine",
    remedy="move the range to the suggested free one",
    soft_on_existing=True,
)
NET_011 = Rule(
    "NET-011",
    WARNING,
    title="Node addresses do not share 100.64.0.0/10 with the join CIDR",
    why="carriers (CGNAT) and Tailscale use 100.64.0.0/10, and so does Kube-OVN's join network by default: "
    "the routes of one hide the other",
    remedy="move joinCIDR out of 100.64.0.0/10",
)
NET_012 = Rule(
    "NET-012",
    WARNING,
    title="Ranges do not overlap with Docker's bridge",
    why="workstations and hosts that run Docker route 172.17.0.0/16 to their own bridge",
    remedy="use the suggested free range",
)
NET_013 = Rule(
    "NET-013",
    ERROR,
    title="Ranges do not overlap with KubeSpan",
    why="KubeSpan uses addresses in fd00::/8 and would hide the others",
    remedy="use another range, or disable KubeSpan",
)
NET_014 = Rule(
    "NET-014",
    WARNING,
    title="All nodes are in the node network",
    why="VIPs and load balancer addresses are announced within a single layer 2 network",
    remedy="correct the address or nodeCIDR",
)
NET_016 = Rule(
    "NET-016",
    ERROR,
    title="Load balancer pools do not contain addresses in use",
    why="a service could be assigned the address of a machine, and the two would conflict",
    remedy="exclude these addresses from the pool",
)
NET_018 = Rule(
    "NET-018",
    WARNING,
    title="The CIDRs match those of the existing cluster",
    why="the platform needs the CIDRs that the cluster was created with; k3s and RKE2 use 10.42.0.0/16 and "
    "10.43.0.0/16, not Cozystack's defaults",
    remedy="set podCIDR and serviceCIDR to the API server's values",
)
NET_019 = Rule(
    "NET-019",
    ERROR,
    title="Kube-OVN's master nodes are control plane nodes of this site",
    why="Kube-OVN's database would wait for members that do not exist",
    remedy="list internal addresses of control plane nodes, or leave masterNodes empty",
)

_DOCKER = span_of(ip_network("172.17.0.0/16"), "172.17.0.0/16", ())
_KUBESPAN = span_of(ip_network("fd00::/8"), "fd00::/8", ())


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about addresses in ranges."""
    points = Addresses((*survey.node_points, *survey.vips, *survey.external, *survey.peers))
    yield from _inside_cluster(survey, points)
    yield from _carrier(survey)
    yield from _docker(survey)
    yield from _kubespan(survey)
    yield from _node_network(survey)
    yield from _pools(survey)
    yield from _existing(survey)
    yield from _masters(survey)


def _inside_cluster(survey: Survey, points: Addresses) -> Iterator[Finding]:
    for span in survey.cluster_spans:
        inside = points.inside(span)
        if not inside:
            continue
        # One finding per range: with a thousand nodes a thousand lines would say the same.
        at = span.steps if not span.default else inside[0].steps
        suggestion = free_range(survey)
        problem = f"{span} contains {listed(str(point) for point in inside)}"
        fix = f"use a free range such as {suggestion}" if suggestion else "use a free range"
        command = config_set(f"cozystack:network.{span.steps[-1]}", suggestion) if suggestion else None
        yield NET_010.at(survey.site.where(*at), problem=problem, fix=fix, command=command)


def _carrier(survey: Survey) -> Iterator[Finding]:
    join = [span for span in survey.cluster_spans if span.steps == ("network", "joinCIDR")]
    inside = [
        point
        for point in survey.node_points
        if point.address is not None
        and CGNAT.holds(point.address)
        and not any(span.holds(point.address) for span in survey.cluster_spans)
    ]
    if inside and any(span.meets(CGNAT) for span in join):
        problem = f"100.64.0.0/10 contains joinCIDR, but also {listed(str(point) for point in inside)}"
        fix = f"move joinCIDR, for example to {free_range(survey)}"
        command = config_set("cozystack:network.joinCIDR", free_range(survey))
        yield NET_011.at(survey.site.where(*inside[0].steps), problem=problem, fix=fix, command=command)
    for span in survey.reserved:
        if CGNAT.holds(span.first) and CGNAT.holds(span.last) and any(other.meets(CGNAT) for other in join):
            problem = f"{span} is in 100.64.0.0/10, and so is joinCIDR"
            fix = f"move joinCIDR, for example to {free_range(survey)}"
            yield NET_011.at(survey.site.where(*span.steps), problem=problem, fix=fix)


def _docker(survey: Survey) -> Iterator[Finding]:
    spans = [*survey.cluster_spans, *survey.pools, *([survey.node_span] if survey.node_span else [])]
    for span in spans:
        if span.meets(_DOCKER):
            problem = f"{span} overlaps 172.17.0.0/16"
            fix = f"use a free range such as {free_range(survey)}"
            yield NET_012.at(survey.site.where(*span.steps), problem=problem, fix=fix)


def _kubespan(survey: Survey) -> Iterator[Finding]:
    if not survey.site.network.kubespan:
        return
    for span in (*survey.cluster_spans, *survey.pools):
        if span.meets(_KUBESPAN):
            problem = f"{span} is in fd00::/8, but KubeSpan is enabled"
            yield NET_013.at(survey.site.where(*span.steps), problem=problem, fix="use another range")


def _node_network(survey: Survey) -> Iterator[Finding]:
    span = survey.node_span
    if span is None:
        return
    outside = [
        position
        for position, address in survey.internal.items()
        if address.version == span.version and not span.holds(address)
    ]
    if outside:
        nodes = survey.site.nodes
        names = listed(f"{nodes[position].name} ({nodes[position].internal})" for position in outside)
        key = "internalAddress" if nodes[outside[0]].internal_address else "address"
        path = survey.site.where("nodes", outside[0], key)
        yield NET_014.at(
            path, problem=f"these nodes are outside {span}: {names}", fix="correct the address or nodeCIDR"
        )


def _pools(survey: Survey) -> Iterator[Finding]:
    taken = Addresses((*survey.node_points, *survey.vips, *survey.external, *survey.peers))
    for span in survey.pools:
        inside = taken.inside(span)
        if inside:
            problem = f"{span} contains {listed(str(point) for point in inside)}"
            yield NET_016.at(
                survey.site.where(*span.steps), problem=problem, fix="exclude these addresses from the pool"
            )


def _existing(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if site.cluster.variant != "generic":
        return
    for key in ("podCIDR", "serviceCIDR"):
        if not site.given("network", key) and not site.unread("network", key):
            problem = f"{key} is not set, so Cozystack's default would be used for a cluster that already exists"
            fix = "set it to the API server's value (k3s and RKE2: 10.42.0.0/16 and 10.43.0.0/16)"
            command = config_set(f"cozystack:network.{key}", "10.42.0.0/16" if key == "podCIDR" else "10.43.0.0/16")
            yield NET_018.at(site.where("network", key), problem=problem, fix=fix, command=command)


def _masters(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    planes = {address for position, address in survey.internal.items() if site.nodes[position].is_control_plane}
    for index, text in enumerate(site.network.master_nodes):
        spelled = address_in(text)
        if spelled.problem is not None or spelled.address not in planes:
            problem = f"`{short(text)}` is " + (
                "not a plain IP address" if spelled.problem else "not the address of a control plane node"
            )
            path = site.where("network", "masterNodes", index)
            yield NET_019.at(path, problem=problem, fix="use the internal addresses of control plane nodes")
