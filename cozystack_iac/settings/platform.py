"""Cozystack itself: chart, bundles, publishing, access and root tenant."""

from typing import Literal

from pydantic import Field

from cozystack_iac import published
from cozystack_iac.settings.base import Document, Flag, Model

CHART = "oci://ghcr.io/cozystack/cozystack/cozy-installer"
PlatformVariant = Literal["default", "isp-full", "isp-full-generic", "isp-hosted"]
Dns01Provider = Literal["cloudflare", "route53", "digitalocean", "rfc2136"]
Provider = Literal[
    "bareMetal", "oci", "aws", "gcp", "azure", "hetzner", "ovh", "openstack", "vsphere", "proxmox", "other"
]
NAT_PROVIDERS = frozenset({"aws", "azure", "gcp", "oci"})  # public addresses are mapped 1:1 and on no interface


class Bundles(Model):
    """Parts of Cozystack to install. Default: as in the platform variant."""

    system: Flag | None = None
    """Networking, storage, certificates."""
    iaas: Flag | None = None
    """Virtual machines and tenant Kubernetes clusters."""
    paas: Flag | None = None
    """Databases and applications."""
    naas: Flag | None = None
    """Network services."""
    enable: tuple[str, ...] = ()
    """Optional packages by name, e.g. `cozystack.external-dns`."""
    disable: tuple[str, ...] = ()
    """Packages that are not installed."""


class Platform(Model):
    """The installer chart and the platform package."""

    variant: PlatformVariant | None = None
    """Default: isp-full on talos, isp-full-generic on generic, isp-hosted on hosted."""
    bundles: Bundles = Field(default_factory=Bundles)
    """Bundles and single packages."""
    chart: str = CHART
    """The installer chart: an OCI reference, or a directory relative to the project."""
    prism: Flag = True
    """generic: install extractedprism, a load balancer for the API server on every node."""
    telemetry: Flag = True
    """Whether the operator reports anonymous usage data upstream."""
    values: Document = Field(default_factory=dict)
    """Values merged last into the platform package; keys managed by this program are not allowed."""


class ExternalIPs(Model):
    """Addresses that the root tenant's ingress listens on."""

    strategy: Literal["internal", "external", "explicit"] = "internal"
    """internal: the nodes' internal addresses. external: their public ones. explicit: `addresses`."""
    addresses: tuple[str, ...] = ()
    """The addresses, with strategy explicit."""


class Dns01(Model):
    """DNS provider for ACME challenges. Create the secret in the cluster yourself."""

    provider: Dns01Provider = "cloudflare"
    """The DNS provider. (required)"""
    secret_name: str | None = None
    """Secret in cozy-cert-manager. Default: the chart's."""
    secret_key: str | None = None
    """Key inside that secret. Default: the chart's."""
    region: str | None = None
    """route53: region."""
    access_key_id: str | None = Field(default=None, alias="accessKeyID")
    """route53: access key ID."""
    nameserver: str | None = None
    """rfc2136: nameserver, host:port."""
    tsig_key_name: str | None = None
    """rfc2136: name of the TSIG key."""
    tsig_algorithm: str | None = None
    """rfc2136: algorithm. Default: HMACSHA256."""


class Certificates(Model):
    """Certificates of the public names."""

    solver: Literal["http01", "dns01"] = "http01"
    """ACME challenge that proves ownership of the host to the CA."""
    issuer: str = "letsencrypt-prod"
    """ClusterIssuer: letsencrypt-prod, letsencrypt-stage, selfsigned-cluster-issuer, or your own."""
    dns01: Dns01 | None = None
    """The DNS provider, with solver dns01."""
    wildcard: Flag = False
    """One wildcard certificate instead of one per name."""
    wildcard_secret_name: str | None = None
    """An existing wildcard certificate."""


class Publishing(Model):
    """How the platform is published."""

    host: str = ""
    """Domain under which everything is published: dashboard.<host>, api.<host>, … (required)"""
    host_owned: Flag = False
    """Confirmation that the domain is yours and *.<host> points, or will point, to the external addresses."""
    exposed: tuple[str, ...] = (published.API, published.DASHBOARD)
    """Published services: api, dashboard, vm-exportproxy, cdi-uploadproxy, linstor-gui."""
    external_ips: ExternalIPs = Field(default_factory=ExternalIPs)
    """Addresses of the ingress."""
    load_balancer: Flag = False
    """Publish through a service of type LoadBalancer instead of external addresses."""
    load_balancer_class: str | None = None
    """Class of that service; cannot be changed later."""
    provider: Provider = "bareMetal"
    """Where the machines run; used to detect external addresses that are on no interface."""
    certificates: Certificates = Field(default_factory=Certificates)
    """Public certificates."""
    api_server_endpoint: str | None = None
    """API server URL in the kubeconfigs of users. Default: https://api.<host>:443."""
    proxy_protocol: Flag = False
    """Whether the load balancer in front sends the PROXY protocol."""
    resolvers: tuple[str, ...] = ()
    """DNS resolvers to query for the public names, in addition to this workstation's own, e.g. `9.9.9.9`."""
    reachability: Literal["check", "skip"] = "check"
    """Whether dashboard and API must respond to this workstation; skip needs an override of RCH-002 with a reason."""


class Access(Model):
    """Login and access."""

    oidc: Flag = True
    """Single sign-on through Keycloak; enabled in two steps on releases that need it."""
    keycloak_internal_url: str | None = None
    """URL of Keycloak inside the cluster. Default: as needed by the release."""
    kubeconfig_file: str | None = None
    """File to write the kubeconfig to (mode 0600); entries of other clusters are kept. Default: none."""


class Tenant(Model):
    """Services of the root tenant."""

    ingress: Flag = True
    """Ingress through which everything is published."""
    etcd: Flag = True
    """etcd for tenant clusters."""
    monitoring: Flag = True
    """Metrics, logs, Grafana."""
    seaweedfs: Flag = True
    """Object storage."""
    gateway: Flag = False
    """Gateway API instead of ingress (1.5 and later)."""
