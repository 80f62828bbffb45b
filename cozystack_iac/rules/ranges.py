"""The matrix of address ranges: what is a network, what overlaps, what is too small. Defaults are compared like given values."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_network
from itertools import combinations

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import Net, network_in, span_in
from cozystack_iac.rules.survey import Point, Span, Survey, span_of
from cozystack_iac.rules.wording import short
from cozystack_iac.settings.paths import config_set

NET_001 = Rule(
    "NET-001",
    ERROR,
    title="Address ranges are in CIDR notation",
    why="Kubernetes and the network plugin reject the value, but only long after the bootstrap",
    remedy="write, for example, 10.244.0.0/16",
)
NET_002 = Rule(
    "NET-002",
    ERROR,
    title="A CIDR starts at its network address",
    why="some programs accept it, others reject it, and comparisons give wrong results",
    remedy="write the network address",
)
NET_003 = Rule(
    "NET-003",
    ERROR,
    title="Every CIDR setting has one range",
    why="Cozystack's network values take one range each; a second one is ignored or breaks the chart",
    remedy="set one range",
)
NET_004 = Rule(
    "NET-004",
    ERROR,
    title="The cluster's address ranges do not overlap",
    why="packets for one range are routed to the other, so some or all services or pods are unreachable",
    remedy="use the suggested free range",
    soft_on_existing=True,
)
NET_005 = Rule(
    "NET-005",
    ERROR,
    title="Pods, services and nodes use the same IP families in the same order",
    why="services get no endpoints of the other family, and the API server rejects a different order",
    remedy="use one IP family everywhere",
)
NET_006 = Rule(
    "NET-006",
    ERROR,
    title="The pod CIDR has room for every node",
    why="the controller manager assigns one subnet of it to each node; further nodes get none",
    remedy="use a larger range",
    soft_on_existing=True,
)
NET_007 = Rule(
    "NET-007",
    ERROR,
    title="The service CIDR has a supported size",
    why="the API server rejects ranges with more than 20 host bits, and a small range runs out of service addresses",
    remedy="use a /16 (IPv4) or a /108 (IPv6)",
    soft_on_existing=True,
)
NET_008 = Rule(
    "NET-008",
    ERROR,
    title="The join CIDR has an address for every node",
    why="Kube-OVN assigns one address of it to each node; further nodes never join the pod network",
    remedy="use a larger range",
    soft_on_existing=True,
)
NET_009 = Rule(
    "NET-009",
    ERROR,
    title="The pod gateway is an address in the pod CIDR",
    why="pods would send their traffic to a gateway that does not exist",
    remedy="remove podGateway; it defaults to the first address",
)
NET_015 = Rule(
    "NET-015",
    ERROR,
    title="Load balancer pools and reserved ranges are valid",
    why="a range that cannot be parsed cannot be kept free",
    remedy="write a network in CIDR notation, or `first-last`",
)
NET_017 = Rule(
    "NET-017",
    WARNING,
    title="Cluster ranges are private",
    why="real hosts with these addresses become unreachable from the cluster",
    remedy="use a private range",
)

_SERVICE_BITS_MAXIMUM = 20  # kube-apiserver --service-cluster-ip-range
_SERVICE_ADDRESSES_MINIMUM = 1024  # our judgement: several hundred services and room for tenants; not measured
_NODE_MASK_IPV6 = 64  # controller-manager default for IPv6
CGNAT = span_of(ip_network("100.64.0.0/10"), "100.64.0.0/10", ())  # RFC 6598; also Tailscale's
_CANDIDATES = tuple(
    [f"10.{second}.0.0/16" for second in (244, 42, 128, *range(16, 240, 8))]
    + [f"172.{second}.0.0/16" for second in range(20, 32)]
    + ["192.168.128.0/17", "100.96.0.0/16", "100.112.0.0/16"]
)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about ranges."""
    yield from _written(survey)
    yield from _lists(survey)
    yield from _overlaps(survey)
    yield from _family(survey)
    yield from _pods(survey)
    yield from _services(survey)
    yield from _join(survey)
    yield from _gateway(survey)
    yield from _public(survey)


def _written(survey: Survey) -> Iterator[Finding]:
    network = survey.site.network
    for key, text in (
        ("podCIDR", network.pod_cidr),
        ("serviceCIDR", network.service_cidr),
        ("joinCIDR", network.join_cidr),
        ("nodeCIDR", network.node_cidr),
    ):
        if text is None or survey.site.unread("network", key):
            continue
        path = survey.site.where("network", key)
        parts = text.split(",")
        if len(parts) > 1:
            problem = f"{key} `{short(text)}` lists {len(parts)} ranges"
            yield NET_003.at(path, problem=problem, fix=f"write `{short(parts[0].strip())}` only")
        for part in parts:
            spelled = network_in(part.strip() if len(parts) > 1 else part)
            like = free_range(survey) if key != "nodeCIDR" else "10.0.0.0/24"
            meant = str(spelled.net) if spelled.net is not None else like
            command = config_set(path, meant) if len(parts) == 1 else None
            if spelled.problem is not None:
                problem, fix = f"{key} `{short(part)}` is invalid: {spelled.problem}", f"write, for example, `{meant}`"
                yield NET_001.at(path, problem=problem, fix=fix, command=command)
            elif spelled.host_bits:
                problem = f"{key} `{part}` is an address inside {meant}, not its network address"
                yield NET_002.at(path, problem=problem, fix=f"write `{meant}`", command=command)


