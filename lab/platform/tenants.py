"""The aggregated API apps.cozystack.io: a real APIService, served from loopback, over HelmReleases.

A Tenant `root` in namespace `tenant-root` *is* the HelmRelease tenant-root/tenant-root: its spec is that release's values.
The APIService points at a Service of type ExternalName `localhost`, which the API server's aggregator resolves by itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

from cozystack_iac.kube.client import Object, Refused
from lab import pki
from lab.platform import objects, web
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.objects import SYSTEM, kind_ref
from lab.platform.timing import APISERVICE_S
from lab.platform.web import Request, Response

GROUP = "apps.cozystack.io"
VERSION = "v1alpha1"
PREFIX = "tenant-"
API_RELEASE = "cozy-system/cozystack-api"
KIND_RELEASE = "cozy-system/tenant-rd"
BASE = f"/apis/{GROUP}/{VERSION}"
MERGE_PATCH = "application/merge-patch+json"
KIND_LABEL = "apps.cozystack.io/application.kind"


class Tenants:
    def __init__(self, platform: Platform, effects: ReleaseEffects) -> None:
        self._platform = platform
        self._hub = platform.hub
        self._releases = platform.hub.store(kind_ref("HelmRelease"))
        self._authority = pki.new_authority("cozystack-api-ca")
        self._port = _free_port()
        self._open = False
        apis = [c.apis for p in platform.known.packages for c in p.components if c.ref == API_RELEASE]
        self._apis = apis[0] if apis else ()
        effects.when_starting(API_RELEASE, self._register)
        effects.when_applied(API_RELEASE, self._up)

    # The API's own life -----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        """The chart's objects are there long before its pods: the API is known, and unavailable."""
        service = objects.new(
            "Service",
            "cozystack-api",
            SYSTEM,
            spec={"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self._port}]},
        )
        await self._hub.create(service)
        await self._hub.create(objects.deployment("cozystack-api", SYSTEM, replicas=2))
        for name in self._apis:
            version, group = name.split(".", 1)
            body = objects.new(
                "APIService",
                name,
                spec={
                    "group": group,
                    "version": version,
                    "groupPriorityMinimum": 1000,
                    "versionPriority": 15,
                    "service": {"name": "cozystack-api", "namespace": SYSTEM, "port": self._port},
                },
            )
            await self._hub.create(body)

    async def _up(self) -> None:
        if self._open:
            return
        self._open = True
        names = ["localhost", f"cozystack-api.{SYSTEM}.svc", "127.0.0.1"]
        tls = web.context(pki.issue_serving(self._authority, "cozystack-api", names))
        server = await web.serve(self.answer, "127.0.0.1", self._port, tls)
        self._hub.spawn(_until_cancelled(server), name="tenants API")
        self._hub.spawn(self._trusted(), name="tenants API trust")

    async def _trusted(self) -> None:
        """A moment later cainjector has written the CA: only now the aggregator accepts the backend."""
        await self._platform.sleep(APISERVICE_S)
        bundle = objects.base64_text(self._authority.crt)
        for name in self._apis:
            await self._hub.patch(kind_ref("APIService", name=name), {"spec": {"caBundle": bundle}})
        self._platform.world.log.record("tenants API", "available")

    # Requests ---------------------------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        """One request of the aggregator."""
        try:
            return await self._route(request)
        except Refused as refused:
            return _status(refused.status, refused.reason, str(refused))
        except ValueError as error:
            return _status(400, "BadRequest", str(error))

    async def _route(self, request: Request) -> Response:
        path = request.path.rstrip("/")
        discovery = self._discovery(path)
        if discovery is not None:
            return Response.of(discovery)
        if not path.startswith(BASE) or not self._kind_known():
            return _status(404, "NotFound", "the server could not find the requested resource")
        parts = path.removeprefix(BASE).strip("/").split("/")
        namespace = parts[1] if parts[0] == "namespaces" and len(parts) > 2 else ""
        rest = parts[2:] if namespace else parts
        if rest[0] != "tenants" or len(rest) > 2:
            return _status(404, "NotFound", "the server could not find the requested resource")
        if len(rest) == 2:
            return await self._one(request, namespace, rest[1])
        if request.method != "GET":
            return _status(405, "MethodNotAllowed", f"the lab does not do {request.method} on tenants")
        if request.query.get("watch") in ("true", "1"):
            return Response(stream=self._watch(request, namespace))
        return Response.of(self._list(request, namespace))

    async def _one(self, request: Request, namespace: str, name: str) -> Response:
        release = self._release(namespace, name)
        if release is None:
            return _status(404, "NotFound", f'tenants.{GROUP} "{name}" not found')
        if request.method == "GET":
            return Response.of(_as_asked(request, tenant(release)))
        if request.method not in ("PATCH", "PUT"):
            return _status(405, "MethodNotAllowed", f"the lab does not do {request.method} on tenants")
        if request.method == "PATCH" and not request.headers.get("content-type", "").startswith(MERGE_PATCH):
            return _status(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        return await self._change(request, namespace, name, release)

    async def _change(self, request: Request, namespace: str, name: str, release: Object) -> Response:
        body = request.json()
        if not isinstance(body, dict):
            raise ValueError("a tenant is an object")
        current = tenant(release)
        wanted = body if request.method == "PUT" else merge(current, body)
        spec = wanted.get("spec") or {}
        hidden = {k: v for k, v in ((release.get("spec") or {}).get("values") or {}).items() if k.startswith("_")}
        before = (release.get("spec") or {}).get("values") or {}
        values = {**dict.fromkeys(before.keys() - spec.keys() - hidden.keys()), **spec}
        ref = kind_ref("HelmRelease", namespace, PREFIX + name)
        dry_run = request.query.get("dryRun") == "All"
        patch = {"spec": {"values": values}}
        changed = await self._hub.kube.merge_patch(ref, patch, dry_run=dry_run)
        if not dry_run and spec != current["spec"]:
            self._platform.world.log.record(f"tenant {name}", "patched", spec=spec)
        return Response.of(tenant(changed))

    def _list(self, request: Request, namespace: str) -> Object:
        items = [_as_asked(request, tenant(release)) for release in self._all(namespace)]
        versions = [int(item["metadata"]["resourceVersion"]) for item in items]
        kind = (
            ("PartialObjectMetadataList", "meta.k8s.io/v1")
            if _partial(request)
            else ("TenantList", f"{GROUP}/{VERSION}")
        )
        return {
            "kind": kind[0],
            "apiVersion": kind[1],
            "metadata": {"resourceVersion": str(max(versions, default=1))},
            "items": items,
        }

    async def _watch(self, request: Request, namespace: str) -> AsyncIterator[bytes]:
        """Changes after the given version; everything first, with a bookmark, when the client asks for it."""
        known: dict[str, Object] = {}
        initial = request.query.get("sendInitialEvents") == "true"
        if not initial:
            known = {tenant(r)["metadata"]["name"]: tenant(r) for r in self._all(namespace)}
        deadline = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds") or 300)
        while True:
            change = self._releases.next_change()
            now = {tenant(r)["metadata"]["name"]: tenant(r) for r in self._all(namespace)}
            for name in known.keys() - now.keys():
                yield _event("DELETED", _as_asked(request, known[name]))
            for name, item in now.items():
                if item != known.get(name):
                    yield _event("MODIFIED" if name in known else "ADDED", _as_asked(request, item))
            known = now
            if initial:
                initial = False
                yield _event("BOOKMARK", _bookmark(self._list(request, namespace)))
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait({change}, timeout=left)

    def _all(self, namespace: str) -> list[Object]:
        return [
            release
            for (where, _), release in sorted(self._releases.objects.items())
            if (release["metadata"].get("labels") or {}).get(KIND_LABEL) == "Tenant" and namespace in ("", where)
        ]

    def _release(self, namespace: str, name: str) -> Object | None:
        return next((r for r in self._all(namespace) if tenant(r)["metadata"]["name"] == name), None)

    def _kind_known(self) -> bool:
        return self._platform.schedule.ready(KIND_RELEASE)

    def _discovery(self, path: str) -> Object | None:
        for name in self._apis:
            version, group = name.split(".", 1)
            if path == f"/apis/{group}/{version}":
                resources = [_RESOURCE] if group == GROUP and self._kind_known() else []
                return {
                    "kind": "APIResourceList",
                    "apiVersion": "v1",
                    "groupVersion": f"{group}/{version}",
                    "resources": resources,
                }
            if path == f"/apis/{group}":
                preferred = {"groupVersion": f"{group}/{version}", "version": version}
                return {
                    "kind": "APIGroup",
                    "apiVersion": "v1",
                    "name": group,
                    "versions": [preferred],
                    "preferredVersion": preferred,
                }
        return None


_RESOURCE = {
    "name": "tenants",
    "singularName": "tenant",
    "namespaced": True,
    "kind": "Tenant",
    "verbs": ["get", "list", "watch", "patch", "update"],
}


def tenant(release: Object) -> Object:
    """The Tenant that a HelmRelease stands for: values without hidden keys, conditions as they are."""
    meta, spec, status = release["metadata"], release.get("spec") or {}, release.get("status") or {}
    name = meta["name"].removeprefix(PREFIX)
    values: Mapping[str, Any] = spec.get("values") or {}
    conditions = [c for c in status.get("conditions") or () if c.get("type") in ("Ready", "Released")]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Tenant",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "generation": meta.get("generation", 1),
            "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {key: value for key, value in values.items() if not key.startswith("_")},
        "status": {
            "conditions": conditions,
            "version": "0.0.0",
            "namespace": f"tenant-{name}",
            "externalIPsCount": 0,
        },
    }


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def _partial(request: Request) -> bool:
    """Controllers that only look at metadata (garbage collection) ask for it this way."""
    return "as=PartialObjectMetadata" in request.headers.get("accept", "")


def _as_asked(request: Request, item: Object) -> Object:
    if not _partial(request):
        return item
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]}


def _bookmark(listed: Object) -> Object:
    kind = str(listed["kind"]).removesuffix("List")
    return {
        "kind": kind,
        "apiVersion": listed["apiVersion"],
        "metadata": {
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "annotations": {"k8s.io/initial-events-end": "true"},
        },
    }


def _event(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, reason: str, message: str) -> Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return Response.of(body, code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _until_cancelled(server: asyncio.Server) -> None:
    async with server:
        await server.serve_forever()
