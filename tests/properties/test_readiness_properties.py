"""What must hold for any set of releases, in any order, at any time."""

import re
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cozystack_iac.readiness.forecast import remaining_s
from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import Condition, HelmRelease, Phase, ReleaseId, item_of
from cozystack_iac.readiness.releases import assess
from cozystack_iac.readiness.verdicts import (
    Judgement,
    Progressing,
    Ready,
    Since,
    State,
    Stuck,
    Suspended,
    Unknown,
    Unready,
    Verdict,
)
from tests.hr import LIMITS
from tests.matrix import examples

PROFILE = settings(max_examples=examples(50))
LONG_S = 20_000.0  # every limit is over by then

IDS = [ReleaseId("n", letter) for letter in "abcdefgh"]
REASONS = [
    "InstallSucceeded",
    "InstallFailed",
    "DependencyNotReady",
    "ArtifactFailed",
    "Progressing",
    "RetriesExceeded",
]
MESSAGES = [
    "",
    'no matches for kind "X" in version "cilium.io/v2"',
    "dependency 'n/a' is not ready",
    "timeout waiting for: [HelmRelease/n/b status: 'InProgress']",
    "Running 'install' action",
]

conditions = st.builds(
    Condition, st.sampled_from(["True", "False", "Unknown"]), st.sampled_from(REASONS), st.sampled_from(MESSAGES)
)


def releases(identity: ReleaseId) -> st.SearchStrategy[HelmRelease]:
    return st.builds(
        HelmRelease,
        id=st.just(identity),
        generation=st.integers(1, 2),
        observed=st.integers(-1, 2),
        suspended=st.booleans(),
        deleting=st.booleans(),
        depends_on=st.lists(st.sampled_from(IDS), max_size=3).map(tuple),
        conditions=st.dictionaries(st.sampled_from(["Ready", "Released", "Stalled", "Reconciling"]), conditions),
        unreadable=st.sampled_from(["", "", "", "", "odd"]),
    )


def fine(identity: ReleaseId) -> st.SearchStrategy[HelmRelease]:
    healthy = {"Ready": Condition("True", "InstallSucceeded", "")}
    return st.lists(st.sampled_from(IDS), max_size=3).map(
        lambda needs: HelmRelease(identity, observed=1, depends_on=tuple(needs), conditions=healthy)
    )


sets = st.lists(st.sampled_from(IDS), unique=True).flatmap(
    lambda ids: st.tuples(*(st.one_of(fine(i), fine(i), releases(i)) for i in ids)).map(list)
)
expectations = st.builds(
    lambda ids, floor: Expected(dict.fromkeys(ids, "Package p"), floor=floor),
    st.lists(st.sampled_from(IDS), unique=True, max_size=4),
    st.integers(0, 6),
)
histories = st.lists(st.sampled_from(IDS).flatmap(lambda i: st.one_of(fine(i), releases(i))), max_size=25)


def looked(objects: Iterable[HelmRelease], expected: Expected, *times: float) -> Judgement:
    """Judged at 0 and then at each of `times`, nothing having changed."""
    since, objects = Since(started=0.0), list(objects)
    for now in (0.0, *times):
        judgement = assess(since, objects, expected, now, LIMITS)
        since = judgement.since
    return judgement


def judged(objects: Iterable[HelmRelease], expected: Expected, *times: float) -> Verdict:
    return looked(objects, expected, *times).verdict


def summary(verdict: Verdict) -> object:
    """A verdict without how long things last."""
    if isinstance(verdict, Unready):
        return type(verdict), verdict.ready, verdict.total, [(b.subject, b.stuck) for b in verdict.blockers]
    return verdict


@PROFILE
@given(sets, expectations, st.floats(0, 5000))
def test_ready_is_exactly_what_brute_force_calls_ready(
    objects: list[HelmRelease], expected: Expected, now: float
) -> None:
    everything = all(item_of(r).phase is Phase.READY for r in objects)
    complete = expected.releases.keys() <= {r.id for r in objects} and len(objects) >= max(1, expected.floor)

    assert isinstance(judged(objects, expected, now), Ready) == (everything and complete and now >= LIMITS.settle_s)


@PROFILE
@given(histories, expectations, st.lists(st.floats(0, 900), min_size=25, max_size=25))
def test_never_ready_while_any_expected_release_is_not(
    events: list[HelmRelease], expected: Expected, pauses: list[float]
) -> None:
    since, now, world = Since(started=0.0), 0.0, dict[ReleaseId, HelmRelease]()
    for event, pause in zip(events, pauses, strict=False):
        now += pause
        world[event.id] = event
        judgement = assess(since, world.values(), expected, now, LIMITS)
        since = judgement.since
        unready = [i for i in expected.releases if i not in world or item_of(world[i]).phase is not Phase.READY]

        assert not isinstance(judgement.verdict, Ready) or not unready


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_matter(objects, expected, now, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(objects, len(objects))

    assert judged(shuffled, expected, now) == judged(objects, expected, now)


@PROFILE
@given(histories, expectations, st.randoms(use_true_random=False))
def test_random_orders_and_duplicates_of_events_do_not_change_the_final_verdict(events, expected, random) -> None:  # type: ignore[no-untyped-def]
    final = {event.id: event for event in events}

    def play(order: list[HelmRelease]) -> object:
        since, world = Since(started=0.0), dict[ReleaseId, HelmRelease]()
        for now, event in enumerate(order):
            world[event.id] = event
            since = assess(since, world.values(), expected, float(now), LIMITS).since
        world = final  # whatever was seen on the way, this is where every order ends
        since = assess(since, world.values(), expected, 100.0, LIMITS).since
        return summary(assess(since, world.values(), expected, LONG_S, LIMITS).verdict)

    doubled = [*events, *random.choices(events, k=len(events))] if events else []

    assert play(random.sample(doubled, len(doubled))) == play(events)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.data())
