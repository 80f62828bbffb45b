"""Storage as components: the zpools before the platform, LINSTOR's pools and the storage classes after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, ResourceOptions

from cozystack_iac.settings import Disk
from cozystack_iac.storage import classes, linstor, zfs
from cozystack_iac.storage.class_stages import ClassesFit
from cozystack_iac.storage.device_stages import DevicesFit
from cozystack_iac.storage.linstor_stages import LinstorReady, PoolsRegistered
from cozystack_iac.storage.stages import ZpoolsOnline
from cozystack_iac.talos.fleet import MachineRef


@dataclass(frozen=True, kw_only=True)
class ZfsPoolJobArgs:
    plans: Sequence[zfs.PoolPlan]
    zpool: str
    image: str
    kubeconfig: Input[str]
    machines: Sequence[MachineRef]
    client_configuration: Input[Mapping[str, str]]
    drop_privileges: bool
    deadline_s: float


class ZfsPoolJob(ComponentResource):
    """One zpool on every storage node, made by one Job each, released and confirmed together.

    Produces: the namespace (the only one that is ever privileged), one suspended Job per node, one verification.
    Waits for: registered nodes (the caller's dependency), not for a CNI.
    On delete: Jobs and namespace go, pools and their data stay.
    """

    def __init__(self, name: str, args: ZfsPoolJobArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:ZfsPoolJob", name, None, opts)
        child = ResourceOptions(parent=self)
        space = zfs.namespace()
        namespace = kubernetes.core.v1.Namespace(f"{name}-namespace", metadata=space["metadata"], opts=child)
        bodies = {plan.node: zfs.job(plan, args.image) for plan in args.plans}
        jobs = [self._job(f"{name}-{node}", body, namespace) for node, body in bodies.items()]
        self.verified = ZpoolsOnline(
            f"{name}-online",
            {
                "kubeconfig": args.kubeconfig,
                "zpool": args.zpool,
                "jobs": {node: body["metadata"]["name"] for node, body in bodies.items()},
                "plans": {p.node: {"text": str(p), "least_bytes": p.least_bytes} for p in args.plans},
                "machines": [machine.model_dump(mode="json") for machine in args.machines],
                "client_configuration": args.client_configuration,
                "drop_privileges": args.drop_privileges,
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self, depends_on=[namespace, *jobs]),
        )
        self.pools: Output[dict[str, str]] = self.verified.output("pools")
        self.sizes: Output[dict[str, int]] = self.verified.output("sizes")
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


@dataclass(frozen=True, kw_only=True)
class LinstorPoolsArgs:
    """`sizes`: of the zpools in bytes, by node. `evacuate`: nodes that LINSTOR may empty when they leave, and why.
    `lost`: nodes that are gone for good, with what they stored.

    `disks`: by node, the disk LINSTOR is to make the zpool of; None where the zpools are there already. `machines` and
    `client_configuration`: Talos machines that are asked once more about these disks.
    """

    nodes: Sequence[str]
    pool: str
    zpool: str
    kubeconfig: Input[str]
    controller_deadline_s: float
    deadline_s: float
    sizes: Input[Mapping[str, int]] = field(default_factory=dict)
    evacuate: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[str] = ()
    checks: str = "live"
    disks: Mapping[str, Disk] | None = None
    machines: Sequence[MachineRef] = ()
    client_configuration: Input[Mapping[str, str]] = field(default_factory=dict)


class LinstorPools(ComponentResource):
    """LINSTOR storage pools, on the zpools that `ZfsPoolJob` made or on disks that LINSTOR is given.

    Produces: one LinstorSatelliteConfiguration per storage node, one verification; before them, where LINSTOR makes the
    zpools, a look at every disk. Waits for: the controller's ready endpoint and the CRD.
    On delete: LINSTOR is told to forget the configuration; zpools stay.
    """

    def __init__(self, name: str, args: LinstorPoolsArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:LinstorPools", name, None, opts)
        ready = LinstorReady(
            f"{name}-controller",
            {"kubeconfig": args.kubeconfig, "deadline_s": args.controller_deadline_s},
            ResourceOptions(parent=self),
        )
        devices = self._devices(name, args, ready)
        configurations = [self._satellite(name, node, args, devices or ready) for node in args.nodes]
        self.verified = PoolsRegistered(
            f"{name}-registered",
            {
                "kubeconfig": args.kubeconfig,
                "nodes": list(args.nodes),
                "pool": args.pool,
                "zpool": args.zpool,
                "sizes": args.sizes,
                "evacuate": dict(args.evacuate),
                "lost": list(args.lost),
                "checks": args.checks,
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self, depends_on=[ready, *configurations]),
        )
        self.pools: Output[dict[str, str]] = self.verified.output("pools")
        self.register_outputs({"pools": self.pools})

    def _devices(self, name: str, args: LinstorPoolsArgs, ready: LinstorReady) -> DevicesFit | None:
        if args.disks is None:
            return None
        return DevicesFit(
            f"{name}-devices",
            {
                "kubeconfig": args.kubeconfig,
                "pool": args.pool,
                "disks": {node: disk.model_dump(mode="json") for node, disk in args.disks.items()},
                "machines": [machine.model_dump(mode="json") for machine in args.machines],
                "client_configuration": args.client_configuration,
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self, depends_on=[ready]),
        )

    def _satellite(
        self, name: str, node: str, args: LinstorPoolsArgs, after: LinstorReady | DevicesFit
    ) -> kubernetes.apiextensions.CustomResource:
        body = linstor.satellite_configuration(node, args.pool, args.zpool)
        spec: Input[Mapping[str, Any]] = body["spec"]
        if isinstance(after, DevicesFit):
            spec = after.output("links").apply(partial(_on_device, node, args.pool, args.zpool))
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


@dataclass(frozen=True, kw_only=True)
class StorageClassesArgs:
    """`nodes`: how many storage nodes there are; `copies`: of a replicated volume."""

    mode: Literal["create", "adopt"]
    pool: str
    copies: int
    nodes: int
    kubeconfig: Input[str]
    deadline_s: float
    checks: str = "live"


class StorageClasses(ComponentResource):
    """`local` (default) and `replicated`: made here (`create`), or those that exist, and what is missing (`adopt`).

    Produces: a look at all classes, which previews make as well; with `create` the two classes.
    Waits for: registered pools (the caller's dependency). On delete: the classes made here go, volumes stay.
    """

    def __init__(self, name: str, args: StorageClassesArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:storage:StorageClasses", name, None, opts)
        fit = ClassesFit(
            f"{name}-fit",
            {
                "kubeconfig": args.kubeconfig,
                "mode": args.mode,
                "pool": args.pool,
                "copies": args.copies,
                "nodes": args.nodes,
                "checks": args.checks,
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self),
        )
        for body in classes.storage_classes(args.pool, args.copies) if args.mode == "create" else ():
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
