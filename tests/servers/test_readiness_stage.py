"""The stage PlatformReady against an API server made of dictionaries: what it says, when it ends, how fast it reacts."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from cozystack_iac.diagnosis import evidence
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign
from cozystack_iac.kube.client import Kube, Object, Refused, Unreachable
from cozystack_iac.readiness.verdicts import QueryFailed
from cozystack_iac.readiness.view import RELEASES, View
from cozystack_iac.stages import platform_ready as stages
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.platform_ready import PlatformInputs, PlatformOutputs, PlatformReadyProvider
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG
from tests.asked import ServedBy
from tests.platform_releases import INSTALLING, PLATFORM, READY, STALLED, Cluster, release

pytestmark = pytest.mark.pace(looks=0.05)

Running = Callable[..., "asyncio.Task[PlatformOutputs]"]


@pytest.fixture
def said() -> list[str]:
    return []


async def heard(said: list[str], text: str) -> bool:
    """Waits, for a busy machine's sake rather long, until a line with `text` was said."""
    async with asyncio.timeout(10):
        while not any(text in line for line in said):
            await asyncio.sleep(0.02)
    return True


@pytest.fixture
def establish(served_by: ServedBy, said: list[str]) -> Running:
    def start(cluster: Cluster, **more: Any) -> "asyncio.Task[PlatformOutputs]":
        served_by(cluster.answer)
        given = {"kubeconfig": KUBECONFIG, "variant": "default", "settle_s": 0, "deadline_s": 10, **more}
        progress = Progress("PlatformReady", write=said.append)
        return asyncio.create_task(PlatformReadyProvider().establish(PlatformInputs.model_validate(given), progress))

    return start


async def test_a_platform_that_is_ready_passes_at_once(establish: Running) -> None:
    made = await establish(Cluster(release("cozystack-platform", READY), release("a", READY)))

    assert (made.releases, made.pools) == (2, 0)


async def test_the_last_release_turning_ready_ends_the_wait(establish: Running, said: list[str]) -> None:
    """How soon is measured by `bench.readiness`; here only that nothing waits for a tick of many seconds."""
    cluster = Cluster(release("cozystack-platform", READY), release("a", INSTALLING))
    task = establish(cluster)
    assert await heard(said, "1 of 2 ready, waiting for cozy-system/a (installing, ")

    await cluster.put(release("a", READY))

    async with asyncio.timeout(5):
        await task


async def test_ready_has_to_hold_for_the_settling_period(establish: Running) -> None:
    started = time.monotonic()
    await establish(Cluster(release("cozystack-platform", READY)), settle_s=1.0)

    assert time.monotonic() - started >= 1.0


async def test_a_stuck_release_fails_the_stage_with_evidence_and_a_way_out(establish: Running) -> None:
    cluster = Cluster(
        release("cozystack-platform", READY),
        release("a", *STALLED),
        release("b", {**READY, "status": "False", "reason": "DependencyNotReady"}, needs=("a",)),
    )
    with pytest.raises(StageFailed) as failed:
        await establish(cluster)

    text = str(failed.value)
    assert "1 of 3 releases are ready: cozy-system/a is given up by Flux" in text
    assert "1 wait for it" in text
    assert "disk full" in text
    assert "run `pulumi up` again" in text
    assert next(iter(failed.value.details)) == "cozy-system/a"
    assert "cozy-system/b" in failed.value.details["cozy-system/a"]
    assert "a given up by Flux; b waiting for its dependencies" in failed.value.details["packages"]


async def test_a_used_up_budget_says_what_was_seen_last(establish: Running) -> None:
    with pytest.raises(StageFailed) as failed:
        await establish(Cluster(release("cozystack-platform", READY), release("a", INSTALLING)), deadline_s=2)

    assert "1 of 2 ready, waiting for cozy-system/a" in failed.value.details["last seen"]
    assert "fix:" in failed.value.details["cozy-system/a"]
    assert "1 of 2" in failed.value.details["packages"]


async def test_ready_on_a_watch_that_is_cut_off_is_not_believed(establish: Running, said: list[str]) -> None:
    cluster = Cluster(release("cozystack-platform", READY), release("a", READY))
    task = establish(cluster, settle_s=1.5)
    assert await heard(said, "all ready")
    cluster.cut = True
    await cluster.put(release("a", *STALLED))

    with pytest.raises(StageFailed, match="stuck"):
        await task


