"""The whole cluster, and the one place where order is decided.

    machine configs -> probe -> upgrade -> rollout -> etcd -> kubeconfig -> nodes -> upgrade -> verification   (Talos)
    access -> API balancer                                                                                     (generic, hosted)
      -> zpools -> installer -> package -> LINSTOR pools -> storage classes ┐
                                        -> root tenant                      ┴-> platform ready -> reachability

With OIDC on, Keycloak needs a bound volume before the aggregated API and the root tenant can exist: storage and tenant run
side by side and neither waits for the platform to be ready. At most two stages wait at the same time, which leaves the
dynamic provider's four threads room for checks and diffs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Output, Resource, ResourceOptions

from cozystack_iac import releases
from cozystack_iac.findings import Verdict
from cozystack_iac.kube.access import from_file
from cozystack_iac.kube.kubeconfig import BadKubeconfig, checked
from cozystack_iac.kube.kubeconfig_file import KubeconfigFile
from cozystack_iac.kube.stages import Present
from cozystack_iac.platform import installer, package, tenant
from cozystack_iac.platform.components import (
    CozyInstaller,
    CozyInstallerArgs,
    ExtractedPrism,
    ExtractedPrismArgs,
    PlatformPackage,
    PlatformPackageArgs,
    RootTenant,
    RootTenantArgs,
)
from cozystack_iac.readiness.reach_stages import Reachability
from cozystack_iac.readiness.stages import PlatformReady
from cozystack_iac.settings import Disk, Node, Site
from cozystack_iac.settings.site import KUBE_API_PORT
from cozystack_iac.storage import classes, zfs
from cozystack_iac.storage.components import (
    LinstorPools,
    LinstorPoolsArgs,
    StorageClasses,
    StorageClassesArgs,
    ZfsPoolJob,
    ZfsPoolJobArgs,
)
from cozystack_iac.summary import access_summary
from cozystack_iac.talos.components import NodeGate, TalosBootstrap, TalosMachineConfigs

JOB_IMAGE = "docker.io/alpine/k8s:1.36.2"  # has a shell and nsenter; the installer chart's own hook pulls it as well


class CozystackCluster(ComponentResource):
    """A Cozystack platform on the machines, or the Kubernetes cluster, that a stack file describes.

    Produces: everything. On delete: releases and objects go; machines, pools and data stay.
    """

    def __init__(self, name: str, site: Site, verdict: Verdict, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:index:CozystackCluster", name, None, opts)
        self._name, self._site = name, site
        release = releases.find(site.cluster.cozystack)
        if release is None:
            raise pulumi.RunError(f"Cozystack {site.cluster.cozystack} is not a release this version knows")
        self._release = release
        self.outputs: dict[str, Any] = {}

        base: Sequence[Resource] = self._talos() if site.cluster.variant == "talos" else self._existing()
        zpools = self._zpools(base)
        platform = self._platform(zpools or base)
        ready = self._ready(platform)
        reached = self._reached(ready)
        self.outputs |= {
            "access": access_summary(site),
            "releases": ready.output("releases"),
            "seconds": {"platform": ready.output("seconds"), "reachability": reached.output("seconds")},
            "reached": reached.output("reached"),
            "overrides": [f"{a.guardrail}: {a.reason}" for a in site.allow],
            "findings": [f"{f.code} {f.path}: {f.problem}" for f in verdict.findings],
        }
        self.register_outputs({"access": self.outputs["access"]})

    # The cluster itself ---------------------------------------------------------------------------------------------

    def _talos(self) -> Sequence[Resource]:
        site = self._site
        # Secrets and configurations touch no machine, so they come first: with them the gate knows our own machines.
        configs = TalosMachineConfigs(f"{self._name}-configs", site, self._child())
        client = configs.client_configuration
        gate = NodeGate(f"{self._name}-gate", site, self._child(), client_configuration=client)
        bootstrap = TalosBootstrap(f"{self._name}-bootstrap", site, configs, self._child(gate, configs))
        self._connect(bootstrap.kubeconfig, site.endpoint)
        self.outputs |= {"talosconfig": configs.talosconfig, "kubeconfig": self._kubeconfig}
        if site.access.kubeconfig_file:
            written = {"kubeconfig": self._kubeconfig, "path": site.access.kubeconfig_file}
            KubeconfigFile(f"{self._name}-kubeconfig-file", written, self._child(bootstrap))
        return [bootstrap]

    def _existing(self) -> Sequence[Resource]:
        site = self._site
        access = site.cluster.access
        try:
            found = from_file(access.kubeconfig if access else "", access.context if access else "")
        except BadKubeconfig as error:
            raise pulumi.RunError(f"cozystack:cluster.access: {error}") from None
        self._connect(Output.secret(found.text), found.server)
        if site.cluster.variant != "generic" or not site.platform.prism:
            return []
        endpoints = [_authority(node.internal, KUBE_API_PORT) for node in site.control_planes]
        args = ExtractedPrismArgs(endpoints=endpoints, deadline_s=site.waits.prism.total_seconds())
        return [ExtractedPrism(f"{self._name}-prism", args, self._on_cluster())]

    def _connect(self, kubeconfig: Output[str], server: str) -> None:
        """The provider of every Kubernetes object. Nothing ambient can get in: see `kube.kubeconfig`."""
        self._kubeconfig: Output[str] = kubeconfig.apply(lambda text: own_kubeconfig(text, server))
        self._provider: pulumi.ProviderResource = kubernetes.Provider(
            f"{self._name}-kubernetes",
            kubeconfig=self._kubeconfig,
            # Fixed, or an unknown or renewed kubeconfig would preview as "replace the whole platform".
            cluster_identifier=f"cozystack/{self._site.cluster.name}",
            opts=self._child(),
        )

    # The platform on it ---------------------------------------------------------------------------------------------

    def _zpools(self, after: Sequence[Resource]) -> Sequence[Resource]:
        site = self._site
        plans = [_pool_plan(site, node) for node in site.storage_nodes]
        if not plans:
            return []
        args = ZfsPoolJobArgs(
            plans=plans,
            zpool=site.storage.zpool,
            image=site.storage.job_image or JOB_IMAGE,
            kubeconfig=self._kubeconfig,
            deadline_s=site.waits.zpools.total_seconds(),
        )
        return [ZfsPoolJob(f"{self._name}-zpools", args, self._on_cluster(*after))]

    def _platform(self, after: Sequence[Resource]) -> Sequence[Resource]:
        site, release = self._site, self._release
        installed = CozyInstaller(
            f"{self._name}-installer",
            CozyInstallerArgs(
                release=release,
                chart=installer.chart(site),
                values=installer.installer_values(site),
                kubeconfig=self._kubeconfig,
                deadline_s=site.waits.operator.total_seconds(),
            ),
            self._on_cluster(*after),
        )
        packaged = PlatformPackage(
            f"{self._name}-platform",
            PlatformPackageArgs(package=package.package(site, release), secret=package.carries_secrets(site)),
            self._on_cluster(installed),
        )
        root = RootTenant(
            f"{self._name}-tenant",
            RootTenantArgs(
                spec=tenant.root_spec(site, release),
                kubeconfig=self._kubeconfig,
                deadline_s=site.waits.tenant.total_seconds(),
            ),
            self._on_cluster(packaged),
        )
        return [packaged, root, *self._volumes(packaged)]

    def _volumes(self, packaged: PlatformPackage) -> Sequence[Resource]:
        site = self._site
        nodes = [node.name for node in site.storage_nodes]
        if not nodes:
            return []
        pools = LinstorPools(
            f"{self._name}-pools",
            LinstorPoolsArgs(
                nodes=nodes,
                pool=site.storage.pool,
                zpool=site.storage.zpool,
                kubeconfig=self._kubeconfig,
                controller_deadline_s=site.waits.linstor.total_seconds(),
                deadline_s=site.waits.pools.total_seconds(),
            ),
            self._on_cluster(packaged),
        )
        if site.storage.classes == "skip":
            return [pools]
        if site.storage.classes == "adopt":
            wanted = {
                "kubeconfig": self._kubeconfig,
                "objects": [
                    {"api_version": "storage.k8s.io/v1", "plural": "storageclasses", "name": n} for n in classes.NAMES
                ],
                "next_step": "make them, or set `storage.classes: create`; then run `pulumi up` again",
                "deadline_s": 30,
            }
            return [pools, Present(f"{self._name}-classes", wanted, self._child(pools))]
        args = StorageClassesArgs(
            pool=site.storage.pool, copies=site.replicas, kubeconfig=self._kubeconfig, deadline_s=30
        )
        return [pools, StorageClasses(f"{self._name}-classes", args, self._on_cluster(pools))]

    def _ready(self, after: Sequence[Resource]) -> PlatformReady:
        site = self._site
        asked = [package.platform_values(site, self._release), tenant.root_spec(site, self._release)]
        return PlatformReady(
            f"{self._name}-ready",
            {
                "kubeconfig": self._kubeconfig,
                "variant": site.platform_variant,
                "nodes": [node.name for node in site.storage_nodes],
                "pool": site.storage.pool,
                "zpool": site.storage.zpool,
                # Credentials are part of what is asked for: only a digest may leave here in plain.
                "revision": hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16],
                "settle_s": site.waits.settle.total_seconds(),
                "deadline_s": site.waits.platform.total_seconds(),
            },
            self._child(*after),
        )

    def _reached(self, ready: PlatformReady) -> Reachability:
        site = self._site
        return Reachability(
            f"{self._name}-reachability",
            {
                "kubeconfig": self._kubeconfig,
                "host": site.publishing.host,
                "addresses": list(site.external_ips),
                "public": [node.public_address for node in site.nodes if node.public_address],
                "exposed": list(site.publishing.exposed),
                "port": site.https_port,
                "deadline_s": site.waits.reachability.total_seconds(),
            },
            self._child(ready),
        )

    # ----------------------------------------------------------------------------------------------------------------

    def _child(self, *after: Resource) -> ResourceOptions:
        return ResourceOptions(parent=self, depends_on=list(after))

    def _on_cluster(self, *after: Resource) -> ResourceOptions:
        return ResourceOptions(parent=self, depends_on=list(after), providers={"kubernetes": self._provider})


def own_kubeconfig(text: str, server: str) -> str:
    """`text`, when it stands alone and leads to `server`; else the program ends before any plugin has seen it."""
    try:
        return checked(text, server)
    except BadKubeconfig as error:
        raise pulumi.RunError(f"the cluster's kubeconfig must not be used: {error}") from None


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pool_plan(site: Site, node: Node) -> zfs.PoolPlan:
    return zfs.PoolPlan(
        node=node.name,
        zpool=site.storage.zpool,
        layout=node.layout or site.storage.layout,
        disks=tuple(_identity(disk) for disk in node.data_disks),
        minimum_bytes=site.storage.minimum_size,
    )


def _identity(disk: Disk) -> zfs.DiskIdentity:
    """The identity the job looks for; rules have made sure that a data disk has one."""
    match disk.identities[0]:
        case ("serial", value):
            return zfs.DiskIdentity("serial", value)
        case ("wwid", value):
            return zfs.DiskIdentity("wwid", value)
        case ("byId", value):
            return zfs.DiskIdentity("byId", value.rsplit("/", 1)[-1])
        case (kind, value):
            raise pulumi.RunError(f"a data disk cannot be named by {kind} ({value}); use serial, wwid or byId")
