"""A load balancer for the API server on clusters that have none of their own."""

from __future__ import annotations

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, ResourceOptions

from cozystack_iac.settings import Site
from cozystack_iac.settings.site import KUBE_API_PORT, authority

CHART = "oci://ghcr.io/lexfrei/charts/extractedprism"
VERSION = "0.2.0"
PORT = 7445  # the port Cilium is told on Talos too, where KubePrism owns it


class ExtractedPrism(ComponentResource):
    """A load balancer for the API server on every node of a generic cluster, so that no single control plane is a cliff.

    Produces: one Helm release (a DaemonSet on every node, waited for). Never on Talos, where KubePrism owns the port.
    On delete: the release is uninstalled.
    """

    def __init__(self, name: str, site: Site, opts: ResourceOptions | None = None, *, chart: str = CHART) -> None:
        super().__init__("cozystack:platform:ExtractedPrism", name, None, opts)
        endpoints = [authority(node.internal, KUBE_API_PORT) for node in site.control_planes]
        self.release = kubernetes.helm.v3.Release(
            f"{name}-release",
            chart=chart,
            version=VERSION if chart.startswith("oci://") else None,
            name="extractedprism",
            namespace="kube-system",
            # The chart's schema wants one string; a list is refused before rendering.
            values={"endpoints": ",".join(endpoints), "bindPort": PORT},
            timeout=int(site.waits.prism.total_seconds()),
            opts=ResourceOptions(parent=self),
        )
        self.register_outputs({"release": self.release.name})
