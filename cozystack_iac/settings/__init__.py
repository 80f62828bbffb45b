"""The stack file as typed, frozen models. `load` is the only place that reads Pulumi's configuration."""

from cozystack_iac.settings.cluster import Cluster, ClusterAccess, Talos, TalosImage
from cozystack_iac.settings.network import Mirror, Network, Proxy, Registries, RegistryAuth, RegistryConfig
from cozystack_iac.settings.nodes import Disk, Evacuation, Lost, Node, Removed, Reset, Vip
from cozystack_iac.settings.platform import (
    Access,
    Bundles,
    Certificates,
    Dns01,
    ExternalIPs,
    Platform,
    Publishing,
    Tenant,
)
from cozystack_iac.settings.run import Allow, Lab, Waits
from cozystack_iac.settings.site import Site
from cozystack_iac.settings.storage import Storage

__all__ = [
    "Access",
    "Allow",
    "Bundles",
    "Certificates",
    "Cluster",
    "ClusterAccess",
    "Disk",
    "Dns01",
    "Evacuation",
    "ExternalIPs",
    "Lab",
    "Lost",
    "Mirror",
    "Network",
    "Node",
    "Platform",
    "Proxy",
    "Publishing",
    "Registries",
    "RegistryAuth",
    "RegistryConfig",
    "Removed",
    "Reset",
    "Site",
    "Storage",
    "Talos",
    "TalosImage",
    "Tenant",
    "Vip",
    "Waits",
]
