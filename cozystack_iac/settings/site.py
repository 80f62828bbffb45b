"""The whole stack file, and the values that follow from it."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field, PrivateAttr

from cozystack_iac import published, releases
from cozystack_iac.settings.base import Flag, Model
from cozystack_iac.settings.cluster import Cluster, Talos
from cozystack_iac.settings.network import Network
from cozystack_iac.settings.nodes import Node, Removed
from cozystack_iac.settings.paths import ROOT, Step, spelled
from cozystack_iac.settings.platform import Access, Platform, PlatformVariant, Publishing, Tenant
from cozystack_iac.settings.run import Allow, Lab, Waits
from cozystack_iac.settings.storage import Storage

KUBE_API_PORT = 6443

_PLATFORM_VARIANTS: Mapping[str, PlatformVariant] = {
    "talos": "isp-full",
    "generic": "isp-full-generic",
    "hosted": "isp-hosted",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a site was read from: what was given, which file holds the nodes, and what could not be read.

    `given` is None for a site that was made in Python: then the models themselves know what was given.
    """

    given: Mapping[str, Any] | None = None
    nodes_file: str | None = None
    unread: frozenset[tuple[Step, ...]] = frozenset()


class Site(Model):
    """A site as one stack file describes it."""

    cluster: Cluster = Field(default_factory=Cluster)
    """The cluster to install. (required)"""
    nodes: tuple[Node, ...] = ()
    """The nodes, inline or as `{file: …}`. Only hosted clusters need none."""
    removed: tuple[Removed, ...] = ()
    """Approvals for machines that were removed from `nodes`."""
    talos: Talos = Field(default_factory=Talos)
    """Operating system of the machines."""
    network: Network = Field(default_factory=Network)
    """Address ranges, registries and proxies."""
    storage: Storage = Field(default_factory=Storage)
    """Pools and storage classes."""
    platform: Platform = Field(default_factory=Platform)
    """Chart, bundles and packages."""
    publishing: Publishing = Field(default_factory=Publishing)
    """How the platform is published. (required)"""
    access: Access = Field(default_factory=Access)
    """Login and access."""
    tenant: Tenant = Field(default_factory=Tenant)
    """Services of the root tenant."""
    waits: Waits = Field(default_factory=Waits)
    """Timeout of each stage."""
    checks: Literal["live", "offline"] = "live"
    """Whether previews run the live checks (live) or report them as skipped (offline)."""
    protect: Flag = True
    """Whether irreplaceable resources, such as the machine secrets, are protected from deletion."""
    allow: tuple[Allow, ...] = ()
    """Guardrails that are knowingly overridden."""
    lab: Lab | None = None
    """The stack is played on the embedded lab."""

    _origin: Origin = PrivateAttr(default_factory=Origin)
    _profile: str = PrivateAttr("")

    def read_from(self, origin: Origin) -> "Site":
        """The same site, knowing where its values stand. For `load`."""
        self._origin = origin
        return self

    def pinned_by(self, version: str) -> None:
        """What the image profile says, once it was read: the Talos version of its image."""
        self._profile = version

    # Places ---------------------------------------------------------------------------------------------------------

    def where(self, *steps: Step) -> str:
        """The place of a value as people find it: the longest part of the path that exists in what was given."""
        origin = self._origin
        if origin.given is None:
            return spelled(steps)
        if origin.nodes_file is not None and steps[:1] == ("nodes",) and len(steps) > 1:
            found = _existing(origin.given.get("nodes"), steps[1:])
            return f"{origin.nodes_file}: {spelled(found)}" if found else origin.nodes_file
        found = _existing(origin.given, steps)
        return spelled(found) if found else ROOT

    def given(self, *steps: Step) -> bool:
        """Whether a value was given, as opposed to defaulted."""
        given = self._origin.given
        return _was_set(self, steps) if given is None else len(_existing(given, steps)) == len(steps)

    def unread(self, *steps: Step) -> bool:
        """Whether the value at or above this place could not be read: nothing can be concluded from it."""
        return any(steps[:length] in self._origin.unread for length in range(1, len(steps) + 1))

    def partly_unread(self, *steps: Step) -> bool:
        """Whether something at, above or below this place could not be read."""
        return self.unread(*steps) or any(place[: len(steps)] == steps for place in self._origin.unread)

    # Machines -------------------------------------------------------------------------------------------------------

    @property
    def existing(self) -> bool:
        """Whether Kubernetes is there already, so that its facts are described and not decided here."""
        return self.cluster.variant != "talos"

    @cached_property
    def control_planes(self) -> tuple[Node, ...]:
        """The control planes, in the order of the inventory; etcd is bootstrapped on the first."""
        return tuple(node for node in self.nodes if node.is_control_plane)

    @cached_property
    def workers(self) -> tuple[Node, ...]:
        """The other machines."""
        return tuple(node for node in self.nodes if not node.is_control_plane)

    @cached_property
    def storage_nodes(self) -> tuple[Node, ...]:
        """The machines with data disks."""
        return tuple(node for node in self.nodes if node.data_disks)

    @cached_property
    def virtual_addresses(self) -> tuple[str, ...]:
        """Every address that moves between machines, each once, as it is written. Cached: every node's documents need all."""
        written = [self.talos.vip, *(vip.address for node in self.nodes for vip in node.vips)]
        return tuple(dict.fromkeys(address for address in written if address))

    # Overrides ------------------------------------------------------------------------------------------------------

    @property
    def allowed(self) -> frozenset[str]:
        """Codes of the guardrails that are overridden, for builders and live checks.

        All of them hold: the plan gate stops a site whose override has ended or has no reason (OVR-002, OVR-003).
        """
        return frozenset(allow.guardrail for allow in self.allow)

    # Effective values -----------------------------------------------------------------------------------------------

    @property
    def api_host(self) -> str:
        """Host part of the Kubernetes API endpoint: the endpoint's, else the VIP, else the first control plane node."""
        if self.cluster.endpoint:
            return host_of(self.cluster.endpoint)
        return self.talos.vip or next((node.internal for node in self.control_planes), "")

    @property
    def endpoint(self) -> str:
        """URL of the Kubernetes API, e.g. `https://10.0.0.10:6443`."""
        if self.cluster.endpoint:
            return self.cluster.endpoint
        host = self.api_host
        return f"https://{authority(host, KUBE_API_PORT)}"

    @property
    def platform_variant(self) -> PlatformVariant:
        """Variant of the platform package."""
        return self.platform.variant or _PLATFORM_VARIANTS[self.cluster.variant]

    @property
    def talos_version(self) -> str:
        """Configuration contract with its leading v, e.g. `v1.13.6`: as given, else the image profile's, else the release's pin.

        Empty when none of them is known.
        """
        if self.talos.version or self._profile:
            return self.talos.version or self._profile
        release = releases.find(self.cluster.cozystack)
        return release.talos if release else ""

    @property
    def kubernetes_version(self) -> str:
        """Kubernetes version with its leading v."""
        return self.talos.kubernetes or releases.KUBERNETES

    @property
    def installer_image(self) -> str:
        """Installer image for machines without one of their own; empty when its profile was not (or cannot be) read."""
        image = self.talos.image
        if image.reference:
            return image.reference
        version = self._profile if image.profile else self.talos_version
        return f"{releases.TALOS_IMAGE}:{version}" if version else ""

    @property
    def external_ips(self) -> tuple[str, ...]:
        """Addresses the ingress listens on, in the order of the inventory; empty when a load balancer publishes."""
        publishing = self.publishing
        if publishing.load_balancer:
            return ()
        match publishing.external_ips.strategy:
            case "explicit":
                return publishing.external_ips.addresses
            case "external":
                return tuple(node.public_address for node in self.nodes if node.public_address)
            case "internal":
                return tuple(node.internal for node in self.nodes if node.internal)

    @property
    def pod_gateway(self) -> str:
        """Gateway of the pod network: as given, else the first address of podCIDR; empty when that is no network."""
        if self.network.pod_gateway:
            return self.network.pod_gateway
        try:
            return str(ipaddress.ip_network(self.network.pod_cidr)[1])
        except (ValueError, IndexError):
            return ""

    @property
    def api_server_endpoint(self) -> str:
        """API server URL in the kubeconfigs of users. The ingress passes TLS through on 443; nothing listens on 6443 there."""
        name = published.name(published.API, self.publishing.host)
        return self.publishing.api_server_endpoint or f"https://{name}:{self.https_port}"

    @property
    def replicas(self) -> int:
        """Copies of replicated volumes."""
        return self.storage.replicas or min(3, max(1, len(self.storage_nodes)))

    @property
    def https_port(self) -> int:
        """Port of the public names."""
        return self.lab.https_port if self.lab else 443

    @property
    def resolver(self) -> str:
        """Resolver that counts as this workstation's own: `system`, or the one that a lab plays; empty when a lab plays none."""
        return self.lab.resolver if self.lab else "system"

    @property
    def apiserver_for_operator(self) -> tuple[str, int]:
        """generic: host and port that operator and Flux use for the API server."""
        network, prism = self.network, self.platform.prism
        host = network.api_server_host or ("127.0.0.1" if prism else self.api_host)
        return host, network.api_server_port or (7445 if prism and not network.api_server_host else KUBE_API_PORT)


def host_of(url: str) -> str:
    """The host of `scheme://host[:port][/…]`, without brackets; empty when there is none. Never raises."""
    authority = url.split("://", 1)[-1].split("/", 1)[0].rsplit("@", 1)[-1]
    if authority.startswith("["):
        return authority[1:].split("]", 1)[0]
    return authority.split(":", 1)[0]


def _was_set(value: Any, steps: Sequence[Step]) -> bool:
    """Whether every model on the way was given the value, as opposed to defaulting it."""
    for step in steps:
        if isinstance(value, BaseModel):
            fields = type(value).model_fields
            name = next((name for name, info in fields.items() if info.alias == step), None)
            if name is None or name not in value.model_fields_set:
                return False
            value = getattr(value, name)
        else:
            try:
                value = value[step]
            except (TypeError, KeyError, IndexError):
                return False
    return True


def _existing(value: Any, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The longest beginning of `steps` that can be walked in `value`."""
    for position, step in enumerate(steps):
        try:
            value = value[step]
        except (TypeError, KeyError, IndexError):
            return tuple(steps[:position])
    return tuple(steps)


def authority(host: str, port: int) -> str:
    """Host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
