"""A scenario of storage and platform told in one process: the product's own program and stages on a cluster in memory.

The machines are configured and registered; from there on everything is played: the zpool jobs with their real script, the
installer, the operator, Flux, LINSTOR, tenants, the dashboard. A clean install takes a second or two.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cozystack_iac import releases
from cozystack_iac.findings import Finding, Severity, Verdict, table
from cozystack_iac.kube.client import Kube, Object
from cozystack_iac.platform import package, tenant
from cozystack_iac.rules import verdict
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded
from cozystack_iac.settings.reading import read
from cozystack_iac.stages.base import StageProvider
from cozystack_iac.talos.documents import config_patches
from cozystack_iac.waiting import Pace, at_pace
from lab import pki, platform
from lab.control import ControlServer
from lab.critical_path import CriticalPath, critical_path
from lab.events import Event
from lab.machines import Machines
from lab.memory import IN_CLUSTER, Controllers, MemoryApi, Server, machines
from lab.memory.helm import Helm
from lab.platform import hub
from lab.platform.objects import base64_text
from lab.plugins.talos import secrets
from lab.plugins.talos.provider import client_configuration, machine_configuration
from lab.scenario import ApiRefusal, Effect, Scenario
from lab.stack import stack_file
from lab.story.engine import Program
from lab.story.machines import machine_secrets
from lab.world import World

SCALE = 1000.0  # real-life seconds per second
SLACK = 4.0  # the product's own work takes the same wall time in a faster world, and a busy machine takes more
SETTLE_S = 0.05  # wall seconds
# The product's own pauses and its patience in a world that goes a thousand times faster; its calls take what they take.
PACE = Pace(looks=1 / 50, patience=1 / 200, calls=1 / 10)
HUB_PATIENCE_S = (0.002, 0.005, 0.01, 0.02)  # how soon the lab's own controllers ask again


@dataclass
class Outcome:
    """What a person was told, the failures at the end of it included: several when stages that ran side by side failed.

    `changes`: the resources the engine created, updated or deleted, in order.
    """

    text: str = ""
    failures: tuple[str, ...] = ()
    succeeded: bool = True
    findings: Verdict = field(default_factory=lambda: Verdict.of(()))
    changes: tuple[str, ...] = ()

    @property
    def failure(self) -> str:
        """The first one: what ended the run."""
        return self.failures[0] if self.failures else ""

    @property
    def codes(self) -> list[str]:
        return sorted({f.code for f in self.findings if f.severity is not Severity.NOTE})


class Story:
    """One scenario come to life, and the stack on it."""

    tasks: asyncio.TaskGroup  # what happens in the cluster meanwhile

    def __init__(self, scenario: Scenario, world: World) -> None:
        self.scenario, self.world = scenario, world
        self.site, self.formal = _site(scenario)
        self.api = api = MemoryApi(f"v{self.site.kubernetes_version.removeprefix('v')}")
        self.server = Server(api, self._command)
        self.bundle = bundle()
        issued = secrets.client(self.bundle.os)
        self.client = {
            "caCertificate": self.bundle.os.cert,
            "clientCertificate": issued.cert,
            "clientKey": issued.key,
        }
        self.kubeconfig = kubeconfig(self.site, self.bundle)
        self.program = Program(self.site, api, Helm(api, world), self._answer)
        self.program.scaled = self._scaled

    def kube(self) -> Kube:
        """A client of the cluster that no outage concerns."""
        return self.server.kube(inside=True)

    # What a person does -----------------------------------------------------------------------------------------------

    async def plan(self) -> Outcome:
        """The offline rules, and when they let it through, what the stages ask and show in a preview."""
        found = verdict(Loaded(self.site, self.formal))
        if found.blocking:
            return Outcome(str(table(found)), (str(table(found)),), False, found)
        shown = io.StringIO()
        with redirect_stdout(shown):
            run = await self.program.up(found, preview=True)
        found += Verdict.of(run.findings)
        text = "\n".join([shown.getvalue(), *run.said, *run.failures, str(table(found))])
        succeeded = not found.blocking and not run.failures
        return Outcome(text, tuple(run.failures), succeeded, found, tuple(run.changes))

    async def install(self) -> Outcome:
        """`pulumi up`: everything that is not done yet, in the order of the graph; ends with the first stage that fails.

        Called again it is the next `up`: what is finished and unchanged is left alone.
        """
        found = verdict(Loaded(self.site, self.formal))
        if found.blocking:
            return Outcome(str(table(found)), (str(table(found)),), False, found)
        run = await self.program.up(found)
        found += Verdict.of(run.findings)
        text = "\n".join([*run.said, *run.failures])
        succeeded = not run.failures and not run.over
        return Outcome(text, tuple(run.failures), succeeded, found, tuple(run.changes))

    async def again(self) -> Outcome:
        """The whole chain once more on the world as it is, by an engine that remembers nothing."""
        self.program.state.clear()
        return await self.install()

    async def killed_at(self, line: str) -> Outcome:
        """An `up` whose engine dies when the world records the event `line` ("<subject> <what>", with `*`).

        What was finished is in the state, what was going on is not. `install` afterwards is the next `up`.
        """

        def watch(event: Event) -> None:
            if fnmatchcase(event.line, line):
                loop.call_soon(self.program.run.end)

        loop = asyncio.get_running_loop()
        self.world.log.on(watch)
        try:
            return await self.install()
        finally:
            self.world.log.off(watch)

    async def until(self, line: str | None) -> Outcome:
        """An `up` that is only watched until the event `line`: it has succeeded when nothing failed before. None: all of it."""
        if line is None:
            return await self.install()
        told = await self.killed_at(line)
        happened = any(fnmatchcase(event, line) for event in self.events())
        return replace(told, succeeded=told.succeeded or (happened and not self.program.run.failures))

    def meanwhile(self) -> None:
        """What happens to the machines between plan and install."""
        for change in self.scenario.meanwhile:
            self.world.change(change)

    async def refresh(self) -> list[str]:
        """`pulumi refresh`: names of the resources that are not as the state has them."""
        return await self.program.refresh()

    def change(self, **stack: Any) -> None:
        """The stack file now says otherwise, e.g. `change(tenant={"seaweedfs": False})`."""
        self.scenario = self.scenario.model_copy(update={"stack": {**self.scenario.stack, **stack}})
        self.site, self.formal = _site(self.scenario)
        self.program.site = self.site

    # What happened ----------------------------------------------------------------------------------------------------

    def events(self) -> list[str]:
        return [event.line for event in self.world.log.events]

    def critical_path(self) -> CriticalPath:
        """How fast the install can be, beginning where the story does: with registered nodes."""
        release = releases.find(self.site.cluster.cozystack)
        assert release is not None, self.site.cluster.cozystack
        asked = tenant.root_spec(self.site, release)
        return critical_path(self.scenario, asked, package.platform_values(self.site, release), bare=False)

    def zpools(self) -> dict[str, str]:
        """Health of every zpool, by "machine/pool"."""
        return {f"{m.name}/{p.name}": p.health for m in self.world.machines.values() for p in m.zpools.values()}

    # ------------------------------------------------------------------------------------------------------------------

    def _answer(self, token: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The Talos plugin, with secrets that were made before."""
        match token:
            case "talos:machine/secrets:Secrets":
                return {"machineSecrets": machine_secrets(self.bundle), "clientConfiguration": self.client}
            case "talos:cluster/kubeconfig:Kubeconfig":
                return {"kubeconfigRaw": self.kubeconfig}
            case "talos:machine/getConfiguration:getConfiguration":
                return _configuration(given)
        return client_configuration(given)

    def _scaled(self, provider: StageProvider[Any, Any], inputs: dict[str, Any]) -> dict[str, Any]:
        """Periods that no stack file says are in real-life seconds, and settling has no meaning in a hurry."""
        made = dict(inputs)
        for name, model in provider.inputs.model_fields.items():
            if name == "settle_s":
                made[name] = SETTLE_S
            elif name.endswith("_s") and name not in inputs and isinstance(model.default, int | float):
                made[name] = model.default * SLACK / self.world.clock.scale
        return made

    async def _command(self, pod: Object, argv: list[str]) -> tuple[str, str, int] | None:
        """A program in a pod: those that the lab plays."""
        query = self.world.queries.get(argv[0])
        if query is None:
            return None
        node = (pod.get("spec") or {}).get("nodeName", "")
        machine = self.world.machine_of_node(node)
        answer = await query({"argv": argv[1:], "machine": machine.name if machine else node})
        return answer["stdout"], answer["stderr"], answer["code"]


