"""The installer chart as data: where its release lives, and the values it needs. Pure.

Images, digests and the package source are stamped into each published chart; overriding them would mix releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cozystack_iac.settings import Site
from cozystack_iac.settings.site import authority

RELEASE_NAME = "cozy-installer"
OPERATOR_NAMESPACE = "cozy-system"  # hard-coded in the chart, wherever its Helm release lives
PACKAGE_CRDS = ("packages.cozystack.io", "packagesources.cozystack.io")
PLATFORM_PACKAGE = "cozystack.cozystack-platform"


@dataclass(frozen=True)
class Chart:
    """Chart reference as Helm takes it: a local folder has no version."""

    reference: str
    version: str | None


def chart(site: Site) -> Chart:
    """OCI tags carry no leading `v`."""
    local = not site.platform.chart.startswith("oci://")
    return Chart(site.platform.chart, None if local else site.cluster.cozystack.removeprefix("v"))


def installer_values(site: Site) -> dict[str, Any]:
    """Values of the installer chart."""
    values: dict[str, Any] = {"cozystackOperator": {"variant": site.cluster.variant}}
    if not site.platform.telemetry:
        values["cozystackOperator"]["disableTelemetry"] = True
    if site.cluster.variant == "generic":
        host, port = site.apiserver_for_operator
        values["cozystack"] = {"apiServerHost": host, "apiServerPort": str(port)}
    return values


def legacy_config(site: Site) -> dict[str, str]:
    """Data of ConfigMap cozy-system/cozystack; empty where nothing needs it.

    On generic clusters Cilium takes the way to the API server from the published endpoint, which is for people: a name that no
    pod network can resolve before there is a pod network. This key, older than the platform package, is read for Cilium alone
    (packages/core/platform/templates/bundles/system.yaml, isp-full-generic).
    """
    if site.platform_variant != "isp-full-generic":
        return {}
    host, port = site.apiserver_for_operator
    return {"api-server-endpoint": f"https://{authority(host, port)}"}


def legacy_expected(site: Site) -> dict[str, str]:
    """What keys of that ConfigMap have to say where somebody left them: they overrule the package."""
    expected = {"root-host": site.publishing.host}
    if site.platform_variant == "isp-full-generic":
        network = site.network
        expected |= {
            "ipv4-pod-cidr": network.pod_cidr,
            "ipv4-pod-gateway": site.pod_gateway,
            "ipv4-svc-cidr": network.service_cidr,
            "ipv4-join-cidr": network.join_cidr,
        }
    return expected | legacy_config(site)
