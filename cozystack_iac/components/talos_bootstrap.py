"""From machines in maintenance mode to a Kubernetes API with every node registered, CNI or not."""

from __future__ import annotations

import hashlib

import pulumiverse_talos as talos
from pulumi import ComponentResource, Output, Resource, ResourceOptions

from cozystack_iac.components.talos_machine_configs import TalosMachineConfigs
from cozystack_iac.membership.approval import approvals
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.cluster_membership import ClusterMembership, MembershipInputs
from cozystack_iac.stages.etcd_bootstrap import BootstrapInputs, EtcdBootstrap
from cozystack_iac.stages.machine_config_rollout import MachineConfigRollout, RolloutInputs
from cozystack_iac.stages.node_verification import NodeVerification, VerificationInputs
from cozystack_iac.stages.nodes_registered import NodesRegistered, RegisteredInputs
from cozystack_iac.stages.talos_upgrade import TalosUpgrade, UpgradeInputs
from cozystack_iac.talos.documents import config_patches
from cozystack_iac.talos.inventory import machine_refs, wanted


class TalosBootstrap(ComponentResource):
    """From machines in maintenance mode to a Kubernetes API with every node registered, CNI or not.

    Produces: removal of machines that are lost, upgrade of machines that run already (before they are given documents of a
    newer Talos), rollout, etcd, kubeconfig, registration, removal of machines that were taken out, upgrade of machines that
    joined, verification; one after the other, so that one wait runs and one vote of etcd is in flight.
    On delete: machines, etcd and their data stay as they are.
    """

    def __init__(
        self, name: str, site: Site, configs: TalosMachineConfigs, opts: ResourceOptions | None = None
    ) -> None:
        super().__init__("cozystack:talos:TalosBootstrap", name, None, opts)
        machines = machine_refs(site)
        without_lost = self._membership(f"{name}-lost", site, configs, losses_only=True)
        upgraded = self._upgrade(f"{name}-upgrade", site, configs, without_lost, settled=False)
        self.rollout = MachineConfigRollout(
            f"{name}-rollout",
            RolloutInputs.model_construct(
                machines=list(machines),
                configurations=later(configs.configurations),
                client_configuration=later(configs.client_configuration),
                documents=dict(configs.documents),
                worker_batch=site.talos.batch,
                deadline_s=site.waits.rollout.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=[upgraded]),
        )
        self.etcd = EtcdBootstrap(
            f"{name}-etcd",
            BootstrapInputs.model_construct(
                control_planes=[m for m in machines if m.is_control_plane],
                client_configuration=later(configs.client_configuration),
                deadline_s=site.waits.bootstrap.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=[self.rollout]),
        )
        made = self._kubeconfig(name, site, configs)
        self.kubeconfig: Output[str] = Output.secret(made.kubeconfig_raw)
        self.registered = NodesRegistered(
            f"{name}-nodes",
            RegisteredInputs.model_construct(
                kubeconfig=later(self.kubeconfig),
                nodes={node.name: node.internal for node in site.nodes},
                deadline_s=site.waits.nodes.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=[made]),
        )
        self.membership = self._membership(f"{name}-membership", site, configs, self.registered, losses_only=False)
        caught_up = self._upgrade(f"{name}-upgrade-joined", site, configs, self.membership, settled=True)
        self.verification = self._verification(name, site, configs, caught_up)
        self.register_outputs({})

    def _membership(
        self, name: str, site: Site, configs: TalosMachineConfigs, *after: Resource, losses_only: bool
    ) -> ClusterMembership:
        return ClusterMembership(
            name,
            MembershipInputs.model_construct(
                machines=list(machine_refs(site)),
                approvals=approvals(site),
                client_configuration=later(configs.client_configuration),
                losses_only=losses_only,
                checks=site.checks,
                deadline_s=site.waits.removal.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _upgrade(
        self, name: str, site: Site, configs: TalosMachineConfigs, *after: Resource, settled: bool
    ) -> TalosUpgrade:
        return TalosUpgrade(
            name,
            UpgradeInputs.model_construct(
                machines=list(machine_refs(site)),
                wanted=wanted(site),
                settled=settled,
                client_configuration=later(configs.client_configuration),
                deadline_s=site.waits.upgrade.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _verification(
        self, name: str, site: Site, configs: TalosMachineConfigs, upgraded: TalosUpgrade
    ) -> NodeVerification:
        patches = [text for node in site.nodes for text in config_patches(site, node)]
        return NodeVerification(
            f"{name}-verification",
            VerificationInputs.model_construct(
                machines=list(machine_refs(site)),
                wanted=wanted(site),
                virtual=list(site.virtual_addresses),
                revision=hashlib.sha256("\n".join(patches).encode()).hexdigest()[:16],
                client_configuration=later(configs.client_configuration),
                deadline_s=site.waits.probe.total_seconds(),
            ),
            ResourceOptions(parent=self, depends_on=[upgraded]),
        )

    def _kubeconfig(self, name: str, site: Site, configs: TalosMachineConfigs) -> talos.cluster.Kubeconfig:
        # Asked from a machine, never from the VIP: Talos' own API must not depend on etcd.
        given = configs.client_configuration
        return talos.cluster.Kubeconfig(
            f"{name}-kubeconfig",
            node=site.control_planes[0].address,
            client_configuration=talos.cluster.KubeconfigClientConfigurationArgs(
                ca_certificate=given["caCertificate"],
                client_certificate=given["clientCertificate"],
                client_key=given["clientKey"],
            ),
            opts=ResourceOptions(
                parent=self,
                depends_on=[self.etcd],
                additional_secret_outputs=["kubeconfig_raw", "kubernetes_client_configuration"],
            ),
        )
