"""The readiness judgement: entries of public bug reports about waiting for HelmReleases."""

from cozystack_iac.readiness.phases import HelmRelease
from cozystack_iac.readiness.releases import WaitLimits
from cozystack_iac.readiness.verdicts import Progressing, Ready, Stuck, Suspended
from tests.hr import Wait, done, expecting, failing, release, running, settled, stalled, waiting


def test_b01_not_ready_and_no_condition_both_count_as_not_ready() -> None:
    verdict = settled(expecting(), release("n/a", ready=("False", "Whatever", "x")), release("n/b"), done("n/c"))

    assert isinstance(verdict, Progressing)
    assert {b.subject for b in verdict.blockers} == {"n/a", "n/b"}
    assert (verdict.ready, verdict.total) == (1, 3)


def test_b03_a_suspended_release_blocks_although_its_last_state_is_ready() -> None:
    verdict = settled(expecting(), done("n/a", suspended=True), done("n/b"))

    assert isinstance(verdict, Suspended)
    assert verdict.reason == "n/a is suspended"
    assert "suspend" in verdict.remedy


def test_b03_a_suspension_that_is_allowed_by_name_does_not_block() -> None:
    wait = Wait(expecting("n/a", "n/b"), WaitLimits(allow_suspended=frozenset({"n/a"})))
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


def test_b70_a_leaf_that_fails_for_good_under_thirty_dependants_is_named_once_with_all_of_them() -> None:
    dependants = [waiting(f"n/d{i:02}", "n/leaf") for i in range(30)]
    verdict = settled(expecting(), failing("n/leaf", error="it broke"), *dependants, after=600)

    assert isinstance(verdict, Stuck)
    assert [(b.subject, b.behind) for b in verdict.blockers] == [("n/leaf", 30)]
    assert verdict.blockers[0].dependants == tuple(f"n/d{i:02}" for i in range(30))


def test_b70_ordering_noise_is_no_failure_while_others_become_ready() -> None:
    noise = 'resource mapping not found: no matches for kind "PrometheusRule" in version "monitoring.coreos.com/v1"'
    wait = Wait(expecting())
    others: list[HelmRelease] = []
    for minute in range(60):
        others.append(done(f"n/{minute}"))
        assert isinstance(wait.at(minute * 60.0, [failing("n/rd", error=noise), *others]), Progressing)

    assert isinstance(wait.at(59 * 60 + 900, [failing("n/rd", error=noise), *others]), Stuck)
