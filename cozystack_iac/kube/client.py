"""The only place that opens a connection to a Kubernetes API server.

A thin, typed layer over httpx: explicit kubeconfig, explicit resource names (no discovery, which breaks while an aggregated
API is down), errors in our own words. It never retries a call; a watch reconnects, because that is what a watch is.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx

from cozystack_iac.kube import kubeconfig as kubeconfigs
from cozystack_iac.waiting import pause

Object = dict[str, Any]

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
WATCH_SLICE_S = 240  # ask the server to end a watch before load balancers do (commonly 300 s)


@dataclass(frozen=True)
class Ref:
    """A collection or one object: `Ref("helm.toolkit.fluxcd.io/v2", "helmreleases", namespace="cozy-system")`."""

    api_version: str
    plural: str
    namespace: str | None = None
    name: str | None = None

    @property
    def path(self) -> str:
        root = "/api/v1" if self.api_version == "v1" else f"/apis/{self.api_version}"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{scope}/{self.plural}" + (f"/{self.name}" if self.name else "")

    def named(self, name: str, namespace: str | None = None) -> Ref:
        return replace(self, name=name, namespace=namespace or self.namespace)

    def __str__(self) -> str:
        return "/".join(part for part in (self.plural, self.namespace, self.name) if part)


class KubeError(Exception):
    """Base of everything this client raises."""


class Unreachable(KubeError):
    """No answer was got: the question is open, whatever it was."""


class Refused(KubeError):
    """The API server answered, and the answer is no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}")


class NotFound(Refused):
    """The object, or its kind (CRD not established, aggregated API not registered yet), does not exist."""


class Conflict(Refused):
    """It exists already, or has changed since it was read."""


class Unavailable(Refused):
    """429, 500, 503, 504: an API behind the aggregator or a webhook is not up; asking again later is right."""


@dataclass(frozen=True)
class Snapshot:
    """All objects of a watched collection at one moment, by (namespace, name). `None`: the kind does not exist (yet)."""

    objects: Mapping[tuple[str, str], Object] | None


@dataclass(frozen=True)
class ExecResult:
    stdout: str
    stderr: str
    ok: bool


