"""URLs, domains and the names certificates must carry."""

from collections.abc import Iterator
from dataclasses import dataclass

from cozystack_iac import published
from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.spelling import address_in, domain_problem, host_problem, private
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings.paths import Step, config_set
from cozystack_iac.settings.site import host_of

END_001 = Rule(
    "END-001",
    ERROR,
    title="Endpoints are complete https URLs",
    why="the URL is copied into kubeconfigs and certificates unchanged, and clients parse incomplete URLs differently",
    remedy="write https://host:port without a path",
)
END_002 = Rule(
    "END-002",
    WARNING,
    title="The cluster endpoint leads to the control plane",
    why="nodes and users would connect to an address where no API server listens",
    remedy="use the VIP, or a load balancer in front of the control plane nodes",
)
END_003 = Rule(
    "END-003",
    ERROR,
    title="The cluster domain is a valid domain name",
    why="the kubelets reject it, or pods cannot resolve services",
    remedy="use cozy.local",
)
END_004 = Rule(
    "END-004",
    ERROR,
    title="The cluster domain is cozy.local",
    why="Cozystack's services find each other under cozy.local",
    remedy="use cozy.local; an existing cluster must have been created with it",
    overridable=True,
)
END_005 = Rule(
    "END-005",
    WARNING,
    title="The public API endpoint uses the ingress port",
    why="the ingress serves api.<host> on port 443; nothing listens on port 6443 there",
    remedy="remove apiServerEndpoint; the default is https://api.<host>:443",
)
SAN_001 = Rule(
    "SAN-001",
    ERROR,
    title="Certificate SANs are host names or IP addresses",
    why="the machine accepts the value, but the certificate then matches no host",
    remedy="write a host name or an IP address",
)
SAN_002 = Rule(
    "SAN-002",
    ERROR,
    title="The certificates cover the addresses that this workstation uses",
    why="once configured, the machine presents a certificate for other addresses only: it can no longer be "
    "managed and must be reinstalled",
    remedy="set publicAddress on every node, or use reach: internal",
)
SAN_003 = Rule(
    "SAN-003",
    NOTE,
    title="Certificate SANs are listed once",
    why="the duplicate has no effect",
    remedy="remove the duplicate",
)
SAN_004 = Rule(
    "SAN-004",
    ERROR,
    title="A 1:1 NAT public address is not used as a node address",
    why="no interface of the machine has the public address, so etcd and the kubelet cannot bind to it",
    remedy="set internalAddress to the address of the machine's own interface",
)


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL that matter here, and the first thing wrong with it."""

    host: str = ""
    port: int | None = None
    problem: str | None = None


def url_in(text: str, schemes: tuple[str, ...] = ("https",), *, path: bool = False, port_needed: bool = True) -> Url:
    """Read `scheme://host[:port]`; `path` allows one behind it. Never raises."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Url(problem=f"it has no scheme; write {schemes[0]}://…")
    if scheme not in schemes:
        return Url(problem=f"`{short(scheme)}` is not {' or '.join(schemes)}")
    if text != text.strip() or any(character.isspace() for character in text):
        return Url(problem="it contains whitespace")
    authority, slash, tail = rest.partition("/")
    if not path and (slash or "?" in rest or "#" in rest):
        return Url(
            problem="it has a trailing slash"
            if slash and not tail
            else "it has a path, query or fragment after host and port"
        )
    if "@" in authority:
        return Url(problem="it contains a user name")
    if authority.startswith("["):
        host, bracket, behind = authority[1:].partition("]")
        if not bracket:
            return Url(problem="the closing bracket is missing")
        port_text = behind.removeprefix(":") if behind else ""
    elif authority.count(":") > 1:
        return Url(problem="an IPv6 address in a URL must be in brackets")
    else:
        host, _, port_text = authority.partition(":")
    return _with_port(host, port_text, port_needed=port_needed)


