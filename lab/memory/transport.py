"""The way from the product's own client to the API in memory: HTTP as the real API server speaks it, without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

import httpx

from cozystack_iac.kube.client import NotFound, Object, Refused, Unavailable
from lab.memory import fields, wire
from lab.memory.aggregation import Aggregator
from lab.memory.api import NO_RESOURCE, MemoryApi, Target
from lab.memory.feed import Feed
from lab.memory.shell import PROTOCOL, Command, Shell
from lab.platform.manifests import LOG

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_HEALTH = ("/readyz", "/livez", "/healthz")


class MemoryTransport(httpx.AsyncBaseTransport):
    """One client's way to a cluster in memory.

    `inside`: a component of the cluster, which no outage of the way to the API server concerns. `command` runs what is
    executed in a pod; None from it means that the container has no such program.
    """

    def __init__(self, api: MemoryApi, encoder: wire.Encoder, command: Command, *, inside: bool) -> None:
        self._api, self._encoder, self._command, self._inside = api, encoder, command, inside
        self._aggregator = Aggregator(api)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        if self._api.away and not self._inside:
            raise httpx.ConnectError("All connection attempts failed", request=request)
        lost = self._connected()
        try:
            response = await self._answer(request, lost)
        except Refused as refused:
            response = wire.response(refused.status, wire.encoded(wire.failure(refused)))
        if lost():
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        return response

    async def aclose(self) -> None:
        await self._aggregator.aclose()

    def _connected(self) -> Callable[[], bool]:
        """A connection that begins now: whether an outage has cut it."""
        outages = self._api.outages
        return lambda: not self._inside and self._api.outages != outages

    async def _answer(self, request: httpx.Request, lost: Callable[[], bool]) -> httpx.Response:
        path, query = request.url.path, request.url.params
        parts = path.strip("/").split("/")
        if path in _HEALTH:
            return wire.response(200, b"ok", {"Content-Type": "text/plain"})
        service = self._aggregator.service(parts)
        if len(parts) <= (2 if parts[0] == "api" else 3):
            return await self._aggregator.ask(service, request) if service else self._discovered(path, parts)
        if service is not None:
            self._ordered(request.method, _plural(parts[3:]))
            return await self._aggregator.ask(service, request)
        target = self._target(parts)
        match target.subresource:
            case "log":
                return wire.response(200, self._log(target, query).encode(), {"Content-Type": "text/plain"})
            case "exec":
                return self._executed(target, query, lost)
        if query.get("watch") == "true":
            return self._watched(target, query, lost)
        self._ordered(request.method, target.kind.plural)
        return self._carried_out(request, target, query)

    def _ordered(self, method: str, plural: str) -> None:
        """A refusal that a scenario ordered for those who ask from outside."""
        if not self._inside:
            self._api.refusal(method, plural)

    def _target(self, parts: list[str]) -> Target:
        api_version, rest = (parts[1], parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        name, subresource = [*rest[1:], "", ""][:2]
        return self._api.target(api_version, rest[0], namespace, name, subresource)

    # Objects ----------------------------------------------------------------------------------------------------------

    def _carried_out(self, request: httpx.Request, target: Target, query: httpx.QueryParams) -> httpx.Response:
        api, method, kind = self._api, request.method, request.headers.get("Content-Type")
        dry_run = query.get("dryRun") == "All"
        body: Object = json.loads(request.content or b"{}")
        match method:
            case "GET" if target.name:
                return self._object(api.get(target))
            case "GET":
                found = api.select(target, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                return wire.response(200, self._encoder.list(target, found.values(), api.version))
            case "POST" if target.subresource == "eviction":
                self._evict(target)
                return wire.response(201, wire.encoded(wire.SUCCESS))
            case "POST":
                return self._object(api.create(target, body), 201)
            case "PUT":
                made = api.update(target, lambda _: body, dry_run=dry_run)
            case "PATCH" if kind == APPLY_PATCH:
                force = query.get("force") == "true"
                made = api.apply(target, body, manager=query.get("fieldManager", "unknown"), force=force)
            case "PATCH" if kind == MERGE_PATCH:
                made = api.update(target, lambda old: dict(fields.merged(old, body)), dry_run=dry_run)
            case "DELETE":
                grace = query.get("gracePeriodSeconds")
                api.delete(target, grace_s=None if grace is None else float(grace))
                return wire.response(200, wire.encoded(wire.SUCCESS))
            case _:
                raise Refused(415, "UnsupportedMediaType", f"{method} {kind} is not served from memory")
        return wire.response(200, wire.encoded(made)) if dry_run else self._object(made)

    def _object(self, obj: Object, status: int = 200) -> httpx.Response:
        return wire.response(status, self._encoder.stored(obj))

    def _watched(self, target: Target, query: Mapping[str, str], lost: Callable[[], bool]) -> httpx.Response:
        shows = self._api.shows(target, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        since = int(query.get("resourceVersion") or self._api.version)
        feed = Feed(self._api, self._encoder, target, since=since, shows=shows, lost=lost)
        return httpx.Response(200, headers={"Content-Type": "application/json"}, stream=feed)

    def _evict(self, target: Target) -> None:
        labels = self._api.get(target)["metadata"].get("labels") or {}
        for budget in self._api.of("poddisruptionbudgets", "policy").values():
            selector = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            theirs = budget["metadata"]["namespace"] == target.namespace and selector.items() <= labels.items()
            if theirs and (budget.get("status") or {}).get("disruptionsAllowed", 1) == 0:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Unavailable(429, "TooManyRequests", text)
        self._api.delete(target)

    # Pods -------------------------------------------------------------------------------------------------------------

    def _log(self, target: Target, query: Mapping[str, str]) -> str:
        """What a scenario wrote into the pod's annotation; nothing is kept of containers that ran before."""
        found = self._api.get(target)
        if query.get("previous") == "true":
            raise Refused(400, "BadRequest", "previous terminated container not found")
        return str((found["metadata"].get("annotations") or {}).get(LOG, ""))

    def _executed(self, target: Target, query: httpx.QueryParams, lost: Callable[[], bool]) -> httpx.Response:
        pod, container = self._api.get(target), query.get("container", "")
        if (pod.get("status") or {}).get("phase") != "Running":
            text = f'unable to upgrade connection: container not found ("{container}")'
            raise Unavailable(500, "InternalError", text)
        if container not in [each["name"] for each in pod["spec"]["containers"]]:
            raise Refused(400, "BadRequest", f"container {container} is not valid for pod {target.name}")
        shell = Shell(self._command, pod, query.get_list("command"), lost)
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Protocol": PROTOCOL}
        return httpx.Response(101, headers=headers, extensions={"network_stream": shell})

    # Discovery --------------------------------------------------------------------------------------------------------

    def _discovered(self, path: str, parts: list[str]) -> httpx.Response:
        if path == "/version":
            major, minor = self._api.kubernetes.lstrip("v").split(".")[:2]
            version = {"major": major, "minor": minor, "gitVersion": self._api.kubernetes, "platform": "linux/amd64"}
            return wire.response(200, wire.encoded(version))
        api_version = parts[1] if parts[0] == "api" and len(parts) == 2 else "/".join(parts[1:3])
        served = [k for k in self._api.kinds.values() if api_version in map(k.api_version, k.versions)]
        if not served:
            raise NotFound(404, "NotFound", NO_RESOURCE)
        resources = [{"name": k.plural, "kind": k.name, "namespaced": k.namespaced} for k in served]
        found = {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}
        return wire.response(200, wire.encoded(found))


def _plural(rest: list[str]) -> str:
    return rest[2] if rest[0] == "namespaces" and len(rest) > 2 else rest[0]
