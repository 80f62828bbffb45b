"""How the world reaches the platform: host, external addresses, services, and the root tenant behind them."""

import re
from collections.abc import Iterator

from cozystack_iac import published
from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import Address, address_in, domain_problem, private
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import config_set
from cozystack_iac.settings.platform import NAT_PROVIDERS

PUB_001 = Rule(
    "PUB-001",
    ERROR,
    title="The host is a domain name",
    why="every public name and certificate is derived from it",
    remedy="write a domain such as cluster.example.org",
)
PUB_002 = Rule(
    "PUB-002",
    ERROR,
    title="The ownership of the domain is confirmed",
    why="certificates are requested for the domain, and *.<host> must resolve to the ingress; neither works "
    "for a domain that is not yours",
    remedy="set publishing.hostOwned to true once you control the DNS records",
)
PUB_003 = Rule(
    "PUB-003",
    ERROR,
    title="The host can exist in public DNS",
    why="no public CA issues certificates for this name, and nobody outside can resolve it",
    remedy="use your own domain, or the issuer selfsigned-cluster-issuer",
)
PUB_004 = Rule(
    "PUB-004",
    ERROR,
    title="A host that contains an IP address contains an external address",
    why="everyone who opens the name reaches a different machine",
    remedy="put an external address into the host name",
)
PUB_005 = Rule(
    "PUB-005",
    NOTE,
    title="A host that contains an IP address contains a public one",
    why="resolvers with DNS rebinding protection drop answers with private addresses, so the name does not "
    "resolve for their users",
    remedy="use your own domain for anything but tests",
)
PUB_006 = Rule(
    "PUB-006",
    ERROR,
    title="Exposed services exist",
    why="unknown names are ignored, so the service is not published",
    remedy="use api, dashboard, vm-exportproxy, cdi-uploadproxy or linstor-gui",
)
PUB_007 = Rule(
    "PUB-007",
    ERROR,
    title="External addresses are configured on a node's interface",
    why="with 1:1 NAT the provider rewrites the destination before the packet arrives; the node never sees "
    "the public address, and connections are refused even though all releases are ready",
    remedy="use the strategy internal; the provider maps the public addresses to the internal ones",
    overridable=True,
)
PUB_008 = Rule(
    "PUB-008",
    ERROR,
    title="The external IP strategy has its addresses",
    why="the ingress would have no address to listen on",
    remedy="add the addresses that the strategy needs",
)
PUB_009 = Rule(
    "PUB-009",
    ERROR,
    title="The ingress is published in one way",
    why="with external addresses the ingress is a ClusterIP service, so no load balancer is ever requested",
    remedy="choose either external addresses or the load balancer",
)
PUB_010 = Rule(
    "PUB-010",
    WARNING,
    title="The load balancer has an address pool",
    why="on bare metal, addresses come only from configured pools, so the service stays pending",
    remedy="set network.loadBalancerPools",
)
PUB_011 = Rule(
    "PUB-011",
    WARNING,
    title="The PROXY protocol is used behind a load balancer only",
    why="if no load balancer sends the PROXY header, every request is rejected as malformed",
    remedy="enable it together with a load balancer",
)
PUB_012 = Rule(
    "PUB-012",
    NOTE,
    title="The dashboard is exposed",
    why="otherwise the dashboard cannot be opened in a browser, and its reachability is not checked",
    remedy="add dashboard to publishing.exposed",
)
TEN_001 = Rule(
    "TEN-001",
    ERROR,
    title="The root tenant has an ingress or a gateway",
    why="without one, nothing answers on any public name",
    remedy="set tenant.ingress to true",
)
TEN_002 = Rule(
    "TEN-002",
    NOTE,
    title="The root tenant has an etcd",
    why="without it, no Kubernetes cluster can be created in a tenant",
    remedy="set tenant.etcd to true",
)

