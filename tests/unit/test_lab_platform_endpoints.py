"""What answers over HTTPS in the lab: the aggregated tenants API and the hosts on the ingress address."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cozystack_iac.kube.client import Object
from lab import pki
from lab.platform import catalogue, objects
from lab.platform.context import Platform
from lab.platform.dashboard import Dashboard
from lab.platform.hub import Store
from lab.platform.tenants import Tenants, merge, tenant
from lab.platform.web import Request
from lab.scenario import Scenario
from lab.world import World

HOST = "cozy.example.org"
TENANTS = "/apis/apps.cozystack.io/v1alpha1/namespaces/tenant-root/tenants"


class Releases:
    """Which releases are ready, as the schedule would say."""

    def __init__(self, *ready: str) -> None:
        self.names = set(ready)

    def ready(self, ref: str) -> bool:
        return ref in self.names


class Recorder:
    """A hub and its client that keep what was written and answer a patch with the patched object."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}
        self.patches: list[tuple[str, Object, bool]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.kube = self

    def store(self, ref: Any, selector: str = "") -> Store:
        return self.stores.setdefault(ref.plural, Store())

    def spawn(self, work: Any, name: str = "") -> None:
        self.tasks.append(asyncio.create_task(work))

    async def apply(self, obj: Object) -> Object:
        return obj

    async def merge_patch(self, ref: Any, body: Object, *, dry_run: bool = False) -> Object:
        self.patches.append((ref.path, body, dry_run))
        current = self.store(ref).get(ref.name, ref.namespace)
        patched: Object = merge(current, body)
        return patched


class NoEffects:
    def when_starting(self, ref: str, handler: object) -> None:
        pass

    def when_applied(self, ref: str, handler: object) -> None:
        pass


def release(**values: Any) -> Object:
    chart = next(c for c in catalogue.load("1.6.2").charts if c.ref == catalogue.ROOT_TENANT_RELEASE)
    body = objects.chart_release(chart, values)
    body["metadata"] |= {
        "uid": "u-1",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    body["status"] = {"conditions": [objects.condition("Ready", "True", "InstallSucceeded", "done", 1)]}
    return body


def platform(state: Path, *ready: str, oidc: bool = False, port: int = 8443) -> tuple[Platform, Recorder]:
    machine = {"name": "n1", "address": "127.96.0.11", "disks": [{"dev": "sda", "size": "64GiB"}]}
    spec = {"ingress": "127.96.1.1", "https_port": port}
    world = World(Scenario.model_validate({"name": "ends", "machines": [machine], "platform": spec}))
    hub, known = Recorder(), catalogue.load("1.6.2")
    found = Platform(world, hub, known, state)  # type: ignore[arg-type]
    found.schedule = Releases(*ready)  # type: ignore[assignment]
    found.values = {"publishing": {"host": HOST}, "authentication": {"oidc": {"enabled": oidc}}}
    found.choice = known.choice("isp-full", found.values)
    return found, hub


def api(state: Path, *ready: str, **values: Any) -> tuple[Tenants, Recorder, World]:
    found, hub = platform(state, *ready)
    subject = Tenants(found, NoEffects())  # type: ignore[arg-type]
    hub.stores["helmreleases"].update({("tenant-root", "tenant-root"): release(**values)})
    return subject, hub, found.world


async def ask(
    subject: Tenants, method: str, path: str, body: Any = None, kind: str = "merge-patch", **more: Any
) -> tuple[int, Any]:
    headers = {"content-type": f"application/{kind}+json", **more.pop("headers", {})}
    request = Request(method, path, more, headers, json.dumps(body).encode() if body is not None else b"")
    response = await subject.answer(request)
    return response.status, json.loads(response.body)


KIND = "cozy-system/tenant-rd"


@pytest.mark.asyncio
async def test_the_kind_appears_with_its_definition(tmp_path: Path) -> None:
    early, _, _ = api(tmp_path)
    late, _, _ = api(tmp_path, KIND)
    group = "/apis/apps.cozystack.io/v1alpha1"
    assert (await ask(early, "GET", group))[1]["resources"] == []
    assert [r["name"] for r in (await ask(late, "GET", group))[1]["resources"]] == ["tenants"]
    assert (await ask(early, "GET", f"{TENANTS}/root"))[0] == 404
    assert (await ask(late, "GET", "/apis/apps.cozystack.io"))[1]["preferredVersion"]["version"] == "v1alpha1"


@pytest.mark.asyncio
async def test_a_tenant_is_its_release_without_hidden_values(tmp_path: Path) -> None:
    subject, _, _ = api(tmp_path, KIND, ingress=True, _secret="x")
    status, root = await ask(subject, "GET", f"{TENANTS}/root")
    assert (status, root["kind"], root["spec"]) == (200, "Tenant", {"ingress": True})
    assert root["status"]["namespace"] == "tenant-root"
    assert [c["reason"] for c in root["status"]["conditions"]] == ["InstallSucceeded"]
    assert (await ask(subject, "GET", f"{TENANTS}/other"))[1]["reason"] == "NotFound"


@pytest.mark.asyncio
async def test_a_merge_patch_lands_in_the_values_of_the_release(tmp_path: Path) -> None:
    subject, hub, world = api(tmp_path, KIND, etcd=True, _kept=1)
    status, root = await ask(subject, "PATCH", f"{TENANTS}/root", {"spec": {"host": HOST, "etcd": None}})
    assert (status, root["spec"]) == (200, {"host": HOST})
    path = "/apis/helm.toolkit.fluxcd.io/v2/namespaces/tenant-root/helmreleases/tenant-root"
    assert hub.patches == [(path, {"spec": {"values": {"etcd": None, "host": HOST}}}, False)]
    assert world.log.has("tenant root", "patched")


@pytest.mark.asyncio
async def test_a_dry_run_is_passed_on_and_recorded_nowhere(tmp_path: Path) -> None:
    subject, hub, world = api(tmp_path, KIND)
    await ask(subject, "PATCH", f"{TENANTS}/root", {"spec": {"etcd": True}}, dryRun="All")
    assert hub.patches[0][2] is True
    assert not world.log.has("tenant root", "patched")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("method", "kind", "code"), [("PATCH", "strategic-merge-patch", 415), ("DELETE", "merge-patch", 405)]
)
async def test_what_the_lab_does_not_do_it_refuses(tmp_path: Path, method: str, kind: str, code: int) -> None:
    subject, hub, _ = api(tmp_path, KIND)
    status, answer = await ask(subject, method, f"{TENANTS}/root", {}, kind)
    assert (status, answer["kind"], hub.patches) == (code, "Status", [])


@pytest.mark.asyncio
async def test_controllers_may_ask_for_metadata_only(tmp_path: Path) -> None:
    subject, _, _ = api(tmp_path, KIND)
    accept = {"accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    _, listed = await ask(subject, "GET", "/apis/apps.cozystack.io/v1alpha1/tenants", headers=accept)
    assert listed["kind"] == "PartialObjectMetadataList"
    assert [(i["kind"], i["metadata"]["name"]) for i in listed["items"]] == [("PartialObjectMetadata", "root")]
    assert listed["metadata"]["resourceVersion"] == "7"


@pytest.mark.asyncio
async def test_a_watch_sends_what_is_there_and_then_what_changes(tmp_path: Path) -> None:
    subject, hub, _ = api(tmp_path, KIND)
    query = {"watch": "true", "sendInitialEvents": "true", "timeoutSeconds": "5"}
    response = await subject.answer(Request("GET", TENANTS, query, {}))
    assert response.stream is not None
    stream = response.stream
    first = [json.loads(await anext(stream)) for _ in range(2)]
    assert [e["type"] for e in first] == ["ADDED", "BOOKMARK"]
    assert first[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    following = asyncio.ensure_future(anext(stream))
    changed = release(etcd=True)
    hub.stores["helmreleases"].update({("tenant-root", "tenant-root"): changed})
    event = json.loads(await following)
    assert (event["type"], event["object"]) == ("MODIFIED", tenant(changed))


# The ingress ---------------------------------------------------------------------------------------------------------

INGRESS = "tenant-root/ingress-nginx-system"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.96.1.1", 0))
        return int(probe.getsockname()[1])


@pytest_asyncio.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Any]:
    tasks: list[asyncio.Task[None]] = []

    async def start(*ready: str, oidc: bool = False) -> tuple[Platform, int]:
        port = free_port()
        found, hub = platform(tmp_path, *ready, oidc=oidc, port=port)
        authority = pki.new_authority("kubernetes")
        found.world.cluster.ca_crt, found.world.cluster.ca_key = authority.crt, authority.key
        await Dashboard(found, NoEffects())._up()  # type: ignore[arg-type]
        tasks.extend(hub.tasks)
        async with asyncio.timeout(10):
            while not found.world.log.find("ingress", "open"):
                await asyncio.sleep(0.01)
        return found, port

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def fetch(port: int, label: str, authority: str, path: str = "/") -> httpx.Response:
    """GET over verified TLS, as the product's probe does: a fixed address, the host's name in the greeting."""
    context = ssl.create_default_context(cadata=authority)
    name = f"{label}.{HOST}"
    async with httpx.AsyncClient(verify=context, trust_env=False) as http:
        return await http.get(
            f"https://127.96.1.1:{port}{path}", headers={"Host": name}, extensions={"sni_hostname": name}
        )


@pytest.mark.asyncio
async def test_the_dashboard_asks_for_a_token_without_oidc(opened: Any, tmp_path: Path) -> None:
    _, port = await opened("cozy-dashboard/dashboard", "tenant-root/monitoring-system")
    public = (tmp_path / "publishing-ca.crt").read_text()
    assert (await fetch(port, "dashboard", public)).status_code == 200
    grafana = await fetch(port, "grafana", public)
    assert (grafana.status_code, grafana.headers["location"], "Found" in grafana.text) == (302, "/login", True)


@pytest.mark.asyncio
async def test_the_dashboard_sends_people_to_keycloak_with_oidc(opened: Any, tmp_path: Path) -> None:
    _, port = await opened("cozy-dashboard/dashboard", "cozy-keycloak/keycloak", oidc=True)
    public = (tmp_path / "publishing-ca.crt").read_text()
    answer = await fetch(port, "dashboard", public)
    assert answer.status_code == 302
    assert answer.headers["location"].startswith(f"https://keycloak.{HOST}/realms/cozy/")
    assert (await fetch(port, "keycloak", public)).status_code == 302


@pytest.mark.asyncio
async def test_the_api_host_is_the_api_server_under_the_clusters_own_ca(opened: Any, tmp_path: Path) -> None:
    found, port = await opened()
    answer = await fetch(port, "api", found.world.cluster.ca_crt, "/healthz")
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(port, "api", (tmp_path / "publishing-ca.crt").read_text())


@pytest.mark.asyncio
async def test_a_backend_that_is_not_ready_is_unavailable_behind_an_open_ingress(opened: Any, tmp_path: Path) -> None:
    _, port = await opened()
    assert (await fetch(port, "dashboard", (tmp_path / "publishing-ca.crt").read_text())).status_code == 503


@pytest.mark.asyncio
async def test_a_host_nobody_serves_gets_the_fake_certificate(opened: Any, tmp_path: Path) -> None:
    await_port = (await opened())[1]
    with pytest.raises(httpx.ConnectError, match="Hostname mismatch"):
        await fetch(await_port, "keycloak", (tmp_path / "publishing-ca.crt").read_text())
