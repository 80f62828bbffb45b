"""What Bootstrap brings to life: the API server becomes the cluster's own, its front opens, machines register as Nodes.

Follows the event log. `bootstrapped` -> adopt the cluster's CA -> (delay) front open on the VIP and on every control plane ->
(delays) one Node after the other -> Ready when KWOK says so. Later events move it all: a rebooting machine closes its front and
stops its kubelet, a machine that joins later registers later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from ipaddress import ip_address
from urllib.parse import urlsplit

from cozystack_iac.kube.client import Conflict, Kube, NotFound, Object, Ref
from lab.controlplane import ControlPlane
from lab.front import Front
from lab.nodes import KUBELET, KUBELET_PORT, node_object
from lab.pki import Pair
from lab.scenario import Effect
from lab.world import EtcdPhase, MachineState, Stage, World

API_PORT = 6443
_NODES = Ref("v1", "nodes")
_LEAVING = (Stage.REBOOTING, Stage.SHUTTING_DOWN, Stage.RESETTING)


class ClusterSimulator:
    """Use as `async with`; `run()` works until cancelled. The control plane must be up."""

    def __init__(self, world: World, control_plane: ControlPlane) -> None:
        self._world = world
        self._control_plane = control_plane
        self._api = Front(API_PORT, control_plane.ports.api)
        self._kubelets = Front(KUBELET_PORT, control_plane.ports.kwok)
        self._open = False
        self._away = 0
        self._stopped: set[str] = set()
        self._moving = asyncio.Lock()
        self._timers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ClusterSimulator:
        self._world.faults.handle("api_server", self._api_server_effect)
        return self

    async def __aexit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
        await self._api.keep(())
        await self._kubelets.keep(())

    async def run(self) -> None:
        async with (
            Kube.connect(self._control_plane.kubeconfig.read_text(encoding="utf-8")) as kube,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._come_to_life())
            tasks.create_task(self._follow_machines(kube))
            tasks.create_task(self._register_nodes(kube))
            tasks.create_task(self._watch_nodes(kube))

    async def away(self, for_s: float | None) -> None:
        """The API is unreachable for `for_s` real-life seconds (None: for good): listeners and connections are gone."""
        self._away += 1
        await self._move_fronts()
        self._world.log.record("cluster", "api away")
        if for_s is None:
            return
        await self._world.clock.sleep(for_s)
        self._away -= 1
        await self._move_fronts()
        if self._away == 0:
            self._world.log.record("cluster", "api back")

    def _api_server_effect(self, effect: Effect) -> None:
        if effect.api_server == "away":
            timer = asyncio.ensure_future(self.away(effect.for_s))
            self._timers.add(timer)
            timer.add_done_callback(self._timers.discard)
        else:  # a real API server refuses what it wants to; only the one in memory takes orders
            self._world.log.record("fault", "nobody handles it", kinds=["api_server"])

    async def _come_to_life(self) -> None:
        log, cluster, delays = self._world.log, self._world.cluster, self._world.scenario.delays
        await log.happened("cluster", "bootstrapped")
        ca = Pair(cluster.ca_crt, cluster.ca_key)
        await asyncio.to_thread(self._control_plane.adopt, ca, self._hosts())
        await self._control_plane.answers_as(ca.crt, self._control_plane.admin_of(ca))
        await log.wait_for(lambda _: bool(cluster.healthy_members))
        await self._world.clock.sleep(delays.api_open)
        self._open = True
        await self._move_fronts()
        log.record("cluster", "api open", addresses=sorted(self._api.addresses))

    def _hosts(self) -> Iterable[str]:
        """What the API server's certificate is valid for: Talos adds its own names to `apiServer.certSANs`."""
        cluster = self._world.cluster
        planes = [machine for machine in self._world.machines.values() if machine.role == "controlplane"]
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.96.0.1"]
        own = [text for machine in planes for text in (machine.address, machine.hostname)]
        return [*names, *own, *cluster.vips, *filter(None, [_host(cluster.endpoint)]), *cluster.cert_sans]

    async def _move_fronts(self) -> None:
        """Open exactly the addresses at which a real cluster would answer now."""
        async with self._moving:
            machines = self._world.machines.values()
            serving = [m.address for m in machines if _up(m) and m.etcd is EtcdPhase.RUNNING]
            shared = self._world.cluster.vips if serving else ()
            reachable = self._open and self._away == 0
            await self._api.keep([*serving, *shared] if reachable else ())
            await self._kubelets.keep([m.address for m in machines if m.node_registered and _up(m)])

    async def _follow_machines(self, kube: Kube) -> None:
        """Fronts and kubelets follow the machines: reboot, power, reset, etcd."""
        async for event in self._world.log.follow():
            if not self._open or not event.subject.startswith("machine "):
                continue
            await self._move_fronts()
            machine = self._world.machines.get(event.subject.removeprefix("machine "))
            if machine is not None and machine.node_registered:
                await self._set_kubelet(kube, machine, running=_up(machine))

    async def _set_kubelet(self, kube: Kube, machine: MachineState, *, running: bool) -> None:
        if running == (machine.name not in self._stopped):
            return
        (self._stopped.discard if running else self._stopped.add)(machine.name)
        name = self._world.cluster.node_names.get(machine.name, machine.hostname)
        try:
            await kube.merge_patch(
                _NODES.named(name), {"metadata": {"annotations": {KUBELET: None if running else "stopped"}}}
            )
        except NotFound:
            return  # somebody deleted the Node; a kubelet that runs on does not bring it back by itself

    async def _register_nodes(self, kube: Kube) -> None:
        """One machine after the other, in the scenario's order, each as soon as it can reach the API."""
        log = self._world.log
        await log.happened("cluster", "api open")
        while True:
            waiting = [m for m in self._world.machines.values() if _can_register(m)]
            if not waiting:
                await self._next_event()
                continue
            await self._world.clock.sleep(self._world.scenario.delays.node_register)
            if _can_register(waiting[0]):
                await self._register(kube, waiting[0])

    async def _next_event(self) -> None:
        seen = len(self._world.log.events)
        await self._world.log.wait_for(lambda event: event.seq > seen)

    async def _register(self, kube: Kube, machine: MachineState) -> None:
        if machine.config is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        index = list(self._world.machines).index(machine.name)
        ready_after_s = self._world.clock.wall(self._world.scenario.delays.node_ready)
        body = node_object(machine, machine.config, index=index, ready_after_s=ready_after_s, now=now)
        name = str(body["metadata"]["name"])
        try:
            await kube.create(_NODES, body)
        except Conflict:
            await self._take_over(kube, name, body)
        self._world.cluster.node_names[machine.name] = name
        machine.node_registered = True
        machine.touch()
        await self._move_fronts()
        self._world.log.record(f"node {name}", "registered", machine=machine.name)

    async def _take_over(self, kube: Kube, name: str, body: Object) -> None:
        """A machine that comes back under its old name: the kubelet keeps the Node and renews its status."""
        await kube.merge_patch(_NODES.named(name), {"metadata": {"labels": body["metadata"]["labels"]}})
        await kube.merge_patch(_NODES.named(name), {"status": body["status"]}, subresource="status")

    async def _watch_nodes(self, kube: Kube) -> None:
        ready: dict[str, bool] = {}
        async for snapshot in kube.watch(_NODES):
            for (_, name), node in (snapshot.objects or {}).items():
                if (now := _is_ready(node)) != ready.get(name, False):
                    ready[name] = now
                    self._say_ready(name, now)

    def _say_ready(self, node: str, now: bool) -> None:
        machine = self._world.machine_of_node(node)
        if machine is not None:
            machine.node_ready = now
            machine.touch()
        self._world.log.record(f"node {node}", "ready" if now else "not ready")


def _up(machine: MachineState) -> bool:
    """Whether its services run: from the moment a reboot is announced they do not."""
    return machine.powered and machine.door == "secure" and machine.services_up and machine.stage not in _LEAVING


def _can_register(machine: MachineState) -> bool:
    if machine.node_registered or machine.config is None or not _up(machine) or machine.stage is not Stage.RUNNING:
        return False
    return machine.role == "worker" or machine.etcd is EtcdPhase.RUNNING


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _host(endpoint: str) -> str | None:
    """The host of the cluster endpoint when it is an address or name worth a SAN."""
    host = urlsplit(endpoint).hostname
    try:
        return str(ip_address(host)) if host else None
    except ValueError:
        return host