_IP_DOMAINS = (".nip.io", ".sslip.io")
_DASHED = re.compile(r"(?:^|[.-])(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})$", re.ASCII)
_DOTTED = re.compile(r"(?:^|[.-])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$", re.ASCII)
_NEVER_PUBLIC = (
    ".local",
    ".localhost",
    ".test",
    ".invalid",
    ".example",
    ".internal",
    ".lan",
    ".home",
    ".corp",
    "home.arpa",
)
_PLACEHOLDERS = frozenset({"example.org", "example.com", "example.net"})


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about publishing and the root tenant."""
    site = survey.site
    yield from _host(site)
    yield from _embedded(survey)
    yield from _exposed(site)
    yield from _strategy(survey)
    yield from _behind_nat(survey)
    yield from _balancer(site)
    yield from _tenant(site)


def embedded_address(host: str) -> Address | None:
    """The address inside a name such as 192-0-2-10.nip.io, or None when it is no such name."""
    for suffix in _IP_DOMAINS:
        if host.endswith(suffix):
            head = host.removesuffix(suffix)
            match = _DASHED.search(head) or _DOTTED.search(head)
            return address_in(".".join(match.groups())).address if match else None
    return None


def is_ip_domain(host: str) -> bool:
    """Whether the name is of a service that answers with the address inside the name."""
    return host.endswith(_IP_DOMAINS)


def _host(site: Site) -> Iterator[Finding]:
    host, path = site.publishing.host, site.where("publishing", "host")
    if not host:
        return
    problem = domain_problem(host)
    if problem is None and "." not in host:
        problem = "it has only one label"
    if problem is not None:
        yield PUB_001.at(
            path,
            problem=f"`{short(host)}` is not a valid domain name: {problem}",
            fix="write a domain such as cluster.example.org",
        )
        return
    public = site.publishing.certificates.issuer.startswith("letsencrypt")
    if host in _PLACEHOLDERS:
        yield PUB_003.at(path, problem=f"{host} is a placeholder", fix="use your own domain")
    elif (host.endswith(_NEVER_PUBLIC) or host.endswith(f".{site.cluster.domain}")) and public:
        fix = "use your own domain, or the issuer selfsigned-cluster-issuer"
        yield PUB_003.at(path, problem=f"{short(host)} cannot exist in public DNS", fix=fix)
    if not site.publishing.host_owned and not is_ip_domain(host):
        steps = ("publishing", "hostOwned")
        if not site.unread(*steps):
            command = config_set("cozystack:publishing.hostOwned", "true")
            problem = f"the ownership of {short(host)} is not confirmed"
            fix = f"point *.{short(host)} to the external addresses, then confirm it"
            yield PUB_002.at(site.where(*steps), problem=problem, fix=fix, command=command)


def _embedded(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    host, path = site.publishing.host, site.where("publishing", "host")
    if not is_ip_domain(host) or domain_problem(host) is not None:
        return
    address = embedded_address(host)
    if address is None:
        yield PUB_004.at(
            path, problem=f"{short(host)} does not contain an IP address", fix="write, for example, 192-0-2-10.nip.io"
        )
        return
    reachable = {address_in(text).address for text in site.external_ips}
    reachable |= {point.address for point in survey.node_points if point.kind == "public address"}
    if reachable and address not in reachable and not site.partly_unread("nodes") and not site.publishing.load_balancer:
        problem = (
            f"{short(host)} resolves to {address}, which is not an external address "
            f"({listed(map(str, site.external_ips))})"
        )
        yield PUB_004.at(path, problem=problem, fix="put an external address into the host name")
    elif private(address):
        problem = f"{short(host)} resolves to a private address"
        yield PUB_005.at(path, problem=problem, fix="use your own domain for anything but tests")


def _exposed(site: Site) -> Iterator[Finding]:
    exposed = site.publishing.exposed
    for index, name in enumerate(exposed):
        path = site.where("publishing", "exposed", index)
        if site.unread("publishing", "exposed", index):
            continue
        if name in published.IGNORED:
            problem = f"{name} is always published; the entry has no effect"
            yield PUB_006.at(path, problem=problem, fix="remove it", severity=NOTE)
        elif name not in published.EXPOSABLE:
            problem = f"`{short(name)}` is not a service that can be exposed"
            yield PUB_006.at(path, problem=problem, fix=f"use one of {', '.join(published.EXPOSABLE)}")
        elif name == published.LINSTOR_GUI and "cozystack.linstor-gui" not in site.platform.bundles.enable:
            problem = "linstor-gui is exposed, but its package is not enabled"
            fix = "add cozystack.linstor-gui to platform.bundles.enable (it needs OIDC)"
            yield PUB_006.at(path, problem=problem, fix=fix, severity=WARNING)
    if published.DASHBOARD not in exposed and not site.partly_unread("publishing", "exposed"):
        path = site.where("publishing", "exposed")
        yield PUB_012.at(path, problem="the dashboard is not exposed", fix="add dashboard to publishing.exposed")


def _strategy(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    external = site.publishing.external_ips
    path = site.where("publishing", "externalIPs")
    if site.partly_unread("publishing", "externalIPs"):
        return
    if external.strategy == "explicit" and not external.addresses:
        yield PUB_008.at(
            path,
            problem="the strategy is explicit, but no address is listed",
            fix="add `addresses`, or use the strategy internal",
        )
    elif external.strategy != "explicit" and external.addresses:
        problem = f"addresses are listed, but the strategy is {external.strategy}"
        command = config_set("cozystack:publishing.externalIPs.strategy", "explicit")
        yield PUB_008.at(
            path, problem=problem, fix="use the strategy explicit, or remove the addresses", command=command
        )
    elif external.strategy == "external":
        without = [node.name for node in site.nodes if not node.public_address]
        if without and not site.partly_unread("nodes"):
            problem = f"the strategy is external, but these nodes have no publicAddress: {listed(without)}"
            yield PUB_008.at(
                path, problem=problem, fix="add publicAddress to these nodes, or use the strategy internal"
            )
    seen: set[Address] = set()
    for point in survey.external:
        if point.address is not None and point.address in seen:
            yield PUB_008.at(
                site.where(*point.steps),
                problem=f"{point.text} is listed twice",
                fix="remove one of them",
                severity=NOTE,
            )
        if point.address is not None:
            seen.add(point.address)


def _behind_nat(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    provider, external = site.publishing.provider, site.publishing.external_ips
    if site.publishing.load_balancer:
        return
    path = site.where("publishing", "externalIPs", "strategy")
    command = config_set("cozystack:publishing.externalIPs.strategy", "internal")
    fix = "use the strategy internal; the provider maps the public addresses to the internal ones"
    if external.strategy == "external" and provider in NAT_PROVIDERS:
        problem = f"no interface has the public addresses of {provider}"
        yield PUB_007.at(path, problem=problem, fix=fix, command=command)
    if external.strategy != "explicit":
        return
    mapped = {
        point.address: point
        for point in survey.node_points
        if point.kind == "public address"
        and point.node is not None
        and survey.internal.get(point.node) != point.address
    }
    inside = set(survey.internal.values())
    for point in survey.external:
        if point.address is None or point.address in inside:
            continue
        public_on_nat = provider in NAT_PROVIDERS and not private(point.address) and not point.address.is_loopback
        if point.address in mapped or public_on_nat:
            whose = (
                f"{mapped[point.address].owner}'s public address"
                if point.address in mapped
                else f"a public address on {provider}"
            )
            problem = f"external address {point.text} is {whose}; no interface has it"
            yield PUB_007.at(site.where(*point.steps), problem=problem, fix=fix, command=command)


def _balancer(site: Site) -> Iterator[Finding]:
    publishing = site.publishing
    if publishing.load_balancer and publishing.external_ips.addresses:
        path = site.where("publishing", "loadBalancer")
        problem = "both a load balancer and explicit external addresses are configured"
        yield PUB_009.at(path, problem=problem, fix="remove the addresses, or set loadBalancer to false")
    if publishing.load_balancer_class is not None and not publishing.load_balancer:
        path = site.where("publishing", "loadBalancerClass")
        problem = "a load balancer class is set, but loadBalancer is not true"
        yield PUB_009.at(path, problem=problem, fix="set loadBalancer to true, or remove the class")
    bare = publishing.provider in {"bareMetal", "proxmox", "vsphere", "other"} and site.cluster.variant == "talos"
    if publishing.load_balancer and bare and not site.network.load_balancer_pools:
        path = site.where("publishing", "loadBalancer")
        yield PUB_010.at(path, problem="the load balancer has no address pool", fix="set network.loadBalancerPools")
    if publishing.proxy_protocol and not publishing.load_balancer and publishing.provider == "bareMetal":
        path = site.where("publishing", "proxyProtocol")
        problem = "the PROXY protocol is on, but there is no load balancer"
        yield PUB_011.at(path, problem=problem, fix="turn it off, or publish through a load balancer")


def _tenant(site: Site) -> Iterator[Finding]:
    tenant = site.tenant
    if not tenant.ingress and not tenant.gateway and site.publishing.exposed and not site.unread("tenant"):
        command = config_set("cozystack:tenant.ingress", "true")
        problem = (
            f"{listed(site.publishing.exposed)} are exposed, but the root tenant has neither an ingress nor a gateway"
        )
        yield TEN_001.at(
            site.where("tenant", "ingress"), problem=problem, fix="set tenant.ingress to true", command=command
        )
    iaas = site.platform.bundles.iaas is not False and site.platform_variant.startswith("isp-full")
    if not tenant.etcd and iaas and not site.unread("tenant", "etcd"):
        problem = "the root tenant has no etcd"
        yield TEN_002.at(site.where("tenant", "etcd"), problem=problem, fix="set tenant.etcd to true")