async def test_an_outage_is_unknown_and_is_survived(establish: Running, said: list[str], monkeypatch: Any) -> None:
    cluster = Cluster(release("cozystack-platform", READY), release("a", INSTALLING))
    task = establish(cluster)
    assert await heard(said, "1 of 2 ready")
    cluster.trouble = Unreachable("connection refused")
    assert await heard(
        said, "unknown: the API server does not respond: https://kubernetes.in-memory:6443: connection refused"
    )

    cluster.trouble = None
    await cluster.put(release("a", READY))

    assert (await task).releases == 2


async def test_no_limit_runs_while_nothing_can_be_seen() -> None:
    now = [100.0]
    cluster = Cluster(release("cozystack-platform", READY))
    view = View(cluster.kube, clock=lambda: now[0])
    await view.refresh()
    cluster.trouble = Unreachable("gone")
    now[0] = 110.0
    await view.refresh()
    now[0] = 700.0
    assert isinstance(view.cluster(), QueryFailed)
    assert view.seen_s() == 100.0

    cluster.trouble = None
    await view.refresh()
    now[0] = 705.0

    assert view.seen_s() == 105.0


async def test_a_kubeconfig_that_may_not_look_is_refused_with_a_reason(establish: Running) -> None:
    cluster = Cluster()
    cluster.trouble = Refused(403, "Forbidden", "helmreleases is forbidden")

    with pytest.raises(StageFailed, match="does not allow listing") as failed:
        await establish(cluster)

    assert "forbidden" in failed.value.details["answer"]


async def test_kinds_that_do_not_exist_yet_are_waited_for(establish: Running, said: list[str]) -> None:
    cluster = Cluster(release("cozystack-platform", READY))
    known, cluster.world[RELEASES] = cluster.world[RELEASES], None
    task = establish(cluster)
    assert await heard(said, "does not know helmreleases yet")

    cluster.world[RELEASES] = known
    await cluster.put(release("cozystack-platform", READY))

    assert (await task).releases == 1


async def test_releases_alone_do_not_make_a_platform_without_its_pools(establish: Running, said: list[str]) -> None:
    cluster = Cluster(release("cozystack-platform", READY))
    cluster.pools = ["cp1"]
    task = establish(cluster, nodes=["cp1", "cp2"], pool="data", zpool="data")
    assert await heard(said, "cp2 not registered")

    cluster.pools.append("cp2")

    assert (await task).pools == 2


async def test_many_changes_make_few_lines_and_few_questions(establish: Running, said: list[str]) -> None:
    cluster = Cluster(release("cozystack-platform", READY), *(release(f"r{n}", INSTALLING) for n in range(60)))
    began, task = time.monotonic(), establish(cluster)
    for number in range(60):
        await cluster.put(release(f"r{number}", READY))
        await asyncio.sleep(0.02)
    made = await task

    assert made.releases == 61
    assert len(said) <= 2 + (time.monotonic() - began) / stages.SAY_EVERY_S
    assert len(cluster.lists) == 2 * 3  # where each watch began, and one last look; everything else came by the watches


async def test_there_is_one_watch_per_kind_whatever_the_number_of_releases(establish: Running) -> None:
    cluster = Cluster(release("cozystack-platform", READY), *(release(f"r{n}", READY) for n in range(1000)))

    assert (await establish(cluster)).releases == 1001
    assert sorted(cluster.watches) == ["helmreleases", "packages", "packagesources"]


async def test_a_release_that_turns_up_late_starts_the_settling_period_again(establish: Running) -> None:
    cluster = Cluster(release("cozystack-platform", READY))
    started, task = time.monotonic(), establish(cluster, settle_s=1.0)
    await asyncio.sleep(0.8)
    await cluster.put(release("wave2", READY))

    assert (await task).releases == 2
    assert time.monotonic() - started >= 1.8


async def test_what_is_suspended_is_named_and_ends_the_wait_once_nothing_else_can_go_on(
    establish: Running, said: list[str]
) -> None:
    held = release("held", READY)
    held["spec"]["suspend"] = True
    task = establish(Cluster(release("cozystack-platform", READY), held))

    with pytest.raises(StageFailed) as failed:
        await task

    assert "is waiting for a person, 1 of 2 releases are ready: cozy-system/held is suspended" in str(failed.value)
    assert "patch helmrelease held" in failed.value.next_step


