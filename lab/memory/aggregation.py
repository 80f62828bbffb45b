"""The aggregator: APIs that a Service of the cluster serves, asked over real TLS."""

from __future__ import annotations

import base64
import ssl

import httpx

from cozystack_iac.kube.client import Object, Unavailable
from lab.memory import wire
from lab.memory.api import MemoryApi


class Aggregator:
    """Asks the Services behind APIServices, each only when its CA is known."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api
        self._trusting: dict[str, httpx.AsyncClient] = {}  # by CA bundle

    def service(self, parts: list[str]) -> Object | None:
        """The APIService that stands for the group and version of a path, when it is served by a Service."""
        if parts[0] != "apis" or len(parts) < 3:
            return None
        found = self._api.of("apiservices", "apiregistration.k8s.io").get(("", f"{parts[2]}.{parts[1]}"))
        return found if found is not None and found["spec"].get("service") else None

    async def ask(self, service: Object, request: httpx.Request) -> httpx.Response:
        bundle = str(service["spec"].get("caBundle") or "")
        if not bundle:
            raise _no_endpoint()
        port = int(service["spec"]["service"]["port"])
        headers = {"Content-Type": request.headers["Content-Type"]}
        try:
            answer = await self._client(bundle).request(
                request.method,
                request.url.copy_with(host="127.0.0.1", port=port),
                content=request.content,
                headers=headers,
            )
        except (httpx.HTTPError, OSError):
            raise _no_endpoint() from None
        return wire.response(answer.status_code, answer.content)

    async def aclose(self) -> None:
        for each in self._trusting.values():
            await each.aclose()

    def _client(self, bundle: str) -> httpx.AsyncClient:
        if bundle not in self._trusting:
            context = ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
            self._trusting[bundle] = httpx.AsyncClient(verify=context, timeout=10, trust_env=False)
        return self._trusting[bundle]


def _no_endpoint() -> Unavailable:
    return Unavailable(503, "ServiceUnavailable", "the server is currently unable to handle the request")
