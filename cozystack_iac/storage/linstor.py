"""LINSTOR as data: the objects that register a pool, and what the controller's machine output says. Pure.

`linstor -m --output-version v1` prints a list of lists; older clients print other shapes. Whatever cannot be read is
unknown, never "no pools": the operator runbook's gate passed exactly there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

NAMESPACE = "cozy-linstor"
RELEASES = ("cozy-linstor/linstor",)  # what brings it
CONTROLLER = "linstor-controller"  # Deployment, Service and container share the name
ZFS_PROVIDERS = frozenset({"ZFS", "ZFS_THIN"})
DRBD = "DRBD"
CAPACITY_TOLERANCE = 0.05  # LINSTOR asks for the same `size`; more than this apart is another zpool, or one that grew

# `-m` alone prints what the client's version likes best; v1 has been the REST API's own words since 2019.
_MACHINE = ["linstor", "-m", "--output-version", "v1"]
LIST_NODES = [*_MACHINE, "node", "list"]
LIST_POOLS = [*_MACHINE, "storage-pool", "list"]
LIST_DEVICES = [*_MACHINE, "physical-storage", "list"]
LIST_RESOURCES = [*_MACHINE, "resource", "list"]

# Connection states by number, as the old output has them (linstor-common, `ConnectionStatus`).
_CONNECTIONS = ("OFFLINE", "CONNECTED", "ONLINE")

T = TypeVar("T")


def list_resources(node: str) -> list[str]:
    """The command that lists what lives on one node."""
    return [*LIST_RESOURCES, "--nodes", node]


def list_errors(node: str) -> list[str]:
    """The command that lists the error reports of one node."""
    return [*_MACHINE, "error-reports", "list", "--nodes", node]


def evacuate_node(node: str) -> list[str]:
    """The command that has LINSTOR move every replica away; nothing new is placed on the node from then on."""
    return [*_MACHINE, "node", "evacuate", node]


def satellite_configuration(node: str, pool: str, zpool: str, devices: Sequence[str] = ()) -> dict[str, Any]:
    """The object that gives LINSTOR storage pool `pool` on one node: on a zpool that exists, or that it makes of `devices`."""
    entry: dict[str, Any] = {"name": pool, "zfsPool": {"zPool": zpool}}
    if devices:
        entry["source"] = {"hostDevices": list(devices)}
    return {
        "apiVersion": "piraeus.io/v1",
        "kind": "LinstorSatelliteConfiguration",
        "metadata": {"name": f"{pool}-{node}"},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "storagePools": [entry]},
    }


class Unreadable(ValueError):
    """The controller's answer has no shape we know, or is a refusal."""


@dataclass(frozen=True)
class NodeRow:
    """One LINSTOR node. `unsupported`: layers and providers it cannot use, with LINSTOR's reason."""

    node: str
    connection: str
    flags: frozenset[str] = frozenset()
    layers: frozenset[str] | None = None  # None: this version does not say
    unsupported: Mapping[str, str] | None = None

    @property
    def online(self) -> bool:
        return self.connection == "ONLINE"

    @property
    def without_drbd(self) -> str:
        """Why the node cannot replicate, in LINSTOR's words; empty when it can, or when LINSTOR does not say."""
        if self.layers is None or DRBD in self.layers:
            return ""
        return (self.unsupported or {}).get(DRBD) or "the satellite does not support DRBD"


@dataclass(frozen=True)
class PoolRow:
    """One storage pool on one node; sizes in KiB, as LINSTOR reports them (the total is `zpool get size`)."""

    node: str
    pool: str
    provider: str
    zpool: str
    total_kib: int | None
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResourceRow:
    """One resource on one node. `states`: of its volumes' disks, e.g. `UpToDate`, `Inconsistent`, `Unknown`."""

    name: str
    node: str
    diskless: bool = False
    in_use: bool = False
    layers: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    @property
    def replicated(self) -> bool:
        """Whether LINSTOR can copy it elsewhere; one whose layers are not told is left for LINSTOR to refuse."""
        return not self.layers or DRBD in self.layers

    @property
    def settled(self) -> bool:
        """Whether nothing is being copied to or from it. Diskless ones hold nothing that could be."""
        return self.diskless or all(state in ("UpToDate", "Created", "Attached") for state in self.states)

    def __str__(self) -> str:
        marks = [", ".join(self.states) if not self.settled else "", "in use" if self.in_use else ""]
        text = ", ".join(mark for mark in marks if mark)
        return f"{self.name} ({text})" if text else self.name


