"""The simulated LINSTOR: a controller that comes minutes after its release, satellites, pools on simulated zpools.

A storage pool exists when a LinstorSatelliteConfiguration asks for it on a node and that machine has the zpool, ONLINE.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cozystack_iac.kube.client import Object
from lab.platform import objects
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.objects import kind_ref
from lab.platform.timing import (
    LINSTOR_CONTROLLER_S,
    LINSTOR_NODES_S,
    LINSTOR_POOL_S,
    LINSTOR_RELOAD_S,
)
from lab.scenario import Effect
from lab.world import MachineState

NAMESPACE = "cozy-linstor"
CONTROLLER = "linstor-controller"
RELEASE = "cozy-linstor/linstor"
API_PORT = 3371
DISKLESS = "DfltDisklessStorPool"
NO_ROUTE = "Error: Unable to connect to linstor+ssl://linstor-controller:3371: [Errno 113] No route to host"
_ID_SPACE = uuid.UUID("6d0c52e4-6f0c-4d55-8a53-3f0b0d0f3c11")


@dataclass(frozen=True)
class WantedPool:
    """One `spec.storagePools` entry of a satellite configuration, on one node."""

    node: str
    name: str
    zpool: str
    thin: bool = False


@dataclass(frozen=True)
class Answer:
    """What a command prints and how it ends."""

    stdout: str = ""
    stderr: str = ""
    code: int = 0


class Linstor:
    def __init__(self, platform: Platform, effects: ReleaseEffects) -> None:
        self._platform = platform
        self._hub = platform.hub
        self._nodes = platform.hub.store(kind_ref("Node"))
        self._configurations = platform.hub.store(kind_ref("LinstorSatelliteConfiguration"))
        self._check = asyncio.Event()
        self._online: set[str] = set()
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
        await platform.sleep(
            LINSTOR_RELOAD_S
        )  # the pod runs already; its API comes back after the secret was rewritten
        await self._set_reachable(True)
        platform.world.log.record("linstor", "controller available")
        await self._cluster_status()
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
        """Every ready node gets its satellite, all after the same delay; later nodes later."""
        while True:
            change = self._nodes.next_change()
            new = {name for _, name in self._nodes.objects if name not in self._online}
            if new:
                await asyncio.gather(*(self._satellite(name) for name in sorted(new)))
                await self._platform.sleep(LINSTOR_NODES_S)
                for name in sorted(new):
                    self._online.add(name)
                    self._platform.world.log.record(f"satellite {name}", "online")
                self._check.set()
            else:
                await change

    async def _satellite(self, node: str) -> None:
        await self._hub.create(objects.new("LinstorSatellite", node, spec={"clusterRef": {"name": "linstorcluster"}}))
        await self._say(node, "False", "Error: satellite not online", "Unknown", "")

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
        for key in [key for key in self._platform.pools if key not in {(w.node, w.name) for w in wanted}]:
            del self._platform.pools[key]
        pending = False
        errors: dict[str, str] = {}
        for want in wanted:
            if want.node not in self._online or (want.node, want.name) in self._platform.pools:
                continue
            since = self._since.setdefault(want, now)
            if not self._has_zpool(want):
                missing = f"zpool '{want.zpool}' not found"
                errors[want.node] = f"Error: Message: 'Storage pool {want.name} could not be created: {missing}'"
                pending = True
            elif now - since < LINSTOR_POOL_S - 1e-6:
                pending = True
            else:
                self._platform.pools[want.node, want.name] = want.zpool
                self._platform.world.log.record(f"pool {want.node}", "registered", pool=want.name, zpool=want.zpool)
        for node in self._online:
            error = errors.get(node)
            await self._say(node, "True", "satellite online", "False" if error else "True", error or "Pools configured")
        return pending

    def _wanted(self) -> Iterator[WantedPool]:
        for configuration in self._configurations.objects.values():
            for _, node in self._nodes.objects:
                yield from wanted_pools(configuration, node, self._labels(node))

    def _labels(self, node: str) -> Mapping[str, str]:
        obj = self._nodes.get(node) or {}
        labels: Mapping[str, str] = (obj.get("metadata") or {}).get("labels") or {}
        return labels

    def _has_zpool(self, want: WantedPool) -> bool:
        machine = self._machine(want.node)
        pool = machine.zpools.get(want.zpool.partition("/")[0]) if machine else None
        return pool is not None and pool.health == "ONLINE"

    def _machine(self, node: str) -> MachineState | None:
        world = self._platform.world
        return world.machine_of_node(node) or world.machines.get(node)

    # The command line -------------------------------------------------------------------------------------------------

    def command(self, argv: list[str]) -> Answer:
        """`linstor …` inside the controller's pod: node list and storage-pool list, as machine output or as a table."""
        if not self.reachable:
            return Answer(stderr=NO_ROUTE + "\n", code=20)
        flags, words = _split(argv)
        if words[:2] in (["node", "list"], ["n", "l"]):
            rows = [self._node_row(name) for name in sorted(self._online)]
        elif words[:2] in (["storage-pool", "list"], ["sp", "l"]):
            rows = [row for name in sorted(self._online) for row in self._pool_rows(name)]
            rows = [r for r in rows if _selected(r, "node_name", flags, ("--nodes", "-n"))]
            rows = [r for r in rows if _selected(r, "storage_pool_name", flags, ("--storage-pools", "-s"))]
        else:
            return Answer(stderr=f"linstor: the lab does not know the command {' '.join(words)}\n", code=2)
        machine_readable = bool({"-m", "--machine-readable"} & flags.keys())
        return Answer(json.dumps([rows]) + "\n" if machine_readable else _table(rows))

    def _node_row(self, node: str) -> Object:
        obj = self._nodes.get(node) or {}
        addresses = (obj.get("status") or {}).get("addresses") or ()
        address = next((a["address"] for a in addresses if a.get("type") == "InternalIP"), "")
        interface = {"name": "default-ipv4", "address": address, "satellite_port": 3367, "is_active": True}
        return {
            "name": node,
            "type": "SATELLITE",
            "connection_status": "ONLINE",
            "net_interfaces": [interface | {"satellite_encryption_type": "SSL"}],
            "uuid": _uuid(node),
        }

    def _pool_rows(self, node: str) -> Iterator[Object]:
        common = {"node_name": node, "free_space_mgr_name": f"{node};{DISKLESS}"}
        yield {
            **common,
            "storage_pool_name": DISKLESS,
            "provider_kind": "DISKLESS",
            "static_traits": {"SupportsSnapshots": "false"},
            "supports_snapshots": False,
            "uuid": _uuid(node, DISKLESS),
        }
        machine = self._machine(node)
        for (owner, name), zpool in sorted(self._platform.pools.items()):
            if owner == node and machine is not None:
                yield _pool_row(machine, node, name, zpool)


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
            yield WantedPool(node, str(pool["name"]), str(chosen.get("zPool") or pool["name"]), thin=thick is None)


