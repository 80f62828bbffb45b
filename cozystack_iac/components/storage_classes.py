"""The storage classes that Cozystack documents."""

from __future__ import annotations

from typing import Literal

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.classes_fit import ClassesFit, ClassInputs
from cozystack_iac.storage import classes

OUTAGE_S = 60.0  # a look goes on through an outage of the API server this long


class StorageClasses(ComponentResource):
    """`local` (default) and `replicated`: made here (`create`), or those that exist, and what is missing (`adopt`).

    Produces: a look at all classes, which previews make as well; with `create` the two classes.
    Waits for: registered pools (the caller's dependency). On delete: the classes made here go, volumes stay.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        access: Access,
        mode: Literal["create", "adopt"],
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("cozystack:storage:StorageClasses", name, None, opts)
        pool, copies = site.storage.pool, site.replicas
        inputs = ClassInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            mode=mode,
            pool=pool,
            copies=copies,
            nodes=len(site.storage_nodes),
            checks=site.checks,
            deadline_s=OUTAGE_S,
        )
        fit = ClassesFit(f"{name}-fit", inputs, ResourceOptions(parent=self))
        for body in classes.storage_classes(pool, copies) if mode == "create" else ():
            kubernetes.storage.v1.StorageClass(
                f"{name}-{body['metadata']['name']}",
                metadata=body["metadata"],
                provisioner=body["provisioner"],
                parameters=body["parameters"],
                volume_binding_mode=body["volumeBindingMode"],
                allow_volume_expansion=body["allowVolumeExpansion"],
                opts=ResourceOptions(parent=self, depends_on=[fit]),
            )
        self.register_outputs({"names": list(classes.NAMES)})
