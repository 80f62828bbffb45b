"""The readiness judgement: tables of states, and the entries of public bug reports about waiting for HelmReleases."""

import pytest

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import Condition, Phase, Release, item_of
from cozystack_iac.readiness.releases import Limits
from cozystack_iac.readiness.verdicts import (
    Progressing,
    QueryFailed,
    Ready,
    Stale,
    State,
    Stuck,
    StuckClass,
    Suspended,
    Unknown,
)
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


def test_a_release_whose_status_cannot_be_read_is_unknown_and_so_is_the_platform() -> None:
    odd = Release.parse({"metadata": {"namespace": "n", "name": "a"}, "status": {"conditions": ["what is this"]}})
    verdict = settled(expecting("n/a", "n/b"), odd, done("n/b"))

    assert item_of(odd).phase is Phase.UNREADABLE
    assert isinstance(verdict, Unknown)
    assert "n/a cannot be read" in verdict.reason
    assert (verdict.ready, verdict.total) == (1, 2)


def test_what_is_proven_stuck_stays_so_beside_something_unknown() -> None:
    odd = Release.parse({"metadata": {"namespace": "n", "name": "b", "generation": "x"}})

    assert isinstance(settled(expecting("n/a"), stalled("n/a"), odd), Stuck)


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


def test_a_set_that_still_grows_is_not_settled() -> None:
    wait = Wait(expecting("n/a"))
    wait.at(0, [done("n/a")])

    assert isinstance(wait.at(25, [done("n/a"), done("n/wave2")]), Progressing)
    assert isinstance(wait.at(54, [done("n/a"), done("n/wave2")]), Progressing)
    assert wait.at(55, [done("n/a"), done("n/wave2")]) == Ready(2)


# States of the platform ---------------------------------------------------------------------------------------------


def test_ready_for_what_was_asked_before_is_stale_and_stuck_once_nothing_takes_it_in() -> None:
    old = release("n/a", ready=READY, observed=1, generation=2)
    wait = Wait(expecting("n/a", "n/b"))

    assert isinstance(wait.at(0, [old, done("n/b")]), Stale)
    assert isinstance(wait.at(899, [old, done("n/b")]), Stale)
    verdict = wait.at(900, [old, done("n/b")])
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is StuckClass.OVERDUE


def test_while_others_go_on_a_suspended_release_is_only_named() -> None:
    wait = Wait(expecting())
    verdict = wait.at(0, [done("n/a", suspended=True), running("n/b"), waiting("n/c", "n/a")])

    assert isinstance(verdict, Progressing)
    assert [(b.subject, b.words, b.behind) for b in verdict.blockers] == [
        ("n/a", "suspended", 1),
        ("n/b", "installing", 0),
    ]
    assert isinstance(wait.at(60, [done("n/a", suspended=True), done("n/b"), waiting("n/c", "n/a")]), Suspended)


def test_every_subject_has_a_state_and_what_waits_names_its_root() -> None:
    objects = [
        done("n/ok"),
        running("n/run"),
        waiting("n/b", "n/run"),
        waiting("n/c", "n/b"),
        release("n/old", ready=READY, observed=1, generation=2),
        done("n/held", suspended=True),
        stalled("n/dead"),
        Release.parse({"metadata": {"namespace": "n", "name": "odd"}, "spec": 1}),
    ]
    standings = Wait(expecting()).look(0, objects).standings

    assert {s.subject: (s.state, s.root) for s in standings} == {
        "n/ok": (State.READY, ""),
        "n/run": (State.PROGRESSING, ""),
        "n/b": (State.PROGRESSING, "n/run"),
        "n/c": (State.PROGRESSING, "n/run"),
        "n/old": (State.STALE, ""),
        "n/held": (State.SUSPENDED, ""),
        "n/dead": (State.STUCK, ""),
        "n/odd": (State.UNKNOWN, ""),
    }


# Budgets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "budget_s"),
    [
        ("cozy-cilium/cilium", 600),
        ("cozy-cert-manager/cert-manager", 600),
        ("cozy-linstor/linstor", 900),
        ("cozy-keycloak/keycloak-operator", 1200),
        ("cozy-system/cozystack-api", 600),
        ("tenant-root/info", 1200),
        ("cozy-velero/velero", 600),
    ],
)
def test_each_link_of_the_chain_may_fail_for_as_long_as_it_can_need(name: str, budget_s: float) -> None:
    wait = Wait(expecting(name))
    wait.at(0, [failing(name, error="it broke")])

    assert isinstance(wait.at(budget_s - 1, [failing(name, error="it broke", attempt=2)]), Progressing)
    verdict = wait.at(budget_s, [failing(name, error="it broke", attempt=3)])
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is StuckClass.REPEATING


def test_a_budget_begins_when_the_release_could_go_on() -> None:
    wait, broken = Wait(expecting()), failing("n/b", "n/a", error="it broke")
    wait.at(0, [running("n/a"), broken])
    wait.at(900, [done("n/a"), broken])

    assert isinstance(wait.at(1499, [done("n/a"), broken]), Progressing)
    assert isinstance(wait.at(1500, [done("n/a"), broken]), Stuck)


def test_patience_stretches_every_limit() -> None:
    wait = Wait(expecting("n/a"), Limits(patience=2.0))
    wait.at(0, [failing("n/a")])

    assert isinstance(wait.at(1199, [failing("n/a")]), Progressing)
    assert isinstance(wait.at(1200, [failing("n/a")]), Stuck)


