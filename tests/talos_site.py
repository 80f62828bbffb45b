"""A site of simulated machines in this process, and the inputs of the stages that make a cluster of them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cozystack_iac.stages.etcd_bootstrap import BootstrapInputs, BootstrapOutputs, EtcdBootstrapProvider
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutInputs, RolloutOutputs
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.waiting import Progress
from lab.machines import Machines
from lab.scenario import Scenario
from lab.world import World
from tests.addresses import prefix
from tests.machine_configs import Secrets
from tests.talos_machine import Authority, server_context

NET = prefix()
DISKS = [{"dev": "sda", "size": "64GiB", "serial": "SYS"}, {"dev": "sdb", "size": "200GiB", "serial": "DATA"}]


def scenario(
    *names: str, faults: list[Any] | None = None, each: Mapping[str, dict[str, Any]] | None = None, **machine: Any
) -> Scenario:
    """Machines by name; `machine` is true of all of them, `each` of one."""

    def one(number: int, name: str) -> dict[str, Any]:
        return (
            {
                "name": name,
                "address": f"{NET}.0.{11 + number}",
                "talos": "v1.13.6",
                "disks": DISKS,
                "mac": f"52:54:00:42:00:{number:02x}",
            }
            | machine
            | (each or {}).get(name, {})
        )

    machines = [one(number, name) for number, name in enumerate(names)]
    body = {"name": "stages", "scale": 1000, "machines": machines, "platform": {"ingress": f"{NET}.1.1"}}
    return Scenario.model_validate(body | {"faults": faults or []})


def machine_ref(name: str, address: str) -> MachineRef:
    role = "controlPlane" if name.startswith("cp") else "worker"
    return MachineRef.model_validate(
        {"name": name, "role": role, "maintenance": address, "address": address, "internal": address}
    )


@dataclass
class Site:
    """The simulated machines, and the inputs of the stages that make a cluster of them."""

    world: World
    secrets: Secrets = field(default_factory=Secrets)
    said: list[str] = field(default_factory=list)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes to `machine:` by machine name."""

    def ref(self, name: str) -> MachineRef:
        return machine_ref(name, self.world.machines[name].address)

    @property
    def refs(self) -> list[MachineRef]:
        return [self.ref(name) for name in self.world.machines]

    def config(self, name: str) -> str:
        role = "controlplane" if name.startswith("cp") else "worker"
        return self.secrets.config(role, hostname=name, **self.changes.get(name, {}))

    @property
    def client(self) -> dict[str, str]:
        issued = self.secrets.client()
        parts = {"caCertificate": self.secrets.os.crt, "clientCertificate": issued.crt, "clientKey": issued.key}
        return {name: base64.b64encode(text.encode()).decode() for name, text in parts.items()}

    def progress(self) -> Progress:
        return Progress("Stage", write=self.said.append)

    def rollout_inputs(self, **changes: Any) -> RolloutInputs:
        configurations = {name: self.config(name) for name in self.world.machines}
        given = {"machines": self.refs, "configurations": configurations, "client_configuration": self.client}
        return RolloutInputs(**(given | {"deadline_s": 10} | changes))

    async def rolled_out(self, **changes: Any) -> RolloutOutputs:
        return await MachineConfigRolloutProvider().establish(self.rollout_inputs(**changes), self.progress())

    async def bootstrapped(self, **changes: Any) -> BootstrapOutputs:
        planes = [ref for ref in self.refs if ref.is_control_plane]
        given = {"control_planes": planes, "client_configuration": self.client, "deadline_s": 15}
        return await EtcdBootstrapProvider().establish(BootstrapInputs(**(given | changes)), self.progress())

    def events(self, name: str, what: str) -> int:
        return sum(event.what == what for event in self.world.log.find(f"machine {name}"))


@asynccontextmanager
async def playing(chosen: Scenario) -> AsyncIterator[Site]:
    world = World(chosen)
    async with Machines(world):
        yield Site(world)


@asynccontextmanager
async def api_servers(site: Site) -> AsyncIterator[None]:
    """Something that speaks TLS on port 6443 of every control plane, as a kube-apiserver does."""
    authority = Authority.named("kubernetes")
    context = server_context(authority.server("kube-apiserver"))

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    servers = [
        await asyncio.start_server(serve, ref.address, 6443, ssl=context) for ref in site.refs if ref.is_control_plane
    ]
    yield
    for server in servers:
        server.close()
