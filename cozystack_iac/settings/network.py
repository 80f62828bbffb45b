"""Address ranges, registries and proxies."""

from pydantic import Field, SecretStr

from cozystack_iac.settings.base import Count, Flag, Model

DEFAULT_POD_CIDR = "10.244.0.0/16"  # Cozystack platform values
DEFAULT_SERVICE_CIDR = "10.96.0.0/16"
DEFAULT_JOIN_CIDR = "100.64.0.0/16"


class Mirror(Model):
    """Where images of one registry really come from."""

    endpoints: tuple[str, ...] = ()
    """URLs, tried in order."""
    override_path: Flag = False
    """Whether the endpoint's path replaces the registry's `/v2`."""
    skip_fallback: Flag = False
    """Whether the registry itself is not asked when every endpoint fails."""


class RegistryAuth(Model):
    """Credentials of a registry; give them as Pulumi secrets."""

    username: str = ""
    """User name."""
    password: SecretStr = SecretStr("")
    """Password or token."""


class RegistryTls(Model):
    """How a registry's certificate is judged."""

    insecure_skip_verify: Flag = False
    """Accept any certificate: whoever is between may hand out other images."""


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
    """PEM bundle of certificate authorities, inline, that the machines trust from their first pull on."""


class Network(Model):
    """Who lives where."""

    pod_cidr: str = DEFAULT_POD_CIDR
    """Addresses of pods. On existing clusters: what the cluster was made with."""
    pod_gateway: str | None = None
    """Gateway of the pod network. Default: the first address of podCIDR."""
    service_cidr: str = DEFAULT_SERVICE_CIDR
    """Addresses of services. On existing clusters: what the cluster was made with."""
    join_cidr: str = DEFAULT_JOIN_CIDR
    """KubeOVN's network between nodes and pods."""
    node_cidr: str | None = None
    """The nodes' own network; what VIP and node addresses are held against. Default: unknown, checked live."""
    node_mask: Count = 24
    """Prefix length of each node's share of podCIDR (controller-manager default for IPv4)."""
    load_balancer_pools: tuple[str, ...] = ()
    """Ranges handed out to services of type LoadBalancer: CIDRs, or `first-last`."""
    reserved: tuple[str, ...] = ()
    """Further ranges in use around the site (VPNs, offices, storage); nothing here may overlap them."""
    kubespan: Flag = False
    """Whether the machines use KubeSpan (fd00::/8 by cluster)."""
    master_nodes: tuple[str, ...] = ()
    """KubeOVN's control planes by address; only where its label lookup cannot work."""
    api_server_host: str | None = None
    """generic: address of the API server for operator and Flux. Default: 127.0.0.1 with extractedprism."""
    api_server_port: Count | None = None
    """generic: its port. Default: 7445 with extractedprism, else 6443."""
    registries: Registries = Field(default_factory=Registries)
    """Mirrors and credentials."""
    proxy: Proxy = Field(default_factory=Proxy)
    """HTTP proxy and additional certificate authorities."""
