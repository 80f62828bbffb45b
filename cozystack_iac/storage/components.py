"""Storage as components: the zpools before the platform, LINSTOR's pools and the storage classes after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, ResourceOptions

from cozystack_iac.kube.stages import Unclaimed
from cozystack_iac.storage import classes, linstor, zfs
from cozystack_iac.storage.linstor_stages import LinstorReady, PoolsRegistered
from cozystack_iac.storage.stages import ZpoolsOnline


@dataclass(frozen=True, kw_only=True)
class ZfsPoolJobArgs:
    plans: Sequence[zfs.PoolPlan]
    zpool: str
    image: str
    kubeconfig: Input[str]
    deadline_s: float


class ZfsPoolJob(ComponentResource):
    """One zpool on every storage node, made by one Job each and confirmed together.

    Produces: the namespace (the only privileged one), one Job per node, one verification.
    Waits for: registered nodes (the caller's dependency), not for a CNI.
    On delete: Jobs and namespace go, pools and their data stay.
    """

    def __init__(self, name: str, args: ZfsPoolJobArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:ZfsPoolJob", name, None, opts)
        child = ResourceOptions(parent=self)
        space = zfs.namespace()
        namespace = kubernetes.core.v1.Namespace(f"{name}-namespace", metadata=space["metadata"], opts=child)
        jobs = [self._job(name, plan, args.image, namespace) for plan in args.plans]
        self.verified = ZpoolsOnline(
            f"{name}-online",
            {
                "kubeconfig": args.kubeconfig,
                "zpool": args.zpool,
                "jobs": {plan.node: plan.job_name for plan in args.plans},
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self, depends_on=[namespace, *jobs]),
        )
        self.pools: Output[dict[str, str]] = self.verified.output("pools")
        self.register_outputs({"pools": self.pools})

    def _job(
        self, name: str, plan: zfs.PoolPlan, image: str, namespace: kubernetes.core.v1.Namespace
    ) -> kubernetes.batch.v1.Job:
        job = zfs.job(plan, image)
        # The verification reads results and reports all nodes at once; the plugin would stop at the first.
        metadata: Any = {**job["metadata"], "annotations": {"pulumi.com/skipAwait": "true"}}
        return kubernetes.batch.v1.Job(
            f"{name}-{plan.node}",
            metadata=metadata,
            spec=job["spec"],
            opts=ResourceOptions(parent=self, depends_on=[namespace]),
        )


@dataclass(frozen=True, kw_only=True)
class LinstorPoolsArgs:
    nodes: Sequence[str]
    pool: str
    zpool: str
    kubeconfig: Input[str]
    controller_deadline_s: float
    deadline_s: float


class LinstorPools(ComponentResource):
    """LINSTOR storage pools on the zpools that `ZfsPoolJob` made.

    Produces: one LinstorSatelliteConfiguration per storage node, one verification.
    Waits for: the controller's ready endpoint (which also means that the CRDs exist).
    On delete: LINSTOR is told to forget the configuration; zpools stay.
    """

    def __init__(self, name: str, args: LinstorPoolsArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:LinstorPools", name, None, opts)
        ready = LinstorReady(
            f"{name}-controller",
            {"kubeconfig": args.kubeconfig, "deadline_s": args.controller_deadline_s},
            ResourceOptions(parent=self),
        )
        configurations = [self._satellite(name, node, args, ready) for node in args.nodes]
        self.verified = PoolsRegistered(
            f"{name}-registered",
            {
                "kubeconfig": args.kubeconfig,
                "nodes": list(args.nodes),
                "pool": args.pool,
                "zpool": args.zpool,
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self, depends_on=[ready, *configurations]),
        )
        self.pools: Output[dict[str, str]] = self.verified.output("pools")
        self.register_outputs({"pools": self.pools})

    def _satellite(
        self, name: str, node: str, args: LinstorPoolsArgs, ready: LinstorReady
    ) -> kubernetes.apiextensions.CustomResource:
        body = linstor.satellite_configuration(node, args.pool, args.zpool)
        return kubernetes.apiextensions.CustomResource(
            f"{name}-{node}",
            api_version=body["apiVersion"],
            kind=body["kind"],
            metadata=body["metadata"],
            spec=body["spec"],
            opts=ResourceOptions(parent=self, depends_on=[ready]),
        )


@dataclass(frozen=True, kw_only=True)
class StorageClassesArgs:
    pool: str
    copies: int
    kubeconfig: Input[str]
    deadline_s: float


class StorageClasses(ComponentResource):
    """`local` (default) and `replicated`, when nobody else has classes of these names.

    Produces: a look at the names, then the two classes. Waits for: registered pools (the caller's dependency).
    On delete: the classes go, volumes stay.
    """

    def __init__(self, name: str, args: StorageClassesArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:StorageClasses", name, None, opts)
        bodies = classes.storage_classes(args.pool, args.copies)
        free = Unclaimed(
            f"{name}-unclaimed",
            {
                "kubeconfig": args.kubeconfig,
                "claims": [_claim(body["metadata"]["name"]) for body in bodies],
                "next_step": "set `storage.classes: adopt` to keep them, or `skip`, or remove them; then run `pulumi up` again",
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self),
        )
        for body in bodies:
            kubernetes.storage.v1.StorageClass(
                f"{name}-{body['metadata']['name']}",
                metadata=body["metadata"],
                provisioner=body["provisioner"],
                parameters=body["parameters"],
                volume_binding_mode=body["volumeBindingMode"],
                allow_volume_expansion=body["allowVolumeExpansion"],
                opts=ResourceOptions(parent=self, depends_on=[free]),
            )
        self.register_outputs({"names": list(classes.NAMES)})


def _claim(name: str) -> dict[str, object]:
    return {"api_version": "storage.k8s.io/v1", "plural": "storageclasses", "name": name, "owner": classes.MANAGED}