@dataclass(frozen=True)
class DeviceRow:
    """A disk that LINSTOR would take: it carries no signature of any kind."""

    node: str
    device: str
    serial: str = ""
    wwn: str = ""
    size_bytes: int = 0


def node_rows(output: str) -> tuple[NodeRow, ...]:
    """Rows of `node list`; satellites only. Raises Unreadable."""
    rows = [row for row in _rows(output, "nodes", ("name",)) if "connection_status" in row or "type" in row]
    return _read(output, lambda: tuple(_node(row) for row in rows if _is_satellite(row)))


def pool_rows(output: str) -> tuple[PoolRow, ...]:
    """Rows of `storage-pool list`, diskless ones left out. Raises Unreadable."""
    rows = _rows(output, "stor_pools", ("storage_pool_name", "stor_pool_name"))
    return _read(output, lambda: tuple(row for row in map(_pool, rows) if not row.provider.startswith("DISKLESS")))


def resource_rows(output: str) -> tuple[ResourceRow, ...]:
    """Rows of `resource list`. Raises Unreadable."""
    rows = _rows(output, "resources", ("node_name",))
    return _read(output, lambda: tuple(map(_resource, rows)))


def device_rows(output: str) -> tuple[DeviceRow, ...]:
    """Rows of `physical-storage list`: one per node and device, whatever size they are grouped by. Raises Unreadable."""
    rows = _rows(output, "physical_storages", ("nodes",))
    return _read(output, lambda: tuple(device for row in rows for device in _devices(row)))


def error_texts(output: str) -> tuple[str, ...]:
    """What error reports say, newest first. Raises Unreadable."""
    rows = _rows(output, "error_reports", ("exception_message", "exception", "filename"))
    newest = sorted(rows, key=lambda row: _number(row.get("error_time")) or 0, reverse=True)
    return tuple(dict.fromkeys(str(r.get("exception_message") or r.get("exception") or r["filename"]) for r in newest))


def refusal(output: str) -> str:
    """Why LINSTOR refused a command that changes something; empty when it did not. Raises Unreadable."""
    replies = _read(output, lambda: list(_flat(json.loads(output or "[]"), "replies", ("ret_code",))))
    return "; ".join(_reply(reply) for reply in replies if _failed(reply))


# Reading --------------------------------------------------------------------------------------------------------------


def _rows(output: str, wrapper: str, marks: tuple[str, ...]) -> list[Mapping[str, Any]]:
    """The rows of a list, in any of the shapes LINSTOR's clients print. A list of replies instead is a refusal."""
    rows = _read(output, lambda: list(_flat(json.loads(output), wrapper, (*marks, "ret_code"))))
    replies = [row for row in rows if "ret_code" in row and not any(mark in row for mark in marks)]
    refused = [_reply(reply) for reply in replies if _failed(reply)]
    if refused:
        raise Unreadable("; ".join(refused))
    return [row for row in rows if row not in replies]


