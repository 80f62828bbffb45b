"""Cozystack's operator as a Helm release."""

from __future__ import annotations

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Output, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.platform import installer
from cozystack_iac.releases import Release
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.installer_hook import HookInputs, InstallerHook
from cozystack_iac.stages.operator_ready import OperatorInputs, OperatorReady
from cozystack_iac.stages.platform_claim import ClaimInputs, PlatformClaim


class CozyInstaller(ComponentResource):
    """Cozystack's operator, as the Helm release its documented upgrades expect.

    Produces: the claim (whose cozy-system it is, and a Helm release that a killed run left half done), the Helm release, a watch
    over the chart's first Job beside it, the wait for an operator at work.
    Waits for: zpools (the caller's dependency). Never adopts what another release owns.
    On delete: the release is uninstalled; the platform's own objects are kept by Cozystack's deletion guard.
    """

    def __init__(
        self, name: str, site: Site, release: Release, access: Access, opts: ResourceOptions | None = None
    ) -> None:
        super().__init__("cozystack:platform:CozyInstaller", name, None, opts)
        version, deadline_s = str(release.version), site.waits.operator.total_seconds()
        kubeconfig = later(access.kubeconfig)
        claimed = PlatformClaim(f"{name}-claim", claim(site, release, access), ResourceOptions(parent=self))
        after = ResourceOptions(parent=self, depends_on=[claimed])
        if release.creates_namespace:
            hook = HookInputs.model_construct(
                kubeconfig=kubeconfig,
                release_namespace=release.chart_namespace,
                version=version,
                deadline_s=deadline_s,
            )
            InstallerHook(f"{name}-hook", hook, after)
        chart = installer.chart(site)
        self.release = kubernetes.helm.v3.Release(
            f"{name}-release",
            chart=chart.reference,
            version=chart.version,
            name=installer.RELEASE_NAME,
            namespace=release.chart_namespace,
            create_namespace=release.creates_namespace,
            # Go on from a revision that is marked as failed, by Helm or by the claim; without effect on a first install.
            replace=True,
            values=installer.installer_values(site),
            # A revision that the claim gave back is not what the cluster has: then Helm has to go over it once more.
            description=claimed.output("handed_over").apply(_description),
            timeout=int(deadline_s),
            opts=after,
        )
        handed_over: Output[str] = claimed.output("handed_over")
        operator = OperatorInputs.model_construct(
            kubeconfig=kubeconfig,
            version=version,
            handed_over=later(handed_over),
            deadline_s=deadline_s,
        )
        ready = ResourceOptions(parent=self, depends_on=[self.release])
        self.ready = OperatorReady(f"{name}-operator", operator, ready)
        self.register_outputs({"release": self.release.name})


def claim(site: Site, release: Release, access: Access) -> ClaimInputs:
    """What the claim compares with the cluster."""
    return ClaimInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        cluster=site.cluster.name,
        release_namespace=release.chart_namespace,
        brings_namespace=not release.creates_namespace,
        brings_network=site.platform_variant in ("isp-full", "isp-full-generic"),
        version=str(release.version),
        oidc=site.access.oidc,
        legacy=installer.legacy_expected(site),
        legacy_write=installer.legacy_config(site),
        allowed=sorted(site.allowed),
        checks=site.checks,
        deadline_s=site.waits.operator.total_seconds(),
    )


def _description(handed_over: str) -> str:
    return "by cozystack-iac" + (f", after {handed_over}" if handed_over else "")