@pytest.mark.parametrize("silent", [release("n/a"), running("n/a"), waiting("n/a", "n/b")])
def test_a_root_that_does_nothing_for_half_an_hour_while_nothing_else_moves_is_stuck(silent: Release) -> None:
    wait, objects = Wait(expecting("n/a")), [silent, done("n/b")]
    wait.at(0, objects)

    assert isinstance(wait.at(1799, objects), Progressing)
    verdict = wait.at(1800, objects)
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is StuckClass.OVERDUE


def test_failures_that_change_all_the_time_are_stuck_too_once_nothing_else_moves() -> None:
    wait = Wait(expecting("n/a"))
    errors = ["timeout waiting for: Deployment/one", "timeout waiting for: Deployment/two"]
    verdicts = [wait.at(turn * 300.0, [failing("n/a", error=errors[turn % 2])]) for turn in range(7)]

    assert [isinstance(v, Stuck) for v in verdicts] == [False] * 6 + [True]


def test_what_evidence_calls_noise_may_go_on_while_others_still_become_ready() -> None:
    wait = Wait(expecting(), Limits(noise=frozenset({"n/a"})))
    others = [done(f"n/{minute}") for minute in range(40)]
    early = [wait.at(m * 60.0, [failing("n/a"), *others[: m + 1]]) for m in range(40)]

    assert all(isinstance(v, Progressing) for v in early)
    assert isinstance(wait.at(39 * 60.0 + 899, [failing("n/a"), *others]), Progressing)
    assert isinstance(wait.at(39 * 60.0 + 900, [failing("n/a"), *others]), Stuck)


# Known races --------------------------------------------------------------------------------------------------------

UNKNOWN_KIND = 'resource mapping not found for name: "x": no matches for kind "{}" in version "{}"'


@pytest.mark.parametrize(
    ("name", "kind", "version", "provider"),
    [
        (
            "cozy-system/bucket-rd",
            "ApplicationDefinition",
            "cozystack.io/v1alpha1",
            "cozy-system/application-definition-crd",
        ),
        ("cozy-cluster-api/capi-operator", "Certificate", "cert-manager.io/v1", "cozy-cert-manager/cert-manager-crds"),
        ("cozy-kamaji/kamaji", "Issuer", "cert-manager.io/v1", "cozy-cert-manager/cert-manager-crds"),
        (
            "cozy-rabbitmq-operator/rabbitmq-operator",
            "Issuer",
            "cert-manager.io/v1",
            "cozy-cert-manager/cert-manager-crds",
        ),
        (
            "cozy-kubevirt/kubevirt-instancetypes",
            "VirtualMachineClusterPreference",
            "instancetype.kubevirt.io/v1beta1",
            "cozy-kubevirt/kubevirt",
        ),
    ],
)
def test_a_release_that_lost_a_known_race_waits_for_who_brings_the_kind(
    name: str, kind: str, version: str, provider: str
) -> None:
    loser = failing(name, error=UNKNOWN_KIND.format(kind, version))
    wait = Wait(expecting(name, provider))
    wait.at(0, [loser, running(provider)])
    verdict = wait.at(1500, [loser, running(provider)])

    assert isinstance(verdict, Progressing)
    assert [(b.subject, b.dependants) for b in verdict.blockers] == [(provider, (name,))]


def test_a_lost_race_gets_time_for_its_next_attempt_and_then_is_stuck() -> None:
    provider = "cozy-system/application-definition-crd"
    loser = failing("cozy-system/etcd-rd", error=UNKNOWN_KIND.format("ApplicationDefinition", "cozystack.io/v1alpha1"))
    wait = Wait(expecting())
    wait.at(0, [loser, running(provider)])
    wait.at(2000, [loser, done(provider)])

    assert isinstance(wait.at(2000 + 959, [loser, done(provider)]), Progressing)  # 1.3 pauses for up to 15 min
    assert isinstance(wait.at(2000 + 960, [loser, done(provider)]), Stuck)


# Entries of public reports ------------------------------------------------------------------------------------------


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


def test_b70_a_leaf_that_fails_for_good_under_thirty_dependants_is_named_once_with_all_of_them() -> None:
    dependants = [waiting(f"n/d{i:02}", "n/leaf") for i in range(30)]
    verdict = settled(expecting(), failing("n/leaf", error="it broke"), *dependants, after=600)

    assert isinstance(verdict, Stuck)
    assert [(b.subject, b.behind) for b in verdict.blockers] == [("n/leaf", 30)]
    assert verdict.blockers[0].dependants == tuple(f"n/d{i:02}" for i in range(30))


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


def test_a_child_that_its_parents_chart_has_not_made_yet_waits_for_the_parent() -> None:
    expected = Expected({rid("n/parent"): "Package p", rid("n/child"): "n/parent"})
    wait = Wait(expected)
    wait.at(0, [running("n/parent")])
    early = wait.at(1000, [running("n/parent")])
    wait.at(1001, [done("n/parent")])
    late = wait.at(1400, [done("n/parent")])

    assert isinstance(early, Progressing)
    assert [b.subject for b in early.blockers] == ["n/parent"]
    assert isinstance(late, Stuck)
    assert late.blockers[0].stuck is StuckClass.MISSING
    assert late.blockers[0].evidence == "the chart of n/parent should have written it"


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

    assert item_of(objects[0]).hints == {"Package cozystack.clickhouse-operator"}
    assert isinstance(verdict, Progressing)


def test_what_only_messages_suggest_is_no_circle() -> None:
    blames = failing("n/parent", error="timeout waiting for: [HelmRelease/n/child status: 'InProgress']")
    verdict = Wait(expecting()).at(0, [blames, waiting("n/child", "n/parent")])

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
