"""Every address and range of a site, read once: what the rules about addresses work on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from cozystack_iac.rules.spelling import Address, Net, Spelled, address_in, network_in, span_in, unusable
from cozystack_iac.settings import Node, Site
from cozystack_iac.settings.paths import Step


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous range of addresses with a place in the stack file: `first` to `last`, both included."""

    label: str
    steps: tuple[Step, ...]
    first: Address
    last: Address
    default: bool = False

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.first.version

    @property
    def size(self) -> int:
        """How many addresses it holds."""
        return int(self.last) - int(self.first) + 1

    def meets(self, other: "Span") -> bool:
        """Whether both hold some same address."""
        return (
            self.version == other.version and int(self.first) <= int(other.last) and int(other.first) <= int(self.last)
        )

    def holds(self, address: Address) -> bool:
        """Whether the address lies inside."""
        return address.version == self.version and int(self.first) <= int(address) <= int(self.last)

    def __str__(self) -> str:
        return f"{self.label} (the default)" if self.default else self.label


@dataclass(frozen=True, slots=True)
class Point:
    """One address with its place and whose it is. `node` is the position of its node in the inventory."""

    owner: str
    kind: str
    steps: tuple[Step, ...]
    text: str
    spelled: Spelled
    node: int | None = None

    @property
    def address(self) -> Address | None:
        """What the text most likely means."""
        return self.spelled.address

    def __str__(self) -> str:
        return f"{self.owner}'s {self.kind} {self.text}" if self.owner else f"{self.kind} {self.text}"


@dataclass(frozen=True)
class Survey:
    """A site with its addresses read. Nothing here judges."""

    site: Site
    today: date

    @cached_property
    def node_points(self) -> tuple[Point, ...]:
        """Every address of every node, as given; what defaults to another one is not repeated."""
        return tuple(point for position, node in enumerate(self.site.nodes) for point in _points(position, node))

    @cached_property
    def internal(self) -> dict[int, Address]:
        """By position in the inventory: the address other nodes use, where it can be read."""
        found: dict[int, Address] = {}
        for point in self.node_points:
            if point.node is None or point.address is None or point.kind not in {"address", "internal address"}:
                continue
            if point.kind == "internal address" or point.node not in found:
                found[point.node] = point.address
        return found

    @cached_property
    def vip(self) -> Point | None:
        """The cluster's virtual address."""
        text = self.site.talos.vip
        return Point("", "VIP", ("talos", "vip"), text, address_in(text)) if text else None

    @cached_property
    def vips(self) -> tuple[Point, ...]:
        """The cluster's virtual address and those of single nodes."""
        own = tuple(
            Point(
                node.name,
                "VIP",
                ("nodes", position, "vips", index, "address"),
                vip.address,
                address_in(vip.address),
                position,
            )
            for position, node in enumerate(self.site.nodes)
            for index, vip in enumerate(node.vips)
            if vip.address
        )
        return (self.vip, *own) if self.vip is not None else own

    @cached_property
    def external(self) -> tuple[Point, ...]:
        """Explicitly given external addresses."""
        external = self.site.publishing.external_ips
        steps = ("publishing", "externalIPs", "addresses")
        return tuple(
            Point("", "external address", (*steps, index), text, address_in(text))
            for index, text in enumerate(external.addresses)
        )

    @cached_property
    def peers(self) -> tuple[Point, ...]:
        """Other addresses nodes talk to: name servers, gateways, masters. Names are left out."""
        site = self.site
        points = [
            Point("", "nameserver", ("talos", "nameservers", index), text, address_in(text))
            for index, text in enumerate(site.talos.nameservers)
        ]
        points += [
            Point(
                node.name, "gateway", ("nodes", position, "gateway"), node.gateway, address_in(node.gateway), position
            )
            for position, node in enumerate(site.nodes)
            if node.gateway
        ]
        return tuple(point for point in points if point.address is not None)

    @cached_property
    def resolvers(self) -> Mapping[tuple[Step, ...], str]:
        """Every resolver that is asked for the public names, by its place."""
        site = self.site
        named: dict[tuple[Step, ...], str] = {
            ("publishing", "resolvers", index): text for index, text in enumerate(site.publishing.resolvers)
        }
        return named | {("lab", "resolver"): site.lab.resolver} if site.lab and site.lab.resolver else named

    def unusable(self, address: Address) -> str | None:
        """Why no machine of this site can have the address, in words; None when one can. A lab's live on loopback."""
        return None if address.is_loopback and self.site.lab else unusable(address)

    @cached_property
    def cluster_spans(self) -> tuple[Span, ...]:
        """Pod, service and join networks with their effective values, where these can be read."""
        network = self.site.network
        named = (("podCIDR", network.pod_cidr), ("serviceCIDR", network.service_cidr), ("joinCIDR", network.join_cidr))
        return tuple(span for key, text in named for span in self._spans(key, text))

    @cached_property
    def node_span(self) -> Span | None:
        """The nodes' own network, when given and readable."""
        text = self.site.network.node_cidr
        return next(self._spans("nodeCIDR", text), None) if text else None

    @cached_property
    def pools(self) -> tuple[Span, ...]:
        """Load-balancer ranges that can be read."""
        return tuple(self._listed("loadBalancerPools", "load balancer pool", self.site.network.load_balancer_pools))

    @cached_property
    def reserved(self) -> tuple[Span, ...]:
        """Ranges in use around the site that can be read."""
        return tuple(self._listed("reserved", "reserved range", self.site.network.reserved))

    def _spans(self, key: str, text: str) -> Iterator[Span]:
        default = not self.site.given("network", key)
        if self.site.unread("network", key):
            return
        for part in text.split(","):
            net = network_in(part.strip()).net
            if net is not None:
                yield span_of(net, f"{key} {net}", ("network", key), default=default)

    def _listed(self, key: str, label: str, texts: tuple[str, ...]) -> Iterator[Span]:
        for index, text in enumerate(texts):
            ends = span_in(text)
            if ends is not None:
                yield Span(f"{label} {text}", ("network", key, index), *ends)


def span_of(net: Net, label: str, steps: tuple[Step, ...], *, default: bool = False) -> Span:
    """The span of a network."""
    return Span(label, steps, net.network_address, net.broadcast_address, default)


def _points(position: int, node: Node) -> Iterator[Point]:
    given = (
        ("address", "address", node.address),
        ("internalAddress", "internal address", node.internal_address),
        ("maintenanceAddress", "maintenance address", node.maintenance_address),
        ("publicAddress", "public address", node.public_address),
    )
    for key, kind, text in given:
        if text:
            yield Point(node.name, kind, ("nodes", position, key), text, address_in(text), position)
