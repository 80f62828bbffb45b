"""A Kubernetes API made of lists: answers questions about whole collections, and fails as told."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from cozystack_iac.kube.client import Kube, KubeError, NotFound, Refused

Answer = Callable[[httpx.Request], httpx.Response]
ServedBy = Callable[[Answer], None]  # the fixture: puts what answers behind every connection


class Asked:
    """Answers as an API server (`answer`), or as its client (`kube`).

    `objects` by plural; a plural that is missing does not exist. `trouble`: what asking for a plural, or a path, raises.
    """

    def __init__(
        self,
        objects: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        *,
        logs: Mapping[str, str] | None = None,
        trouble: Mapping[str, KubeError] | None = None,
        away: KubeError | None = None,
    ) -> None:
        self.served = {plural: [dict(o) for o in found] for plural, found in (objects or {}).items()}
        self.logs, self.trouble, self.away = dict(logs or {}), dict(trouble or {}), away
        self.calls: list[str] = []

    @property
    def kube(self) -> Kube:
        return Kube(httpx.AsyncClient(transport=httpx.MockTransport(self.answer), base_url="https://api.test"))

    def answer(self, request: httpx.Request) -> httpx.Response:
        try:
            return self._answer(request)
        except Refused as error:
            return httpx.Response(error.status, json={"reason": error.reason, "message": error.message})
        except KubeError as error:
            raise httpx.ConnectError(str(error)) from None

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        parts = request.url.path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if not rest or parts[-1] == "log":
            self._asked(path)
            return httpx.Response(200, text=self._log(path)) if rest else self._about(path)
        namespace, rest = (rest[1], rest[2:]) if rest[0] == "namespaces" and len(rest) > 2 else ("", rest)
        self._asked("/".join(filter(None, (rest[0], namespace, *rest[1:]))))
        if request.method == "PATCH":  # whoever writes here is content, and nothing changes
            return httpx.Response(200, content=request.content)
        if rest[0] not in self.served:
            raise NotFound(404, "NotFound", f"the server could not find {rest[0]}")
        found = self.served[rest[0]]
        if len(rest) == 1:
            return httpx.Response(200, json={"items": found})
        for each in found:
            if (each["metadata"].get("namespace") or "", each["metadata"]["name"]) == (namespace, rest[1]):
                return httpx.Response(200, json=each)
        raise NotFound(404, "NotFound", f"no {rest[0]} {rest[1]}")

    def _about(self, path: str) -> httpx.Response:
        return (
            httpx.Response(200, json={"gitVersion": "v1.33.12"})
            if path == "/version"
            else httpx.Response(200, text="ok")
        )

    def _log(self, path: str) -> str:
        pod, _, query = path.partition("/log?")
        previous = "previous " if "previous=true" in query else ""
        container = query.partition("container=")[2].partition("&")[0]
        text = self.logs.get(f"{previous}{pod.rpartition('/')[2]}/{container}")
        if text is None:
            raise NotFound(404, "NotFound", "no log")
        return text

    def _asked(self, what: str) -> None:
        self.calls.append(what)
        if self.away is not None:
            raise self.away
        if what in self.trouble:
            raise self.trouble[what]


def named(namespace: str, name: str, **more: Any) -> dict[str, Any]:
    """Metadata of an object, and whatever else it has."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": f"uid-{namespace}-{name}",
            **more.pop("metadata", {}),
        },
        **more,
    }


def condition(
    kind: str, status: str, reason: str, message: str = "", at: str = "2026-11-30T12:00:00Z"
) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def status(*conditions: Mapping[str, str]) -> dict[str, Any]:
    return {"conditions": list(conditions)}


def pod(
    namespace: str, name: str, *containers: Mapping[str, Any], phase: str = "Running", **more: Any
) -> dict[str, Any]:
    """`containers`: entries of containerStatuses; ready when all of them are."""
    ready = "True" if phase == "Running" and all(c.get("ready") for c in containers) else "False"
    made = more.pop("at", "2026-11-30T12:00:00Z")
    meta = {"creationTimestamp": made, **more.pop("metadata", {})}
    state = {"phase": phase, "containerStatuses": list(containers), **status(condition("Ready", ready, "", at=made))}
    return named(namespace, name, metadata=meta, status=state, spec=more.pop("spec", {"nodeName": "cp1"}), **more)


RUNNING = {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {}}}


def crashing(
    name: str = "main", *, reason: str = "CrashLoopBackOff", ended: str = "Error", code: int = 1, restarts: int = 7
) -> dict[str, Any]:
    return {
        "name": name,
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": {"reason": reason, "message": "back-off restarting failed container"}},
        "lastState": {"terminated": {"reason": ended, "exitCode": code}},
    }


def waiting(name: str, reason: str, message: str, image: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "ready": False,
        "restartCount": 0,
        "image": image,
        "state": {"waiting": {"reason": reason, "message": message}},
    }


def event(
    namespace: str,
    name: str,
    reason: str,
    message: str,
    *,
    kind: str = "Pod",
    count: int = 1,
    at: str = "2026-11-30T12:00:00Z",
    of: str = "Warning",
) -> dict[str, Any]:
    about = {"kind": kind, "namespace": namespace, "name": name}
    return named(
        namespace,
        f"{name}.{abs(hash((reason, message, at))):x}",
        type=of,
        reason=reason,
        message=message,
        involvedObject=about,
        count=count,
        lastTimestamp=at,
    )
