"""Talos as components: the plan gate, the machine configurations, and the way from bare machines to a Kubernetes API."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pulumiverse_talos as talos
from pulumi import ComponentResource, Input, Output, Resource, ResourceOptions

from cozystack_iac.kube.stages import NodesRegistered
from cozystack_iac.settings import Node, Site
from cozystack_iac.talos import secrets
from cozystack_iac.talos.documents import config_patches, emit, own_patches, secret_patches
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.inventory import approvals, machine_refs, targets, wanted
from cozystack_iac.talos.membership import ClusterMembership
from cozystack_iac.talos.stages import EtcdBootstrap, MachineConfigRollout, NodeProbe
from cozystack_iac.talos.upkeep import NodeVerification, TalosUpgrade


class NodeGate(ComponentResource):
    """Plan gate: every machine is what the stack file says, before anything is touched.

    Produces: one NodeProbe. On delete: nothing happens to any machine. With `client_configuration` it tells machines that
    this cluster configured from anybody else's; a first preview does without.
    """

    def __init__(
        self,
        name: str,
        site: Site,
        opts: ResourceOptions | None = None,
        *,
        client_configuration: Input[dict[str, str]] | None = None,
    ) -> None:
        super().__init__("cozystack:talos:NodeGate", name, None, opts)
        self.probe = NodeProbe(
            f"{name}-probe",
            {
                "machines": [target.model_dump(mode="json") for target in targets(site)],
                "talos": site.talos_version,
                "cozystack": site.cluster.cozystack,
                "image": site.installer_image,
                "checks": site.checks,
                "client_configuration": client_configuration if client_configuration is not None else {},
                "deadline_s": site.waits.probe.total_seconds(),
            },
            ResourceOptions(parent=self),
        )
        self.register_outputs({})


class TalosMachineConfigs(ComponentResource):
    """The cluster's secrets, and one complete configuration per machine.

    Produces: the machine secrets, made once and protected. `configurations` are secret; `documents`, the part of them
    that is not, is known in every preview. On delete: the secrets resist, as long as they are protected.
    """

    def __init__(self, name: str, site: Site, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:talos:TalosMachineConfigs", name, None, opts)
        self._site = site
        self._secrets = talos.machine.Secrets(
            f"{name}-secrets",
            talos_version=site.talos_version,
            # The contract a cluster was born with stays: another one would make other secrets.
            opts=ResourceOptions(parent=self, protect=site.protect, ignore_changes=["talosVersion"]),
        )
        self._machine_secrets: Output[Any] = Output.secret(self._secrets.machine_secrets.apply(secrets.machine_secrets))
        self.client_configuration: Output[dict[str, str]] = Output.secret(
            self._secrets.client_configuration.apply(secrets.client_configuration)
        )
        self.documents: Mapping[str, str] = {node.name: emit(own_patches(site, node)) for node in site.nodes}
        self.configurations: Output[dict[str, str]] = Output.secret(
            Output.all(**{node.name: self._configuration(node) for node in site.nodes})
        )
        self.talosconfig: Output[str] = self._talosconfig()
        self.register_outputs({})

    def _configuration(self, node: Node) -> Output[str]:
        site = self._site
        hidden = secret_patches(site, node)
        patches: list[Any] = [*config_patches(site, node), *([Output.secret(emit(hidden))] if hidden else [])]
        made = talos.machine.get_configuration_output(
            cluster_name=site.cluster.name,
            cluster_endpoint=site.endpoint,
            machine_type="controlplane" if node.is_control_plane else "worker",
            machine_secrets=self._machine_secrets,
            talos_version=site.talos_version,
            kubernetes_version=site.kubernetes_version.removeprefix("v"),
            config_patches=patches,
            docs=False,
            examples=False,
        )
        return Output.secret(made.machine_configuration)

    def _talosconfig(self) -> Output[str]:
        site = self._site
        given: Output[Any] = self.client_configuration
        made = talos.client.get_configuration_output(
            cluster_name=site.cluster.name,
            client_configuration=given,
            endpoints=[node.address for node in site.control_planes],
            nodes=[node.address for node in site.nodes],
        )
        return Output.secret(made.talos_config)


class TalosBootstrap(ComponentResource):
    """From machines in maintenance mode to a Kubernetes API with every node registered, CNI or not.

    Produces: farewell to machines that are lost, upgrade of machines that run already (before they are given documents of a
    newer Talos), rollout, etcd, kubeconfig, registration, farewell to machines that were taken out, upgrade of machines that
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
            {
                "machines": _plain(machines),
                "configurations": configs.configurations,
                "client_configuration": configs.client_configuration,
                "documents": configs.documents,
                "worker_batch": site.talos.batch,
                "deadline_s": site.waits.rollout.total_seconds(),
            },
            ResourceOptions(parent=self, depends_on=[upgraded]),
        )
        self.etcd = EtcdBootstrap(
            f"{name}-etcd",
            {
                "control_planes": _plain(m for m in machines if m.is_control_plane),
                "client_configuration": configs.client_configuration,
                "deadline_s": site.waits.bootstrap.total_seconds(),
            },
            ResourceOptions(parent=self, depends_on=[self.rollout]),
        )
        made = self._kubeconfig(name, site, configs)
        self.registered = NodesRegistered(
            f"{name}-nodes",
            {
                "kubeconfig": made.kubeconfig_raw,
                "nodes": {node.name: node.internal for node in site.nodes},
                "deadline_s": site.waits.nodes.total_seconds(),
            },
            ResourceOptions(parent=self, depends_on=[made]),
        )
        self.membership = self._membership(f"{name}-membership", site, configs, self.registered, losses_only=False)
        caught_up = self._upgrade(f"{name}-upgrade-joined", site, configs, self.membership, settled=True)
        self.verification = self._verification(name, site, configs, caught_up)
        self.kubeconfig: Output[str] = Output.secret(made.kubeconfig_raw)
        self.register_outputs({})

    def _membership(
        self, name: str, site: Site, configs: TalosMachineConfigs, *after: Resource, losses_only: bool
    ) -> ClusterMembership:
        return ClusterMembership(
            name,
            {
                "machines": _plain(machine_refs(site)),
                "approvals": {machine: one.model_dump(mode="json") for machine, one in approvals(site).items()},
                "client_configuration": configs.client_configuration,
                "losses_only": losses_only,
                "checks": site.checks,
                "deadline_s": site.waits.removal.total_seconds(),
            },
            ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _upgrade(
        self, name: str, site: Site, configs: TalosMachineConfigs, *after: Resource, settled: bool
    ) -> TalosUpgrade:
        return TalosUpgrade(
            name,
            {
                "machines": _plain(machine_refs(site)),
                "wanted": {machine: one.model_dump(mode="json") for machine, one in wanted(site).items()},
                "settled": settled,
                "client_configuration": configs.client_configuration,
                "deadline_s": site.waits.upgrade.total_seconds(),
            },
            ResourceOptions(parent=self, depends_on=list(after)),
        )

    def _verification(
        self, name: str, site: Site, configs: TalosMachineConfigs, upgraded: TalosUpgrade
    ) -> NodeVerification:
        patches = [text for node in site.nodes for text in config_patches(site, node)]
        return NodeVerification(
            f"{name}-verification",
            {
                "machines": _plain(machine_refs(site)),
                "wanted": {machine: one.model_dump(mode="json") for machine, one in wanted(site).items()},
                "virtual": list(site.virtual_addresses),
                "revision": hashlib.sha256("\n".join(patches).encode()).hexdigest()[:16],
                "client_configuration": configs.client_configuration,
                "deadline_s": site.waits.probe.total_seconds(),
            },
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


def _plain(machines: Any) -> list[dict[str, Any]]:
    found: list[MachineRef] = list(machines)
    return [machine.model_dump(mode="json") for machine in found]
