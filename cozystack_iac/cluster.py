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

from collections.abc import Sequence
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, Resource, ResourceOptions

from cozystack_iac import releases, summary
from cozystack_iac.components import single_stages as stages
from cozystack_iac.components.access import Access
from cozystack_iac.components.cozy_installer import CozyInstaller
from cozystack_iac.components.extracted_prism import ExtractedPrism
from cozystack_iac.components.linstor_pools import LinstorPools
from cozystack_iac.components.node_gate import NodeGate
from cozystack_iac.components.platform_package import PlatformPackage
from cozystack_iac.components.root_tenant_patch import RootTenantPatch
from cozystack_iac.components.storage_classes import StorageClasses
from cozystack_iac.components.talos_bootstrap import TalosBootstrap
from cozystack_iac.components.talos_machine_configs import TalosMachineConfigs
from cozystack_iac.components.zfs_pool_job import ZfsPoolJob
from cozystack_iac.findings import Verdict
from cozystack_iac.kube.access import from_file
from cozystack_iac.kube.kubeconfig import BadKubeconfig, checked
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import TOOK, StageResource, collected
from cozystack_iac.stages.platform_ready import PlatformReady
from cozystack_iac.stages.sign_on import SignOn


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
        self._access = Access()

        with collected() as declared:
            base: Sequence[Resource] = self._talos() if site.cluster.variant == "talos" else self._existing()
            began = stages.install_started(f"{name}-started", site, self._access, self._child(*base))
            disks, sizes = self._disks([*base, began])
            ready = self._ready(self._platform(disks, sizes))
            verified = stages.post_verify(f"{name}-verified", site, self._access, self._child(ready))
            reached = stages.reachability(f"{name}-reachability", site, self._access, self._child(verified))
        links = _took(declared)
        # Last of all, since it takes what every other stage has to say about its run.
        recorded = stages.install_record(f"{name}-record", site, self._access, links, self._child())
        self.outputs |= {
            "access": summary.access_summary(site),
            "secrets": summary.secret_places(site),
            "versions": stages.versions(site),
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
        name, site = self._name, self._site
        # Secrets and configurations touch no machine, so they come first: with them the gate knows our own machines.
        configs = TalosMachineConfigs(f"{name}-configs", site, self._child())
        gate = NodeGate(f"{name}-gate", site, Access(client=configs.client_configuration), self._child())
        bootstrap = TalosBootstrap(f"{name}-bootstrap", site, configs, self._child(gate, configs))
        kubeconfig = self._connect(bootstrap.kubeconfig, site.endpoint, configs.client_configuration)
        self.outputs |= {"talosconfig": configs.talosconfig, "kubeconfig": kubeconfig}
        if site.access.kubeconfig_file:
            path, after = site.access.kubeconfig_file, self._child(bootstrap)
            stages.kubeconfig_file(f"{name}-kubeconfig-file", path, self._access, after)
        return [bootstrap]

    def _existing(self) -> Sequence[Resource]:
        site = self._site
        access = site.cluster.access
        try:
            found = from_file(access.kubeconfig if access else "", access.context if access else "")
        except BadKubeconfig as error:
            raise pulumi.RunError(f"cozystack:cluster.access: {error}") from None
        self._connect(Output.secret(found.text), found.server, {})
        if site.cluster.variant != "generic" or not site.platform.prism:
            return []
        return [ExtractedPrism(f"{self._name}-prism", site, self._on_cluster())]

    def _connect(self, kubeconfig: Output[str], server: str, client: Input[dict[str, str]]) -> Output[str]:
        """The provider of every Kubernetes object. Nothing ambient can get in: see `kube.kubeconfig`."""
        own: Output[str] = kubeconfig.apply(lambda text: own_kubeconfig(text, server))
        self._access = Access(own, client)
        self._provider: pulumi.ProviderResource = kubernetes.Provider(
            f"{self._name}-kubernetes",
            kubeconfig=own,
            # Fixed, or an unknown or renewed kubeconfig would preview as "replace the whole platform".
            cluster_identifier=f"cozystack/{self._site.cluster.name}",
            opts=self._child(),
        )
        return own

    # The platform on it ---------------------------------------------------------------------------------------------

    def _disks(self, after: Sequence[Resource]) -> tuple[Sequence[Resource], Input[dict[str, int]]]:
        """The ledger and the zpools, with their sizes as far as they are known here."""
        site, access = self._site, self._access
        if not site.storage_nodes:
            return after, {}
        ledger = stages.disk_ledger(f"{self._name}-ledger", site, access, self._child(*after))
        if site.storage.provisioner == "linstor":
            return [ledger], {}  # LINSTOR makes its own, once it runs
        zpools = ZfsPoolJob(f"{self._name}-zpools", site, access, self._on_cluster(ledger))
        return [zpools], zpools.sizes

    def _platform(self, after: Sequence[Resource], sizes: Input[dict[str, int]]) -> Sequence[Resource]:
        name, site, release, access = self._name, self._site, self._release, self._access
        installed = CozyInstaller(f"{name}-installer", site, release, access, self._on_cluster(*after))
        packaged = PlatformPackage(f"{name}-platform", site, release, access, self._on_cluster(installed))
        root = RootTenantPatch(f"{name}-tenant", site, release, access, self._on_cluster(packaged))
        # Off stays off, or is switched off by somebody who allowed it, before the platform is waited for; on comes after that.
        off = [self._sign_on(packaged)] if release.oidc_later and not site.access.oidc else []
        return [packaged, root, *off, *self._volumes(packaged, sizes)]

    def _volumes(self, packaged: Resource, sizes: Input[dict[str, int]]) -> Sequence[Resource]:
        name, site, access = self._name, self._site, self._access
        if not site.storage_nodes:
            return []
        pools = LinstorPools(f"{name}-pools", site, access, sizes, self._on_cluster(packaged))
        if site.storage.classes == "skip":
            return [pools]
        made = StorageClasses(f"{name}-classes", site, access, site.storage.classes, self._on_cluster(pools))
        return [pools, made]

    def _sign_on(self, after: Resource) -> SignOn:
        return stages.sign_on(f"{self._name}-sign-on", self._site, self._release, self._access, self._child(after))

    def _ready(self, after: Sequence[Resource]) -> PlatformReady:
        """Where OIDC cannot be on from the start, it is switched on once all is ready, and the platform is waited for again."""
        name, site, release, access = self._name, self._site, self._release, self._access
        twice = release.oidc_later and site.access.oidc
        ready = stages.platform_ready(f"{name}-ready", site, release, access, self._child(*after), first_of_two=twice)
        if not twice:
            return ready
        on = self._child(self._sign_on(ready))
        return stages.platform_ready(f"{name}-ready-with-oidc", site, release, access, on)

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


def _took(declared: Sequence[StageResource[Any]]) -> dict[str, Output[Any]]:
    """When each stage last ran, by its name; a second one of a kind is numbered."""
    found: dict[str, Output[Any]] = {}
    for stage in declared:
        name = type(stage).__name__
        same = sum(each.partition(" ")[0] == name for each in found)
        found[f"{name} {same + 1}" if same else name] = stage.output(TOOK)
    return found