def _with_port(host: str, port_text: str, *, port_needed: bool) -> Url:
    problem = host_problem(host)
    if problem is not None:
        return Url(host, None, f"host `{short(host)}` is invalid: {problem}")
    if not port_text:
        return Url(host, None, "the port is missing" if port_needed else None)
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text[:6]) < 65536):
        return Url(host, None, f"`{short(port_text)}` is not a valid port")
    return Url(host, int(port_text))


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about endpoints, domains and certificate names."""
    yield from _endpoint(survey)
    yield from _api_endpoint(survey)
    yield from _other_urls(survey)
    yield from _domain(survey)
    yield from _names(survey)
    yield from _reach(survey)
    yield from _mapped(survey)


def _endpoint(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    text = site.cluster.endpoint
    if not text:
        return
    path, url = site.where("cluster", "endpoint"), url_in(text)
    like = f"https://{host_of(text) or '10.0.0.10'}:6443"
    if url.problem is not None:
        fix = f"write, for example, {short(like)}"
        yield END_001.at(
            path,
            problem=f"`{short(text)}` is not a valid endpoint: {url.problem}",
            fix=fix,
            command=config_set(path, like),
        )
        return
    address = address_in(url.host).address
    if address is None:
        return
    kind = survey.unusable(address)
    if kind is not None and not site.existing:
        yield END_001.at(path, problem=f"`{short(text)}` uses {kind}", fix="use an address that every node can reach")
        return
    planes = {
        point.address
        for point in survey.node_points
        if point.node is not None and site.nodes[point.node].is_control_plane
    }
    vips = {point.address for point in survey.vips}
    if survey.vip is not None and address != survey.vip.address and address not in planes:
        problem = f"the cluster endpoint is {address}, but the VIP is {survey.vip.text}"
        yield END_002.at(path, problem=problem, fix="remove the endpoint; it defaults to the VIP")
    elif address not in planes | vips and any(point.address == address for point in survey.node_points):
        yield END_002.at(
            path, problem=f"the cluster endpoint {address} is a worker", fix="use the VIP or a control plane node"
        )
    elif address in planes and len(site.control_planes) > 1 and not site.existing:
        problem = (
            f"the cluster endpoint {address} is a single node out of {len(site.control_planes)} control plane nodes"
        )
        yield END_002.at(path, problem=problem, fix="set talos.vip and remove the endpoint")


def _api_endpoint(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    text = site.publishing.api_server_endpoint
    if not text:
        return
    path, url = site.where("publishing", "apiServerEndpoint"), url_in(text, port_needed=False)
    if url.problem is not None:
        fix = "remove it, or write https://api.<host>:443"
        yield END_001.at(path, problem=f"`{short(text)}` is not a valid endpoint: {url.problem}", fix=fix)
    elif url.port == 6443 and url.host == published.name(published.API, site.publishing.host):
        yield END_005.at(
            path, problem=f"{short(text)} uses port 6443", fix="remove it", command=f"pulumi config rm --path '{path}'"
        )


def _other_urls(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    keycloak = site.access.keycloak_internal_url
    if keycloak:
        url = url_in(keycloak, ("http", "https"), path=True, port_needed=False)
        if url.problem is not None:
            path = site.where("access", "keycloakInternalUrl")
            yield END_001.at(path, problem=f"`{short(keycloak)}` is not a valid URL: {url.problem}", fix="remove it")
    host = site.network.api_server_host
    if host is not None:
        problem = host_problem(host)
        if problem is not None:
            path = site.where("network", "apiServerHost")
            yield END_001.at(
                path,
                problem=f"`{short(host)}` is not a valid host: {problem}",
                fix="write a host without scheme and port",
            )
    port = site.network.api_server_port
    if port is not None and not 0 < port < 65536:
        path = site.where("network", "apiServerPort")
        yield END_001.at(path, problem=f"{port} is not a valid port", fix="use 6443, or 7445 with extractedprism")


def _domain(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    domain, path = site.cluster.domain, site.where("cluster", "domain")
    problem = domain_problem(domain)
    command = config_set(path, "cozy.local")
    if problem is not None:
        yield END_003.at(
            path, problem=f"`{short(domain)}` is not a valid domain: {problem}", fix="use cozy.local", command=command
        )
    elif domain != "cozy.local":
        yield END_004.at(path, problem=f"the cluster domain is {domain}", fix="use cozy.local", command=command)


def _names(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    lists: list[tuple[tuple[Step, ...], tuple[str, ...]]] = [(("talos", "extraSans"), site.talos.extra_sans)]
    lists += [(("nodes", position, "extraSans"), node.extra_sans) for position, node in enumerate(site.nodes)]
    for steps, names in lists:
        told: set[str] = set()
        for index, name in enumerate(names):
            if site.unread(*steps, index):
                continue
            path, problem = site.where(*steps, index), host_problem(name.removeprefix("*."))
            if problem is not None:
                fix = "write a host name or an IP address"
                yield SAN_001.at(path, problem=f"`{short(name)}` is not a valid SAN: {problem}", fix=fix)
            elif (key := str(address_in(name).address or name)) in told:
                yield SAN_003.at(path, problem=f"{short(name)} is listed twice", fix="remove one of them")
            else:
                told.add(key)


def _reach(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    if site.talos.reach != "public" or site.existing:
        return
    without = []
    for position, node in enumerate(site.nodes):
        own = address_in(node.address).address
        if not node.public_address and own is not None and private(own) and not site.partly_unread("nodes", position):
            without.append(node.name)
    if without:
        problem = f"reach is public, but these nodes have no publicAddress: {listed(without)}"
        fix = "add publicAddress to these nodes, or set reach to internal"
        command = config_set("cozystack:talos.reach", "internal")
        yield SAN_002.at(site.where("talos", "reach"), problem=problem, fix=fix, command=command)


def _mapped(survey: Survey) -> Iterator[Finding]:
    for position, node in enumerate(survey.site.nodes):
        public = address_in(node.public_address).address if node.public_address else None
        if public is not None and survey.internal.get(position) == public:
            problem = f"{node.name}'s public address {node.public_address} would also be used between nodes"
            fix = "add internalAddress with the address of the machine's own interface"
            yield SAN_004.at(survey.site.where("nodes", position, "publicAddress"), problem=problem, fix=fix)
