"""The lab's ingress as the scenarios script it, seen through the product's own probes: each fault has its own message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cozystack_iac.reachability import probes, served
from cozystack_iac.reachability.outcomes import Endpoint, EndpointStanding, Reach, judge_endpoint
from cozystack_iac.reachability.served import Trust
from lab import pki
from lab.clock import Clock
from lab.platform.dashboard import Dashboard
from lab.scenario import Scenario
from tests.addresses import prefix

ADDRESS, PORT = f"{prefix()}.1.1", 18443
CLUSTER_CA = pki.new_authority("kubernetes")


class Effects:
    """Releases that are ready as soon as somebody waits for them."""

    def __init__(self) -> None:
        self.handlers: list[Any] = []

    def when_applied(self, _release: str, handler: Any) -> None:
        self.handlers.append(handler)


class Hub:
    """Remembers objects, runs tasks."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def apply(self, body: dict[str, Any]) -> None:
        self.applied.append(body)

    def spawn(self, work: Any, name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))


@asynccontextmanager
async def ingress(state: Path, web: dict[str, Any]) -> AsyncIterator[Hub]:
    """The simulated ingress of a platform that is ready, at `ADDRESS`; a thousand times faster than life."""
    scenario = Scenario.fleet(1, prefix(), platform={"ingress": ADDRESS, "https_port": PORT, "web": web})
    hub, effects, clock = Hub(), Effects(), Clock(1000)
    world = SimpleNamespace(
        scenario=scenario,
        clock=clock,
        log=SimpleNamespace(record=lambda *_, **__: None),
        cluster=SimpleNamespace(ca_crt=CLUSTER_CA.crt, ca_key=CLUSTER_CA.key),
    )
    platform: Any = SimpleNamespace(
        world=world,
        hub=hub,
        state=state,
        schedule=SimpleNamespace(ready=lambda _release: True),
        host="example.com",
        oidc=False,
        sleep=clock.sleep,
    )
    Dashboard(platform, effects)  # type: ignore[arg-type]  # two methods of it are enough here
    for handler in effects.handlers:
        await handler()
    await asyncio.sleep(0.05)
    try:
        yield hub
    finally:
        for task in hub.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def seen(label: str, deadline_s: float = 10) -> EndpointStanding:
    target = Endpoint(f"{label}.example.com", ip_address(ADDRESS), PORT, passthrough=label == "api")
    return judge_endpoint(target, await probes.probe(target, CLUSTER_CA.crt, deadline_s=deadline_s))


@pytest.mark.parametrize(
    ("label", "script", "reach", "says"),
    [
        ("dashboard", {}, Reach.REACHED, "HTTP 200"),
        ("api", {}, Reach.REACHED, "HTTP 401"),
        ("nobody", {}, Reach.ABSENT, "HTTP 404"),  # the default backend
        *(("dashboard", {"status": s}, Reach.REACHED, f"HTTP {s}") for s in (200, 302, 401, 403)),
        *(("dashboard", {"status": s}, Reach.STARTING, f"HTTP {s}") for s in (502, 503)),
        ("dashboard", {"status": 404}, Reach.ABSENT, "does not know dashboard.example.com"),
        ("dashboard", {"status": 526}, Reach.PROXY, "rejects its certificate"),
        ("dashboard", {"status": 530}, Reach.PROXY, "a CDN in front"),
        ("dashboard", {"door": "silent"}, Reach.UNREACHABLE, "timed out"),
        ("dashboard", {"door": "closed"}, Reach.TLS, "PROXY protocol"),
        ("api", {"certificate": "other-authority"}, Reach.TLS, "another cluster responds"),
        ("api", {"certificate": "other-name"}, Reach.MISNAMED, "does not include api.example.com"),
        ("api", {"certificate": "placeholder"}, Reach.TLS, "the ingress terminates TLS itself"),
        ("api", {"certificate": "expired"}, Reach.TLS, "certificate has expired"),
    ],
)
async def test_every_scripted_answer_has_its_message(
    tmp_path: Path, label: str, script: dict[str, Any], reach: Reach, says: str
) -> None:
    web = {label: [script]} if script else {}
    async with ingress(tmp_path, web):
        standing = await seen(label, 0.4 if script.get("door") == "silent" else 10)

    assert standing.reach is reach
    assert says in f"{standing.words} {standing.means}"


@pytest.mark.parametrize(
    ("certificate", "trust"),
    [
        (None, Trust.PRIVATE),
        ("other-name", Trust.MISNAMED),
        ("self-signed", Trust.SELF_SIGNED),
        ("staging", Trust.STAGING),
        ("expired", Trust.EXPIRED),
        ("placeholder", Trust.PLACEHOLDER),
    ],
)
async def test_every_certificate_of_the_dashboard_is_reported_and_stops_nothing(
    tmp_path: Path, certificate: str | None, trust: Trust
) -> None:
    async with ingress(tmp_path, {"dashboard": [{"certificate": certificate}]} if certificate else {}):
        standing = await seen("dashboard")

    assert standing.ok
    assert standing.served is not None
    assert served.judge_trust("dashboard.example.com", standing.served, datetime.now(UTC)).trust is trust


async def test_answers_follow_each_other_from_the_first_question_on(tmp_path: Path) -> None:
    async with ingress(tmp_path, {"dashboard": [{"status": 503, "for": "200s"}, {"status": 404, "for": "200s"}]}):
        found = []
        for _ in range(100):
            found.append((await seen("dashboard")).words)
            if found[-1] == "HTTP 200":
                break
            await asyncio.sleep(0.02)

    assert list(dict.fromkeys(found)) == ["HTTP 503", "HTTP 404", "HTTP 200"]


@pytest.mark.parametrize(("door", "ready"), [("refused", True), ("down", False)])
async def test_an_ingress_that_does_not_listen_is_alive_or_not_as_the_cluster_knows(
    tmp_path: Path, door: str, ready: bool
) -> None:
    async with ingress(tmp_path, {"*": [{"door": door}]}) as hub:
        assert (await seen("dashboard")).reach is Reach.REFUSED

    [found] = [body for body in hub.applied if body["metadata"]["namespace"] == "tenant-root"]
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "root-ingress-controller"
    assert {endpoint["conditions"]["ready"] for endpoint in found["endpoints"]} == {ready}
