"""The API server in memory answers like the real one: kinds, conflicts, deletion, watches, and what its controllers do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from cozystack_iac.kube.client import (
    Conflict,
    ExecResult,
    Kube,
    NotFound,
    Object,
    Ref,
    Refused,
    Unavailable,
    Unreachable,
)
from lab import scenario
from lab.clock import Clock
from lab.memory import Controllers, MemoryApi, Server, fields, history
from lab.platform import catalogue, crds
from lab.platform.objects import new
from lab.world import World

MAPS = Ref("v1", "configmaps", "default")
JOBS = Ref("batch/v1", "jobs", "default")
SPACE = Ref("v1", "namespaces", name="default")
PODS = Ref("v1", "pods", "default")
RELEASES = Ref("helm.toolkit.fluxcd.io/v2", "helmreleases", "default")
CRD = crds.definition("helmreleases.helm.toolkit.fluxcd.io", catalogue.load("1.6.2").traits)
CRDS = Ref("apiextensions.k8s.io/v1", "customresourcedefinitions")


@pytest.fixture
def api() -> MemoryApi:
    return MemoryApi()


@pytest.fixture
def kube(api: MemoryApi) -> Kube:
    return Server(api).kube()


@pytest_asyncio.fixture
async def alive(api: MemoryApi) -> AsyncIterator[World]:
    """The controllers of a cluster with one machine, a thousand times faster than life."""
    world = World(scenario.load(scenario.FOLDER / "one-node.yaml"), clock=Clock(1000))
    async with asyncio.TaskGroup() as tasks:
        Controllers(api, world, tasks)
        yield world
        for task in tuple(tasks._tasks):
            task.cancel()


def settings(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "default"}, "data": data}


def job(**spec: Any) -> Object:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    return new("Job", "work", "default", spec={"template": {"spec": pod}, **spec})


async def conditions(kube: Kube, ref: Ref) -> dict[str, str]:
    found = await kube.get(ref)
    return {c["type"]: c["reason"] for c in (found.get("status") or {}).get("conditions") or ()}


async def until(question: Any, deadline_s: float = 5) -> None:
    async with asyncio.timeout(deadline_s):
        while not await question():
            await asyncio.sleep(0.005)


# Objects --------------------------------------------------------------------------------------------------------------


async def test_what_exists_is_not_created_twice_and_what_is_gone_is_not_found(kube: Kube) -> None:
    await kube.create(MAPS, settings(a="1"))
    with pytest.raises(Conflict, match="already exists"):
        await kube.create(MAPS, settings(a="1"))
    await kube.delete(MAPS.named("one"))
    assert await kube.find(MAPS.named("one")) is None


async def test_a_namespace_has_to_be_there(kube: Kube) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await kube.create(Ref("v1", "configmaps", "nowhere"), settings())


async def test_a_kind_is_served_from_its_definition_on(kube: Kube) -> None:
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await kube.objects(RELEASES)
    await kube.create(CRDS, CRD)
    assert await kube.objects(RELEASES) == []
    await kube.delete(CRDS.named(CRD["metadata"]["name"]))
    with pytest.raises(NotFound):
        await kube.objects(RELEASES)


async def test_generation_follows_the_spec_and_status_is_written_apart(kube: Kube) -> None:
    await kube.create(CRDS, CRD)
    await kube.create(RELEASES, new("HelmRelease", "r", "default", spec={"a": 1}, status={"no": "body"}))
    one = RELEASES.named("r")
    assert "status" not in await kube.get(one)
    await kube.merge_patch(one, {"status": {"x": 1}, "spec": {"b": 2}}, subresource="status")
    found = await kube.get(one)
    assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"a": 1}, {"x": 1}, 1)
    await kube.merge_patch(one, {"status": {"x": 2}, "spec": {"a": None, "b": 2}})
    found = await kube.get(one)
    assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"b": 2}, {"x": 1}, 2)


async def test_a_write_on_an_old_version_is_a_conflict_and_a_dry_run_writes_nothing(kube: Kube) -> None:
    old = await kube.create(MAPS, settings(a="1"))
    await kube.merge_patch(MAPS.named("one"), {"data": {"a": "2"}})
    await kube.merge_patch(MAPS.named("one"), {"data": {"a": "3"}}, dry_run=True)
    assert (await kube.get(MAPS.named("one")))["data"] == {"a": "2"}
    with pytest.raises(Conflict, match="has been modified"):
        await kube.replace(MAPS.named("one"), {**old, "data": {}})


async def test_applied_fields_have_owners(kube: Kube) -> None:
    one = MAPS.named("one")
    await kube.apply(one, settings(a="1", b="1"), manager="first")
    await kube.apply(one, settings(a="1"), manager="second")  # the same value: shared
    with pytest.raises(Conflict, match=r'conflict with "first": \.data\.b'):
        await kube.apply(one, settings(b="2"), manager="second")
    await kube.apply(one, settings(b="2"), manager="second", force=True)
    await kube.apply(one, settings(), manager="first")  # gives up what it no longer says, and only what it owns
    assert (await kube.get(one))["data"] == {"b": "2"}


async def test_finalizers_keep_an_object_until_they_are_gone(kube: Kube) -> None:
    await kube.create(MAPS, settings() | {"metadata": {"name": "one", "finalizers": ["a/b"]}})
    await kube.delete(MAPS.named("one"))
    assert "deletionTimestamp" in (await kube.get(MAPS.named("one")))["metadata"]
    await kube.merge_patch(MAPS.named("one"), {"metadata": {"finalizers": None}})
    assert await kube.find(MAPS.named("one")) is None


async def test_some_fields_never_change(kube: Kube) -> None:
    await kube.create(JOBS, job())
    with pytest.raises(Refused, match="field is immutable") as refused:
        await kube.merge_patch(JOBS.named("work"), {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    assert refused.value.status == 422


async def test_selectors(kube: Kube) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        await kube.create(MAPS, {"metadata": {"name": name, "labels": labels}})
    named = [o["metadata"]["name"] for o in await kube.objects(MAPS, selector="x,x!=2")]
    assert named == ["a"]
    assert [o["metadata"]["name"] for o in await kube.objects(MAPS, fields="metadata.name=c")] == ["c"]
    assert fields.selects("!x", {}) is True


async def test_privileged_pods_need_a_privileged_namespace(kube: Kube) -> None:
    spec = {"hostNetwork": True, "containers": [{"name": "c"}]}
    with pytest.raises(Refused, match='violates PodSecurity "baseline:latest": host namespaces'):
        await kube.create(PODS, new("Pod", "p", "default", spec=spec))
    privileged = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    await kube.merge_patch(Ref("v1", "namespaces", name="default"), privileged)
    assert (await kube.create(PODS, new("Pod", "p", "default", spec=spec)))["status"] == {"phase": "Pending"}


# Watches and outages --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(kube: Kube, ref: Ref, selector: str = "") -> AsyncIterator[list[list[str] | None]]:
    """The names in every snapshot of a watch, which has begun."""
    seen: list[list[str] | None] = []

    async def follow() -> None:
        async for snapshot in kube.watch(ref, selector=selector):
            names = None if snapshot.objects is None else sorted(name for _, name in snapshot.objects)
            seen.append(names)

    watching = asyncio.create_task(follow())
    await until(lambda: asyncio.sleep(0, seen))
    yield seen
    watching.cancel()


async def test_a_watch_sees_the_collection_and_every_change_even_across_an_outage(api: MemoryApi, kube: Kube) -> None:
    async with watched(kube, MAPS) as seen:
        api.go_away(True)
        with pytest.raises(Unreachable):
            await kube.objects(MAPS)
        await Server(api).kube(inside=True).create(MAPS, settings())
        assert seen == [[]]
        api.go_away(False)
        await until(lambda: asyncio.sleep(0, seen == [[], ["one"]]))


async def test_no_connection_survives_an_outage_however_short(api: MemoryApi, kube: Kube) -> None:
    async with watched(kube, MAPS) as seen:
        api.go_away(True)
        api.go_away(False)
        await until(lambda: asyncio.sleep(0, seen == [[], []]))


async def test_who_watches_a_part_sees_objects_come_and_go_by_their_labels(kube: Kube) -> None:
    async with watched(kube, MAPS, "is=wanted") as seen:
        await kube.create(MAPS, settings())
        for value in ("wanted", "unwanted", "wanted"):
            await kube.merge_patch(MAPS.named("one"), {"metadata": {"labels": {"is": value}}})
        await kube.delete(MAPS.named("one"))
        await until(lambda: asyncio.sleep(0, seen == [[], ["one"], [], ["one"], []]))


async def test_the_watch_of_a_kind_ends_with_the_kind(kube: Kube) -> None:
    await kube.create(CRDS, CRD)
    async with watched(kube, RELEASES) as seen:
        await kube.delete(CRDS.named(CRD["metadata"]["name"]))
        await until(lambda: asyncio.sleep(0, seen == [[], None]))


async def test_a_watch_of_an_expired_version_has_to_list_again(kube: Kube) -> None:
    for number in range(history.KEPT + 1):
        await kube.merge_patch(SPACE, {"metadata": {"annotations": {"n": str(number)}}})
    answer = json.loads(await kube.text("/api/v1/namespaces?watch=true&resourceVersion=1"))
    assert (answer["type"], answer["object"]["code"], answer["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_refusals_that_were_ordered_come_in_their_number(api: MemoryApi, kube: Kube) -> None:
    api.refuse("POST configmaps", 500, "InternalError", "failed calling webhook", times=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="failed calling webhook"):
            await kube.create(MAPS, settings())
    assert await kube.create(MAPS, settings())


async def test_an_aggregated_api_without_its_ca_is_unavailable(kube: Kube) -> None:
    spec = {"group": "apps.cozystack.io", "version": "v1", "service": {"name": "a", "namespace": "b", "port": 1}}
    await kube.create(
        Ref("apiregistration.k8s.io/v1", "apiservices"), new("APIService", "v1.apps.cozystack.io", spec=spec)
    )
    with pytest.raises(Unavailable, match="currently unable to handle the request"):
        await kube.get(Ref("apps.cozystack.io/v1", "tenants", "tenant-root", "root"))


# Controllers ----------------------------------------------------------------------------------------------------------


async def test_what_belongs_to_a_deleted_object_or_namespace_goes_with_it(kube: Kube, alive: World) -> None:
    owner = await kube.create(MAPS, settings())
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": owner["metadata"]["uid"]}
    await kube.create(MAPS, {"metadata": {"name": "two", "ownerReferences": [reference]}})
    await kube.delete(MAPS.named("one"))
    assert await kube.objects(MAPS) == []
    await kube.create(Ref("v1", "namespaces"), new("Namespace", "room"))
    await kube.create(Ref("v1", "configmaps", "room"), {"metadata": {"name": "x"}})
    await kube.delete(Ref("v1", "namespaces", name="room"))
    assert await kube.find(Ref("v1", "namespaces", name="room")) is None


async def failed_pod(kube: Kube, code: int) -> None:
    [pod] = [p for p in await kube.objects(PODS) if p["status"]["phase"] == "Pending"]
    state = {"terminated": {"exitCode": code}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": state}]}
    await kube.merge_patch(PODS.named(pod["metadata"]["name"]), {"status": status}, subresource="status")


async def test_a_job_ends_by_its_policy_or_when_its_retries_are_used_up(kube: Kube, alive: World) -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]
    for code, reason in ((3, "PodFailurePolicy"), (1, "BackoffLimitExceeded")):
        await kube.create(JOBS, job(backoffLimit=0, podFailurePolicy={"rules": rules}))
        await until(lambda: kube.objects(PODS))
        await failed_pod(kube, code)
        await until(lambda: conditions(kube, JOBS.named("work")))
        assert (await conditions(kube, JOBS.named("work")))["Failed"] == reason
        await kube.delete(JOBS.named("work"))
        assert await kube.objects(PODS) == []


async def test_a_suspended_job_has_no_pods_until_it_is_released(kube: Kube, alive: World) -> None:
    await kube.create(JOBS, job(suspend=True))
    await until(lambda: conditions(kube, JOBS.named("work")))
    assert await kube.objects(PODS) == []
    await kube.merge_patch(JOBS.named("work"), {"spec": {"suspend": False}})
    await until(lambda: kube.objects(PODS))


async def test_exec_needs_a_running_container_and_a_program(api: MemoryApi, alive: World) -> None:
    async def echo(_pod: Object, argv: list[str]) -> tuple[str, str, int] | None:
        return (" ".join(argv[1:]), "", 0) if argv[0] == "echo" else None

    kube = Server(api, echo).kube()
    await kube.create(PODS, new("Pod", "p", "default", spec={"containers": [{"name": "c"}]}))
    with pytest.raises(Unavailable, match="container not found"):
        await kube.exec("default", "p", "c", ["echo", "a"])
    await kube.merge_patch(PODS.named("p"), {"status": {"phase": "Running"}}, subresource="status")
    assert (await kube.exec("default", "p", "c", ["echo", "a", "b"])).stdout == "a b"
    assert (await kube.exec("default", "p", "c", ["sh"])).ok is False


async def test_a_command_that_fails_says_so_with_all_it_said(api: MemoryApi) -> None:
    async def loud(_pod: Object, _argv: list[str]) -> tuple[str, str, int]:
        return "out" * 100_000, "err", 3

    kube = await with_pod(Server(api, loud))
    assert await kube.exec("default", "p", "c", ["x"]) == ExecResult("out" * 100_000, "err", ok=False)


async def test_a_command_whose_connection_breaks_has_no_answer(api: MemoryApi) -> None:
    async def cut(_pod: Object, _argv: list[str]) -> tuple[str, str, int]:
        api.go_away(True)
        return "done", "", 0

    kube = await with_pod(Server(api, cut))
    with pytest.raises(Unreachable, match="was closed before the command finished"):
        await kube.exec("default", "p", "c", ["x"])


async def test_a_command_has_its_time(api: MemoryApi) -> None:
    async def sleep(_pod: Object, _argv: list[str]) -> tuple[str, str, int]:
        await asyncio.sleep(60)
        return "", "", 0

    kube = await with_pod(Server(api, sleep))
    with pytest.raises(Unreachable, match="TimeoutError"):
        await kube.exec("default", "p", "c", ["x"], deadline_s=0.05)


async def with_pod(server: Server) -> Kube:
    """A client of the cluster, in which a pod runs."""
    kube = server.kube()
    await kube.create(PODS, new("Pod", "p", "default", spec={"containers": [{"name": "c"}]}))
    await kube.merge_patch(PODS.named("p"), {"status": {"phase": "Running"}}, subresource="status")
    return kube
