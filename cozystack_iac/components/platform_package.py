"""The one Package from which the operator derives the whole platform."""

from __future__ import annotations

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Output, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.platform import package, values
from cozystack_iac.releases import Release
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.platform_values import PlatformValues, ValuesInputs

AUTHENTICATION = "spec.components.platform.values.authentication"


class PlatformPackage(ComponentResource):
    """The one Package from which the operator derives the whole platform.

    Produces: the Package, and the values that the platform renders from it, read back. The Package's Ready condition only says
    that releases were written; `PlatformReady` judges those.
    Waits for: CRDs and package source (the caller's dependency on `CozyInstaller`).
    On delete: the Package goes, and with it the platform.
    """

    def __init__(
        self, name: str, site: Site, release: Release, access: Access, opts: ResourceOptions | None = None
    ) -> None:
        super().__init__("cozystack:platform:PlatformPackage", name, None, opts)
        body = package.package(site, release)
        spec = dict(body["spec"])
        self.package = kubernetes.apiextensions.CustomResource(
            f"{name}-package",
            api_version=body["apiVersion"],
            kind=body["kind"],
            metadata=dict(body["metadata"]),
            spec=Output.secret(spec) if package.carries_secrets(site) else spec,
            # Left out of the values there, and never taken away: a stack may come from a release that had it in the Package.
            opts=ResourceOptions(parent=self, ignore_changes=[AUTHENTICATION] if release.oidc_later else None),
        )
        wanted = values.expected(package.platform_values(site, release), site.platform_variant, release)
        inputs = ValuesInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            wanted=dict(wanted),
            deadline_s=site.waits.package.total_seconds(),
        )
        PlatformValues(f"{name}-values", inputs, ResourceOptions(parent=self, depends_on=[self.package]))
        self.register_outputs({"variant": spec["variant"]})
