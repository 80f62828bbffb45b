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
    title="the host is a domain name",
    why="every public name and certificate is made from it",
    remedy="write a domain such as cluster.example.org",
)
PUB_002 = Rule(
    "PUB-002",
    ERROR,
    title="somebody states that the domain is theirs",
    why="certificates are requested for it, and *.<host> has to lead to the ingress: for a domain of others they never will",
    remedy="set publishing.hostOwned to true once the DNS records are, or will be, made",
)
PUB_003 = Rule(
    "PUB-003",
    ERROR,
    title="the host can exist in public DNS",
    why="no certificate authority signs such a name, and nobody outside can resolve it",
    remedy="use a domain of your own, or selfsigned-cluster-issuer",
)
PUB_004 = Rule(
    "PUB-004",
    ERROR,
    title="a host with an address in it names an external address",
    why="everybody who follows the name ends up at another machine",
    remedy="put an external address into the name",
)
PUB_005 = Rule(
    "PUB-005",
    NOTE,
    title="names with private addresses resolve everywhere",
    why="resolvers with rebinding protection drop answers with private addresses: the name then does not exist for their users",
    remedy="use a domain of your own for anything but a playground",
)
PUB_006 = Rule(
    "PUB-006",
    ERROR,
    title="exposed services exist",
    why="an unknown name is ignored, so the service stays hidden",
    remedy="use api, dashboard, vm-exportproxy, cdi-uploadproxy, linstor-gui",
)
PUB_007 = Rule(
    "PUB-007",
    ERROR,
    title="external addresses are on an interface",
    why="providers with 1:1 NAT rewrite the address before the packet arrives: the node never sees the public one, and every "
    "connection is refused although all releases are ready",
    remedy="use the strategy internal: the provider maps the public addresses onto these",
    overridable=True,
)
PUB_008 = Rule(
    "PUB-008",
    ERROR,
    title="the strategy has its addresses",
    why="the ingress would listen nowhere",
    remedy="give what the strategy needs",
)
PUB_009 = Rule(
    "PUB-009",
    ERROR,
    title="there is one way to publish",
    why="external addresses make the ingress a ClusterIP service, so no load balancer is ever asked for",
    remedy="choose external addresses or the load balancer",
)
PUB_010 = Rule(
    "PUB-010",
    WARNING,
    title="a load balancer has addresses to give",
    why="on bare metal only ranges that are configured are handed out: the service stays pending",
    remedy="set network.loadBalancerPools",
)
PUB_011 = Rule(
    "PUB-011",
    WARNING,
    title="the PROXY protocol is spoken by somebody in front",
    why="without a load balancer that sends its header every request is refused as malformed",
    remedy="switch it on together with a load balancer",
)
PUB_012 = Rule(
    "PUB-012",
    NOTE,
    title="the dashboard is exposed",
    why="without it nobody can look at the platform in a browser, and its reachability is not checked",
    remedy="add dashboard to publishing.exposed",
)
TEN_001 = Rule(
    "TEN-001",
    ERROR,
    title="something publishes what is exposed",
    why="host and ingress of the root tenant belong together: without ingress or gateway nothing answers on any public name",
    remedy="set tenant.ingress to true",
)
TEN_002 = Rule(
    "TEN-002",
    NOTE,
    title="tenant clusters have an etcd",
    why="without it no Kubernetes cluster can be made in a tenant",
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
        yield PUB_001.at(path, problem=f"`{short(host)}`: {problem}", fix="write a domain such as cluster.example.org")
        return
    public = site.publishing.certificates.issuer.startswith("letsencrypt")
    if host in _PLACEHOLDERS:
        yield PUB_003.at(path, problem=f"{host} is a placeholder", fix="use a domain of your own")
    elif (host.endswith(_NEVER_PUBLIC) or host.endswith(f".{site.cluster.domain}")) and public:
        fix = "use a domain of your own, or the issuer selfsigned-cluster-issuer"
        yield PUB_003.at(path, problem=f"{short(host)} cannot exist in public DNS", fix=fix)
    if not site.publishing.host_owned and not is_ip_domain(host):
        steps = ("publishing", "hostOwned")
        if not site.unread(*steps):
            command = config_set("cozystack:publishing.hostOwned", "true")
            problem = f"nobody states that {short(host)} is theirs"
            fix = f"make *.{short(host)} lead to the external addresses, then say so"
            yield PUB_002.at(site.where(*steps), problem=problem, fix=fix, command=command)


def _embedded(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    host, path = site.publishing.host, site.where("publishing", "host")
    if not is_ip_domain(host) or domain_problem(host) is not None:
        return
    address = embedded_address(host)
    if address is None:
        yield PUB_004.at(path, problem=f"there is no address in {short(host)}", fix="write e.g. 192-0-2-10.nip.io")
        return
    reachable = {address_in(text).address for text in site.external_ips}
    reachable |= {point.address for point in survey.node_points if point.kind == "public address"}
    if reachable and address not in reachable and not site.partly_unread("nodes") and not site.publishing.load_balancer:
        problem = (
            f"{short(host)} leads to {address}, which is no external address ({listed(map(str, site.external_ips))})"
        )
        yield PUB_004.at(path, problem=problem, fix="put an external address into the name")
    elif private(address):
        problem = f"{short(host)} leads to a private address"
        yield PUB_005.at(path, problem=problem, fix="use a domain of your own for anything but a playground")


def _exposed(site: Site) -> Iterator[Finding]:
    exposed = site.publishing.exposed
    for index, name in enumerate(exposed):
        path = site.where("publishing", "exposed", index)
        if site.unread("publishing", "exposed", index):
            continue
        if name in published.IGNORED:
            problem = f"{name} is published by itself; the entry is read by nobody"
            yield PUB_006.at(path, problem=problem, fix="remove it", severity=NOTE)
        elif name not in published.EXPOSABLE:
            problem = f"`{short(name)}` is no service that can be exposed"
            yield PUB_006.at(path, problem=problem, fix=f"use {', '.join(published.EXPOSABLE)}")
        elif name == published.LINSTOR_GUI and "cozystack.linstor-gui" not in site.platform.bundles.enable:
            problem = "linstor-gui is exposed, and its package is not enabled"
            fix = "add cozystack.linstor-gui to platform.bundles.enable (it needs OIDC)"
            yield PUB_006.at(path, problem=problem, fix=fix, severity=WARNING)
    if published.DASHBOARD not in exposed and not site.partly_unread("publishing", "exposed"):
        path = site.where("publishing", "exposed")
        yield PUB_012.at(path, problem="the dashboard is not exposed", fix="add dashboard")


def _strategy(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    external = site.publishing.external_ips
    path = site.where("publishing", "externalIPs")
    if site.partly_unread("publishing", "externalIPs"):
        return
    if external.strategy == "explicit" and not external.addresses:
        yield PUB_008.at(path, problem="explicit addresses, and none is given", fix="add `addresses`, or use internal")
    elif external.strategy != "explicit" and external.addresses:
        problem = f"addresses are given, and the strategy is {external.strategy}"
        command = config_set("cozystack:publishing.externalIPs.strategy", "explicit")
        yield PUB_008.at(path, problem=problem, fix="use the strategy explicit, or remove them", command=command)
    elif external.strategy == "external":
        without = [node.name for node in site.nodes if not node.public_address]
        if without and not site.partly_unread("nodes"):
            problem = f"the strategy is external, and no public address is known of {listed(without)}"
            yield PUB_008.at(path, problem=problem, fix="add publicAddress to these nodes, or use internal")
    seen: set[Address] = set()
    for point in survey.external:
        if point.address is not None and point.address in seen:
            yield PUB_008.at(
                site.where(*point.steps), problem=f"{point.text} is given twice", fix="remove one", severity=NOTE
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
    fix = "use the strategy internal: the provider maps the public addresses onto these"
    if external.strategy == "external" and provider in NAT_PROVIDERS:
        problem = f"public addresses of {provider} are on no interface"
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
                else f"public, on {provider}"
            )
            problem = f"external address {point.text} is {whose}, and on no interface"
            yield PUB_007.at(site.where(*point.steps), problem=problem, fix=fix, command=command)


def _balancer(site: Site) -> Iterator[Finding]:
    publishing = site.publishing
    if publishing.load_balancer and publishing.external_ips.addresses:
        path = site.where("publishing", "loadBalancer")
        problem = "a load balancer and explicit external addresses are wanted"
        yield PUB_009.at(path, problem=problem, fix="remove the addresses, or set loadBalancer to false")
    if publishing.load_balancer_class is not None and not publishing.load_balancer:
        path = site.where("publishing", "loadBalancerClass")
        problem = "a load-balancer class without loadBalancer: true"
        yield PUB_009.at(path, problem=problem, fix="set loadBalancer to true, or remove the class")
    bare = publishing.provider in {"bareMetal", "proxmox", "vsphere", "other"} and site.cluster.variant == "talos"
    if publishing.load_balancer and bare and not site.network.load_balancer_pools:
        path = site.where("publishing", "loadBalancer")
        yield PUB_010.at(path, problem="no range is given for it", fix="set network.loadBalancerPools")
    if publishing.proxy_protocol and not publishing.load_balancer and publishing.provider == "bareMetal":
        path = site.where("publishing", "proxyProtocol")
        problem = "the PROXY protocol is on, and no load balancer is in front"
        yield PUB_011.at(path, problem=problem, fix="switch it off, or publish through a load balancer")


def _tenant(site: Site) -> Iterator[Finding]:
    tenant = site.tenant
    if not tenant.ingress and not tenant.gateway and site.publishing.exposed and not site.unread("tenant"):
        command = config_set("cozystack:tenant.ingress", "true")
        problem = f"{listed(site.publishing.exposed)} are exposed, and the root tenant has neither ingress nor gateway"
        yield TEN_001.at(
            site.where("tenant", "ingress"), problem=problem, fix="set tenant.ingress to true", command=command
        )
    iaas = site.platform.bundles.iaas is not False and site.platform_variant.startswith("isp-full")
    if not tenant.etcd and iaas and not site.unread("tenant", "etcd"):
        problem = "the root tenant has no etcd"
        yield TEN_002.at(site.where("tenant", "etcd"), problem=problem, fix="set tenant.etcd to true")
