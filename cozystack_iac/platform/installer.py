"""The installer chart as data: where its release lives, and the values it needs. Pure.

Images, digests and the package source are stamped into each published chart; overriding them would mix releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cozystack_iac.releases import Release
from cozystack_iac.settings import Site

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


def ownership(release: Release) -> dict[str, str]:
    """The marks Helm leaves on what this release owns."""
    return {
        "meta.helm.sh/release-name": RELEASE_NAME,
        "meta.helm.sh/release-namespace": release.chart_namespace,
    }
