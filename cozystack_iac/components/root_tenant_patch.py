"""Host and services of the root tenant."""

from __future__ import annotations

from pulumi import ComponentResource, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.platform import tenant
from cozystack_iac.releases import Release
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.root_tenant_patched import RootTenantPatched, TenantInputs


class RootTenantPatch(ComponentResource):
    """Host and services of the root tenant, patched as soon as it exists.

    Produces: one `RootTenantPatched`. Waits for: the aggregated API and the tenant, inside the patch.
    On delete: nothing; the tenant belongs to the platform.
    """

    def __init__(
        self, name: str, site: Site, release: Release, access: Access, opts: ResourceOptions | None = None
    ) -> None:
        super().__init__("cozystack:platform:RootTenantPatch", name, None, opts)
        spec = tenant.root_spec(site, release)
        inputs = TenantInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            host=spec["host"],
            ingress=spec["ingress"],
            spec=dict(spec),
            deadline_s=site.waits.tenant.total_seconds(),
        )
        self.patch = RootTenantPatched(f"{name}-patch", inputs, ResourceOptions(parent=self))
        self.register_outputs({"applied": self.patch.output("applied")})