def _lists(survey: Survey) -> Iterator[Finding]:
    network = survey.site.network
    for key, texts in (("loadBalancerPools", network.load_balancer_pools), ("reserved", network.reserved)):
        for index, text in enumerate(texts):
            if span_in(text) is None and not survey.site.unread("network", key, index):
                path = survey.site.where("network", key, index)
                fix = "write a CIDR such as 10.0.0.192/26, or a range such as 10.0.0.200-10.0.0.220"
                yield NET_015.at(path, problem=f"`{short(text)}` is not a valid range", fix=fix)


# Overlap ----------------------------------------------------------------------------------------------------------------


def overlapping(spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Every pair of spans that share an address, in order of their first addresses. O(n log n + pairs)."""
    found: list[tuple[Span, Span]] = []
    for version in (4, 6):
        open_spans: list[Span] = []
        for span in sorted((s for s in spans if s.version == version), key=lambda s: (int(s.first), int(s.last))):
            open_spans = [other for other in open_spans if int(other.last) >= int(span.first)]
            found += [(other, span) for other in open_spans]
            open_spans.append(span)
    return found


class Addresses:
    """Addressed things, sorted, so that a range finds those inside it in O(log n + hits)."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points: dict[int, list[Point]] = {4: [], 6: []}
        for point in points:
            if point.address is not None:
                self._points[point.address.version].append(point)
        self._keys: dict[int, list[int]] = {}
        for version, listed_points in self._points.items():
            listed_points.sort(key=_number)
            self._keys[version] = [_number(point) for point in listed_points]

    def inside(self, span: Span) -> Sequence[Point]:
        """The things whose address the span holds, by address."""
        keys = self._keys[span.version]
        first, last = bisect_left(keys, int(span.first)), bisect_right(keys, int(span.last))
        return self._points[span.version][first:last]


def _number(point: Point) -> int:
    return int(point.address) if point.address is not None else 0


def _overlaps(survey: Survey) -> Iterator[Finding]:
    wide = [*survey.cluster_spans, *((survey.node_span,) if survey.node_span else ())]
    cluster = set(survey.cluster_spans)
    pairs = overlapping([*wide, *survey.pools, *survey.reserved])
    for pair in pairs:
        if cluster.isdisjoint(pair) and not _both_hand_out(pair, survey):
            continue
        if any(span in survey.reserved for span in pair) and _carrier_only(pair):
            continue  # judged by NET-011: no route is lost for sure
        # The side a person wrote is named first: that is where the finding stands.
        one, other = sorted(pair, key=lambda span: (span.default, span not in cluster, span.steps))
        if one.steps == other.steps:
            continue
        path = survey.site.where(*one.steps)
        suggestion = free_range(survey)
        fix = (
            f"use a free range such as {suggestion} for one of them"
            if suggestion
            else "choose ranges that do not overlap"
        )
        command = config_set(path, suggestion) if suggestion and one in cluster and not one.default else None
        how = _relation(one, other)
        yield NET_004.at(path, problem=f"{one} {how} {other}", fix=fix, command=command)


def _both_hand_out(pair: tuple[Span, Span], survey: Survey) -> bool:
    # Load-balancer ranges may lie in the node network (that is how layer 2 works), but not in each other or in what is reserved.
    return any(span in survey.pools for span in pair) and survey.node_span not in pair


def _carrier_only(pair: tuple[Span, Span]) -> bool:
    return all(CGNAT.holds(span.first) and CGNAT.holds(span.last) for span in pair)


def _relation(one: Span, other: Span) -> str:
    if one.first == other.first and one.last == other.last:
        return "is identical to"
    if int(one.first) <= int(other.first) and int(one.last) >= int(other.last):
        return "contains"
    if int(other.first) <= int(one.first) and int(other.last) >= int(one.last):
        return "is inside"
    return "overlaps"


def free_range(survey: Survey) -> str:
    """A private /16 (or so) that nothing of the site touches; empty when there is none."""
    taken = [*survey.cluster_spans, *survey.pools, *survey.reserved]
    if survey.node_span is not None:
        taken.append(survey.node_span)
    points = Addresses((*survey.node_points, *survey.vips, *survey.external, *survey.peers))
    for text, candidate in _candidates():
        if not points.inside(candidate) and not any(span.meets(candidate) for span in taken):
            return text
    return ""


@lru_cache(maxsize=1)
def _candidates() -> tuple[tuple[str, Span], ...]:
    return tuple((text, span_of(ip_network(text), text, ())) for text in _CANDIDATES)


# Sizes and families -----------------------------------------------------------------------------------------------------


def _nets(text: str) -> list[Net]:
    read = [network_in(part.strip()).net for part in text.split(",")]
    return [net for net in read if net is not None]


def _family(survey: Survey) -> Iterator[Finding]:
    network, site = survey.site.network, survey.site
    texts = {"podCIDR": network.pod_cidr, "serviceCIDR": network.service_cidr, "joinCIDR": network.join_cidr}
    orders = {key: tuple(net.version for net in _nets(text)) for key, text in texts.items()}
    readable = {key: order for key, order in orders.items() if order and not site.unread("network", key)}
    for one, other in combinations(readable, 2):
        if readable[one] != readable[other]:
            key = one if site.given("network", one) else other
            problem = f"{one} is {_families(readable[one])}, but {other} is {_families(readable[other])}"
            yield NET_005.at(site.where("network", key), problem=problem, fix="use one IP family for all three")
            return
    if "podCIDR" in readable and survey.internal:
        version = next(iter(survey.internal.values())).version
        if version not in readable["podCIDR"]:
            problem = f"podCIDR is {_families(readable['podCIDR'])}, but the node addresses are IPv{version}"
            yield NET_005.at(site.where("network", "podCIDR"), problem=problem, fix="use the IP family of the nodes")


def _families(order: tuple[int, ...]) -> str:
    return " then ".join(f"IPv{version}" for version in order)


def _pods(survey: Survey) -> Iterator[Finding]:
    network, site = survey.site.network, survey.site
    count = len(site.nodes)
    for net in _nets(network.pod_cidr)[:1]:
        mask = network.node_mask if net.version == 4 else _NODE_MASK_IPV6
        path = site.where("network", "podCIDR")
        if not 0 < mask <= net.max_prefixlen:
            where = site.where("network", "nodeMask")
            yield NET_006.at(where, problem=f"nodeMask /{mask} is not possible", fix="remove nodeMask or set it to 24")
            continue
        room = 2 ** (mask - net.prefixlen) if mask >= net.prefixlen else 0
        if room < count:
            holds = f"{room} node{'s' if room != 1 else ''}" if room else "no node"
            problem = f"podCIDR {net} holds {holds} at /{mask} each, but the site has {count}"
            needed = mask - max(count - 1, 1).bit_length()
            yield NET_006.at(path, problem=problem, fix=f"use a /{max(needed, 1)} or larger; a /16 leaves room to grow")


def _services(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    for net in _nets(site.network.service_cidr)[:1]:
        path = site.where("network", "serviceCIDR")
        if net.max_prefixlen - net.prefixlen > _SERVICE_BITS_MAXIMUM:
            problem = f"serviceCIDR {net} has more than {_SERVICE_BITS_MAXIMUM} host bits"
            yield NET_007.at(path, problem=problem, fix=f"use a /{net.max_prefixlen - 16}")
        elif net.num_addresses < _SERVICE_ADDRESSES_MINIMUM:
            problem = f"serviceCIDR {net} has {net.num_addresses} addresses, but a full platform needs several hundred"
            yield NET_007.at(path, problem=problem, fix=f"use a /{net.max_prefixlen - 16}")


def _join(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    for net in _nets(site.network.join_cidr)[:1]:
        room = max(net.num_addresses - 3, 0)  # without network, broadcast and KubeOVN's gateway
        if room < len(site.nodes):
            problem = f"joinCIDR {net} has only {room} free addresses for {len(site.nodes)} nodes"
            yield NET_008.at(site.where("network", "joinCIDR"), problem=problem, fix="use a /16")


def _gateway(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    text, nets = site.network.pod_gateway, _nets(site.network.pod_cidr)[:1]
    if not text:
        return
    path = site.where("network", "podGateway")
    spelled = network_in(f"{text}/32") if "/" not in text else network_in(text)
    address = spelled.net.network_address if spelled.net is not None and "/" not in text else None
    if address is None or spelled.problem:
        problem = f"podGateway `{short(text)}` is invalid: {spelled.problem or 'it has a prefix length'}"
        yield NET_009.at(path, problem=problem, fix="remove podGateway")
    for net in nets if address is not None else ():
        if address not in net:
            problem = f"podGateway {text} is outside podCIDR {net}"
            yield NET_009.at(path, problem=problem, fix=f"use {net[1] if net.num_addresses > 1 else net[0]}")
        elif net.num_addresses > 2 and address in {net.network_address, net.broadcast_address}:
            problem = f"podGateway {text} is not a host address of podCIDR {net}"
            yield NET_009.at(path, problem=problem, fix=f"use {net[1]}")


def _public(survey: Survey) -> Iterator[Finding]:
    for span in survey.cluster_spans:
        private = [
            ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
        ]
        if not any(span.first in net and span.last in net for net in private):
            fix = f"use a private range such as {free_range(survey)}"
            yield NET_017.at(survey.site.where(*span.steps), problem=f"{span} contains public addresses", fix=fix)
