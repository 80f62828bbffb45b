"""How long it will still take: the rest of the critical path at the pace of this install, or nothing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cozystack_iac.readiness.forecast import about, pace, remaining_s, timings
from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import Condition, HelmRelease
from cozystack_iac.readiness.verdicts import ReleaseStanding
from lab.platform import catalogue, timing
from lab.platform.helmstatus import Chart, HelmStatus
from lab.platform.schedule import Schedule, View
from tests.hr import Wait, done, expecting, failing, release, rid, running, stalled, waiting


def finished(name: str, *needs: str, created: float, ready: float) -> HelmRelease:
    return replace(
        done(name, *needs),
        created=created,
        conditions={"Ready": Condition("True", "InstallSucceeded", "", since=ready)},
    )


def standing(*objects: HelmRelease, after: float = 0.0) -> tuple[ReleaseStanding, ...]:
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


def test_what_took_more_than_one_attempt_or_is_older_than_this_run_says_nothing_about_the_pace() -> None:
    five = [finished(f"n/o{i}", created=100, ready=125) for i in range(5)]
    upgraded = replace(five[0], conditions={"Ready": Condition("True", "UpgradeSucceeded", "", since=90_000.0)})
    returned = finished("n/old", created=100, ready=90_000)

    assert pace([*five, returned]) == pytest.approx(1.0)
    assert pace([upgraded, *five[1:]]) is None


def test_too_little_seen_is_no_pace() -> None:
    assert pace([finished(f"n/o{i}", created=0, ready=25) for i in range(4)]) is None
    assert pace([done(f"n/o{i}") for i in range(9)]) is None  # without times


# The rest of the way -------------------------------------------------------------------------------------------------


def test_the_longest_way_counts() -> None:
    objects = [running("n/a"), waiting("n/b", "n/a"), waiting("n/c", "n/b"), running("n/other")]

    assert remaining_s(standing(*objects), 1.0) == pytest.approx(25 + (15 + 25) + (15 + 25))
    assert remaining_s(standing(*objects), 2.0) == pytest.approx(50 + (15 + 50) + (15 + 50))  # polling is no slower
    assert remaining_s(standing(*objects), 0.1) == pytest.approx(10.5)


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
        HelmRelease.parse({"metadata": {"namespace": "n", "name": "a"}, "spec": 1}),
    ],
)
def test_what_cannot_be_known_is_not_said(unclear: HelmRelease) -> None:
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
        (None, "remaining time unknown"),
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


# Against a whole install ----------------------------------------------------------------------------------------------


def play(version: str, slower: float) -> Iterator[tuple[float, float, float | None]]:
    """An install by the lab's helm-controller: time, time left in truth, time left as foretold; every minute."""
    known = catalogue.load(version)
    chosen = {
        p.name: p for p in known.emitted(known.choice("isp-full", {"authentication": {"oidc": {"enabled": True}}}))
    }
    items = [r for p in chosen.values() for r in catalogue.releases(p, chosen)]

    def behaviour(ref: str) -> timing.Behaviour:
        usual = timing.behaviour(ref, known)
        return replace(usual, action_s=usual.action_s * slower)

    schedule = Schedule(behaviour, lambda _: None, kstatus=known.traits.kstatus)
    world = {r.ref: release(r.ref, *r.depends_on, created=0.0) for r in items}
    for item in items:
        needs, chart = tuple(item.depends_on), Chart(item.ref, "chart", "1.0.0")
        schedule.observe(View(item.ref, 1, "one", needs, chart=chart), 0)
    wait, now = Wait(Expected({r.id: "Package p" for r in world.values()})), 0.0
    looks: list[tuple[float, float | None]] = []
    while not all(map(schedule.ready, world)):
        while steps := schedule.advance(now):
            for step in steps:
                settled = schedule.settle(step.ref, now) if step.what == "applied" else step
                if settled:
                    world[step.ref] = _with_status(world[step.ref], settled.status, now)
        if not looks or now - looks[-1][0] >= 60:
            objects = list(world.values())
            looks.append((now, remaining_s(wait.look(now, objects).standings, pace(objects))))
        now = max(now, schedule.next_at() or now)
    return ((at, now - at, foretold) for at, foretold in looks)


def _with_status(before: HelmRelease, status: HelmStatus, now: float) -> HelmRelease:
    conditions = {}
    for name, new in status.conditions.items():
        old = before.conditions.get(name)
        since = old.since if old and old.status == new.status else now
        conditions[name] = Condition(new.status, new.reason, new.message, since)
    return replace(before, conditions=conditions, observed=status.observed_generation)


@pytest.mark.parametrize("version", catalogue.known())
@pytest.mark.parametrize("slower", [1, 4])
def test_what_is_foretold_of_a_whole_install_is_right_within_a_factor_of_two(version: str, slower: float) -> None:
    looks = list(play(version, slower))
    whole = looks[0][1]
    said = [(left, foretold) for _, left, foretold in looks if foretold is not None and left > whole / 10]

    assert len(said) > len(looks) / 4  # the rest is too early to say, or trips over a known race
    assert [(left, told) for left, told in said if not left / 2 < told < left * 2] == []


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
