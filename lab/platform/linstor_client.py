"""The `linstor` command of the simulated controller: what it knows, as machine output of every version, or as a table.

Pure over the world. What changes something (`node evacuate`, `node restore`) is carried out by the simulator in `linstor.py`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cozystack_iac.kube.client import Object
from lab.machines.selector import symlinks
from lab.platform.answer import Answer
from lab.platform.zpool import pool_bytes
from lab.scenario import LinstorSpec
from lab.world import MachineState, World

DISKLESS = "DfltDisklessStorPool"
ERROR = -4611686018427387000  # any code with LINSTOR's error bit is a negative number
_ID_SPACE = uuid.UUID("6d0c52e4-6f0c-4d55-8a53-3f0b0d0f3c11")
_CONNECTIONS = {"OFFLINE": 0, "CONNECTED": 1, "ONLINE": 2}
_DRIVERS = {"DISKLESS": "DisklessDriver", "ZFS": "ZfsDriver", "ZFS_THIN": "ZfsThinDriver"}
_SLOP = 32  # ZFS keeps 1/32 of a pool for itself; `available` is what is left


@dataclass
class Volume:
    """A resource of one volume: the state of its disk on every node that has a replica."""

    name: str
    replicas: dict[str, str]
    replicated: bool = True
    in_use: str | None = None  # the node where a pod has it mounted


@dataclass
class Registry:
    """What LINSTOR's controller knows. `pools`: (node, LINSTOR pool) -> zpool."""

    world: World
    pools: dict[tuple[str, str], str]
    address: Callable[[str], str]
    nodes: set[str] = field(default_factory=set)  # with a satellite, online or not
    online: set[str] = field(default_factory=set)
    evacuating: set[str] = field(default_factory=set)
    volumes: dict[str, Volume] = field(default_factory=dict)
    reports: list[Object] = field(default_factory=list)

    @property
    def spec(self) -> LinstorSpec:
        return self.world.scenario.platform.linstor

    def machine(self, node: str) -> MachineState | None:
        return self.world.machine_of_node(node) or self.world.machines.get(node)

    def kept_on(self, node: str) -> list[Volume]:
        return [volume for volume in self.volumes.values() if node in volume.replicas]

    def report(self, node: str, message: str) -> None:
        """An error report, once per text, as `error-reports list` shows it."""
        if any(r["node_name"] == node and r["exception_message"] == message for r in self.reports):
            return
        number = len(self.reports)
        stamp = int(self.world.clock.now() * 1000)
        self.reports.append(
            {
                "node_name": node,
                "error_time": stamp,
                "filename": f"ErrorReport-6A0BC3D4-{number:05X}-000000.log",
                "module": "SATELLITE",
                "exception": "StorageException",
                "exception_message": message,
            }
        )


def listing(registry: Registry, argv: list[str]) -> Answer:
    """`linstor … list`."""
    flags, words = split(argv)
    made = _LISTS.get(_LONG.get(words[0], words[0]) if words[1:2] in (["list"], ["l"]) else "")
    if made is None:
        return Answer(stderr=f"linstor: the lab does not know the command {' '.join(words)}\n", code=2)
    wrapper, rows = made
    nodes = ["--nodes", "-n"]
    found = [row for row in rows(registry) if _selected(row, "node_name", flags, nodes)]
    found = [row for row in found if _selected(row, "storage_pool_name", flags, ["--storage-pools", "-s"])]
    if not {"-m", "--machine-readable"} & flags.keys():
        return Answer(_table(found))
    return Answer(printed(found, wrapper, registry.spec.output))


def printed(rows: list[Object], wrapper: str, output: str) -> str:
    """Rows as the client of one version or another prints them. Error reports were never wrapped."""
    if output == "table":
        return _table(rows)
    if output == "legacy" and wrapper:
        return json.dumps([{wrapper: [_legacy(row) for row in rows]}]) + "\n"
    return json.dumps([rows] if output == "v1" and wrapper != "error_reports" else rows) + "\n"


def replies(*messages: str, failed: bool = False) -> Answer:
    """What a command that changes something says in machine form."""
    code = ERROR if failed else 1
    return Answer(
        json.dumps([{"ret_code": code, "message": each} for each in messages]) + "\n", code=10 if failed else 0
    )


# Rows -----------------------------------------------------------------------------------------------------------------


def _node_rows(registry: Registry) -> Iterator[Object]:
    for node in sorted(registry.nodes):
        reason = registry.spec.without_drbd.get(node)
        layers = ["STORAGE", "LUKS", "NVME"] if reason else ["DRBD", "STORAGE", "LUKS", "NVME"]
        interface = {"name": "default-ipv4", "address": registry.address(node), "satellite_port": 3367}
        yield {
            "name": node,
            "node_name": node,  # not LINSTOR's; only `--nodes` looks at it
            "type": "SATELLITE",
            "flags": ["EVACUATE"] if node in registry.evacuating else [],
            "connection_status": "ONLINE" if node in registry.online else "OFFLINE",
            "net_interfaces": [interface | {"is_active": True, "satellite_encryption_type": "SSL"}],
            "resource_layers": layers,
            "storage_providers": ["DISKLESS", "LVM", "LVM_THIN", "ZFS", "ZFS_THIN", "FILE", "FILE_THIN"],
            "unsupported_layers": {"DRBD": [reason]} if reason else {},
            "uuid": _uuid(node),
        }


