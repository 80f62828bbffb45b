"""A scenario's Talos stage told in one process: the product's own rules, stages and documents on simulated machines.

No engine and no control plane: what a stage does and says is the same with them, and a scenario takes a second instead of
half a minute. `test_scenarios.py` tells a few of them through the real engine as well.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from cozystack_iac.findings import Finding, Severity, Verdict, table
from cozystack_iac.rules import verdict
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded
from cozystack_iac.settings.reading import read
from cozystack_iac.stages.etcd_bootstrap import BootstrapInputs, EtcdBootstrapProvider
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutInputs
from cozystack_iac.stages.node_probe import NodeProbeProvider, ProbeInputs
from cozystack_iac.stages.node_verification import NodeVerificationProvider, VerificationInputs
from cozystack_iac.talos.documents import config_patches, emit, own_patches
from cozystack_iac.talos.inventory import machine_refs, targets, wanted
from cozystack_iac.waiting import Progress, StageFailed
from lab.machines import Machines
from lab.plugins.talos import secrets
from lab.plugins.talos.provider import machine_configuration
from lab.scenario import Scenario
from lab.stack import stack_file
from lab.world import World


@dataclass
class Outcome:
    """What a person was told."""

    findings: Verdict = field(default_factory=lambda: Verdict.of(()))
    text: str = ""
    succeeded: bool = True

    @property
    def codes(self) -> list[str]:
        return sorted({f.code for f in self.findings if f.severity is not Severity.NOTE})


@dataclass
class Story:
    """One scenario come to life, and the stack on it."""

    scenario: Scenario
    world: World
    site: Site
    formal: tuple[Finding, ...]
    bundle: secrets.Bundle

    async def plan(self, *, client: dict[str, str] | None = None) -> Outcome:
        """The plan gate: the offline rules, and when they let it through, what the stages ask and show in a preview."""
        found = verdict(Loaded(self.site, self.formal))
        shown = io.StringIO()
        if not found.blocking:
            with redirect_stdout(shown):
                found += Verdict.of(await NodeProbeProvider().preflight(self._probe(client), None))
                found += Verdict.of(await MachineConfigRolloutProvider().preflight(self._rollout({}, {}), None))
        return Outcome(found, f"{shown.getvalue()}\n{table(found)}", not found.blocking)

    async def install(self) -> Outcome:
        """Gate, rollout, etcd, verification, as `pulumi up` runs them; ends with the first stage that fails."""
        said: list[str] = []
        try:
            await NodeProbeProvider().establish(self._probe(self.client), Progress("NodeProbe", write=said.append))
            rollout = self._rollout(self.configurations(), self.client)
            await MachineConfigRolloutProvider().establish(rollout, Progress("Rollout", write=said.append))
            planes = [ref for ref in machine_refs(self.site) if ref.is_control_plane]
            limit = self.site.waits.bootstrap.total_seconds()
            given = BootstrapInputs(control_planes=planes, client_configuration=self.client, deadline_s=limit)
            await EtcdBootstrapProvider().establish(given, Progress("Etcd", write=said.append))
            await NodeVerificationProvider().establish(
                self._verification(), Progress("Verification", write=said.append)
            )
        except StageFailed as failure:
            return Outcome(text="\n".join([*said, str(failure)]), succeeded=False)
        return Outcome(text="\n".join(said))

    async def meanwhile(self) -> None:
        """What happens to the machines between plan and install."""
        for change in self.scenario.meanwhile:
            self.world.change(change)
        await asyncio.sleep(0.3 if self.scenario.meanwhile else 0)

    @property
    def client(self) -> dict[str, str]:
        issued = secrets.client(self.bundle.os)
        return {"caCertificate": self.bundle.os.cert, "clientCertificate": issued.cert, "clientKey": issued.key}

    def configurations(self) -> dict[str, str]:
        """As the Talos plugin makes them, which gets the same arguments from the component."""
        return {node.name: self._configuration(node) for node in self.site.nodes}

    def events(self) -> list[str]:
        return [event.line for event in self.world.log.events]

    def _configuration(self, node: Any) -> str:
        given = {
            "clusterName": self.site.cluster.name,
            "clusterEndpoint": self.site.endpoint,
            "machineType": "controlplane" if node.is_control_plane else "worker",
            "machineSecrets": machine_secrets(self.bundle),
            "talosVersion": self.site.talos_version,
            "kubernetesVersion": self.site.kubernetes_version.removeprefix("v"),
            "configPatches": list(config_patches(self.site, node)),
        }
        return str(machine_configuration(given)["machineConfiguration"])

    def _verification(self) -> VerificationInputs:
        return VerificationInputs(
            machines=list(machine_refs(self.site)),
            wanted=wanted(self.site),
            virtual=list(self.site.virtual_addresses),
            client_configuration=self.client,
            deadline_s=self.site.waits.probe.total_seconds(),
        )

    def _probe(self, client: dict[str, str] | None) -> ProbeInputs:
        return ProbeInputs(
            machines=list(targets(self.site)),
            talos=self.site.talos_version,
            cozystack=self.site.cluster.cozystack,
            image=self.site.installer_image,
            client_configuration=client or {},
            deadline_s=self.site.waits.probe.total_seconds(),
        )

    def _rollout(self, configurations: dict[str, str], client: dict[str, str]) -> RolloutInputs:
        return RolloutInputs(
            machines=list(machine_refs(self.site)),
            configurations=configurations,
            client_configuration=client,
            documents={node.name: emit(own_patches(self.site, node)) for node in self.site.nodes},
            worker_batch=self.site.talos.batch,
            deadline_s=self.site.waits.rollout.total_seconds(),
        )


def machine_secrets(bundle: secrets.Bundle) -> dict[str, Any]:
    """The bundle in the shape of the plugin's argument."""

    def pair(one: secrets.Pair) -> dict[str, str]:
        return {"cert": one.cert, "key": one.key}

    return {
        "certs": {
            "etcd": pair(bundle.etcd),
            "k8s": pair(bundle.kubernetes),
            "k8sAggregator": pair(bundle.aggregator),
            "k8sServiceaccount": {"key": bundle.service_account_key},
            "os": pair(bundle.os),
        },
        "cluster": {"id": bundle.cluster_id, "secret": bundle.cluster_secret},
        "secrets": {
            "bootstrapToken": bundle.bootstrap_token,
            "secretboxEncryptionSecret": bundle.secretbox_secret,
        },
        "trustdinfo": {"token": bundle.trustd_token},
    }


@asynccontextmanager
async def story(scenario: Scenario, bundle: secrets.Bundle) -> AsyncIterator[Story]:
    """The scenario's machines, running in this process. Fails loudly when its stack file cannot be read at all."""
    raw = {key.removeprefix("cozystack:"): value for key, value in stack_file(scenario).items()}
    site, formal = read(raw)
    assert site is not None, formal
    world = World(scenario)
    async with Machines(world):
        yield Story(scenario, world, site, tuple(formal), bundle)
