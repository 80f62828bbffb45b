"""The whole cluster, and the one place where order is decided.

    machine configs -> probe -> upgrade -> rollout -> etcd -> kubeconfig -> nodes -> upgrade -> verification   (Talos)
    access -> API balancer                                                                                     (generic, hosted)
      -> disk ledger -> zpools -> installer -> package -> LINSTOR pools -> storage classes ┐
                                                       -> root tenant                      ┴-> ready -> verified -> reachability

With OIDC on, Keycloak needs a bound volume before the aggregated API and the root tenant can exist: storage and tenant run
side by side and neither waits for the platform to be ready. On releases where OIDC at install deadlocks it is switched on
between two waits for the platform (`SignOn`). At most two stages wait at the same time, which leaves the
dynamic provider's four threads room for checks and diffs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, Resource, ResourceOptions

from cozystack_iac import releases, summary
from cozystack_iac.findings import Verdict
from cozystack_iac.kube.access import from_file
from cozystack_iac.kube.kubeconfig import BadKubeconfig, checked
from cozystack_iac.kube.kubeconfig_file import KubeconfigFile
from cozystack_iac.platform import installer, package, tenant, values
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
from cozystack_iac.platform.record_stages import InstallRecord, InstallStarted
from cozystack_iac.platform.sign_on import SignOn
from cozystack_iac.reachability.stages import Reachability
from cozystack_iac.readiness.postverify_stages import PostVerify
from cozystack_iac.readiness.stages import PlatformReady
from cozystack_iac.rules import reachability
from cozystack_iac.rules.overrides import in_force
from cozystack_iac.settings import Disk, Node, Site
from cozystack_iac.settings.site import KUBE_API_PORT
from cozystack_iac.stage import TOOK, StageResource, collected
from cozystack_iac.storage import zfs
from cozystack_iac.storage.components import (
    LinstorPools,
    LinstorPoolsArgs,
    StorageClasses,
    StorageClassesArgs,
    ZfsPoolJob,
    ZfsPoolJobArgs,
)
from cozystack_iac.storage.ledger_stages import DiskLedger
from cozystack_iac.talos.components import NodeGate, TalosBootstrap, TalosMachineConfigs
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.inventory import approvals, machine_refs

OUTAGE_S = (
    60.0  # how long a single question or record goes on without the API server; longer waits have budgets of their own
)
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
            raise pulumi.RunError(f"Cozystack {site.cluster.cozystack} is not a release that this version supports")
        self._release = release
        self.outputs: dict[str, Any] = {}
        self._zpool_sizes: Input[Mapping[str, int]] = {}
        self._client: Input[dict[str, str]] = {}  # to the machines' own API, where there is one

        with collected() as stages:
            base: Sequence[Resource] = self._talos() if site.cluster.variant == "talos" else self._existing()
            started = self._started(base)
            zpools = self._zpools(self._ledger(started) or started)
            platform = self._platform(zpools)
            ready = self._signed_on(self._ready(platform))
            verified = self._verified(ready)
            reached = self._reached(verified)
        links = _took(stages)
        recorded = self._recorded(links)
        self.outputs |= {
            "access": summary.access_summary(site),
            "secrets": summary.secret_places(site),
            "versions": self._versions,
            "releases": ready.output("releases"),
            "timings": {"links": links, "packages": ready.output("timings")},
            "reachability": {
                "verdict": reached.output("verdict"),
                "addresses": reached.output("reached"),
                "names": reached.output("dns"),
                "certificates": reached.output("certificates"),
            },
            "warnings": verified.output("warnings"),
            "record": {name: recorded.output(name) for name in ("started", "completed", "failed", "stage")},
            "overrides": summary.overrides(site),
            "findings": [f"{f.code} {f.path}: {f.problem}" for f in verdict.findings],
        }
        self.register_outputs({"access": self.outputs["access"]})

    # The cluster itself ---------------------------------------------------------------------------------------------

    def _talos(self) -> Sequence[Resource]:
        site = self._site
        # Secrets and configurations touch no machine, so they come first: with them the gate knows our own machines.
        configs = TalosMachineConfigs(f"{self._name}-configs", site, self._child())
        client = self._client = configs.client_configuration
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

    @property
    def _storing_machines(self) -> list[MachineRef]:
        """Storage nodes that can be asked about their disks: those with an API of their own."""
        names = {node.name for node in self._site.storage_nodes}
        return [ref for ref in machine_refs(self._site) if ref.name in names and not self._site.existing]

    def _ledger(self, after: Sequence[Resource]) -> Sequence[Resource]:
        site = self._site
        nodes = {node.name: node for node in site.storage_nodes}
        if not nodes:
            return []
        wanted = {
            "disks": {name: [disk.model_dump(mode="json") for disk in node.data_disks] for name, node in nodes.items()},
            "places": {
                node.name: site.where("nodes", index) for index, node in enumerate(site.nodes) if node.data_disks
            },
            "approved": {name: list(identities) for name, identities in site.storage.approved_disks.items()},
            "machines": [ref.model_dump(mode="json") for ref in self._storing_machines],
            "checks": site.checks,
            "client_configuration": self._client,
            "deadline_s": site.waits.probe.total_seconds(),
        }
        return [DiskLedger(f"{self._name}-ledger", wanted, self._child(*after))]

    def _zpools(self, after: Sequence[Resource]) -> Sequence[Resource]:
        site = self._site
        plans = [pool_plan(site, node) for node in site.storage_nodes]
        if not plans or site.storage.provisioner == "linstor":
            return after  # LINSTOR makes its own, once it runs
        args = ZfsPoolJobArgs(
            plans=plans,
            zpool=site.storage.zpool,
            image=site.storage.job_image or JOB_IMAGE,
            kubeconfig=self._kubeconfig,
            machines=self._storing_machines,
            client_configuration=self._client,
            drop_privileges=site.storage.drop_privileges,
            deadline_s=site.waits.zpools.total_seconds(),
        )
        made = ZfsPoolJob(f"{self._name}-zpools", args, self._on_cluster(*after))
        self._zpool_sizes = made.sizes
        return [made]

    def _platform(self, after: Sequence[Resource]) -> Sequence[Resource]:
        site, release = self._site, self._release
        installed = CozyInstaller(
            f"{self._name}-installer",
            CozyInstallerArgs(
                release=release,
                chart=installer.chart(site),
                values=installer.installer_values(site),
                claim=installer.claim(site, release),
                kubeconfig=self._kubeconfig,
                deadline_s=site.waits.operator.total_seconds(),
            ),
            self._on_cluster(*after),
        )
        packaged = PlatformPackage(
            f"{self._name}-platform",
            PlatformPackageArgs(
                package=package.package(site, release),
                secret=package.carries_secrets(site),
                rendered=values.expected(package.platform_values(site, release), site.platform_variant, release),
                signs_on_later=release.oidc_later,
                kubeconfig=self._kubeconfig,
                deadline_s=site.waits.package.total_seconds(),
            ),
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
        # Off stays off, or is switched off by somebody who allowed it, before the platform is waited for; on comes after that.
        off = [self._sign_on(packaged)] if release.oidc_later and not site.access.oidc else []
        return [packaged, root, *off, *self._volumes(packaged)]

    def _volumes(self, packaged: PlatformPackage) -> Sequence[Resource]:
        site = self._site
        nodes = [node.name for node in site.storage_nodes]
        if not nodes:
            return []
        by_linstor = site.storage.provisioner == "linstor"  # then every storage node has one data disk (rules)
        pools = LinstorPools(
            f"{self._name}-pools",
            LinstorPoolsArgs(
                nodes=nodes,
                pool=site.storage.pool,
                zpool=site.storage.zpool,
                kubeconfig=self._kubeconfig,
                controller_deadline_s=site.waits.linstor.total_seconds(),
                deadline_s=site.waits.pools.total_seconds(),
                sizes=self._zpool_sizes,
                evacuate={name: one.evacuate for name, one in approvals(site).items() if one.evacuate is not None},
                lost=[name for name, one in approvals(site).items() if one.lost is not None],
                checks=site.checks,
                disks={n.name: n.data_disks[0] for n in site.storage_nodes} if by_linstor else None,
                machines=self._storing_machines,
                client_configuration=self._client,
            ),
            self._on_cluster(packaged),
        )
        if site.storage.classes == "skip":
            return [pools]
        args = StorageClassesArgs(
            mode=site.storage.classes,
            pool=site.storage.pool,
            copies=site.replicas,
            nodes=len(nodes),
            kubeconfig=self._kubeconfig,
            deadline_s=OUTAGE_S,
            checks=site.checks,
        )
        return [pools, StorageClasses(f"{self._name}-classes", args, self._on_cluster(pools))]

    def _sign_on(self, after: Resource) -> SignOn:
        site, release = self._site, self._release
        wanted = package.authentication(site, release)
        return SignOn(
            f"{self._name}-sign-on",
            {
                "kubeconfig": self._kubeconfig,
                "authentication": wanted,
                "wanted": values.expected({"authentication": wanted}, "default", release),
                "allowed": sorted(in_force(site)),
                "deadline_s": site.waits.package.total_seconds(),
            },
            self._child(after),
        )

    def _signed_on(self, ready: PlatformReady) -> PlatformReady:
        """Where OIDC cannot be on from the start, it is switched on now, and the platform is waited for once more."""
        return self._ready([self._sign_on(ready)], "ready-with-oidc") if self._signs_on_later else ready

    @property
    def _signs_on_later(self) -> bool:
        return self._release.oidc_later and self._site.access.oidc

    def _ready(self, after: Sequence[Resource], name: str = "ready") -> PlatformReady:
        site, release = self._site, self._release
        first_of_two = self._signs_on_later and name == "ready"
        asked = [package.platform_values(site, release), tenant.root_spec(site, release)]
        if release.oidc_later and not first_of_two:
            asked.append(package.authentication(site, release))
        return PlatformReady(
            f"{self._name}-{name}",
            {
                "kubeconfig": self._kubeconfig,
                "variant": site.platform_variant,
                "nodes": [node.name for node in site.storage_nodes],
                "pool": site.storage.pool,
                "zpool": site.storage.zpool,
                # Credentials are part of what is asked for: only a digest may leave here in plain.
                "revision": hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16],
                "first_of_two": first_of_two,
                "settle_s": site.waits.settle.total_seconds(),
                "deadline_s": site.waits.platform.total_seconds(),
            },
            self._child(*after),
        )

    def _verified(self, ready: PlatformReady) -> PostVerify:
        site = self._site
        return PostVerify(
            f"{self._name}-verified",
            {
                "kubeconfig": self._kubeconfig,
                "host": site.publishing.host,
                "ingress": site.tenant.ingress,
                "addresses": list(site.external_ips),
                "load_balancer": site.publishing.load_balancer,
                "sign_on": site.access.oidc,
                "revision": summary.revision(site),
                "deadline_s": site.waits.verify.total_seconds(),
            },
            self._child(ready),
        )

    def _reached(self, verified: PostVerify) -> Reachability:
        site = self._site
        return Reachability(
            f"{self._name}-reachability",
            {
                "kubeconfig": self._kubeconfig,
                "host": site.publishing.host,
                "addresses": list(site.external_ips),
                "public": [node.public_address for node in site.nodes if node.public_address],
                "exposed": list(site.publishing.exposed),
                "oidc": site.access.oidc,
                "resolver": site.lab.resolver if site.lab else "system",
                "resolvers": list(site.publishing.resolvers),
                "port": site.https_port,
                "checks": site.checks,
                "skipped": reachability.skipped(site),
                "deadline_s": site.waits.reachability.total_seconds(),
            },
            self._child(verified),
        )

    # The record of it ------------------------------------------------------------------------------------------------

    @property
    def _versions(self) -> dict[str, str]:
        return summary.versions(self._site, metadata.version("cozystack-iac"))

    def _started(self, after: Sequence[Resource]) -> Sequence[Resource]:
        wanted = {
            "kubeconfig": self._kubeconfig,
            "versions": self._versions,
            "revision": summary.revision(self._site),
            "deadline_s": OUTAGE_S,
        }
        return [*after, InstallStarted(f"{self._name}-started", wanted, self._child(*after))]

    def _recorded(self, links: Mapping[str, Output[Any]]) -> InstallRecord:
        """Last of all, since it takes what every other stage has to say about its run."""
        wanted = {
            "kubeconfig": self._kubeconfig,
            "links": links,
            "revision": summary.revision(self._site),
            "summary": summary.markdown(self._site, self._versions["cozystack-iac"]),
            "deadline_s": OUTAGE_S,
        }
        return InstallRecord(f"{self._name}-record", wanted, self._child())

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
        raise pulumi.RunError(f"the cluster's kubeconfig cannot be used: {error}") from None


def _took(stages: Sequence[StageResource]) -> dict[str, Output[Any]]:
    """When each stage last ran, by its name; a second one of a kind is numbered."""
    found: dict[str, Output[Any]] = {}
    for stage in stages:
        name = type(stage).__name__
        same = sum(each.partition(" ")[0] == name for each in found)
        found[f"{name} {same + 1}" if same else name] = stage.output(TOOK)
    return found


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
