"""Releases of a platform, and an API server made of dictionaries that tells of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from cozystack_iac.kube.client import ExecResult, NotFound, Object, Ref, Refused, Snapshot
from cozystack_iac.readiness.view import PACKAGES, RELEASES, SOURCES

PLATFORM = "cozystack.cozystack-platform"
READY = {"type": "Ready", "status": "True", "reason": "InstallSucceeded", "message": "done"}
INSTALLING = {
    "type": "Ready",
    "status": "Unknown",
    "reason": "Progressing",
    "message": "Running 'install' action with t",
}
STALLED = [
    {"type": "Ready", "status": "False", "reason": "InstallFailed", "message": "Helm install failed: disk full"},
    {
        "type": "Stalled",
        "status": "True",
        "reason": "RetriesExceeded",
        "message": "Failed to install after 1 attempt(s)",
    },
]


def release(name: str, *conditions: object, needs: tuple[str, ...] = ()) -> Object:
    return {
        "metadata": {
            "namespace": "cozy-system",
            "name": name,
            "generation": 1,
            "labels": {"cozystack.io/package": "p"},
        },
        "spec": {"dependsOn": [{"name": n} for n in needs]},
        "status": {"observedGeneration": 1, "conditions": list(conditions)},
    }


class Cluster:
    """Answers like `Kube`; `put` changes the world and tells the watches, unless they are `cut`."""

    def __init__(self, *releases: Object) -> None:
        install = {"namespace": "cozy-system", "releaseName": "cozystack-platform"}
        variant = {"name": "default", "components": [{"name": "platform", "install": install}]}
        self.world: dict[Ref, dict[tuple[str, str], Object] | None] = {
            RELEASES: {},
            PACKAGES: {("", PLATFORM): {"metadata": {"name": PLATFORM}, "status": {"conditions": [READY]}}},
            SOURCES: {("", PLATFORM): {"metadata": {"name": PLATFORM}, "spec": {"variants": [variant]}}},
        }
        self.cut = False
        self.trouble: Exception | None = None
        self.pools: list[str] = []
        self.asked = 0
        self.watches: list[str] = []
        self._changed = asyncio.Condition()
        for obj in releases:
            self._set(obj)

    def _set(self, obj: Object) -> None:
        kind = self.world[RELEASES]
        assert kind is not None
        kind["cozy-system", obj["metadata"]["name"]] = obj

    async def put(self, obj: Object) -> None:
        self._set(obj)
        async with self._changed:
            self._changed.notify_all()

    async def watch(self, ref: Ref, *, selector: str = "") -> AsyncIterator[Snapshot]:
        if isinstance(self.trouble, Refused):
            raise self.trouble
        self.watches.append(ref.plural)
        while True:
            kind = self.world.get(ref)
            if not self.cut and self.trouble is None:
                yield Snapshot(None if kind is None else dict(kind))
            async with self._changed:
                await self._changed.wait()

    async def objects(self, ref: Ref, *, selector: str = "") -> list[Object]:
        self._answer()
        if ref.plural == "pods" and ref.namespace:
            return [{"metadata": {"name": "linstor-controller-0"}, "status": {"phase": "Running"}}]
        kind = self.world.get(ref)
        if kind is None:
            raise NotFound(404, "NotFound", "no such kind")
        self.asked += 1
        return list(kind.values())

    async def text(self, path: str) -> str:
        self._answer()
        return "{}"

    async def raw(self, path: str) -> Object:
        return json.loads(await self.text(path))  # type: ignore[no-any-return]

    async def find(self, ref: Ref) -> Object | None:
        return None

    async def exec(self, _namespace: str, _pod: str, _container: str, argv: list[str], **__: Any) -> ExecResult:
        if "node" in argv:
            online = {"type": "SATELLITE", "connection_status": "ONLINE"}
            return ExecResult(json.dumps([[{"name": n, **online} for n in ("cp1", "cp2")]]), "", ok=True)
        row = {"storage_pool_name": "data", "provider_kind": "ZFS", "total_capacity": 1}
        rows = [{**row, "node_name": n, "props": {"StorDriver/StorPoolName": "data"}} for n in self.pools]
        return ExecResult(json.dumps([rows]), "", ok=True)

    def _answer(self) -> None:
        if self.trouble is not None:
            raise self.trouble