def test_less_evidence_turns_a_verdict_into_unknown_or_leaves_it(
    objects: list[HelmRelease], expected: Expected, now: float, data: st.DataObject
) -> None:
    if not objects:
        return
    blurred = data.draw(st.sampled_from(objects))
    less = [replace(r, unreadable="odd") if r.id == blurred.id else r for r in objects]
    before, after = judged(objects, expected, now), judged(less, expected, now)

    assert isinstance(after, Unknown) or (isinstance(before, Stuck) and isinstance(after, Stuck))


@PROFILE
@given(sets, expectations, st.sampled_from(IDS).flatmap(releases), st.floats(0, 5000))
def test_adding_a_release_that_is_not_ready_never_makes_it_ready(
    objects: list[HelmRelease], expected: Expected, extra: HelmRelease, now: float
) -> None:
    more = [r for r in objects if r.id != extra.id] + [extra]

    assert isinstance(judged(more, expected, now), Ready) <= (item_of(extra).phase is Phase.READY)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.floats(0, 5000))
def test_time_alone_never_takes_ready_or_stuck_back(
    objects: list[HelmRelease], expected: Expected, first: float, more: float
) -> None:
    early, late = judged(objects, expected, first), judged(objects, expected, first, first + more)

    assert isinstance(late, type(early)) or not isinstance(early, Ready | Stuck)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.data())
def test_one_release_more_that_is_ready_never_takes_ready_away(
    objects: list[HelmRelease], expected: Expected, now: float, data: st.DataObject
) -> None:
    better = [data.draw(fine(r.id)) if item_of(r).phase is not Phase.READY else r for r in objects]

    assert isinstance(judged(objects, expected, now), Ready) <= isinstance(judged(better, expected, now), Ready)


@PROFILE
@given(sets, expectations)
def test_nothing_is_waited_for_without_end(objects: list[HelmRelease], expected: Expected) -> None:
    verdict = judged(objects, expected, LONG_S)

    assert not isinstance(verdict, Progressing) or not verdict.blockers


@PROFILE
@given(sets, expectations, st.floats(0, 5000))
def test_whatever_is_not_ready_is_explained_by_at_least_one_root(
    objects: list[HelmRelease], expected: Expected, now: float
) -> None:
    judgement = looked(objects, expected, now)
    verdict, roots = judgement.verdict, {s.subject for s in judgement.standings if not s.root}
    named = verdict.blockers if isinstance(verdict, Unready) else ()

    assert all(s.root in roots or not s.root for s in judgement.standings)
    assert named or all(item_of(r).phase is Phase.READY for r in objects) or isinstance(verdict, Unknown)
    assert all(b.cause and b.remedy and not re.search(r"\{(ns|name|kind)\}", b.remedy) for b in named)


@PROFILE
@given(sets, expectations, st.floats(0, 5000))
def test_the_platform_is_what_its_subjects_are(objects: list[HelmRelease], expected: Expected, now: float) -> None:
    judgement = looked(objects, expected, now)
    states = {s.state for s in judgement.standings}

    assert isinstance(judgement.verdict, Stuck) == (State.STUCK in states)
    assert isinstance(judgement.verdict, Unknown) == (State.UNKNOWN in states and State.STUCK not in states)
    assert not isinstance(judgement.verdict, Suspended) or State.SUSPENDED in states
    assert not isinstance(judgement.verdict, Ready) or states == {State.READY}


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.floats(0.01, 10))
def test_time_left_is_only_foretold_while_it_goes_on(
    objects: list[HelmRelease], expected: Expected, now: float, pace: float
) -> None:
    judgement = looked(objects, expected, now)
    seconds = remaining_s(judgement.standings, pace)

    assert seconds is None or seconds >= 0
    assert seconds is None or not isinstance(judgement.verdict, Stuck | Suspended | Unknown)


@PROFILE
@given(sets, expectations)
def test_a_change_of_one_release_restarts_the_settling_period(objects: list[HelmRelease], expected: Expected) -> None:
    since = assess(Since(started=0.0), objects, expected, 0.0, LIMITS).since
    broken = [replace(r, conditions={}) for r in objects]
    since = assess(since, broken, expected, 50.0, LIMITS).since
    since = assess(since, objects, expected, 60.0, LIMITS).since

    assert not objects or not isinstance(assess(since, objects, expected, 61.0, LIMITS).verdict, Ready)
