"""LINSTOR as data: the objects that register a pool, and what the controller's machine output means. Pure.

`linstor -m --output-version v1` prints a list of lists; older clients print other shapes. Whatever cannot be read is
unknown, never "no pools": the operator runbook's gate passed exactly there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NAMESPACE = "cozy-linstor"
CONTROLLER = "linstor-controller"  # Deployment, Service and container share the name
LIST_POOLS = ["linstor", "-m", "--output-version", "v1", "storage-pool", "list"]
ZFS_PROVIDERS = frozenset({"ZFS", "ZFS_THIN"})


def satellite_configuration(node: str, pool: str, zpool: str) -> dict[str, Any]:
    """The object that makes LINSTOR use an existing zpool on one node as storage pool `pool`."""
    return {
        "apiVersion": "piraeus.io/v1",
        "kind": "LinstorSatelliteConfiguration",
        "metadata": {"name": f"{pool}-{node}"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "storagePools": [{"name": pool, "zfsPool": {"zPool": zpool}}],
        },
    }


class Unreadable(ValueError):
    """The controller's answer has no shape we know."""


@dataclass(frozen=True)
class PoolRow:
    """One storage pool on one node; sizes in KiB, as LINSTOR reports them."""

    node: str
    pool: str
    provider: str
    zpool: str
    free_kib: int | None
    total_kib: int | None
    errors: tuple[str, ...] = ()


def pool_rows(output: str) -> tuple[PoolRow, ...]:
    """Rows of `linstor -m storage-pool list`, diskless ones left out. Raises Unreadable."""
    try:
        rows = list(_flat(json.loads(output)))
    except (ValueError, TypeError, AttributeError):
        raise Unreadable(output.strip()[:300] or "empty answer") from None
    return tuple(row for row in map(_row, rows) if row.provider != "DISKLESS")


def _flat(answer: Any) -> Iterable[Mapping[str, Any]]:
    """`[[row, …]]`, `[row, …]` and the legacy `[{"stor_pools": [row, …]}]` alike."""
    if not isinstance(answer, list):
        raise ValueError("not a list")
    for item in answer:
        if isinstance(item, list):
            yield from _flat(item)
        elif isinstance(item, dict) and "stor_pools" in item:
            yield from _flat(item["stor_pools"])
        elif isinstance(item, dict) and ("storage_pool_name" in item or "stor_pool_name" in item):
            yield item
        else:
            raise ValueError("not a pool")


def _row(item: Mapping[str, Any]) -> PoolRow:
    provider = str(item.get("provider_kind") or item.get("driver") or "").removesuffix("Driver").upper()
    reports = item.get("reports") or []
    return PoolRow(
        node=str(item.get("node_name") or ""),
        pool=str(item.get("storage_pool_name") or item.get("stor_pool_name") or ""),
        provider=provider,
        zpool=str((item.get("props") or {}).get("StorDriver/StorPoolName") or ""),
        free_kib=_number(item.get("free_capacity")),
        total_kib=_number(item.get("total_capacity")),
        errors=tuple(
            str(r.get("message") or r) for r in reports if isinstance(r, dict) and int(r.get("ret_code", 0)) < 0
        ),
    )


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None


class PoolState(StrEnum):
    """What one expected pool is."""

    REGISTERED = "registered"
    MISSING = "not registered"
    FAULTY = "faulty"
    FOREIGN = "another kind of pool"


@dataclass(frozen=True)
class PoolStanding:
    node: str
    state: PoolState
    total_kib: int = 0
    detail: str = ""


def pool_standings(nodes: Iterable[str], pool: str, zpool: str, rows: Iterable[PoolRow]) -> tuple[PoolStanding, ...]:
    """One standing per expected node. A row with an error or without capacity exists, but is no storage."""
    found = {row.node: row for row in rows if row.pool == pool}
    return tuple(_pool_standing(node, zpool, found.get(node)) for node in nodes)


def _pool_standing(node: str, zpool: str, row: PoolRow | None) -> PoolStanding:
    if row is None:
        return PoolStanding(node, PoolState.MISSING)
    if row.provider not in ZFS_PROVIDERS or row.zpool.partition("/")[0] != zpool:
        return PoolStanding(node, PoolState.FOREIGN, detail=f"{row.provider} on {row.zpool or 'nothing'}")
    if row.errors:
        return PoolStanding(node, PoolState.FAULTY, row.total_kib or 0, "; ".join(row.errors))
    if not row.total_kib:
        return PoolStanding(node, PoolState.FAULTY, detail="no capacity reported")
    return PoolStanding(node, PoolState.REGISTERED, row.total_kib)


def pools_summary(standings: Iterable[PoolStanding]) -> str:
    """`cp1 registered, cp2 not registered`."""
    return ", ".join(f"{s.node} {s.state.value}" for s in standings)


def ready_endpoint(slices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any EndpointSlice has an endpoint that is ready (absent `ready` counts as ready, as Kubernetes defines it)."""
    return any(
        (endpoint.get("conditions") or {}).get("ready", True) is not False and endpoint.get("addresses")
        for item in slices
        for endpoint in item.get("endpoints") or []
    )