def _read(output: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        raise Unreadable(output.strip()[:300] or "the answer is empty") from None


def _flat(answer: Any, wrapper: str, marks: tuple[str, ...]) -> Iterable[Mapping[str, Any]]:
    """`[[row, …]]`, `[row, …]` and the legacy `[{"stor_pools": [row, …]}]` alike."""
    if not isinstance(answer, list):
        raise ValueError("the answer is not a list")
    for item in answer:
        if isinstance(item, list):
            yield from _flat(item, wrapper, marks)
        elif isinstance(item, dict) and wrapper in item:
            yield from _flat(item[wrapper], wrapper, marks)
        elif isinstance(item, dict) and any(mark in item for mark in marks):
            yield item
        else:
            raise ValueError("a row has an unknown format")


def _is_satellite(item: Mapping[str, Any]) -> bool:
    return str(item.get("type") or "SATELLITE").upper() in ("SATELLITE", "COMBINED")


def _node(item: Mapping[str, Any]) -> NodeRow:
    connection = item.get("connection_status")
    if isinstance(connection, int):
        connection = _CONNECTIONS[connection] if 0 <= connection < len(_CONNECTIONS) else "UNKNOWN"
    layers = item.get("resource_layers")
    reasons = {**(item.get("unsupported_providers") or {}), **(item.get("unsupported_layers") or {})}
    return NodeRow(
        node=str(item["name"]),
        connection=str(connection or "UNKNOWN").upper(),
        flags=frozenset(str(flag).upper() for flag in item.get("flags") or ()),
        layers=None if layers is None else frozenset(str(layer).upper() for layer in layers),
        unsupported={str(name).upper(): "; ".join(map(str, texts)) for name, texts in reasons.items()},
    )


def _pool(item: Mapping[str, Any]) -> PoolRow:
    space = item.get("free_space") or item
    return PoolRow(
        node=str(item.get("node_name") or ""),
        pool=str(item.get("storage_pool_name") or item.get("stor_pool_name") or ""),
        provider=_provider(item),
        zpool=_properties(item).get("StorDriver/StorPoolName", ""),
        total_kib=_number(space.get("total_capacity")),
        errors=tuple(_reply(report) for report in item.get("reports") or [] if _failed(report)),
    )


def _provider(item: Mapping[str, Any]) -> str:
    """`ZFS_THIN`; the old output says `ZfsThinDriver`."""
    if item.get("provider_kind"):
        return str(item["provider_kind"]).upper()
    driver = str(item.get("driver") or "").removesuffix("Driver")
    return f"{driver[:-4]}_THIN".upper() if driver.endswith("Thin") else driver.upper()


def _properties(item: Mapping[str, Any]) -> dict[str, str]:
    """A mapping; the old output has a list of keys and values."""
    props = item.get("props") or {}
    pairs = props.items() if isinstance(props, dict) else ((pair["key"], pair["value"]) for pair in props)
    return {str(key): str(value) for key, value in pairs}


def _resource(item: Mapping[str, Any]) -> ResourceRow:
    flags = {str(flag).upper() for flag in item.get("flags") or ()}
    layers = tuple(_layers(item.get("layer_object") or {}))
    silent = "Unknown" if not layers or DRBD in layers else ""  # DRBD has a state; that of a lost satellite is not told
    states = [(volume.get("state") or {}).get("disk_state") or silent for volume in item.get("volumes") or ()]
    return ResourceRow(
        name=str(item.get("name") or item["rsc_name"]),
        node=str(item["node_name"]),
        diskless=bool(flags & {"DISKLESS", "DRBD_DISKLESS", "TIE_BREAKER"}),
        in_use=bool((item.get("state") or {}).get("in_use")),
        layers=layers,
        states=tuple(str(state) for state in states if state),
    )


def _layers(layer: Mapping[str, Any]) -> Iterable[str]:
    if layer.get("type"):
        yield str(layer["type"]).upper()
    for child in layer.get("children") or ():
        yield from _layers(child)


def _devices(row: Mapping[str, Any]) -> Iterable[DeviceRow]:
    for node, devices in row["nodes"].items():
        for each in devices:
            size = _number(row.get("size")) or 0
            serial, wwn = str(each.get("serial") or ""), str(each.get("wwn") or "")
            yield DeviceRow(str(node), str(each["device"]), serial, wwn, size)


def _failed(reply: Mapping[str, Any]) -> bool:
    """Bit 63 of the code is LINSTOR's mark of an error, so the number is negative."""
    return int(reply["ret_code"]) < 0


def _reply(reply: Mapping[str, Any]) -> str:
    parts = [str(reply.get(key) or "") for key in ("message", "cause", "details")]
    return "; ".join(part for part in parts if part) or "LINSTOR reported an error without a message"


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


# Judging --------------------------------------------------------------------------------------------------------------


class PoolState(StrEnum):
    """What one expected pool is."""

    REGISTERED = "registered"
    MISSING = "not registered"
    OFFLINE = "satellite is not online"
    LEAVING = "being evacuated"
    WITHOUT_DRBD = "DRBD 9 is missing"
    FAULTY = "faulty"
    FOREIGN = "a different kind of pool"
    MISSIZED = "a different size than its zpool"


@dataclass(frozen=True)
class PoolStanding:
    node: str
    state: PoolState
    total_kib: int = 0
    detail: str = ""

    def __str__(self) -> str:
        size = f", {self.total_kib / 1024**2:.1f} GiB" if self.total_kib else ""
        return f"{self.state.value}{size}{f': {self.detail}' if self.detail else ''}"


def pool_standings(
    nodes: Iterable[str],
    pool: str,
    zpool: str,
    rows: Iterable[PoolRow],
    *,
    satellites: Iterable[NodeRow] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[PoolStanding, ...]:
    """One standing per expected node. A row with an error or without capacity exists, but is no storage.

    `satellites`: None where LINSTOR's nodes were not asked for. `sizes`: of the zpools in bytes, as far as they are known.
    """
    found = {row.node: row for row in rows if row.pool == pool}
    known = None if satellites is None else {row.node: row for row in satellites}
    return tuple(
        (_satellite_standing(node, known) if known is not None else None)
        or _pool_standing(node, zpool, found.get(node), (sizes or {}).get(node))
        for node in nodes
    )


def _satellite_standing(node: str, satellites: Mapping[str, NodeRow]) -> PoolStanding | None:
    """What keeps the whole node from being storage; None when nothing does."""
    row = satellites.get(node)
    if row is None:
        return PoolStanding(node, PoolState.OFFLINE, detail="LINSTOR does not know this node yet")
    if leaving := row.flags & {"EVACUATE", "EVICTED", "DELETE"}:
        return PoolStanding(node, PoolState.LEAVING, detail=f"it is flagged {', '.join(sorted(leaving))}")
    if not row.online:
        return PoolStanding(node, PoolState.OFFLINE, detail=row.connection)
    if row.without_drbd:
        return PoolStanding(node, PoolState.WITHOUT_DRBD, detail=row.without_drbd)
    return None


def _pool_standing(node: str, zpool: str, row: PoolRow | None, size_bytes: int | None) -> PoolStanding:
    if row is None:
        return PoolStanding(node, PoolState.MISSING)
    if row.provider not in ZFS_PROVIDERS or row.zpool.partition("/")[0] != zpool:
        return PoolStanding(node, PoolState.FOREIGN, detail=f"it is {row.provider} on {row.zpool or 'nothing'}")
    if row.errors:
        return PoolStanding(node, PoolState.FAULTY, row.total_kib or 0, "; ".join(row.errors))
    if not row.total_kib:
        return PoolStanding(node, PoolState.FAULTY, detail="no capacity is reported")
    if size_bytes and abs(row.total_kib * 1024 - size_bytes) > CAPACITY_TOLERANCE * size_bytes:
        return PoolStanding(node, PoolState.MISSIZED, row.total_kib, f"the zpool has {size_bytes / 1024**3:.1f} GiB")
    return PoolStanding(node, PoolState.REGISTERED, row.total_kib)


def pools_summary(standings: Iterable[PoolStanding]) -> str:
    """`cp1 registered, cp2 not registered`."""
    return ", ".join(f"{s.node} {s.state.value}" for s in standings)


def satellite_evidence(satellite: Mapping[str, Any] | None) -> str:
    """What the operator says of one node's satellite, in a line; empty when it has nothing to complain about."""
    if satellite is None:
        return "the operator has no LinstorSatellite for this node"
    conditions = (satellite.get("status") or {}).get("conditions") or ()
    bad = [f"{c['type']}: {c.get('message') or c.get('reason')}" for c in conditions if c.get("status") == "False"]
    return "; ".join(bad) if conditions else "the operator has not reconciled its LinstorSatellite yet"


def ready_endpoint(slices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any EndpointSlice has an endpoint that is ready (absent `ready` counts as ready, as Kubernetes defines it)."""
    return any(
        (endpoint.get("conditions") or {}).get("ready", True) is not False and endpoint.get("addresses")
        for item in slices
        for endpoint in item.get("endpoints") or []
    )
