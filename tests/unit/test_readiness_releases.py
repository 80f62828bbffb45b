"""The readiness judgement: tables of states of one release, and of the platform that they make up."""

import pytest

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import Condition, HelmRelease, Phase, item_of
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
from tests.hr import Wait, done, expecting, failing, release, running, settled, stalled, waiting

READY = ("True", "InstallSucceeded", "Helm install succeeded")


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
def test_phase_of_a_release(seen: HelmRelease, phase: Phase) -> None:
    assert item_of(seen).phase is phase


def test_a_retry_that_runs_is_still_the_failure_of_the_last_attempt() -> None:
    failed = failing("a/b").conditions["Released"]
    retrying = release(
        "a/b", ready=("Unknown", "Progressing", "Running 'upgrade' action"), conditions={"Released": failed}
    )

    assert item_of(retrying).phase is Phase.FAILING


def test_an_object_that_cannot_be_read_is_an_error_not_a_release() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        HelmRelease.parse({"metadata": {"name": "no-namespace"}})


def test_a_release_whose_status_cannot_be_read_is_unknown_and_so_is_the_platform() -> None:
    odd = HelmRelease.parse({"metadata": {"namespace": "n", "name": "a"}, "status": {"conditions": ["what is this"]}})
    verdict = settled(expecting("n/a", "n/b"), odd, done("n/b"))

    assert item_of(odd).phase is Phase.UNREADABLE
    assert isinstance(verdict, Unknown)
    assert "n/a cannot be read" in verdict.reason
    assert (verdict.ready, verdict.total) == (1, 2)


def test_what_is_proven_stuck_stays_so_beside_something_unknown() -> None:
    odd = HelmRelease.parse({"metadata": {"namespace": "n", "name": "b", "generation": "x"}})

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
        HelmRelease.parse({"metadata": {"namespace": "n", "name": "odd"}, "spec": 1}),
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
