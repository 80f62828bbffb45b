"""The product's own Kubernetes client, answered from memory. Paths, errors and reconnecting are the real client's code."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

import httpx

from cozystack_iac.kube import client
from cozystack_iac.kube.client import (
    ExecResult,
    Kube,
    NotFound,
    Object,
    Ref,
    Refused,
    Snapshot,
    Unavailable,
    Unreachable,
)
from lab.memory import fields
from lab.memory.api import NO_RESOURCE, MemoryApi, Target
from lab.platform.manifests import LOG

Command = Callable[[Object, list[str]], Awaitable[tuple[str, str, int] | None]]  # pod, argv -> stdout, stderr, code

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class MemoryKube(Kube):
    """One client of a cluster in memory.

    `inside`: a component of the cluster, which no outage of the way to the API server concerns. `command` runs what is
    executed in a pod; None from it means that the container has no such program.
    """

    def __init__(self, api: MemoryApi, command: Command, *, inside: bool = False) -> None:
        self._api = api
        self._command = command
        self._inside = inside
        self._trusting: dict[str, httpx.AsyncClient] = {}  # by CA bundle: connections to aggregated APIs

    async def text(self, path: str) -> str:
        self._reach()
        await asyncio.sleep(0)
        if path.partition("?")[0] in ("/readyz", "/livez", "/healthz"):
            return "ok"
        if path.partition("?")[0].endswith("/log"):
            return self._log(path)
        return json.dumps(await self._call("GET", path))

    async def exec(
        self, namespace: str, pod: str, container: str, argv: list[str], *, deadline_s: float = 30
    ) -> ExecResult:
        self._reach()
        found = self._api.get(self._api.target("v1", "pods", namespace, pod))
        if (found.get("status") or {}).get("phase") != "Running":
            text = f'unable to upgrade connection: container not found ("{container}")'
            raise Unavailable(500, "InternalError", text)
        if container not in [each["name"] for each in found["spec"]["containers"]]:
            raise Refused(400, "BadRequest", f"container {container} is not valid for pod {pod}")
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._command(found, argv)
        except TimeoutError:
            raise Unreachable(f"exec in {namespace}/{pod}: TimeoutError") from None
        self._reach()
        if answer is None:
            return ExecResult("", f'exec: "{argv[0]}": executable file not found in $PATH', ok=False)
        out, err, code = answer
        return ExecResult(out, err or (f"command terminated with exit code {code}" if code else ""), code == 0)

    async def aclose(self) -> None:
        for each in self._trusting.values():
            await each.aclose()

    # The two methods of the real client that talk to a server ---------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        self._reach()
        await asyncio.sleep(0)
        url = urlsplit(path)
        query = dict(parse_qsl(url.query)) | dict(params or {})
        parts = url.path.strip("/").split("/")
        if parts[0] not in ("api", "apis") or len(parts) <= (2 if parts[0] == "api" else 3):
            answer = await self._discover(url.path, parts)
        elif (aggregated := self._aggregated(parts)) is not None:
            self._ordered(method, _plural(parts))
            answer = await self._aggregate(aggregated, method, path, body, query, kind)
        else:
            target = self._target(parts)
            self._ordered(method, target.kind.plural)
            answer = self._carry_out(method, target, body or {}, query, kind)
        self._reach()
        return answer

    async def _watch_once(self, ref: Ref, selector: str) -> AsyncIterator[Snapshot]:
        target = self._target(ref.path.strip("/").split("/"))
        last: dict[tuple[str, str], Object] | None = None
        while True:
            await asyncio.sleep(0)
            self._reach()
            self._api.target(ref.api_version, ref.plural)  # raises when the kind has gone
            now = self._api.select(target, selector)
            if now != last:
                last = now
                yield Snapshot(now)
            else:  # nothing was awaited since the look: no change is missed
                await self._api.changes(target.kind).next()

    # ------------------------------------------------------------------------------------------------------------------

    def _reach(self) -> None:
        if self._api.away and not self._inside:
            raise Unreachable("https://kubernetes.in-memory:6443: All connection attempts failed")

    def _log(self, path: str) -> str:
        """What a scenario wrote into the pod's annotation; nothing is kept of containers that ran before."""
        url = urlsplit(path)
        found = self._api.get(self._target(url.path.removesuffix("/log").strip("/").split("/")))
        if dict(parse_qsl(url.query)).get("previous") == "true":
            raise Refused(400, "BadRequest", "previous terminated container not found")
        return str((found["metadata"].get("annotations") or {}).get(LOG, ""))

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

    def _carry_out(self, method: str, target: Target, body: Object, query: Mapping[str, str], kind: str) -> Object:
        api, dry_run = self._api, query.get("dryRun") == "All"
        match method:
            case "GET" if target.name:
                return api.get(target)
            case "GET":
                items = api.select(target, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                listed = {"apiVersion": target.kind.api_version(target.version), "kind": f"{target.kind.name}List"}
                return {**listed, "metadata": {"resourceVersion": "1"}, "items": list(items.values())}
            case "POST" if target.subresource == "eviction":
                return self._evict(target)
            case "POST":
                return api.create(target, body)
            case "PUT":
                return api.update(target, lambda _: body, dry_run=dry_run)
            case "PATCH" if kind == APPLY_PATCH:
                force = query.get("force") == "true"
                return api.apply(target, body, manager=query.get("fieldManager", "unknown"), force=force)
            case "PATCH" if kind == MERGE_PATCH:
                return api.update(target, lambda old: dict(fields.merged(old, body)), dry_run=dry_run)
            case "DELETE":
                grace = query.get("gracePeriodSeconds")
                api.delete(target, grace_s=None if grace is None else float(grace))
                return {"kind": "Status", "status": "Success"}
        raise Refused(415, "UnsupportedMediaType", f"{method} {kind} is not served from memory")

    def _evict(self, target: Target) -> Object:
        labels = self._api.get(target)["metadata"].get("labels") or {}
        for budget in self._api.of("poddisruptionbudgets", "policy").values():
            selector = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            theirs = budget["metadata"]["namespace"] == target.namespace and selector.items() <= labels.items()
            if theirs and (budget.get("status") or {}).get("disruptionsAllowed", 1) == 0:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Unavailable(429, "TooManyRequests", text)
        self._api.delete(target)
        return {"kind": "Status", "status": "Success"}

    async def _discover(self, path: str, parts: list[str]) -> Object:
        if path == "/version":
            major, minor = self._api.kubernetes.lstrip("v").split(".")[:2]
            return {"major": major, "minor": minor, "gitVersion": self._api.kubernetes, "platform": "linux/amd64"}
        aggregated = self._aggregated(parts) if len(parts) == 3 else None
        if aggregated is not None:
            return await self._aggregate(aggregated, "GET", path, None, {}, "application/json")
        api_version = parts[1] if parts[0] == "api" and len(parts) == 2 else "/".join(parts[1:3])
        served = [k for k in self._api.kinds.values() if api_version in map(k.api_version, k.versions)]
        if not served:
            raise NotFound(404, "NotFound", NO_RESOURCE)
        resources = [{"name": k.plural, "kind": k.name, "namespaced": k.namespaced} for k in served]
        return {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}

    # Aggregated APIs --------------------------------------------------------------------------------------------------

    def _aggregated(self, parts: list[str]) -> Object | None:
        """The APIService that stands for this group and version, when it is served by a Service."""
        if parts[0] != "apis" or len(parts) < 3:
            return None
        found = self._api.of("apiservices", "apiregistration.k8s.io").get(("", f"{parts[2]}.{parts[1]}"))
        return found if found is not None and found["spec"].get("service") else None

    async def _aggregate(
        self, service: Object, method: str, path: str, body: Object | None, query: Mapping[str, str], kind: str
    ) -> Object:
        """Ask the Service behind it, as the aggregator does: over TLS, and only when its CA is known."""
        bundle = str(service["spec"].get("caBundle") or "")
        if not bundle:
            raise _no_endpoint()
        try:
            answer = await self._trusting_client(bundle, int(service["spec"]["service"]["port"])).request(
                method,
                path,
                content=None if body is None else json.dumps(body),
                params=dict(query) or None,
                headers={"Content-Type": kind},
            )
        except (httpx.HTTPError, OSError):
            raise _no_endpoint() from None
        if answer.is_error:
            raise client._refusal(answer)
        return dict(answer.json())

    def _trusting_client(self, bundle: str, port: int) -> httpx.AsyncClient:
        if bundle not in self._trusting:
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            base = f"https://127.0.0.1:{port}"
            self._trusting[bundle] = httpx.AsyncClient(base_url=base, verify=context, timeout=10, trust_env=False)
        return self._trusting[bundle]


def _no_endpoint() -> Unavailable:
    return Unavailable(503, "ServiceUnavailable", "the server is currently unable to handle the request")


def _plural(parts: list[str]) -> str:
    rest = parts[3:]
    return rest[2] if rest[0] == "namespaces" and len(rest) > 2 else rest[0]
