"""Releases of a platform, and an API server made of dictionaries that tells of them."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx

from cozystack_iac.kube.client import Kube, KubeError, Object, Ref, Refused
from cozystack_iac.readiness.view import PACKAGES, RELEASES, SOURCES
from lab.memory.shell import Shell

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
    """An API server of releases (`answer`). `put` changes the world and tells the watches, which hear nothing while they
    are `cut`. `trouble`: no call is answered, or each is refused."""

    def __init__(self, *releases: Object) -> None:
        install = {"namespace": "cozy-system", "releaseName": "cozystack-platform"}
        variant = {"name": "default", "components": [{"name": "platform", "install": install}]}
        self.world: dict[Ref, dict[str, Object] | None] = {
            RELEASES: {},
            PACKAGES: {PLATFORM: {"metadata": {"name": PLATFORM}, "status": {"conditions": [READY]}}},
            SOURCES: {PLATFORM: {"metadata": {"name": PLATFORM}, "spec": {"variants": [variant]}}},
        }
        self.cut = False
        self.trouble: KubeError | None = None
        self.pools: list[str] = []
        self.lists: list[str] = []
        self.watches: list[str] = []
        self._puts: list[Object] = []
        self._changed = asyncio.Condition()
        for obj in releases:
            self._set(obj)

    @property
    def kube(self) -> Kube:
        return Kube(httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="https://api.test"))

    async def put(self, obj: Object) -> None:
        self._set(obj)
        self._puts.append(obj)
        async with self._changed:
            self._changed.notify_all()

    def answer(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.trouble, Refused):
            said = {"reason": self.trouble.reason, "message": self.trouble.message}
            return httpx.Response(self.trouble.status, json=said)
        if self.trouble is not None:
            raise httpx.ConnectError(str(self.trouble))
        path, query = request.url.path, request.url.params
        if path.endswith("/exec"):
            shell = Shell(self._linstor, {}, query.get_list("command"), lost=lambda: False)
            return httpx.Response(101, extensions={"network_stream": shell})
        if path.endswith("/pods") and "/namespaces/" in path:
            pod = {"metadata": {"name": "linstor-controller-0"}, "status": {"phase": "Running"}}
            return httpx.Response(200, json={"items": [pod]})
        if path == "/version":
            return httpx.Response(200, json={})
        ref = next((ref for ref in self.world if ref.path == path), None)
        kind = self.world[ref] if ref is not None else None
        if ref is None or kind is None:
            return httpx.Response(404, json={"reason": "NotFound", "message": "no such kind"})
        if query.get("watch"):
            self.watches.append(ref.plural)
            return httpx.Response(200, stream=_Puts(self, ref, int(query["resourceVersion"])))
        self.lists.append(ref.plural)
        metadata = {"resourceVersion": str(len(self._puts))}
        return httpx.Response(200, json={"metadata": metadata, "items": list(kind.values())})

    async def since(self, version: int) -> list[Object]:
        """What was put after this version, once a watch may hear of it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not (self.cut or self.trouble) and len(self._puts) > version)
        return self._puts[version:]

    def _set(self, obj: Object) -> None:
        kind = self.world[RELEASES]
        assert kind is not None
        kind[obj["metadata"]["name"]] = obj

    async def _linstor(self, _pod: Object, argv: list[str]) -> tuple[str, str, int]:
        if "node" in argv:
            online = {"type": "SATELLITE", "connection_status": "ONLINE"}
            return json.dumps([[{"name": n, **online} for n in ("cp1", "cp2")]]), "", 0
        row = {"storage_pool_name": "data", "provider_kind": "ZFS", "total_capacity": 1}
        rows = [{**row, "node_name": n, "props": {"StorDriver/StorPoolName": "data"}} for n in self.pools]
        return json.dumps([rows]), "", 0


class _Puts(httpx.AsyncByteStream):
    """The body of a watch. Only releases change here."""

    def __init__(self, cluster: Cluster, ref: Ref, version: int) -> None:
        self._cluster, self._ref, self._version = cluster, ref, version

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            news = await self._cluster.since(self._version)
            self._version += len(news)
            if self._ref == RELEASES:
                yield b"".join(json.dumps({"type": "MODIFIED", "object": each}).encode() + b"\n" for each in news)
