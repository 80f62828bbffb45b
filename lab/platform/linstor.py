"""The simulated LINSTOR: a controller that comes minutes after its release, satellites, pools on simulated zpools.

A storage pool exists when a LinstorSatelliteConfiguration asks for it on a node and that machine has the zpool, ONLINE; or
when it names devices, which LINSTOR then makes the zpool of, by force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cozystack_iac.kube.client import Object
from lab.platform import linstor_client as client
from lab.platform import objects
from lab.platform.answer import Answer
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.linstor_client import Registry, Volume
from lab.platform.objects import kind_ref
from lab.platform.timing import (
    LINSTOR_CONTROLLER_S,
    LINSTOR_EVACUATE_S,
    LINSTOR_NODES_S,
    LINSTOR_POOL_S,
    LINSTOR_RELOAD_S,
)
from lab.scenario import Effect
from lab.world import Zpool, stable_number

NAMESPACE = "cozy-linstor"
CONTROLLER = "linstor-controller"
RELEASE = "cozy-linstor/linstor"
API_PORT = 3371
NO_ROUTE = "Error: Unable to connect to linstor+ssl://linstor-controller:3371: [Errno 113] No route to host"


@dataclass(frozen=True)
class WantedPool:
    """One `spec.storagePools` entry of a satellite configuration, on one node."""

    node: str
    name: str
    zpool: str
    thin: bool = False
    devices: tuple[str, ...] = ()


class Linstor:
    def __init__(self, platform: Platform, effects: ReleaseEffects) -> None:
        self._platform = platform
        self._hub = platform.hub
        self._nodes = platform.hub.store(kind_ref("Node"))
        self._configurations = platform.hub.store(kind_ref("LinstorSatelliteConfiguration"))
        self._check = asyncio.Event()
        volumes = platform.world.scenario.platform.linstor.volumes
        self.registry = Registry(
            platform.world,
            platform.pools,
            self._address,
            volumes={v.name: Volume(v.name, dict.fromkeys(v.on, v.state), v.replicated) for v in volumes},
        )
        self._since: dict[WantedPool, float] = {}
        self._said: dict[str, str] = {}
        self._alive = False
        self.reachable = False
        effects.when_applied(RELEASE, self._released)
        platform.world.faults.handle("linstor", self._fault)

    # Life -------------------------------------------------------------------------------------------------------------

    async def _released(self) -> None:
        """The chart renders resources of the operator; the controller is the operator's work, later."""
        await self._hub.create(
            objects.new("LinstorCluster", "linstorcluster", labels={objects.NO_DELETE: "true"}, spec={})
        )
        if self._alive:
            return
        self._alive = True
        for name in ("cozystack", "cozystack-plunger", *self._talos()):
            await self._hub.create(objects.new("LinstorSatelliteConfiguration", name, spec={}))
        self._hub.spawn(self._live(), name="linstor")

    def _talos(self) -> tuple[str, ...]:
        choice = self._platform.choice
        return ("cozystack-talos",) if choice and choice.system_variant == "isp-full" else ()

    async def _live(self) -> None:
        platform = self._platform
        await self._hub.create(
            objects.new("Service", CONTROLLER, NAMESPACE, spec={"ports": [{"name": "https", "port": API_PORT}]})
        )
        await self._endpoint(ready=False)
        await platform.sleep(LINSTOR_CONTROLLER_S)
        labels = {"app.kubernetes.io/component": CONTROLLER}
        await self._hub.create(
            objects.deployment(CONTROLLER, NAMESPACE, containers=(CONTROLLER, "plunger"), labels=labels)
        )
        if self.registry.spec.silent:
            return
        # The pod runs already; its API comes back after the secret was rewritten.
        await platform.sleep(LINSTOR_RELOAD_S)
        await self._set_reachable(True)
        platform.world.log.record("linstor", "controller available")
        await self._cluster_status()
        self._platform.pools.update({(n, "data"): zpool for n, zpool in self.registry.spec.registered.items()})
        self._hub.spawn(self._satellites(), name="linstor satellites")
        self._configurations.on(lambda _before, _after: self._check.set())
        await self._reconcile_pools()

    async def _endpoint(self, *, ready: bool) -> None:
        body = objects.new(
            "EndpointSlice",
            f"{CONTROLLER}-lab",
            NAMESPACE,
            labels={"kubernetes.io/service-name": CONTROLLER, "endpointslice.kubernetes.io/managed-by": "lab"},
            addressType="IPv4",
            endpoints=[{"addresses": ["10.244.0.71"], "conditions": {"ready": ready}}],
            ports=[{"name": "https", "port": API_PORT, "protocol": "TCP"}],
        )
        await self._hub.apply(body)

    async def _set_reachable(self, reachable: bool) -> None:
        self.reachable = reachable
        await self._endpoint(ready=reachable)

    async def _cluster_status(self) -> None:
        text = "Controller 1.33.3 (API: 1.26.0, Git: ) reachable at 'https://linstor-controller.cozy-linstor.svc:3371'"
        conditions = [
            objects.condition("Applied", "True", "AsExpected", "Resources applied", 1),
            objects.condition("Available", "True", "AsExpected", text, 1),
            objects.condition("Configured", "True", "AsExpected", "Properties applied", 1),
        ]
        await self._hub.status(kind_ref("LinstorCluster", name="linstorcluster"), {"conditions": conditions})

    async def _satellites(self) -> None:
        """Every node gets its satellite, all after the same delay; later nodes later; one whose Node is gone loses it."""
        known = self.registry
        while True:
            change = self._nodes.next_change()
            there = {name for _, name in self._nodes.objects}
            for name in sorted(known.nodes - there):
                await self._gone(name)
            new = there - known.nodes
            if new:
                await asyncio.gather(*(self._satellite(name) for name in sorted(new)))
                await self._platform.sleep(LINSTOR_NODES_S)
                known.nodes |= new
                for name in sorted(new - set(known.spec.never_online)):
                    known.online.add(name)
                    self._platform.world.log.record(f"satellite {name}", "online")
                self._check.set()
            else:
                await change

    async def _satellite(self, node: str) -> None:
        await self._hub.create(objects.new("LinstorSatellite", node, spec={"clusterRef": {"name": "linstorcluster"}}))
        await self._say(node, "False", "Error: satellite not online", "Unknown", "")

    async def _gone(self, node: str) -> None:
        """The operator removes the satellite of a Node that is gone, unless LINSTOR still has something there."""
        self.registry.online.discard(node)
        if self.registry.kept_on(node):
            return
        self.registry.nodes.discard(node)
        self.registry.evacuating.discard(node)
        await self._hub.delete(kind_ref("LinstorSatellite", name=node))
        self._platform.world.log.record(f"satellite {node}", "removed")

    async def _say(self, node: str, available: str, text: str, configured: str, configured_text: str) -> None:
        said = f"{available} {text} {configured} {configured_text}"
        if self._said.get(node) == said:
            return
        self._said[node] = said
        reasons = {"True": "AsExpected", "False": "Error", "Unknown": "NotObserved"}
        conditions = [
            objects.condition("Applied", "True", "AsExpected", "Resources applied", 1),
            objects.condition("Available", available, reasons[available], text, 1),
            objects.condition("Configured", configured, reasons[configured], configured_text, 1),
        ]
        await self._hub.status(kind_ref("LinstorSatellite", name=node), {"conditions": conditions})

    def _fault(self, effect: Effect) -> None:
        """`linstor: away`: the controller cannot be reached for a while."""
        self._hub.spawn(self._away(effect.for_s or LINSTOR_RELOAD_S))

    async def _away(self, for_s: float) -> None:
        await self._set_reachable(False)
        await self._platform.sleep(for_s)
        await self._set_reachable(True)

    # Pools ------------------------------------------------------------------------------------------------------------

    async def _reconcile_pools(self) -> None:
        while True:
            self._check.clear()
            pending = await self._register()
            wait_s = self._platform.world.clock.wall(LINSTOR_POOL_S) if pending else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._check.wait()

    async def _register(self) -> bool:
        """Register what can be registered; True when something has to be looked at again."""
        now = self._platform.world.clock.now()
        wanted = list(self._wanted())
        for key in self._platform.pools.keys() - {(w.node, w.name) for w in wanted} - self._foreign():
            del self._platform.pools[key]
        pending = False
        errors: dict[str, str] = {}
        for want in wanted:
            if want.node not in self.registry.online or (want.node, want.name) in self._platform.pools:
                continue
            since = self._since.setdefault(want, now)
            ripe = now - since >= LINSTOR_POOL_S - 1e-6
            if trouble := self._without_zpool(want, make=ripe):
                errors[want.node] = f"Error: Message: 'Storage pool {want.name} could not be created: {trouble}'"
                self.registry.report(want.node, trouble)
                pending = True
            elif not ripe:
                pending = True
            else:
                self._platform.pools[want.node, want.name] = want.zpool
                self._platform.world.log.record(f"pool {want.node}", "registered", pool=want.name, zpool=want.zpool)
        for node in self.registry.online:
            error = errors.get(node)
            await self._say(node, "True", "satellite online", "False" if error else "True", error or "Pools configured")
        return pending

    def _foreign(self) -> set[tuple[str, str]]:
        """Pools that nobody asked for here: the operator leaves alone what it has not made."""
        registered = self.registry.spec.registered
        return {key for key in self._platform.pools if key[0] in registered}

    def _wanted(self) -> Iterator[WantedPool]:
        for configuration in self._configurations.objects.values():
            for _, node in self._nodes.objects:
                yield from wanted_pools(configuration, node, self._labels(node))

    def _labels(self, node: str) -> Mapping[str, str]:
        obj = self._nodes.get(node) or {}
        labels: Mapping[str, str] = (obj.get("metadata") or {}).get("labels") or {}
        return labels

    def _without_zpool(self, want: WantedPool, *, make: bool) -> str:
        """Why the node has no zpool for the pool; empty when it has one, if need be one that LINSTOR has just made."""
        machine = self.registry.machine(want.node)
        name = want.zpool.partition("/")[0]
        pool = machine.zpools.get(name) if machine is not None else None
        if pool is not None and pool.health in ("ONLINE", "DEGRADED"):
            return ""
        if machine is None or pool is not None or not want.devices:
            return f"zpool '{want.zpool}' not found"
        if not make:
            return ""
        devices = [client.device_of(machine, path) for path in want.devices]
        found = [machine.disks[dev] for dev in devices if dev is not None]
        if len(found) < len(devices) or any(disk.in_use for disk in found):
            return f"Failed to create zpool: {name}; {', '.join(want.devices)}: no such device, or busy"
        lost = [disk.residue for disk in found if disk.residue is not None]
        machine.zpools[name] = Zpool(
            name, "single", tuple(d.dev for d in found), guid=stable_number(machine.name, name)
        )
        for disk in found:
            disk.pool, disk.residue = name, None
        machine.touch()
        data = {"pool": name, "layout": "single", "devices": [disk.dev for disk in found], "by": "linstor"}
        self._platform.world.log.record(machine.subject, "zpool create", **data)
        if lost:
            self._platform.world.log.record(machine.subject, "data overwritten", residue=lost)
        return ""

    # Leaving nodes ----------------------------------------------------------------------------------------------------

    def _evacuate(self, node: str) -> Answer:
        """Accept, and move one replica after the other to nodes that have none of its volume yet."""
        self.registry.evacuating.add(node)
        self._platform.world.log.record(f"satellite {node}", "evacuating")
        if not self.registry.spec.deaf:
            self._hub.spawn(self._move_away(node), name=f"evacuate {node}")
        return client.replies(f"Node '{node}' is being evacuated")

    async def _move_away(self, node: str) -> None:
        for volume in [one for one in self.registry.kept_on(node) if one.replicated]:
            await self._platform.sleep(LINSTOR_EVACUATE_S)
            if node not in self.registry.evacuating:
                return
            targets = [n for n in sorted(self.registry.online - self.registry.evacuating) if n not in volume.replicas]
            if targets:
                del volume.replicas[node]
                volume.replicas[targets[0]] = "UpToDate"
                self._platform.world.log.record(f"volume {volume.name}", "moved", to=targets[0])

    # The command line -------------------------------------------------------------------------------------------------

    def command(self, argv: list[str]) -> Answer:
        """`linstor …` inside the controller's pod."""
        if not self.reachable:
            return Answer(stderr=NO_ROUTE + "\n", code=20)
        _, words = client.split(argv)
        if words[:2] == ["node", "evacuate"] and words[2:]:
            return self._evacuate(words[2])
        if words[:2] == ["node", "restore"] and words[2:]:
            self.registry.evacuating.discard(words[2])
            return client.replies(f"Node '{words[2]}' restored")
        return client.listing(self.registry, argv)

    def _address(self, node: str) -> str:
        obj = self._nodes.get(node) or {}
        addresses = (obj.get("status") or {}).get("addresses") or ()
        return next((str(a["address"]) for a in addresses if a.get("type") == "InternalIP"), "")


def wanted_pools(configuration: Object, node: str, labels: Mapping[str, str]) -> Iterator[WantedPool]:
    """The ZFS pools that one LinstorSatelliteConfiguration asks for on one node."""
    spec = configuration.get("spec") or {}
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    known = {"kubernetes.io/hostname": node} | dict(labels)
    if any(known.get(key) != value for key, value in selector.items()):
        return
    for pool in spec.get("storagePools") or ():
        thick, thin = pool.get("zfsPool"), pool.get("zfsThinPool")
        chosen = thick or thin
        if chosen:
            zpool = str(chosen.get("zPool") or pool["name"])
            devices = tuple(map(str, (pool.get("source") or {}).get("hostDevices") or ()))
            yield WantedPool(node, str(pool["name"]), zpool, thin=thick is None, devices=devices)
