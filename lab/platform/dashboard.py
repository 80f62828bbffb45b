"""What answers over TLS on the ingress address: dashboard, API, Keycloak and Grafana hosts, once the tenant's ingress is there.

Nothing listens before. Certificates come from an authority of the lab's own, written to `<state>/publishing-ca.crt`; api.HOST is
passed through to the API server, so it shows a certificate of the cluster's CA.
"""

from __future__ import annotations

import asyncio
import ssl

from lab import pki
from lab.pki import Pair
from lab.platform import web
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.web import Request, Response

INGRESS_RELEASE = "tenant-root/ingress-nginx-system"
DASHBOARD_RELEASE = "cozy-dashboard/dashboard"
KEYCLOAK_RELEASE = "cozy-keycloak/keycloak"
GRAFANA_RELEASE = "tenant-root/monitoring-system"
FAKE_NAME = "Kubernetes Ingress Controller Fake Certificate"  # what ingress-nginx shows for a host it does not know


class Dashboard:
    def __init__(self, platform: Platform, effects: ReleaseEffects) -> None:
        self._platform = platform
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._authority: Pair | None = None
        self._open = False
        effects.when_applied(INGRESS_RELEASE, self._up)

    async def _up(self) -> None:
        if self._open:
            return
        self._open = True
        spec = self._platform.world.scenario.platform
        self._authority = pki.new_authority("cozystack-iac lab public CA")
        (self._platform.state / "publishing-ca.crt").write_text(self._authority.crt, encoding="utf-8")
        fallback = web.context(pki.issue_serving(self._authority, FAKE_NAME, ["ingress.local"]))
        fallback.sni_callback = self._choose
        server = await web.serve(self._answer, str(spec.ingress), spec.https_port, fallback)
        self._platform.hub.spawn(_until_cancelled(server), name="ingress")
        self._platform.world.log.record("ingress", "open", address=str(spec.ingress), port=spec.https_port)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _default: ssl.SSLContext) -> None:
        """The certificate for the name the client greets with; unknown names get the fallback's."""
        connection.lab_server_name = name or ""  # type: ignore[union-attr]
        if name and self._label(name) is not None:
            connection.context = self._context(name)

    def _context(self, name: str) -> ssl.SSLContext:
        if name not in self._contexts:
            authority = self._api_authority() if self._label(name) == "api" else self._authority
            if authority is None:
                raise AssertionError("a host is only chosen after the ingress has opened")
            context = web.context(pki.issue_serving(authority, name, [name]))
            self._contexts[name] = context
        return self._contexts[name]

    def _api_authority(self) -> Pair | None:
        cluster = self._platform.world.cluster
        return Pair(cluster.ca_crt, cluster.ca_key) if cluster.ca_key else self._authority

    def _label(self, host: str) -> str | None:
        """`dashboard` for dashboard.HOST; None for hosts of others."""
        label, _, rest = host.partition(".")
        served = {"dashboard", "api", "grafana"} | ({"keycloak"} if self._platform.oidc else set())
        return label if rest == self._platform.host and label in served else None

    async def _answer(self, request: Request) -> Response:
        passed_through = self._label(request.server_name) == "api"  # decided by the TLS greeting, before any HTTP
        label = "api" if passed_through else self._label(request.host)
        ready = self._platform.schedule.ready
        match label:
            case "api":
                return _unauthorized()
            case "dashboard" if ready(DASHBOARD_RELEASE):
                return self._front_door(request)
            case "keycloak" if ready(KEYCLOAK_RELEASE):
                return _page("Keycloak") if request.path != "/" else _redirect("/admin/")
            case "grafana" if ready(GRAFANA_RELEASE):
                return _page("Grafana") if request.path == "/login" else _redirect("/login")
            case None:
                return _text(404, "404 Not Found")
            case _:
                return _text(503, "503 Service Temporarily Unavailable")

    def _front_door(self, request: Request) -> Response:
        """OIDC on: off to Keycloak. Off: a page that asks for a token."""
        if request.path in ("/ping", "/healthz/live", "/healthz/ready"):
            return _text(200, "OK")
        if self._platform.oidc:
            target = (
                f"https://keycloak.{self._platform.host}/realms/cozy/protocol/openid-connect/auth?client_id=dashboard"
            )
            return _redirect(target)
        return _page("Cozystack Dashboard: log in with a token")


def _page(title: str) -> Response:
    body = f"<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>\n"
    return Response(200, body.encode(), "text/html; charset=utf-8")


def _redirect(target: str) -> Response:
    body = f'<a href="{target}">Found</a>.\n'
    return Response(302, body.encode(), "text/html; charset=utf-8", {"Location": target})


def _text(status: int, text: str) -> Response:
    return Response(status, (text + "\n").encode(), "text/plain; charset=utf-8")


def _unauthorized() -> Response:
    """Talos switches anonymous access off: every unauthenticated request gets this from kube-apiserver."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "Unauthorized"}
    return Response.of(body | {"reason": "Unauthorized", "code": 401}, 401)


async def _until_cancelled(server: asyncio.Server) -> None:
    async with server:
        await server.serve_forever()