class Kube:
    """One API server. Use as `async with Kube.connect(text) as kube:`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: str, *, context: str | None = None, deadline_s: float = 10
    ) -> AsyncIterator[Kube]:
        """`deadline_s` bounds each call. Raises BadKubeconfig; connects lazily."""
        access = kubeconfigs.parse(kubeconfig, context)
        headers = {"User-Agent": "cozystack-iac"}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        async with httpx.AsyncClient(
            base_url=access.server,
            headers=headers,
            transport=_route(access),
            timeout=deadline_s,
            trust_env=False,  # a proxy or CA from the environment is ambient configuration, too
        ) as http:
            if access.tls_server_name:
                http.event_hooks["request"] = [_server_name(access.tls_server_name)]
            yield cls(http)

    # One call, one answer -------------------------------------------------------------------------------------------

    async def get(self, ref: Ref) -> Object:
        return await self._call("GET", ref.path)

    async def find(self, ref: Ref) -> Object | None:
        """Like `get`, None when it does not exist."""
        try:
            return await self.get(ref)
        except NotFound:
            return None

    async def objects(self, ref: Ref, *, selector: str = "", fields: str = "") -> list[Object]:
        """All objects of a collection (of `fields` too, e.g. `spec.nodeName=w1`); a missing kind is NotFound, never empty."""
        params = {**_selector(selector), **({"fieldSelector": fields} if fields else {})}
        answer = await self._call("GET", ref.path, params=params)
        return [_with_kind(item, answer) for item in answer.get("items") or []]

    async def create(self, ref: Ref, body: Object) -> Object:
        """POST to the collection of `ref`."""
        return await self._call("POST", replace(ref, name=None).path, body=body)

    async def apply(self, ref: Ref, body: Object, *, manager: str = "cozystack-iac", force: bool = False) -> Object:
        """Server-side apply; a field that somebody else owns is a Conflict unless `force`."""
        params = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return await self._call("PATCH", ref.path, body=body, params=params, kind="application/apply-patch+yaml")

    async def merge_patch(self, ref: Ref, body: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        path = f"{ref.path}/{subresource}" if subresource else ref.path
        params = {"dryRun": "All"} if dry_run else {}
        return await self._call("PATCH", path, body=body, params=params, kind="application/merge-patch+json")

    async def replace(self, ref: Ref, body: Object, *, subresource: str = "") -> Object:
        path = f"{ref.path}/{subresource}" if subresource else ref.path
        return await self._call("PUT", path, body=body)

    async def delete(self, ref: Ref, *, grace_s: int | None = None) -> None:
        """Deletes one object; one that is already gone is fine. `grace_s` overrules the object's own grace period."""
        grace = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        try:
            await self._call("DELETE", ref.path, params={"propagationPolicy": "Background", **grace})
        except NotFound:
            return

    async def evict(self, pod: Ref) -> None:
        """Ask for a pod's eviction; gone already is fine. Unavailable: a disruption budget forbids it now, and says so."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
        }
        try:
            await self._call("POST", f"{pod.path}/eviction", body=body)
        except NotFound:
            return

    async def raw(self, path: str) -> Object:
        """GET of a non-resource path such as `/readyz?verbose` is text; this is for JSON ones (`/version`, `/apis/...`)."""
        return await self._call("GET", path)

    async def text(self, path: str) -> str:
        return (await self._answer("GET", path)).text

    async def exec(
        self, namespace: str, pod: str, container: str, argv: list[str], *, deadline_s: float = 30
    ) -> ExecResult:
        """Run a command in a running container and wait for its end (channel protocol v4)."""
        import httpx_ws  # where it is used: the program and most stages never run a command in a pod

        params = {"container": container, "stdout": "true", "stderr": "true", "command": argv}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec?{httpx.QueryParams(params)}"
        streams: dict[int, bytes] = {1: b"", 2: b"", 3: b""}
        try:
            async with asyncio.timeout(deadline_s), self._http.stream("GET", path, headers=_upgrade()) as response:
                if response.status_code != 101:
                    await response.aread()
                    raise _refusal(response)
                network = response.extensions["network_stream"]
                socket: httpx_ws.AsyncWebSocketSession
                async with httpx_ws.AsyncWebSocketSession(network, response=response) as socket:
                    # caught in here: the session is a task group, which would wrap it
                    with suppress(httpx_ws.WebSocketDisconnect, httpx_ws.WebSocketNetworkError):
                        while not streams[3]:
                            frame = await socket.receive_bytes()
                            streams[frame[0]] = streams.get(frame[0], b"") + frame[1:]
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise Unreachable(f"exec in {namespace}/{pod}: {_text(error)}") from None
        if not streams[3]:
            raise Unreachable(f"the connection to {namespace}/{pod} was closed before the command finished")
        status = json.loads(streams[3])
        out, err = streams[1].decode(errors="replace"), streams[2].decode(errors="replace")
        ok = status.get("status") == "Success"
        return ExecResult(out, err if ok or err else str(status.get("message") or ""), ok)

    # Watches --------------------------------------------------------------------------------------------------------

    async def watch(self, ref: Ref, *, selector: str = "") -> AsyncIterator[Snapshot]:
        """The collection now, and again after every change. Ends only by the caller; survives outages of any length.

        While the kind does not exist it yields `Snapshot(None)` once and looks again with backoff. While the API server
        is away nothing is yielded: an answer that was not got must not look like one.
        """
        attempt = 0
        absent = False
        while True:
            try:
                async for snapshot in self._watch_once(ref, selector):
                    attempt, absent = 0, False
                    yield snapshot
            except NotFound:
                if not absent:
                    absent = True
                    yield Snapshot(None)
                await pause(BACKOFF_S[min(attempt, 2)])
                attempt += 1
            except (Unreachable, Unavailable):
                await pause(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
                attempt += 1

    async def _watch_once(self, ref: Ref, selector: str) -> AsyncIterator[Snapshot]:
        answer = await self._call("GET", ref.path, params=_selector(selector))
        objects = {_key(item): _with_kind(item, answer) for item in answer.get("items") or []}
        yield Snapshot(dict(objects))
        params = {
            **_selector(selector),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SLICE_S),
            "resourceVersion": str((answer.get("metadata") or {}).get("resourceVersion") or ""),
        }
        timeout = httpx.Timeout(self._http.timeout.connect, read=WATCH_SLICE_S + 30)
        try:
            async with self._http.stream("GET", ref.path, params=params, timeout=timeout) as stream:
                if stream.is_error:
                    await stream.aread()
                    raise _refusal(stream)
                rest = b""
                async for chunk in stream.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    events = [json.loads(line) for line in lines if line]
                    if not all(_apply_event(objects, event) for event in events):
                        return  # the version has expired: list again
                    if events:  # what came at once is told at once
                        yield Snapshot(dict(objects))
        except (httpx.HTTPError, OSError, json.JSONDecodeError) as error:
            raise Unreachable(_text(error)) from None

    # ----------------------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        response = await self._answer(method, path, body=body, params=params, kind=kind)
        try:
            answer = response.json()
        except ValueError:
            raise Unreachable(f"{method} {path}: the answer is not JSON") from None
        return answer if isinstance(answer, dict) else {"value": answer}

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        params: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> httpx.Response:
        content = json.dumps(body).encode() if body is not None else None
        try:
            response = await self._http.request(
                method,
                _url(self._http.base_url, path),
                content=content,
                params=params or None,
                headers={"Content-Type": kind},
            )
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(f"{self._http.base_url}: {_text(error)}") from None
        if response.is_error:
            raise _refusal(response)
        return response


def _apply_event(objects: dict[tuple[str, str], Object], event: Object) -> bool:
    """Fold one watch event into `objects`; False when the stream cannot go on."""
    kind, item = event.get("type"), event.get("object") or {}
    if kind in ("ADDED", "MODIFIED"):
        objects[_key(item)] = item
    elif kind == "DELETED":
        objects.pop(_key(item), None)
    return kind != "ERROR"


def _over_tls(access: kubeconfigs.ApiAccess) -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
    return httpx.AsyncHTTPTransport(verify=_tls(access), limits=limits, trust_env=False)


Route = Callable[[kubeconfigs.ApiAccess], httpx.AsyncBaseTransport]
_route: Route = _over_tls


@contextmanager
def routed(route: Route) -> Iterator[None]:
    """Within the block every connection of this process goes this way: to an API server that is not on any network."""
    global _route
    before, _route = _route, route
    try:
        yield
    finally:
        _route = before


def _tls(access: kubeconfigs.ApiAccess) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=access.ca_pem.decode() if access.ca_pem else None)
    if access.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if access.client_certificate_pem and access.client_key_pem:
        with tempfile.TemporaryDirectory(prefix="cozystack-iac-") as folder:  # 0700; `ssl` reads keys from files only
            pair = Path(folder) / "pair.pem"
            pair.touch(mode=0o600)
            pair.write_bytes(access.client_certificate_pem + b"\n" + access.client_key_pem)
            context.load_cert_chain(pair)
    return context


@lru_cache(maxsize=1024)  # the same ones are asked for again and again, and to read one is a third of a call's price
def _url(server: httpx.URL, path: str) -> httpx.URL:
    return httpx.URL(f"{str(server).rstrip('/')}{path}")


def _upgrade() -> dict[str, str]:
    """Headers that turn a request into a websocket."""
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    socket = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key, "Sec-WebSocket-Protocol": "v4.channel.k8s.io"}
    return {"Connection": "Upgrade", "Upgrade": "websocket", **socket}


def _server_name(name: str) -> Any:
    async def set_server_name(request: httpx.Request) -> None:
        request.extensions["sni_hostname"] = name

    return set_server_name


def _refusal(response: httpx.Response) -> Refused:
    try:
        status = response.json()
    except ValueError:
        status = {}
    status = status if isinstance(status, dict) else {}
    reason = str(status.get("reason") or response.reason_phrase)
    message = str(status.get("message") or response.text[:300])
    kinds: dict[int, type[Refused]] = {
        404: NotFound,
        409: Conflict,
        **dict.fromkeys((429, 500, 502, 503, 504), Unavailable),
    }
    return kinds.get(response.status_code, Refused)(response.status_code, reason, message)


def _key(item: Object) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _with_kind(item: Object, answer: Object) -> Object:
    """List items come without kind and apiVersion; objects that travel on their own need them."""
    kind = str(answer.get("kind") or "").removesuffix("List")
    return {"apiVersion": answer.get("apiVersion"), "kind": kind, **item}


def _selector(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
