"""One zpool on every storage node, before the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Output, ResourceOptions

from cozystack_iac.components.access import Access
from cozystack_iac.settings import Disk, Node, Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.zpools_online import PlannedPool, ZpoolInputs, ZpoolsOnline
from cozystack_iac.storage import zfs
from cozystack_iac.talos.inventory import storing_machines

JOB_IMAGE = "docker.io/alpine/k8s:1.36.2"  # has a shell and nsenter; the installer chart's own hook pulls it as well


class ZfsPoolJob(ComponentResource):
    """One zpool on every storage node, made by one Job each, released and confirmed together.

    Produces: the namespace (the only one that is ever privileged), one suspended Job per node, one verification.
    Waits for: registered nodes (the caller's dependency), not for a CNI.
    On delete: Jobs and namespace go, pools and their data stay.
    """

    def __init__(self, name: str, site: Site, access: Access, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:ZfsPoolJob", name, None, opts)
        child = ResourceOptions(parent=self)
        space = zfs.namespace()
        namespace = kubernetes.core.v1.Namespace(f"{name}-namespace", metadata=space["metadata"], opts=child)
        plans = [pool_plan(site, node) for node in site.storage_nodes]
        bodies = {plan.node: zfs.job(plan, site.storage.job_image or JOB_IMAGE) for plan in plans}
        jobs = [self._job(f"{name}-{node}", body, namespace) for node, body in bodies.items()]
        inputs = ZpoolInputs.model_construct(
            kubeconfig=later(access.kubeconfig),
            zpool=site.storage.zpool,
            jobs={node: body["metadata"]["name"] for node, body in bodies.items()},
            plans={plan.node: PlannedPool(text=str(plan), least_bytes=plan.least_bytes) for plan in plans},
            machines=list(storing_machines(site)),
            client_configuration=later(access.client),
            drop_privileges=site.storage.drop_privileges,
            deadline_s=site.waits.zpools.total_seconds(),
        )
        after = ResourceOptions(parent=self, depends_on=[namespace, *jobs])
        self.verified = ZpoolsOnline(f"{name}-online", inputs, after)
        self.pools: Output[dict[str, Any]] = self.verified.output("pools")
        self.sizes: Output[dict[str, int]] = self.pools.apply(_sizes)
        self.register_outputs({"pools": self.pools})

    def _job(
        self, name: str, body: Mapping[str, Any], namespace: kubernetes.core.v1.Namespace
    ) -> kubernetes.batch.v1.Job:
        # It is declared suspended and released by the verification, which also reads its result: the plugin neither waits
        # for it nor puts it back to sleep.
        metadata: Any = {**body["metadata"], "annotations": {"pulumi.com/skipAwait": "true"}}
        return kubernetes.batch.v1.Job(
            # The name holds the content: another content is another resource, which inherits nothing that is ignored here.
            f"{name}-{body['metadata']['name'].rpartition('-')[2]}",
            metadata=metadata,
            spec=body["spec"],
            opts=ResourceOptions(parent=self, depends_on=[namespace], ignore_changes=["spec.suspend"]),
        )


def _sizes(pools: Mapping[str, Any] | None) -> dict[str, int]:
    return {node: int(pool["size_bytes"]) for node, pool in (pools or {}).items()}


def pool_plan(site: Site, node: Node) -> zfs.PoolPlan:
    return zfs.PoolPlan(
        node=node.name,
        zpool=site.storage.zpool,
        layout=node.layout or site.storage.layout,
        disks=tuple(_identity(disk) for disk in node.data_disks),
        minimum_bytes=site.storage.minimum_size,
    )


def _identity(disk: Disk) -> zfs.DiskIdentity:
    """Everything the stack file says about which disk it is; rules have made sure that a data disk has an identity."""
    named = [_one_identity(kind, value) for kind, value in disk.identities if kind != "selector"]
    if not named:
        raise pulumi.RunError(f"a data disk cannot be identified by {disk}; use serial, wwid or byId")
    return replace(named[0], also=tuple(named[1:]))


def _one_identity(kind: str, value: str) -> zfs.DiskIdentity:
    match kind:
        case "serial" | "wwid":
            return zfs.DiskIdentity(kind, value)
        case _:
            return zfs.DiskIdentity("byId", value.rsplit("/", 1)[-1])
