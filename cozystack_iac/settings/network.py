"""Address ranges, registries and proxies."""

from pydantic import Field, SecretStr

from cozystack_iac.settings.base import Count, Flag, Model

DEFAULT_POD_CIDR = "10.244.0.0/16"  # Cozystack platform values
DEFAULT_SERVICE_CIDR = "10.96.0.0/16"
DEFAULT_JOIN_CIDR = "100.64.0.0/16"


class Mirror(Model):
    """Mirrors of one registry."""

    endpoints: tuple[str, ...] = ()
    """URLs, tried in order."""
    override_path: Flag = False
    """Whether the endpoint's path replaces the registry's `/v2`."""
    skip_fallback: Flag = False
    """Whether to skip the registry itself if every endpoint fails."""


class RegistryAuth(Model):
    """Credentials of a registry; set them as Pulumi secrets."""

    username: str = ""
    """User name."""
    password: SecretStr = SecretStr("")
    """Password or token."""


class RegistryTls(Model):
    """TLS settings of a registry."""

    insecure_skip_verify: Flag = False
    """Accept any certificate; anyone on the path could then serve other images."""


class RegistryConfig(Model):
    """Access to one registry endpoint."""

    auth: RegistryAuth | None = None
    """Credentials."""
    tls: RegistryTls = Field(default_factory=RegistryTls)
    """Certificates."""


class Registries(Model):
    """Mirrors and credentials, for machines and for the platform."""

    mirrors: dict[str, Mirror] = Field(default_factory=dict)
    """By registry host, e.g. `docker.io`."""
    config: dict[str, RegistryConfig] = Field(default_factory=dict)
    """By endpoint host."""


class Proxy(Model):
    """HTTP proxy of the machines."""

    http: str | None = None
    """Proxy URL for http."""
    https: str | None = None
    """Proxy URL for https."""
    no_proxy: tuple[str, ...] = ()
    """Hosts, domains and CIDRs reached directly; node, pod, service ranges and the cluster domain are added."""
    trusted_roots: str | None = None
    """CA certificates (PEM, inline) that the machines trust from their first image pull on."""


class Network(Model):
    """Who lives where."""

    pod_cidr: str = DEFAULT_POD_CIDR
    """Pod CIDR. On existing clusters: the one the cluster was created with."""
    pod_gateway: str | None = None
    """Gateway of the pod network. Default: the first address of podCIDR."""
    service_cidr: str = DEFAULT_SERVICE_CIDR
    """Service CIDR. On existing clusters: the one the cluster was created with."""
    join_cidr: str = DEFAULT_JOIN_CIDR
    """Kube-OVN's network between nodes and pods."""
    node_cidr: str | None = None
    """The nodes' own network; the VIP and the node addresses must be in it. Default: unknown, checked live."""
    node_mask: Count = 24
    """Prefix length of each node's subnet of podCIDR (controller-manager default for IPv4)."""
    load_balancer_pools: tuple[str, ...] = ()
    """Address pools for services of type LoadBalancer: CIDRs, or `first-last`."""
    reserved: tuple[str, ...] = ()
    """Other ranges in use at the site (VPNs, offices, storage); no range here may overlap them."""
    kubespan: Flag = False
    """Whether the machines use KubeSpan (fd00::/8 by cluster)."""
    master_nodes: tuple[str, ...] = ()
    """Addresses of Kube-OVN's master nodes; only needed if it cannot find them by label."""
    api_server_host: str | None = None
    """generic: address of the API server for operator and Flux. Default: 127.0.0.1 with extractedprism."""
    api_server_port: Count | None = None
    """generic: its port. Default: 7445 with extractedprism, else 6443."""
    registries: Registries = Field(default_factory=Registries)
    """Mirrors and credentials."""
    proxy: Proxy = Field(default_factory=Proxy)
    """HTTP proxy and additional CAs."""
