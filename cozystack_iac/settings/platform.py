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
    """Which parts of Cozystack are installed. None: what the platform variant says."""

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
    """Packages that are left out."""


class Platform(Model):
    """The installer chart and the platform package."""

    variant: PlatformVariant | None = None
    """Default: isp-full on talos, isp-full-generic on generic, isp-hosted on hosted."""
    bundles: Bundles = Field(default_factory=Bundles)
    """Bundles and single packages."""
    chart: str = CHART
    """The installer chart: an OCI reference, or a folder relative to the project."""
    prism: Flag = True
    """generic: install extractedprism, a load balancer for the API server on every node."""
    telemetry: Flag = True
    """Whether the operator reports anonymous usage upstream."""
    values: Document = Field(default_factory=dict)
    """Values merged last into the platform package; what we manage ourselves must not be set here."""


class ExternalIPs(Model):
    """Which addresses the ingress of the root tenant listens on."""

    strategy: Literal["internal", "external", "explicit"] = "internal"
    """internal: the nodes' internal addresses. external: their public ones. explicit: `addresses`."""
    addresses: tuple[str, ...] = ()
    """With explicit: the addresses."""


class Dns01(Model):
    """DNS provider that answers ACME challenges. The secret itself is made in the cluster by a person."""

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
    """rfc2136: name server, host:port."""
    tsig_key_name: str | None = None
    """rfc2136: name of the TSIG key."""
    tsig_algorithm: str | None = None
    """rfc2136: algorithm. Default: HMACSHA256."""


class Certificates(Model):
    """Who signs the public names."""

    solver: Literal["http01", "dns01"] = "http01"
    """How ownership of the host is proven to the certificate authority."""
    issuer: str = "letsencrypt-prod"
    """ClusterIssuer: letsencrypt-prod, letsencrypt-stage, selfsigned-cluster-issuer, or one of your own."""
    dns01: Dns01 | None = None
    """With solver dns01: the DNS provider."""
    wildcard: Flag = False
    """One wildcard certificate instead of one per name."""
    wildcard_secret_name: str | None = None
    """An existing wildcard certificate."""


class Publishing(Model):
    """How the world reaches the platform."""

    host: str = ""
    """Domain below which everything is published: dashboard.<host>, api.<host>, … (required)"""
    host_owned: Flag = False
    """A person states that the domain is theirs and *.<host> points, or will point, at the external addresses."""
    exposed: tuple[str, ...] = (published.API, published.DASHBOARD)
    """Published services: api, dashboard, vm-exportproxy, cdi-uploadproxy, linstor-gui."""
    external_ips: ExternalIPs = Field(default_factory=ExternalIPs)
    """Addresses of the ingress."""
    load_balancer: Flag = False
    """Publish through a service of type LoadBalancer instead of external addresses."""
    load_balancer_class: str | None = None
    """Class of that service; cannot be changed later."""
    provider: Provider = "bareMetal"
    """Where the machines are; guards against external addresses that are on no interface."""
    certificates: Certificates = Field(default_factory=Certificates)
    """Public certificates."""
    api_server_endpoint: str | None = None
    """URL in kubeconfigs handed to people. Default: https://api.<host>:443."""
    proxy_protocol: Flag = False
    """Whether the load balancer in front speaks the PROXY protocol."""
    resolvers: tuple[str, ...] = ()
    """DNS resolvers that are asked for the public names besides this workstation's own, e.g. `9.9.9.9`."""
    reachability: Literal["check", "skip"] = "check"
    """Whether dashboard and API have to answer from this workstation; skip needs an override of RCH-002 with its reason."""


class Access(Model):
    """Who may log in."""

    oidc: Flag = True
    """Single sign-on through Keycloak; in two steps where the release needs it."""
    keycloak_internal_url: str | None = None
    """Keycloak as seen inside the cluster. Default: what the release needs."""
    kubeconfig_file: str | None = None
    """Where to write the kubeconfig, mode 0600; never over another cluster's. Default: nowhere."""


class Tenant(Model):
    """Services of the root tenant."""

    ingress: Flag = True
    """The ingress everything is published through."""
    etcd: Flag = True
    """etcd for tenant clusters."""
    monitoring: Flag = True
    """Metrics, logs, Grafana."""
    seaweedfs: Flag = True
    """Object storage."""
    gateway: Flag = False
    """Gateway API instead of ingress (1.5 and later)."""
