"""What releases do to the cluster when they are installed: CRDs, nodes that become ready, APIs, child releases.

Only what the product, or a person at the lab, can see is made; no component of Cozystack runs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any

from cozystack_iac.kube.client import Object
from lab.platform import crds, objects, rendered
from lab.platform.catalogue import PLATFORM_RELEASE, ROOT_TENANT_RELEASE, ChartRelease
from lab.platform.context import Platform
from lab.platform.objects import SYSTEM, kind_ref
from lab.platform.operator import Operator, ensure_namespace, install_crds
from lab.platform.timing import TENANT_CHILDREN_S

CNI_ANNOTATION = "lab.cozystack-iac/cni"  # lab/kwok/nodes.yaml turns a node Ready when it says so
CNI_RELEASES = ("cozy-cilium/cilium", "cozy-kubeovn/kubeovn")
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Releases whose pods cannot start without a volume. Without kstatus a release sees StatefulSets, not custom resources.
NEEDS_VOLUMES = ("cozy-keycloak/keycloak", "tenant-root/seaweedfs-system")
NEEDS_VOLUMES_KSTATUS = (
    *NEEDS_VOLUMES,
    "tenant-root/etcd",
    "tenant-root/monitoring-system",
    "tenant-root/seaweedfs-db",
)
NEEDS_REPLICATED = ("tenant-root/monitoring-system",)  # VictoriaLogs names its class

Handler = Callable[[], Awaitable[None]]


class ReleaseEffects:
    """Hooks of `HelmController`. Releases that other rooms simulate register their handlers with `when_applied`."""

    def __init__(self, platform: Platform, operator: Operator) -> None:
        self._platform = platform
        self._hub = platform.hub
        self._operator = operator
        self._classes = platform.hub.store(kind_ref("StorageClass"))
        self._nodes = platform.hub.store(kind_ref("Node"))
        self._configs = platform.hub.store(kind_ref("ConfigMap", SYSTEM))
        self._crds = {
            component.ref: crds.served(component.crds)
            for package in platform.known.packages
            for component in package.components
        }
        self._unfinished: set[str] = set()
        # What the running (or last) action of a release rendered: a value patched meanwhile belongs to the next action.
        self._rendered: dict[str, list[ChartRelease]] = {}
        self._starting: dict[str, list[Handler]] = {PLATFORM_RELEASE: [operator.emit]}
        self._applied: dict[str, list[Handler]] = {
            "cozy-cert-manager/cert-manager-issuers": [self._issuers],
            "cozy-dashboard/dashboard": [self._dashboard],
            "cozy-keycloak/keycloak": [self._keycloak],
            "tenant-root/info": [self._info],
            "tenant-root/ingress-nginx-system": [self._ingress],
            "tenant-root/monitoring-system": [self._grafana],
        }
        self._nodes.on(self._node_seen)

    def when_starting(self, ref: str, handler: Handler) -> None:
        self._starting.setdefault(ref, []).append(handler)

    def when_applied(self, ref: str, handler: Handler) -> None:
        self._applied.setdefault(ref, []).append(handler)

    # Hooks of the controller ----------------------------------------------------------------------------------------

    def gate(self, ref: str) -> str | None:
        """What a finished action still waits for; the text names it as kstatus does."""
        if ref in self._unfinished:
            return f"Release/{ref}"
        if self._platform.known.traits.kstatus:
            if ref == PLATFORM_RELEASE:
                return self._operator.unready()
            for child in self._rendered.get(ref, ()):
                if not self._platform.schedule.ready(child.ref):
                    return f"HelmRelease/{child.ref}"
        if ref == "cozy-dashboard/dashboard" and self._dashboard_hangs():
            return "Deployment/cozy-dashboard/incloud-web-gatekeeper"
        if ref == "cozy-cilium/cilium" and self._cilium_hangs():
            return "DaemonSet/cozy-cilium/cilium"
        needs = NEEDS_VOLUMES_KSTATUS if self._platform.known.traits.kstatus else NEEDS_VOLUMES
        return f"StatefulSet/{ref}" if ref in needs and not self._volumes(ref) else None

    def _dashboard_hangs(self) -> bool:
        platform = self._platform
        ingress = platform.schedule.ready("tenant-root/ingress-nginx-system")
        return rendered.dashboard_hangs(platform.known.traits, platform.values, oidc=platform.oidc, ingress=ingress)

    def _cilium_hangs(self) -> bool:
        variant = self._platform.choice.system_variant if self._platform.choice is not None else ""
        legacy = (self._configs.get(rendered.LEGACY, SYSTEM) or {}).get("data") or {}
        return rendered.cilium_hangs(variant, self._platform.values, legacy)

    async def starting(self, ref: str) -> None:
        """What the chart renders beside workloads. The action is not over before all of it is written."""
        self._unfinished.add(ref)
        try:
            await self._write(ref)
        finally:
            self._unfinished.discard(ref)

    async def _write(self, ref: str) -> None:
        for handler in self._starting.get(ref, ()):
            await handler()
        children = self._rendered[ref] = self._children(ref)
        if children:
            await self._platform.sleep(TENANT_CHILDREN_S)
        if ref == PLATFORM_RELEASE and self._brings_no_network():
            await self._network()
        if ref == "cozy-system/cozystack-basics":
            await self._root_namespace()
        await self._drop_unwanted(ref, children)
        for child in children:
            if child.namespace not in ("tenant-root", *self._platform.namespaces):
                await ensure_namespace(self._platform, child.namespace)
            await self._hub.create(objects.chart_release(child))

    async def _drop_unwanted(self, ref: str, wanted: list[ChartRelease]) -> None:
        """A switch that was turned off again takes its release with it."""
        store = self._hub.store(kind_ref("HelmRelease"))
        for child in self._platform.known.charts:
            if child.parent == ref and child not in wanted and store.get(child.name, child.namespace):
                await self._hub.delete(kind_ref("HelmRelease", child.namespace, child.name))

    async def applying(self, ref: str) -> None:
        names = self._crds.get(ref, ())
        if names:
            await install_crds(self._platform, names)
        for handler in self._applied.get(ref, ()):
            await handler()
        others = [other for other in CNI_RELEASES if other != ref]
        if ref in CNI_RELEASES and all(self._platform.schedule.ready(other) for other in others):
            await self._network()

    async def uninstalled(self, ref: str) -> None:
        """Helm removes what the chart rendered: child releases. Packages carry `resource-policy: keep`."""
        for child in self._platform.known.charts:
            if child.parent == ref:
                await self._hub.delete(kind_ref("HelmRelease", child.namespace, child.name))

    # Waits ----------------------------------------------------------------------------------------------------------

    def _children(self, ref: str) -> list[ChartRelease]:
        wanted = self._tenant_values() if ref == ROOT_TENANT_RELEASE else {}
        return [
            child
            for child in self._platform.known.charts
            if child.parent == ref and (not child.when or wanted.get(child.when) is True)
        ]

    def _tenant_values(self) -> Mapping[str, object]:
        store = self._hub.store(kind_ref("HelmRelease"))
        tenant = store.get("tenant-root", "tenant-root") or {}
        values = (tenant.get("spec") or {}).get("values")
        return values if isinstance(values, Mapping) else {}

    def _volumes(self, ref: str) -> bool:
        """Would a claim be bound: the class it asks for exists, and LINSTOR has the pool it names."""
        classes = [c for c in self._classes.objects.values() if self._has_pool(c)]
        default = any((c["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true" for c in classes)
        replicated = any(c["metadata"]["name"] == "replicated" for c in classes)
        return default and (replicated or ref not in NEEDS_REPLICATED)

    def _has_pool(self, storage_class: Object) -> bool:
        if storage_class.get("provisioner") != "linstor.csi.linbit.com":
            return True
        plain = {
            k.removeprefix("linstor.csi.linbit.com/"): v for k, v in (storage_class.get("parameters") or {}).items()
        }
        pool = plain.get("storagePool")
        return any(name == pool for _, name in self._platform.pools)

    # The pod network --------------------------------------------------------------------------------------------------

    def _brings_no_network(self) -> bool:
        """isp-hosted finds a pod network already there, and `default` installs nothing."""
        choice = self._platform.choice
        return choice is not None and choice.system_variant in ("isp-hosted", "default")

    async def _network(self) -> None:
        """Nodes turn ready when the last release of the pod network is."""
        self._platform.cni_ready = True
        self._platform.world.log.record("cluster", "cni ready")
        await asyncio.gather(*(self._annotate(name) for _, name in self._nodes.objects))

    def _node_seen(self, before: Object | None, after: Object | None) -> None:
        if before is None and after is not None and self._platform.cni_ready:
            self._hub.spawn(self._annotate(after["metadata"]["name"]))

    async def _annotate(self, node: str) -> None:
        await self._hub.patch(kind_ref("Node", name=node), {"metadata": {"annotations": {CNI_ANNOTATION: "ready"}}})

    # Objects that people and the product look at ----------------------------------------------------------------------

    async def _root_namespace(self) -> None:
        no_delete = self._platform.known.traits.guardrail
        await self._hub.create(objects.namespace("tenant-root", no_delete=no_delete))
        values = {"values.yaml": f'_cluster:\n  root-host: "{self._platform.host}"\n'}
        await self._hub.create(objects.new("Secret", "cozystack-values", "tenant-root", stringData=values))

    async def _issuers(self) -> None:
        for name in ("letsencrypt-prod", "letsencrypt-stage", "selfsigned-cluster-issuer"):
            issuer = await self._hub.ensure(
                objects.new("ClusterIssuer", name, spec={"selfSigned": {}} if name.startswith("self") else {"acme": {}})
            )
            text = "The ACME account was registered with the ACME server"
            ready = objects.condition("Ready", "True", "ACMEAccountRegistered", text, 1)
            await self._hub.status(objects.ref_of(issuer), {"conditions": [ready]})

    async def _dashboard(self) -> None:
        container = "auth-proxy" if self._platform.oidc else "token-proxy"
        labels = {"app.kubernetes.io/part-of": "gatekeeper"}
        name = "incloud-web-gatekeeper"
        gate = objects.deployment(name, "cozy-dashboard", containers=(container,), labels=labels)
        await self._hub.apply(gate)
        await self._hub.ensure(objects.service(name, "cozy-dashboard", "", 8000))
        await self._publish("dashboard-web-ingress", "cozy-dashboard", "dashboard", name, 8000)

    async def _keycloak(self) -> None:
        secret = objects.new(
            "Secret",
            "keycloak-credentials",
            "cozy-keycloak",
            stringData={"username": "admin", "password": secrets.token_urlsafe(18)},
        )
        await self._hub.create(secret)
        await self._hub.ensure(objects.service("keycloak-http", "cozy-keycloak", "keycloak", 8080))
        await self._publish("keycloak-ingress", "cozy-keycloak", "keycloak", "keycloak-http", 8080)

    async def _info(self) -> None:
        """The token people log in with while OIDC is off: a real service-account token."""
        await self._hub.create(objects.new("ServiceAccount", "tenant-root", "tenant-root"))
        token = objects.new(
            "Secret",
            "tenant-root",
            "tenant-root",
            annotations={"kubernetes.io/service-account.name": "tenant-root"},
            type="kubernetes.io/service-account-token",
        )
        await self._hub.create(token)

    async def _ingress(self) -> None:
        publishing = self._platform.values.get("publishing") or {}
        # The API server refuses loopback addresses here, and in the lab all addresses are; the dashboard listens on them itself.
        external = [ip for ip in publishing.get("externalIPs") or () if not ip_address(ip).is_loopback]
        spec: dict[str, Any] = {"type": "LoadBalancer"}
        if publishing.get("externalIPs"):
            spec = {"externalIPs": external, "type": "ClusterIP"}
        name = "root-ingress-controller"  # no selector: `dashboard` says who answers, whether or not pods are played
        await self._hub.ensure(objects.ingress_class("tenant-root"))
        await self._hub.ensure(objects.deployment(name, "tenant-root", replicas=2))
        await self._hub.ensure(objects.service(name, "tenant-root", "", 443, **spec))
        await self._publish("kubernetes", "default", "api", "kubernetes", 443)

    async def _grafana(self) -> None:
        body = {"user": "admin", "password": secrets.token_urlsafe(18)}
        await self._hub.create(objects.new("Secret", "grafana-admin-password", "tenant-root", stringData=body))
        await self._publish("grafana-ingress", "tenant-root", "grafana", "grafana-service", 3000)

    async def _publish(self, name: str, namespace: str, label: str, backend: str, port: int) -> None:
        host = f"{label}.{self._platform.host}"
        path = {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": backend, "port": {"number": port}}}}
        ingress = objects.new(
            "Ingress",
            name,
            namespace,
            spec={"ingressClassName": "tenant-root", "rules": [{"host": host, "http": {"paths": [path]}}]},
        )
        await self._hub.create(ingress)