@asynccontextmanager
async def platform_story(scenario: Scenario, state: Path, *, scale: float = SCALE) -> AsyncIterator[Story]:
    """The scenario's cluster, running in this process. `state`: an empty folder. Fails loudly on a broken stack file."""
    scenario = scenario.model_copy(update={"scale": scale})
    world = World(scenario)
    told = Story(scenario, world)
    machines.configure(world, configurations(told.site, told.bundle), told.bundle)
    world.faults.handle("api_server", lambda effect: _api_server(told, effect))
    async with AsyncExitStack() as stack:
        stack.enter_context(_patched(told))
        tasks = told.tasks = await stack.enter_async_context(_cancelled())
        controllers = Controllers(told.api, world, tasks)
        await stack.enter_async_context(ControlServer(world, state / "control.sock"))
        await stack.enter_async_context(Machines(world))
        for machine in world.machines.values():
            controllers.register(machine)
        tasks.create_task(platform.run(world, IN_CLUSTER, state))
        await world.log.happened("platform", "began", timeout_s=10)
        yield told


@asynccontextmanager
async def _cancelled() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that ends with the block, whatever still runs in it."""
    group = asyncio.TaskGroup()
    entered = await group.__aenter__()
    try:
        yield entered
    finally:
        for task in tuple(entered._tasks):
            task.cancel()
        await group.__aexit__(None, None, None)


@contextmanager
def _patched(told: Story) -> Iterator[None]:
    """Whoever connects gets the cluster in memory; whoever polls does it more often; no resolver is asked."""
    asked = asyncio.BaseEventLoop.getaddrinfo

    async def resolve(loop: Any, host: Any, *rest: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name == "localhost" or re.fullmatch(r"[0-9.]+|[0-9a-f:]+", name):
            return await asked(loop, host, *rest, **options)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with ExitStack() as stack:
        stack.enter_context(told.server.behind_every_connection())
        stack.enter_context(patch.object(asyncio.BaseEventLoop, "getaddrinfo", resolve))
        stack.enter_context(patch.object(hub, "PATIENCE_S", HUB_PATIENCE_S))
        stack.enter_context(at_pace(PACE))
        yield


def _site(scenario: Scenario) -> tuple[Site, tuple[Finding, ...]]:
    raw = {key.removeprefix("cozystack:"): value for key, value in stack_file(scenario).items()}
    site, formal = read(raw)
    assert site is not None, formal
    return site, tuple(formal)


def _api_server(told: Story, effect: Effect) -> None:
    """`away`: nobody outside the cluster gets an answer. A refusal: some calls get this one."""
    if isinstance(effect.api_server, ApiRefusal):
        ordered = effect.api_server
        told.api.refuse(ordered.call, ordered.status, ordered.reason, ordered.message, ordered.times)
        return

    async def outage() -> None:
        told.api.go_away(True)
        told.world.log.record("cluster", "api away")
        if effect.for_s is not None:
            await told.world.clock.sleep(effect.for_s)
            told.api.go_away(False)
            told.world.log.record("cluster", "api back")

    told.tasks.create_task(outage())


@cache
def bundle() -> secrets.Bundle:
    """Secrets of the cluster: making them takes a second, and no story looks into them."""
    return secrets.generate()


def configurations(site: Site, made: secrets.Bundle) -> dict[str, str]:
    """As the Talos plugin makes them, by node, from the same arguments as the component's."""
    return {
        node.name: str(
            _configuration(
                {
                    "clusterName": site.cluster.name,
                    "clusterEndpoint": site.endpoint,
                    "machineType": "controlplane" if node.is_control_plane else "worker",
                    "machineSecrets": machine_secrets(made),
                    "talosVersion": site.talos_version,
                    "kubernetesVersion": site.kubernetes_version.removeprefix("v"),
                    "configPatches": list(config_patches(site, node)),
                }
            )["machineConfiguration"]
        )
        for node in site.nodes
    }


def _configuration(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the Talos plugin generates and merges; the same machine is asked for in every run of every story."""
    made: Mapping[str, Any] = json.loads(_generated(json.dumps(given)))
    return made


@lru_cache(maxsize=1024)
def _generated(given: str) -> str:
    return json.dumps(machine_configuration(json.loads(given)))


def kubeconfig(site: Site, made: secrets.Bundle) -> str:
    """Administrator's access to the cluster's endpoint."""
    ca = pki.Pair(*(base64.b64decode(text).decode() for text in (made.kubernetes.cert, made.kubernetes.key)))
    admin = pki.issue_client(ca, "admin", ("system:masters",))
    cluster = {"server": site.endpoint, "certificate-authority-data": base64_text(ca.crt)}
    user = {"client-certificate-data": base64_text(admin.crt), "client-key-data": base64_text(admin.key)}
    content = {
        "current-context": "admin@lab",
        "contexts": [{"name": "admin@lab", "context": {"cluster": "lab", "user": "admin"}}],
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "admin", "user": user}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Config", **content})
