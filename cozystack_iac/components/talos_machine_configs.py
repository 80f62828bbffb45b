"""The cluster's secrets, and one complete configuration per machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumiverse_talos as talos
from pulumi import ComponentResource, Output, ResourceOptions

from cozystack_iac.settings import Node, Site
from cozystack_iac.talos import secrets
from cozystack_iac.talos.documents import config_patches, emit, own_patches, secret_patches


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
