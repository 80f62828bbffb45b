"""The Kubernetes client: errors in our words, watches that survive, kubeconfigs that stand alone."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cozystack_iac.kube import kubeconfig
from cozystack_iac.kube.client import (
    Conflict,
    Kube,
    NotFound,
    Ref,
    Refused,
    Snapshot,
    Unavailable,
    Unreachable,
)
from cozystack_iac.kube.kubeconfig import BadKubeconfig, checked, parse

pytestmark = pytest.mark.pace(looks=0.05)

RELEASES = Ref("helm.toolkit.fluxcd.io/v2", "helmreleases", "cozy-system")


def kube(handler: Callable[[httpx.Request], httpx.Response]) -> Kube:
    return Kube(httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="https://api.test"))


def status(code: int, reason: str) -> httpx.Response:
    return httpx.Response(code, json={"kind": "Status", "reason": reason, "message": f"{reason} it is"})


@pytest.mark.parametrize(
    ("ref", "path"),
    [
        (Ref("v1", "nodes"), "/api/v1/nodes"),
        (Ref("v1", "pods", "kube-system", "a"), "/api/v1/namespaces/kube-system/pods/a"),
        (
            RELEASES.named("cilium", "cozy-cilium"),
            "/apis/helm.toolkit.fluxcd.io/v2/namespaces/cozy-cilium/helmreleases/cilium",
        ),
    ],
)
def test_names_become_paths_without_discovery(ref: Ref, path: str) -> None:
    assert ref.path == path


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (status(404, "NotFound"), NotFound),
        (status(409, "AlreadyExists"), Conflict),
        (status(403, "Forbidden"), Refused),
        (status(503, "ServiceUnavailable"), Unavailable),
        (httpx.Response(500, text="failed calling webhook"), Unavailable),
    ],
)
async def test_refusals_have_kinds(response: httpx.Response, error: type[Refused]) -> None:
    with pytest.raises(error) as raised:
        await kube(lambda _: response).get(RELEASES.named("a"))
    assert raised.value.status == response.status_code


async def test_no_answer_is_unreachable_and_not_an_empty_list() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    with pytest.raises(Unreachable, match="connection refused"):
        await kube(refuse).objects(RELEASES)


async def test_an_answer_that_is_not_json_is_no_answer() -> None:
    with pytest.raises(Unreachable):
        await kube(lambda _: httpx.Response(200, text="<html>")).objects(RELEASES)


async def test_find_says_none_for_what_does_not_exist() -> None:
    assert await kube(lambda _: status(404, "NotFound")).find(RELEASES.named("a")) is None


async def test_listed_objects_carry_their_kind() -> None:
    answer = {"kind": "HelmReleaseList", "apiVersion": RELEASES.api_version, "items": [{"metadata": {"name": "a"}}]}
    objects = await kube(lambda _: httpx.Response(200, json=answer)).objects(RELEASES)
    assert objects == [{"kind": "HelmRelease", "apiVersion": RELEASES.api_version, "metadata": {"name": "a"}}]


async def test_merge_patch_names_its_content_type() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    await kube(answer).merge_patch(RELEASES.named("a"), {"spec": {"suspend": True}}, subresource="status")
    assert seen[0].headers["Content-Type"] == "application/merge-patch+json"
    assert seen[0].url.path.endswith("/helmreleases/a/status")


async def test_a_server_may_stand_behind_a_path_of_a_proxy() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(200, json={"items": []})

    transport = httpx.MockTransport(answer)
    behind = Kube(httpx.AsyncClient(transport=transport, base_url="https://proxy.test/k8s/clusters/c-1"))
    await behind.objects(Ref("v1", "nodes"))
    assert seen == ["/k8s/clusters/c-1/api/v1/nodes"]


class Feed:
    """An API server that answers lists from `lists` and watches from `events`, then has nothing more to say."""

    def __init__(self, lists: list[httpx.Response | Exception], events: list[list[dict[str, Any]]]) -> None:
        self.lists, self.events = lists, events

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.params.get("watch"):
            lines = self.events.pop(0) if self.events else []
            return httpx.Response(200, stream=_Lines(lines))
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Lines(httpx.AsyncByteStream):
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield json.dumps(event).encode() + b"\n"


def listing(*names: str) -> httpx.Response:
    items = [{"metadata": {"name": name, "namespace": "cozy-system"}} for name in names]
    return httpx.Response(200, json={"kind": "HelmReleaseList", "metadata": {"resourceVersion": "7"}, "items": items})


def event(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "namespace": "cozy-system"}}}


def names(snapshot: Snapshot) -> list[str] | None:
    return None if snapshot.objects is None else sorted(name for _, name in snapshot.objects)


async def taken(client: Kube, count: int) -> list[list[str] | None]:
    result: list[list[str] | None] = []
    async for snapshot in client.watch(RELEASES):
        result.append(names(snapshot))
        if len(result) == count:
            return result
    raise AssertionError("a watch never ends by itself")


async def test_a_watch_folds_events_into_whole_snapshots() -> None:
    feed = Feed([listing("a")], [[event("ADDED", "b"), event("MODIFIED", "a"), event("DELETED", "a")]])
    assert await taken(kube(feed), 4) == [["a"], ["a", "b"], ["a", "b"], ["b"]]


async def test_events_that_come_at_once_are_one_snapshot_however_the_network_cuts_them() -> None:
    text = b"".join(json.dumps(each).encode() + b"\n" for each in (event("ADDED", "b"), event("ADDED", "c")))
    more = json.dumps(event("DELETED", "a")).encode() + b"\n"

    async def cut() -> AsyncIterator[bytes]:
        for chunk in (text + more[:20], more[20:-1], more[-1:]):
            yield chunk

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=cut()) if request.url.params.get("watch") else listing("a")

    assert await taken(kube(answer), 3) == [["a"], ["a", "b", "c"], ["b", "c"]]


async def test_a_watch_survives_an_outage_and_yields_nothing_meanwhile() -> None:
    feed = Feed([listing("a"), httpx.ConnectError("down"), status(503, "ServiceUnavailable"), listing("a", "b")], [[]])
    assert await taken(kube(feed), 2) == [["a"], ["a", "b"]]


async def test_an_expired_watch_lists_again() -> None:
    feed = Feed([listing("a"), listing("c")], [[{"type": "ERROR", "object": {"code": 410}}]])
    assert await taken(kube(feed), 2) == [["a"], ["c"]]


async def test_a_kind_that_does_not_exist_yet_is_told_apart_from_an_empty_collection() -> None:
    feed = Feed([status(404, "NotFound"), status(404, "NotFound"), listing()], [[]])
    assert await taken(kube(feed), 2) == [None, []]


def config(**changes: Any) -> str:
    data: dict[str, Any] = {
        "current-context": "admin@lab",
        "contexts": [{"name": "admin@lab", "context": {"cluster": "lab", "user": "admin@lab"}}],
        "clusters": [
            {"name": "lab", "cluster": {"server": "https://10.0.0.10:6443", "certificate-authority-data": B64}}
        ],
        "users": [{"name": "admin@lab", "user": {"client-certificate-data": B64, "client-key-data": B64}}],
    }
    return json.dumps({**data, **changes})


B64 = base64.b64encode(b"canary").decode()


def test_a_kubeconfig_of_this_cluster_passes_unchanged() -> None:
    assert checked(config(), "https://10.0.0.10:6443/") == config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        (None, "empty"),
        ("{a: [", "not valid YAML"),
        ("- a", "not a mapping"),
        ("a: b", "no current-context"),
        (config(**{"current-context": "other"}), "no entry 'other' under contexts"),
        (
            config(clusters=[{"name": "lab", "cluster": {"server": "https://10.9.9.9:6443"}}]),
            "points to https://10.9.9.9:6443",
        ),
        (config(clusters=[{"name": "lab", "cluster": {"server": "http://10.0.0.10:6443"}}]), "not an https"),
        (config(users=[{"name": "admin@lab", "user": {}}]), "no credentials"),
        (config(users=[{"name": "admin@lab", "user": {"client-key": "/home/me/key"}}]), "refers to a file"),
        (config(users=[{"name": "admin@lab", "user": {"exec": {"command": "aws"}}}]), "exec credential plugin"),
    ],
)
def test_a_kubeconfig_that_must_not_reach_a_client_is_refused(text: str | None, problem: str) -> None:
    with pytest.raises(BadKubeconfig, match=problem):
        checked(text, "https://10.0.0.10:6443")


def test_credentials_never_show_in_a_representation() -> None:
    assert "canary" not in repr(parse(config()))


def test_ambient_configuration_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/decoy")
    with pytest.raises(BadKubeconfig, match="empty"):
        kubeconfig.parse("")


def test_kubeconfigs_are_read_by_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        servers = set(pool.map(lambda number: parse(f"{config()}\n# {number}").server, range(64)))
    assert servers == {"https://10.0.0.10:6443"}
