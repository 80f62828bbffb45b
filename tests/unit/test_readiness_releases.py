"""The readiness judgement: tables of states, and the entries of public bug reports about waiting for HelmReleases."""

import pytest

from cozystack_iac.readiness.phases import Condition, Phase, Release, item_of
from cozystack_iac.readiness.releases import Expected, Limits, Progressing, QueryFailed, Ready, Stuck, Unknown
from tests.hr import Wait, done, expecting, failing, release, rid, running, stalled, waiting

READY = ("True", "InstallSucceeded", "Helm install succeeded")


def settled(expected: Expected, *objects: Release, after: float = 30.0) -> object:
    wait = Wait(expected)
    wait.at(0, objects)
    return wait.at(after, objects)


# What one release says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (release("a/b"), Phase.STARTING),
        (release("a/b", conditions={"Released": Condition(*READY)}), Phase.STARTING),
        (running("a/b"), Phase.RUNNING),
        (waiting("a/b", "a/c"), Phase.WAITING),
        (failing("a/b"), Phase.FAILING),
        (release("a/b", ready=READY, observed=-1), Phase.STALE),
        (release("a/b", ready=READY, observed=1, generation=2), Phase.STALE),
        (release("a/b", ready=READY, observed=1), Phase.READY),
        (release("a/b", ready=READY, observed=2, generation=2, suspended=True), Phase.SUSPENDED),
        (release("a/b", ready=READY, observed=1, deleting=True), Phase.DELETING),
        (stalled("a/b"), Phase.STALLED),
        (release("a/b", ready=("False", "InstallFailed", "install retries exhausted"), observed=1), Phase.STALLED),
        (release("a/b", ready=("False", "RetriesExceeded", "Failed"), observed=1), Phase.STALLED),
        (release("a/b", ready=("False", "ArtifactFailed", "not found")), Phase.FETCHING),
        (release("a/b", ready=("False", "SomethingNew", "never heard of it")), Phase.FAILING),
    ],
)
def test_phase_of_a_release(seen: Release, phase: Phase) -> None:
    assert item_of(seen).phase is phase


def test_a_retry_that_runs_is_still_the_failure_of_the_last_attempt() -> None:
    failed = failing("a/b").conditions["Released"]
    retrying = release(
        "a/b", ready=("Unknown", "Progressing", "Running 'upgrade' action"), conditions={"Released": failed}
    )

    assert item_of(retrying).phase is Phase.FAILING


def test_an_object_that_cannot_be_read_is_an_error_not_a_release() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Release.parse({"metadata": {"name": "no-namespace"}})


# Ready --------------------------------------------------------------------------------------------------------------


def test_ready_holds_only_after_it_was_so_for_the_settling_period() -> None:
    wait = Wait(expecting("a/b"))

    assert isinstance(wait.at(0, [done("a/b")]), Progressing)
    assert isinstance(wait.at(29.9, [done("a/b")]), Progressing)
    assert wait.at(30, [done("a/b")]) == Ready(1)


def test_a_release_that_flaps_starts_the_settling_period_again() -> None:
    wait = Wait(expecting("a/b"))
    wait.at(0, [done("a/b")])
    wait.at(20, [running("a/b")])
    wait.at(21, [done("a/b")])

    assert isinstance(wait.at(50, [done("a/b")]), Progressing)
    assert wait.at(51, [done("a/b")]) == Ready(1)


def test_a_query_that_failed_starts_the_settling_period_again() -> None:
    wait = Wait(expecting("a/b"))
    wait.at(0, [done("a/b")])

    assert wait.at(40, QueryFailed("connection refused")) == Unknown("connection refused")
    assert isinstance(wait.at(41, [done("a/b")]), Progressing)


def test_zero_releases_are_never_ready() -> None:
    assert isinstance(settled(Expected(floor=0), after=10_000), Progressing)


def test_fewer_releases_than_any_platform_has_are_not_ready() -> None:
    few = settled(Expected(floor=40), done("a/b"), after=10_000)

    assert isinstance(few, Progressing)
    assert "at least 40" in few.note


def test_an_expected_set_that_is_unknown_makes_everything_unknown() -> None:
    assert Wait(QueryFailed("no PackageSources")).at(99, [done("a/b")]) == Unknown("no PackageSources")


# Entries of public reports ------------------------------------------------------------------------------------------


def test_b01_not_ready_and_no_condition_both_count_as_not_ready() -> None:
    verdict = settled(expecting(), release("n/a", ready=("False", "Whatever", "x")), release("n/b"), done("n/c"))

    assert isinstance(verdict, Progressing)
    assert {b.subject for b in verdict.waiting} == {"n/a", "n/b"}
    assert (verdict.ready, verdict.total) == (1, 3)


def test_b03_a_suspended_release_blocks_although_its_last_state_is_ready() -> None:
    verdict = settled(expecting(), done("n/a", suspended=True), done("n/b"))

    assert isinstance(verdict, Stuck)
    assert verdict.reason == "n/a is suspended"
    assert "suspend" in verdict.remedy


def test_b03_a_suspension_that_is_allowed_by_name_does_not_block() -> None:
    wait = Wait(expecting("n/a", "n/b"), Limits(allow_suspended=frozenset({"n/a"})))
    objects = [done("n/a", suspended=True), done("n/b")]
    wait.at(0, objects)

    assert wait.at(30, objects) == Ready(1)


