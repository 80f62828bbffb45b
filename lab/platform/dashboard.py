"""What answers over TLS on the ingress address: dashboard, API, Keycloak and Grafana hosts, once the tenant's ingress is there.

Nothing listens before. Certificates come from an authority of the lab's own, written to `<state>/publishing-ca.crt`; api.HOST is
passed through to the API server, so it shows a certificate of the cluster's CA. A scenario's `platform.web` says otherwise.
"""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta

from lab import pki
from lab.pki import Pair
from lab.platform import objects, web
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.web import Request, Response
from lab.scenario import HostAnswer

INGRESS_RELEASE = "tenant-root/ingress-nginx-system"
DASHBOARD_RELEASE = "cozy-dashboard/dashboard"
KEYCLOAK_RELEASE = "cozy-keycloak/keycloak"
GRAFANA_RELEASE = "tenant-root/monitoring-system"
INGRESS = ("tenant-root", "root-ingress-controller")
GATE = ("cozy-dashboard", "incloud-web-gatekeeper")
STAGING_NAME = "(STAGING) Counterfeit Cashew R10"  # one of the intermediates of Let's Encrypt's staging environment
FAKE_NAME = "Kubernetes Ingress Controller Fake Certificate"  # what ingress-nginx shows for a host it does not know


class Dashboard:
    def __init__(self, platform: Platform, effects: ReleaseEffects) -> None:
        self._platform = platform
        self._contexts: dict[tuple[str, str], ssl.SSLContext] = {}
        self._authority: Pair | None = None
        self._asked: dict[str, float] = {}  # host -> when it was asked first, in real-life seconds since the start
        effects.when_applied(INGRESS_RELEASE, self._up)
        effects.when_applied(DASHBOARD_RELEASE, self._gate_is_up)

    async def _up(self) -> None:
        if self._authority is not None:
            return
        self._authority = pki.new_authority("cozystack-iac lab public CA")
        (self._platform.state / "publishing-ca.crt").write_text(self._authority.crt, encoding="utf-8")
        self._platform.hub.spawn(self._serve(self._authority), name="ingress")

    async def _serve(self, authority: Pair) -> None:
        spec = self._platform.world.scenario.platform
        fallback = web.context(pki.issue_serving(authority, FAKE_NAME, ["ingress.local"]))
        fallback.sni_callback = self._choose
        for answer in spec.web.get("*", ()):
            if answer.door not in ("refused", "down"):
                break
            await self._endpoints(INGRESS, ready=answer.door == "refused")
            if answer.for_s is None:
                return
            await self._platform.sleep(answer.for_s)
        await self._endpoints(INGRESS)
        server = await web.serve(self._answer, str(spec.ingress), spec.https_port, fallback)
        self._platform.world.log.record("ingress", "open", address=str(spec.ingress), port=spec.https_port)
        await _until_cancelled(server)

    async def _gate_is_up(self) -> None:
        await self._endpoints(GATE)

    async def _endpoints(self, service: tuple[str, str], *, ready: bool = True) -> None:
        """What the cluster itself knows about who answers; no pod of theirs ever runs here."""
        namespace, name = service
        endpoints = [{"addresses": [f"10.244.0.{n}"], "conditions": {"ready": ready}} for n in (10, 11)]
        await self._platform.hub.apply(
            objects.new(
                "EndpointSlice",
                f"{name}-lab",
                namespace,
                labels={"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "lab"},
                addressType="IPv4",
                endpoints=endpoints,
                ports=[{"name": "https", "port": 443, "protocol": "TCP"}],
            )
        )

    def _scripted(self, label: str | None) -> HostAnswer | None:
        """What the scenario has this host do now; None for its duty."""
        script = self._platform.world.scenario.platform.web
        now = self._platform.world.clock.now()
        if label is not None and label not in self._asked:
            self._platform.world.log.record(f"host {label}", "asked")
        passed = now - self._asked.setdefault(label or "", now)
        chosen = [answers for name, answers in script.items() if name in (label, "*")]
        for answer in chosen[0] if chosen else ():
            if answer.for_s is None or passed < answer.for_s:
                return answer
            passed -= answer.for_s
        return None

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _default: ssl.SSLContext) -> None:
        """The certificate for the name the client greets with; unknown names get the fallback's."""
        connection.lab_server_name = name or ""  # type: ignore[union-attr]
        label = self._label(name or "")
        if name and label is not None:
            scripted = self._scripted(label)
            kind = (scripted.certificate if scripted else None) or ("cluster" if label == "api" else "good")
            if kind != "placeholder":
                connection.context = self._context(name, kind)

    def _context(self, name: str, kind: str) -> ssl.SSLContext:
        if (name, kind) not in self._contexts:
            self._contexts[name, kind] = web.context(self._certificate(name, kind))
        return self._contexts[name, kind]

    def _certificate(self, name: str, kind: str) -> Pair:
        if self._authority is None:
            raise AssertionError("a host is only chosen after the ingress has opened")
        cluster = self._platform.world.cluster
        own = Pair(cluster.ca_crt, cluster.ca_key) if cluster.ca_key else self._authority
        authority = own if self._label(name) == "api" else self._authority
        match kind:
            case "other-name":
                return pki.issue_serving(authority, "other.example.net", ["other.example.net"])
            case "other-authority":
                return pki.issue_serving(pki.new_authority("somebody else's CA"), name, [name])
            case "staging":
                return pki.issue_serving(pki.new_authority(STAGING_NAME), name, [name])
            case "expired":
                return pki.issue_serving(authority, name, [name], ends_in=-timedelta(days=3))
            case "self-signed":
                return pki.issue_serving(pki.new_authority(name), name, [name])
            case _:
                return pki.issue_serving(authority, name, [name])

    def _label(self, host: str) -> str | None:
        """`dashboard` for dashboard.HOST; None for hosts of others."""
        label, _, rest = host.partition(".")
        served = {"dashboard", "api", "grafana"} | ({"keycloak"} if self._platform.oidc else set())
        return label if rest == self._platform.host and label in served else None

    async def _answer(self, request: Request) -> Response:
        passed_through = self._label(request.server_name) == "api"  # decided by the TLS greeting, before any HTTP
        label = "api" if passed_through else self._label(request.host)
        scripted = self._scripted(label)
        if scripted is not None and scripted.door == "silent":
            await asyncio.Event().wait()
        if scripted is not None and scripted.door == "closed":
            raise ConnectionResetError
        if scripted is not None and scripted.status is not None:
            return _text(scripted.status, str(scripted.status))
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
