"""The stage of the platform's public names against real sockets on loopback: what it waits for, tells and gives up on."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cozystack_iac.reachability import probes
from cozystack_iac.reachability.names import Lookup, Said
from cozystack_iac.stages.reachability import ReachabilityProvider, ReachInputs, ReachOutputs
from cozystack_iac.waiting import Progress, StageFailed
from lab.platform.web import Request, Response, serve
from tests.loopback import ADDRESS, SPOKEN, Pki, Web, proxying, serving, serving_at, speaking


def kubeconfig(ca: str) -> str:
    cluster = f"{{server: 'https://127.0.0.1:1', certificate-authority-data: {b64encode(ca.encode()).decode()}}}"
    return (
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {cluster}}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )


def inputs(pki: Pki, port: int, **more: object) -> ReachInputs:
    given = {
        "kubeconfig": kubeconfig(pki.ca),
        "host": "example.com",
        "addresses": ["127.0.0.1"],
        "exposed": ["api", "dashboard"],
        "resolver": "",
        "port": port,
        "deadline_s": 5.0,
    }
    return ReachInputs.model_validate({**given, **more})


PLAYED = {"resolver": f"{ADDRESS}:{SPOKEN.port}"}
LEADS_HERE = SPOKEN.model_copy(update={"names": {"*.example.com": ("127.0.0.1",)}})


async def test_the_stage_waits_for_a_backend_that_starts(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Web(503, 503, 503, 503, 401), pki.server()) as port, speaking(LEADS_HERE):
        made = await ReachabilityProvider().establish(
            inputs(pki, port, **PLAYED), Progress("Reachability", write=print)
        )

    assert set(made.reached.values()) == {"HTTP 401"}
    names = ("dashboard.example.com", "api.example.com", "*.example.com")
    assert made.dns == dict.fromkeys(names, "resolved: 127.0.0.1")
    assert made.verdict == "reached"
    assert "does not trust" in made.certificates["dashboard.example.com"]


async def test_names_that_lead_nowhere_are_told_and_stop_nothing(pki: Pki) -> None:
    said: list[str] = []
    async with serving(Web(401), pki.server()) as port, speaking(SPOKEN):
        made = await ReachabilityProvider().establish(
            inputs(pki, port, **PLAYED, oidc=True), Progress("Reachability", write=said.append)
        )

    assert made.verdict.startswith("DNS is wrong: ")
    assert made.dns["keycloak.example.com"] == "absent: does not exist"
    assert "resolves to 10.0.0.11 instead of 127.0.0.1" in made.dns["dashboard.example.com"]
    assert any("create a record for api.example.com" in line for line in said)


async def test_an_address_in_front_that_leads_to_the_platform_is_no_wrong_name(pki: Pki) -> None:
    front = LEADS_HERE.model_copy(update={"names": {"*.example.com": ("127.0.0.2",)}})
    web = Web(401)
    async with serving(web, pki.server()) as port, serving_at("127.0.0.2", port, web, pki), speaking(front):
        made = await ReachabilityProvider().establish(inputs(pki, port, **PLAYED), Progress("x", write=print))

    assert made.verdict == "reached"


async def test_somebody_elses_page_at_the_name_does_not_count(
    pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Pki(tmp_path_factory.mktemp("other"))
    front = LEADS_HERE.model_copy(update={"names": {"*.example.com": ("127.0.0.2",)}})
    async with serving(Web(401), pki.server()) as port, serving_at("127.0.0.2", port, Web(200), other), speaking(front):
        made = await ReachabilityProvider().establish(inputs(pki, port, **PLAYED), Progress("x", write=print))

    assert made.verdict.startswith("DNS is wrong")
    assert "responds with: HTTP 200" in made.dns["dashboard.example.com"]


@pytest.mark.parametrize(
    ("leads", "verdict"),
    [
        (True, "reached"),
        (False, "DNS is wrong: api.example.com absent, *.example.com absent, dashboard.example.com absent"),
    ],
)
async def test_behind_a_proxy_its_own_resolution_of_names_counts(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, leads: bool, verdict: str
) -> None:
    async def unknown(_name: str, **_: object) -> Lookup:
        return Lookup(Said.NXDOMAIN)

    monkeypatch.setattr(probes, "lookup_here", unknown)
    own = Pki(tmp_path_factory.mktemp("own"), names=("api.example.com", "*.example.com"))
    other = Pki(tmp_path_factory.mktemp("other"))
    async with (
        serving(Web(401), own.server()) as port,
        serving(Web(200), other.server()) as elsewhere,
        proxying(port if leads else elsewhere) as (proxy, url),
    ):
        monkeypatch.setenv("https_proxy", url())
        made = await ReachabilityProvider().establish(inputs(own, port, resolver="system"), Progress("x", write=print))

    assert sorted(made.verdict.split(": ")[-1].split(", ")) == sorted(verdict.split(": ")[-1].split(", "))
    assert f"dashboard.example.com:{port}" in proxy.asked
    assert ("reaches the platform by name" in made.dns["*.example.com"]) is leads


async def test_a_check_that_is_skipped_leaves_its_reason(pki: Pki) -> None:
    given = inputs(pki, 1, skipped="the site has no way in from here")
    made = await ReachabilityProvider().establish(given, Progress("x", write=print))

    assert made.verdict == "not checked: the site has no way in from here"
    assert await ReachabilityProvider().observe(given, made) == made


async def test_a_preview_warns_of_names_that_lead_nowhere_before_anything_is_there(pki: Pki) -> None:
    new = inputs(pki, 1, **PLAYED, kubeconfig="")
    async with speaking(LEADS_HERE.model_copy(update={"names": {"dashboard.example.com": ("127.0.0.1",)}})):
        found = await ReachabilityProvider().preflight(new, None)
        again = await ReachabilityProvider().preflight(new, new)
        offline = await ReachabilityProvider().preflight(new.model_copy(update={"checks": "offline"}), None)

    assert [(f.code, f.severity.value, f.path) for f in found] == [
        ("RCH-001", "warning", "api.example.com"),
        ("RCH-001", "warning", "*.example.com"),
    ]
    assert (again, offline) == ([], [])


def slices(ready: int) -> dict[str, object]:
    return {"items": [{"metadata": {"name": "s"}, "endpoints": [{"conditions": {"ready": True}}] * ready}]}


@asynccontextmanager
async def cluster(pki: Pki, ready: int) -> AsyncIterator[str]:
    """A Kubernetes API that knows how many endpoints are ready, and nothing else."""

    async def answer(request: Request) -> Response:
        if request.path.endswith("/endpointslices"):
            return Response.of(slices(ready))
        return Response.of({"spec": {"externalIPs": []}})

    server = await serve(answer, "127.0.0.1", 0, pki.server())
    async with server:
        yield kubeconfig(pki.ca).replace("127.0.0.1:1", f"localhost:{server.sockets[0].getsockname()[1]}")


@pytest.mark.parametrize(
    ("ready", "headline"),
    [(2, "The path to the platform is blocked"), (0, "The platform does not respond behind its public names")],
)
async def test_the_cluster_is_the_third_witness(tmp_path: Path, ready: int, headline: str) -> None:
    own = Pki(tmp_path, names=("localhost",))
    async with serving(Web(200), own.server()) as port:
        pass
    async with cluster(own, ready) as text:
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(
                inputs(own, port, kubeconfig=text, deadline_s=1.5), Progress("x", write=print)
            )

    assert failed.value.what.startswith(headline)
    assert f"root ingress: {ready} ready" in str(failed.value)


async def test_a_load_balancer_without_address_is_named_and_a_refresh_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, provider = Pki(tmp_path, names=("localhost",)), ReachabilityProvider()
    async with cluster(own, 2) as text:
        given = inputs(own, 1, kubeconfig=text, addresses=[], deadline_s=0.3)
        with pytest.raises(StageFailed) as failed:
            await provider.establish(given, Progress("x", write=print))
        with pytest.raises(StageFailed, match="The public address of the platform is unknown"):
            await provider.observe(given, ReachOutputs(reached={}, dns={}, seconds=0))

    assert failed.value.what.startswith("No address of the platform is known yet")
    assert failed.value.details["last seen"] == "the load balancer has no address"


async def test_a_cluster_that_does_not_answer_leaves_it_open(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        pass
    with pytest.raises(StageFailed) as failed:
        await ReachabilityProvider().establish(inputs(pki, port, deadline_s=1.5), Progress("x", write=print))

    assert "the cause is unknown" in failed.value.what
    assert "get endpointslices" in failed.value.next_step


async def test_the_stage_gives_up_on_a_backend_that_never_starts(pki: Pki) -> None:
    async with serving(Web(502), pki.server()) as port:
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(inputs(pki, port, backend_s=0.5), Progress("x", write=print))

    assert "The platform does not respond behind its public names" in failed.value.what
    assert "no change for" in failed.value.what
    assert f"https://dashboard.example.com:{port} at 127.0.0.1" in str(failed.value)


async def test_every_address_has_to_answer(pki: Pki) -> None:
    async with serving(Web(200), pki.server()) as port:
        both = inputs(pki, port, addresses=["127.0.0.1", "127.0.0.2"], exposed=["dashboard"], deadline_s=2.0)
        with pytest.raises(StageFailed) as failed:
            await ReachabilityProvider().establish(both, Progress("x", write=print))

    assert list(failed.value.details) == [f"https://dashboard.example.com:{port} at 127.0.0.2", "seen from inside"]
    assert "the path to the platform is blocked (1 of 2" in failed.value.what.lower()
