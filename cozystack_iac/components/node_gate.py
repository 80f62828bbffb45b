"""The plan gate as a component."""

from __future__ import annotations

from pulumi import ComponentResource, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.node_probe import NodeProbe, ProbeInputs
from cozystack_iac.talos.inventory import targets


class NodeGate(ComponentResource):
    """Plan gate: every machine is what the stack file says, before anything is touched.

    Produces: one NodeProbe. On delete: nothing happens to any machine. Where `access` has a client configuration it tells
    machines that this cluster configured from anybody else's; a first preview does without.
    """

    def __init__(self, name: str, site: Site, access: Access, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:talos:NodeGate", name, None, opts)
        inputs = ProbeInputs.model_construct(
            machines=list(targets(site)),
            talos=site.talos_version,
            cozystack=site.cluster.cozystack,
            image=site.installer_image,
            checks=site.checks,
            client_configuration=later(access.client),
            deadline_s=site.waits.probe.total_seconds(),
        )
        self.probe = NodeProbe(f"{name}-probe", inputs, ResourceOptions(parent=self))
        self.register_outputs({})