def _pool_rows(registry: Registry) -> Iterator[Object]:
    for node in sorted(registry.nodes):
        yield {
            "storage_pool_name": DISKLESS,
            "node_name": node,
            "provider_kind": "DISKLESS",
            "static_traits": {"SupportsSnapshots": "false"},
            "free_space_mgr_name": f"{node};{DISKLESS}",
            "supports_snapshots": False,
            "uuid": _uuid(node, DISKLESS),
        }
        machine = registry.machine(node)
        for (owner, name), zpool in sorted(registry.pools.items()):
            if owner == node and machine is not None:
                yield _pool_row(registry, machine, node, name, zpool)


def _pool_row(registry: Registry, machine: MachineState, node: str, name: str, zpool: str) -> Object:
    pool = machine.zpools.get(zpool.partition("/")[0])
    total = pool_bytes(machine, pool) // 1024 if pool else 0
    row: Object = {
        "storage_pool_name": name,
        "node_name": node,
        "provider_kind": "ZFS",
        "props": {"StorDriver/StorPoolName": zpool},
        "static_traits": {"Provisioning": "Fat", "SupportsSnapshots": "true"},
        "free_capacity": total - total // _SLOP,
        "total_capacity": total,
        "free_space_mgr_name": f"{node};{name}",
        "supports_snapshots": True,
        "external_locking": False,
        "uuid": _uuid(node, name),
    }
    fault = registry.spec.pool_errors.get(node) or (
        ""
        if pool and pool.health in ("ONLINE", "DEGRADED")
        else f"Failed to query free space: zpool '{zpool}' is not there"
    )
    if fault:
        row |= {"reports": [{"ret_code": ERROR, "message": fault}], "free_capacity": 0, "total_capacity": 0}
        registry.report(node, fault)
    return row


def _resource_rows(registry: Registry) -> Iterator[Object]:
    for volume in registry.volumes.values():
        for node, state in volume.replicas.items():
            storage = {"type": "STORAGE"}
            told = {"state": {"disk_state": state}} if node in registry.online else {}
            yield {
                "name": volume.name,
                "node_name": node,
                "flags": ["EVACUATE"] if node in registry.evacuating else [],
                "layer_object": {"type": "DRBD", "children": [storage]} if volume.replicated else storage,
                "state": {"in_use": volume.in_use == node},
                "volumes": [{"volume_number": 0, "storage_pool_name": "data", "provider_kind": "ZFS", **told}],
                "uuid": _uuid(volume.name, node),
            }


def _device_rows(registry: Registry) -> Iterator[Object]:
    """Disks without any signature, on nodes that are online."""
    for node in sorted(registry.online):
        machine = registry.machine(node)
        for disk in machine.disks.values() if machine is not None else ():
            if disk.in_use or disk.residue is not None or disk.spec.readonly or disk.spec.cdrom:
                continue
            wwn = disk.spec.wwid.replace("naa.", "0x", 1)
            device = {"device": disk.path, "model": disk.spec.model, "serial": disk.spec.serial, "wwn": wwn}
            yield {"size": disk.spec.size, "rotational": disk.spec.rotational, "nodes": {node: [device]}}


def device_of(machine: MachineState, path: str) -> str | None:
    """Which disk a path of `source.hostDevices` leads to."""
    for disk in machine.disks.values():
        if path in (disk.path, *symlinks(disk.spec)):
            return disk.dev
    return None


_LISTS: Mapping[str, tuple[str, Callable[[Registry], Iterable[Object]]]] = {
    "node": ("nodes", _node_rows),
    "storage-pool": ("stor_pools", _pool_rows),
    "resource": ("resources", _resource_rows),
    "physical-storage": ("", _device_rows),
    "error-reports": ("error_reports", lambda registry: registry.reports),
}
_LONG = {"n": "node", "sp": "storage-pool", "r": "resource", "ps": "physical-storage", "err": "error-reports"}


# Words ----------------------------------------------------------------------------------------------------------------


def split(argv: list[str]) -> tuple[dict[str, str], list[str]]:
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


def _selected(row: Object, key: str, flags: Mapping[str, str], names: list[str]) -> bool:
    chosen = next((flags[name] for name in names if name in flags), "")
    return not chosen or key not in row or any(fnmatchcase(str(row[key]), part) for part in chosen.split(","))


def _legacy(row: Object) -> Object:
    """The same row as clients before 1.0 printed it."""
    old = {**row, "props": [{"key": key, "value": value} for key, value in (row.get("props") or {}).items()]}
    if "connection_status" in row:
        old["connection_status"] = _CONNECTIONS[row["connection_status"]]
    if "storage_pool_name" in row and "provider_kind" in row:
        old["stor_pool_name"] = old.pop("storage_pool_name")
        old["driver"] = _DRIVERS[old.pop("provider_kind")]
        if "total_capacity" in row:
            old["free_space"] = {key: old.pop(key) for key in ("free_capacity", "total_capacity")}
    return old


def _table(rows: list[Object]) -> str:
    columns = [[str(value) for value in row.values() if isinstance(value, str | int)] for row in rows]
    return "".join("| " + " | ".join(column) + " |\n" for column in columns)


def _uuid(*parts: str) -> str:
    return str(uuid.uuid5(_ID_SPACE, "/".join(parts)))
