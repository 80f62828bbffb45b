"""How long it will still take: the rest of the critical path at the pace of this install, or nothing."""

from dataclasses import replace

import pytest

from cozystack_iac.readiness.forecast import about, pace, remaining_s, timings
from cozystack_iac.readiness.phases import Condition, Release
from cozystack_iac.readiness.verdicts import Standing
from tests.hr import Wait, done, expecting, failing, release, rid, running, stalled, waiting


def finished(name: str, *needs: str, created: float, ready: float) -> Release:
    return replace(
        done(name, *needs),
        created=created,
        conditions={"Ready": Condition("True", "InstallSucceeded", "", since=ready)},
    )


def standing(*objects: Release, after: float = 0.0) -> tuple[Standing, ...]:
    wait = Wait(expecting())
    wait.at(0, objects)
    return wait.look(after, objects).standings


# The pace -----------------------------------------------------------------------------------------------------------


def test_the_pace_is_the_time_taken_against_the_usual_time() -> None:
    usual = [finished(f"n/operator{i}", created=100, ready=125) for i in range(5)]  # one Deployment: 25 s
    slow = [finished(f"n/operator{i}", created=100, ready=175) for i in range(5)]

    assert pace(usual) == pytest.approx(1.0)
    assert pace(slow) == pytest.approx(3.0)


def test_a_release_counts_from_when_its_dependencies_were_ready() -> None:
    chain = [finished("n/o0", created=0, ready=25)]
    chain += [finished(f"n/o{i}", f"n/o{i - 1}", created=0, ready=25 + 40 * i) for i in range(1, 5)]

    assert pace(chain) == pytest.approx(1.0)  # 25 s and half a polling interval each


def test_too_little_seen_is_no_pace() -> None:
    assert pace([finished(f"n/o{i}", created=0, ready=25) for i in range(4)]) is None
    assert pace([done(f"n/o{i}") for i in range(9)]) is None  # without times


# The rest of the way -------------------------------------------------------------------------------------------------


def test_the_longest_way_counts() -> None:
    objects = [running("n/a"), waiting("n/b", "n/a"), waiting("n/c", "n/b"), running("n/other")]

    assert remaining_s(standing(*objects), 1.0) == pytest.approx(25 + (15 + 25) + (15 + 25))
    assert remaining_s(standing(*objects), 2.0) == pytest.approx(210)


def test_what_runs_already_has_less_to_go_but_never_nothing() -> None:
    assert remaining_s(standing(running("n/a"), after=10), 1.0) == pytest.approx(15)
    assert remaining_s(standing(running("n/a"), after=60), 1.0) == pytest.approx(25 / 4)


def test_many_side_by_side_are_limited_by_the_actions_that_run_at_once() -> None:
    assert remaining_s(standing(*(release(f"n/o{i}") for i in range(40))), 1.0) == pytest.approx(40 * 25 / 5)


def test_all_ready_only_has_to_settle() -> None:
    assert remaining_s(standing(done("n/a")), None, settle_s=30) == 30


@pytest.mark.parametrize(
    "unclear",
    [
        stalled("n/a"),
        failing("n/a", error="it broke"),
        done("n/a", suspended=True),
        done("n/a", deleting=True),
        waiting("n/a", "n/absent"),
        Release.parse({"metadata": {"namespace": "n", "name": "a"}, "spec": 1}),
    ],
)
def test_what_cannot_be_known_is_not_said(unclear: Release) -> None:
    assert remaining_s(standing(unclear, running("n/b")), 1.0) is None


def test_a_release_far_behind_its_usual_time_makes_the_end_unknown() -> None:
    assert remaining_s(standing(running("n/a"), after=300), 1.0) is None


def test_a_lost_race_is_on_its_way_while_the_bringer_of_the_kind_is() -> None:
    crds = "cozy-cert-manager/cert-manager-crds"
    loser = failing("n/a", error='no matches for kind "Issuer" in version "cert-manager.io/v1"')

    assert remaining_s(standing(loser, running(crds)), 1.0) == pytest.approx(3 + 15 + 25)


def test_without_a_pace_there_is_no_estimate() -> None:
    assert remaining_s(standing(running("n/a")), None) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "time left unknown"),
        (0, "less than a minute left"),
        (44, "less than a minute left"),
        (46, "about 1 min left"),
        (340, "about 6 min left"),
        (1140, "about 19 min left"),
        (1330, "about 20 min left"),
        (1400, "about 25 min left"),
    ],
)
def test_never_more_precise_than_it_can_be(seconds: float | None, words: str) -> None:
    assert about(seconds) == words


# How long it took ----------------------------------------------------------------------------------------------------


def test_each_package_took_until_its_last_release_was_ready() -> None:
    platform = finished("cozy-system/cozystack-platform", created=1000, ready=1070)
    objects = [
        platform,
        finished("n/a", created=1010, ready=1100),
        finished("n/b", created=1010, ready=1160),
        finished("n/net", created=1010, ready=1050),
        running("n/open"),
    ]
    writers = {
        "n/a": "Package storage",
        "n/b": "Package storage",
        "n/net": "Package networking",
        "n/open": "Package engine",
        "n/absent": "Package gone",
    }

    assert timings(objects, writers, str(platform.id)) == {"networking": 50, "storage": 160}
    assert list(timings(objects, writers, str(platform.id))) == ["networking", "storage"]
    assert timings(objects[1:], writers, str(platform.id)) == {}


def test_a_package_with_a_release_that_is_not_ready_has_no_time() -> None:
    objects = [finished("n/p", created=0, ready=9), finished("n/a", created=0, ready=5), running("n/b")]

    assert timings(objects, {"n/b": "Package x", "n/a": "Package x"}, "n/p") == {}
    assert timings(objects, {"n/a": "Package x", "n/b": "Package x"}, "n/p") == {}
    assert rid("n/p") == objects[0].id