def test_b04_the_same_failure_over_and_over_is_stuck_after_its_budget() -> None:
    wait = Wait(expecting("n/a"))
    for attempt in range(12):  # 40 minutes, attempts with other verbs, numbers and chart versions
        verdict = wait.at(attempt * 200.0, [failing("n/a", attempt=attempt + 1)])

    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].evidence.endswith("context deadline exceeded")
    assert verdict.blockers[0].for_s == 2200


def test_b04_another_failure_is_another_chance() -> None:
    wait = Wait(expecting("n/a"))
    wait.at(0, [failing("n/a", error="timeout waiting for: Deployment/one")])
    wait.at(500, [failing("n/a", error="timeout waiting for: Deployment/two")])

    assert isinstance(wait.at(1000, [failing("n/a", error="timeout waiting for: Deployment/two")]), Progressing)


def test_b04_a_stalled_release_is_stuck_at_once_while_others_go_on() -> None:
    verdict = Wait(expecting("n/a", "n/b")).at(0, [stalled("n/a"), running("n/b")])

    assert isinstance(verdict, Stuck)
    assert [b.subject for b in verdict.blockers] == ["n/a"]
    assert "it broke" in verdict.blockers[0].evidence


def test_the_root_tenant_gets_time_to_recover_from_a_stall_by_itself() -> None:
    wait = Wait(expecting("tenant-root/tenant-root"))

    assert isinstance(wait.at(0, [stalled("tenant-root/tenant-root")]), Progressing)
    assert isinstance(wait.at(180, [stalled("tenant-root/tenant-root")]), Stuck)


def test_b06_b07_the_dashboard_is_blamed_and_not_what_waits_for_it() -> None:
    objects = [
        *(done(f"n/{i}") for i in range(87)),
        failing("cozy-dashboard/dashboard", error="timeout waiting for: [Deployment/cozy-dashboard/gatekeeper]"),
        waiting("cozy-fluxcd/flux-plunger", "cozy-dashboard/dashboard"),
        waiting("cozy-system/tenant-rd", "cozy-dashboard/dashboard"),
    ]
    verdict = settled(expecting(), *objects, after=600)

    assert isinstance(verdict, Stuck)
    assert [(b.subject, b.behind) for b in verdict.blockers] == [("cozy-dashboard/dashboard", 2)]
    assert "OIDC" in verdict.remedy


def test_b70_a_chain_of_waiting_releases_is_reported_once_by_its_root() -> None:
    objects = [failing("n/a"), waiting("n/b", "n/a"), waiting("n/c", "n/b"), waiting("n/d", "n/c")]
    verdict = settled(expecting(), *objects, after=601)

    assert isinstance(verdict, Stuck)
    assert [(b.subject, b.behind) for b in verdict.blockers] == [("n/a", 3)]


def test_b70_ordering_noise_is_no_failure_while_others_become_ready() -> None:
    noise = 'resource mapping not found: no matches for kind "PrometheusRule" in version "monitoring.coreos.com/v1"'
    wait = Wait(expecting())
    others: list[Release] = []
    for minute in range(60):
        others.append(done(f"n/{minute}"))
        assert isinstance(wait.at(minute * 60.0, [failing("n/rd", error=noise), *others]), Progressing)

    assert isinstance(wait.at(59 * 60 + 900, [failing("n/rd", error=noise), *others]), Stuck)


# Missing and circular -----------------------------------------------------------------------------------------------


def test_an_expected_release_that_nobody_writes_is_stuck_after_a_while() -> None:
    wait = Wait(expecting("n/a", "n/b"))

    assert isinstance(wait.at(0, [done("n/a")]), Progressing)
    verdict = wait.at(300, [done("n/a")])
    assert isinstance(verdict, Stuck)
    assert verdict.reason == "n/b is not created"


def test_a_dependency_that_does_not_exist_is_the_root() -> None:
    verdict = settled(expecting(), waiting("n/b", "n/gone"), after=300)

    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].subject == "n/gone"
    assert "n/b" in verdict.blockers[0].evidence


def test_releases_that_wait_for_each_other_are_named_as_a_circle() -> None:
    verdict = Wait(expecting()).at(0, [waiting("n/a", "n/b"), waiting("n/b", "n/a"), waiting("n/c", "n/a")])

    assert isinstance(verdict, Stuck)
    assert [b.subject for b in verdict.blockers] == ["n/a"]
    assert "waits for itself" in verdict.blockers[0].cause


def test_a_platform_chart_that_times_out_on_packages_points_at_the_package() -> None:
    error = "timeout waiting for: [Package/cozystack.clickhouse-operator status: 'InProgress']"
    objects = [failing("cozy-system/cozystack-platform", error=error), running("n/x")]
    expected = Expected({rid("n/x"): "Package p"})
    verdict = Wait(expected).at(0, objects)

    assert item_of(objects[0]).waits_for == {"Package cozystack.clickhouse-operator"}
    assert isinstance(verdict, Progressing)


def test_all_roots_are_reported_the_one_with_most_behind_it_first() -> None:
    objects = [stalled("n/a"), stalled("n/b"), waiting("n/c", "n/b"), done("n/s", suspended=True)]
    verdict = Wait(expecting()).at(0, objects)

    assert isinstance(verdict, Stuck)
    assert [b.subject for b in verdict.blockers] == ["n/b", "n/a", "n/s"]


def test_a_deletion_that_does_not_end_is_stuck() -> None:
    wait = Wait(expecting())
    leaving = [done("cozy-keycloak/keycloak-configure", deleting=True)]

    assert isinstance(wait.at(0, leaving), Progressing)
    assert isinstance(wait.at(600, leaving), Stuck)