async def test_a_failure_that_evidence_knows_to_pass_is_waited_for_a_little_longer(
    establish: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def throttled(_: Kube, about: list[str]) -> Evidence:
        asked.set()
        pull = Sign(Kind.POD, "cozy-system/a-0", "ErrImagePull", "pull: toomanyrequests: rate limit")
        return Evidence((pull,), tuple(about))

    monkeypatch.setattr(evidence, "collect", throttled)
    slow = {"type": "Ready", "status": "False", "reason": "InstallFailed", "message": "context deadline exceeded"}
    cluster = Cluster(release("cozystack-platform", READY), release("a", slow))
    task = establish(cluster, failing_s=1.0)
    await asyncio.wait_for(asked.wait(), 10)
    await cluster.put(release("a", READY))

    assert (await task).releases == 2


async def test_a_line_says_how_long_it_will_still_take_or_that_nobody_knows(
    establish: Running, said: list[str]
) -> None:
    def at(second: int) -> str:
        return f"2026-11-30T12:{second // 60:02}:{second % 60:02}Z"

    def finished(name: str, took: int) -> Object:
        made = release(name, {**READY, "lastTransitionTime": at(took)})
        made["metadata"]["creationTimestamp"] = at(0)
        return made

    cluster = Cluster(release("cozystack-platform", READY), release("slow", INSTALLING), release("late"))
    task = establish(cluster)
    assert await heard(said, "remaining time unknown")

    for number in range(5):
        await cluster.put(finished(f"done{number}", 100))  # one Deployment, at a quarter of the usual speed
    assert await heard(said, "about 2 min left")

    await cluster.put(release("slow", READY))
    await cluster.put(release("late", READY))
    await task


async def test_the_outputs_say_when_each_package_was_ready(establish: Running) -> None:
    platform = release("cozystack-platform", {**READY, "lastTransitionTime": "2026-11-30T12:01:10Z"})
    platform["metadata"]["creationTimestamp"] = "2026-11-30T12:00:00Z"

    assert (await establish(Cluster(platform))).timings == {PLATFORM: 70}


async def test_after_an_outage_what_happened_meanwhile_is_asked_for_at_once(
    establish: Running, said: list[str], monkeypatch: Any
) -> None:
    cluster = Cluster(release("cozystack-platform", READY), release("a", INSTALLING))
    task = establish(cluster)
    assert await heard(said, "1 of 2 ready")
    cluster.trouble = Unreachable("connection refused")
    assert await heard(said, "does not respond")
    cluster.cut = True  # the watches come back much later
    await cluster.put(release("a", READY))

    cluster.trouble = None

    assert (await task).releases == 2


async def test_refresh_shows_what_is_no_longer_ready(establish: Running) -> None:
    cluster = Cluster(release("cozystack-platform", READY), release("a", READY))
    made = await establish(cluster)
    await cluster.put(release("a", INSTALLING))
    given = PlatformInputs(kubeconfig=KUBECONFIG, variant="default", deadline_s=10)

    seen = await PlatformReadyProvider().observe(given, made)

    assert seen == PlatformOutputs(releases=1, pools=0, seconds=made.seconds, timings=made.timings)


async def test_a_changed_budget_or_kubeconfig_is_no_reason_to_wait_again() -> None:
    old = {"kubeconfig": "k", "variant": "isp-full", "deadline_s": 10, "settle_s": 30, "revision": "1"}
    provider = PlatformReadyProvider()

    assert provider.diff("x", old, {**old, "kubeconfig": "other", "deadline_s": 20, "settle_s": 1}).changes is False
    assert provider.diff("x", old, {**old, "revision": "2"}).changes is True


async def test_revising_waits_as_establishing_does(establish: Running) -> None:
    task = establish(Cluster(release("cozystack-platform", READY)))
    first = await task
    given = PlatformInputs(kubeconfig=KUBECONFIG, variant="default", settle_s=0, deadline_s=5)

    again = await PlatformReadyProvider().revise(given, Known(given, first), Progress("x", write=print))

    assert again.releases == 1
