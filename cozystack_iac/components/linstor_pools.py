"""LINSTOR storage pools on the zpools of the storage nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.membership.approval import approvals
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.devices_fit import DeviceInputs, DevicesFit
from cozystack_iac.stages.linstor_ready import LinstorReady, LinstorReadyInputs
from cozystack_iac.stages.pools_registered import PoolInputs, PoolsRegistered
from cozystack_iac.storage import linstor
from cozystack_iac.talos.inventory import storing_machines


class LinstorPools(ComponentResource):
    """LINSTOR storage pools, on the zpools that `ZfsPoolJob` made or on disks that LINSTOR is given.

    Produces: one LinstorSatelliteConfiguration per storage node, one verification; before them, where LINSTOR makes the
    zpools, a look at every disk. `sizes`: of the zpools in bytes, by node, as far as they are known.
    Waits for: the controller's ready endpoint and the CRD.
    On delete: LINSTOR is told to forget the configuration; zpools stay.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        access: Access,
        sizes: Input[dict[str, int]],
        opts: ResourceOptions | None = None,
    ) -> None:
        super().__init__("cozystack:storage:LinstorPools", name, None, opts)
        self._site = site
        ready = LinstorReady(
            f"{name}-controller",
            LinstorReadyInputs.model_construct(
                kubeconfig=later(access.kubeconfig), deadline_s=site.waits.linstor.total_seconds()
            ),
            ResourceOptions(parent=self),
        )
        nodes = [node.name for node in site.storage_nodes]
        devices = self._devices(name, access, ready)
        configurations = [self._satellite(name, node, devices or ready) for node in nodes]
        inputs = PoolInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            nodes=nodes,
            pool=site.storage.pool,
            zpool=site.storage.zpool,
            sizes=later(sizes),
            evacuate={node: one.evacuate for node, one in approvals(site).items() if one.evacuate is not None},
            lost=[node for node, one in approvals(site).items() if one.lost is not None],
            checks=site.checks,
            deadline_s=site.waits.pools.total_seconds(),
        )
        after = ResourceOptions(parent=self, depends_on=[ready, *configurations])
        self.verified = PoolsRegistered(f"{name}-registered", inputs, after)
        self.pools: Output[dict[str, Any]] = self.verified.output("pools")
        self.register_outputs({"pools": self.pools})

    def _devices(self, name: str, access: Access, ready: LinstorReady) -> DevicesFit | None:
        site = self._site
        if site.storage.provisioner != "linstor":
            return None
        inputs = DeviceInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            pool=site.storage.pool,
            disks={node.name: node.data_disks[0] for node in site.storage_nodes},  # one each (rules)
            machines=list(storing_machines(site)),
            client_configuration=later(access.client),
            deadline_s=site.waits.pools.total_seconds(),
        )
        return DevicesFit(f"{name}-devices", inputs, ResourceOptions(parent=self, depends_on=[ready]))

    def _satellite(
        self, name: str, node: str, after: LinstorReady | DevicesFit
    ) -> kubernetes.apiextensions.CustomResource:
        pool, zpool = self._site.storage.pool, self._site.storage.zpool
        body = linstor.satellite_configuration(node, pool, zpool)
        spec: Input[Mapping[str, Any]] = body["spec"]
        if isinstance(after, DevicesFit):
            spec = after.output("links").apply(partial(_on_device, node, pool, zpool))
        return kubernetes.apiextensions.CustomResource(
            f"{name}-{node}",
            api_version=body["apiVersion"],
            kind=body["kind"],
            metadata=body["metadata"],
            spec=spec,
            opts=ResourceOptions(parent=self, depends_on=[after]),
        )


def _on_device(node: str, pool: str, zpool: str, links: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = linstor.satellite_configuration(node, pool, zpool, [links[node]])["spec"]
    return spec