def _pool_row(machine: MachineState, node: str, name: str, zpool: str) -> Object:
    pool = machine.zpools.get(zpool.partition("/")[0])
    total = _usable_bytes(machine, zpool.partition("/")[0]) // 1024
    row: Object = {
        "storage_pool_name": name,
        "node_name": node,
        "provider_kind": "ZFS",
        "props": {"StorDriver/StorPoolName": zpool},
        "static_traits": {"Provisioning": "Fat", "SupportsSnapshots": "true"},
        "free_capacity": total,
        "total_capacity": total,
        "free_space_mgr_name": f"{node};{name}",
        "supports_snapshots": True,
        "external_locking": False,
        "uuid": _uuid(node, name),
    }
    if pool is None or pool.health != "ONLINE":
        message = f"Failed to query free space from storage pool: zpool '{zpool}' is not available"
        row["reports"] = [{"ret_code": -4611686018427387000, "message": message}]
        row["free_capacity"] = row["total_capacity"] = 0
    return row


def _usable_bytes(machine: MachineState, zpool: str) -> int:
    """About 96 % of what the layout leaves: ZFS keeps the rest for itself."""
    pool = machine.zpools.get(zpool)
    sizes = [machine.disks[dev].spec.size for dev in pool.devices if dev in machine.disks] if pool else []
    if not sizes or pool is None:
        return 0
    parity = {"raidz1": 1, "raidz2": 2, "raidz3": 3}.get(pool.layout)
    if pool.layout == "mirror":
        raw = min(sizes)
    elif parity is not None:
        raw = min(sizes) * (len(sizes) - parity)
    else:
        raw = sum(sizes)
    return int(raw * 0.96)


def _split(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Flags with their values, and the words of the command."""
    valued = {"--output-version", "--nodes", "-n", "--storage-pools", "-s", "--controllers"}
    flags: dict[str, str] = {}
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        name, _, value = word.partition("=")
        if not word.startswith("-"):
            words.append(word)
        elif name in valued:
            flags[name] = value or next(rest, "")
        else:
            flags[name] = "true"
    return flags, words


def _selected(row: Object, key: str, flags: Mapping[str, str], names: tuple[str, ...]) -> bool:
    chosen = next((flags[name] for name in names if name in flags), "")
    return not chosen or any(fnmatchcase(str(row[key]), part) for part in chosen.split(","))


def _table(rows: list[Object]) -> str:
    columns = [[str(value) for value in row.values() if isinstance(value, str | int)] for row in rows]
    return "".join("| " + " | ".join(column) + " |\n" for column in columns)


def _uuid(*parts: str) -> str:
    return str(uuid.uuid5(_ID_SPACE, "/".join(parts)))


def as_json(answer: Answer) -> dict[str, Any]:
    """How an answer travels over the control socket to the stub tools."""
    return {"stdout": answer.stdout, "stderr": answer.stderr, "code": answer.code}
