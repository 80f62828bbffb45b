"""What must hold for any set of releases, in any order, at any time."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cozystack_iac.readiness.phases import Condition, Phase, Release, ReleaseId, item_of
from cozystack_iac.readiness.releases import Expected, Progressing, Ready, Since, Stuck, Verdict, judge, track
from tests.hr import LIMITS

PROFILE = settings(max_examples=50, deadline=None)  # a busy machine is no reason to fail

IDS = [ReleaseId("n", letter) for letter in "abcdefgh"]
REASONS = [
    "InstallSucceeded",
    "InstallFailed",
    "DependencyNotReady",
    "ArtifactFailed",
    "Progressing",
    "RetriesExceeded",
]
MESSAGES = ["", "no matches for kind", "dependency 'n/a' is not ready", "timeout", "Running 'install' action"]

conditions = st.builds(
    Condition, st.sampled_from(["True", "False", "Unknown"]), st.sampled_from(REASONS), st.sampled_from(MESSAGES)
)


def releases(identity: ReleaseId) -> st.SearchStrategy[Release]:
    return st.builds(
        Release,
        id=st.just(identity),
        generation=st.integers(1, 2),
        observed=st.integers(-1, 2),
        suspended=st.booleans(),
        deleting=st.booleans(),
        depends_on=st.lists(st.sampled_from(IDS), max_size=3).map(tuple),
        conditions=st.dictionaries(st.sampled_from(["Ready", "Released", "Stalled", "Reconciling"]), conditions),
    )


def fine(identity: ReleaseId) -> st.SearchStrategy[Release]:
    healthy = {"Ready": Condition("True", "InstallSucceeded", "")}
    return st.lists(st.sampled_from(IDS), max_size=3).map(
        lambda needs: Release(identity, observed=1, depends_on=tuple(needs), conditions=healthy)
    )


sets = st.lists(st.sampled_from(IDS), unique=True).flatmap(
    lambda ids: st.tuples(*(st.one_of(fine(i), fine(i), releases(i)) for i in ids)).map(list)
)
expectations = st.builds(
    lambda ids, floor: Expected(dict.fromkeys(ids, "Package p"), floor=floor),
    st.lists(st.sampled_from(IDS), unique=True, max_size=4),
    st.integers(0, 6),
)


def judged(objects: list[Release], expected: Expected, *times: float) -> Verdict:
    """Judged at 0 and then at each of `times`, nothing having changed."""
    since = Since(started=0.0)
    for now in (0.0, *times):
        since = track(since, objects, expected, now, LIMITS)
        verdict = judge(objects, expected, now, since, LIMITS)
    return verdict


@PROFILE
@given(sets, expectations, st.floats(0, 5000))
def test_ready_is_exactly_what_brute_force_calls_ready(objects: list[Release], expected: Expected, now: float) -> None:
    everything = all(item_of(r).phase is Phase.READY for r in objects)
    complete = expected.releases.keys() <= {r.id for r in objects} and len(objects) >= max(1, expected.floor)

    assert isinstance(judged(objects, expected, now), Ready) == (everything and complete and now >= LIMITS.settle_s)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_matter(objects, expected, now, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(objects, len(objects))

    assert judged(shuffled, expected, now) == judged(objects, expected, now)


@PROFILE
@given(sets, expectations, st.sampled_from(IDS).flatmap(releases), st.floats(0, 5000))
def test_adding_a_release_that_is_not_ready_never_makes_it_ready(
    objects: list[Release], expected: Expected, extra: Release, now: float
) -> None:
    more = [r for r in objects if r.id != extra.id] + [extra]

    assert isinstance(judged(more, expected, now), Ready) <= (item_of(extra).phase is Phase.READY)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.floats(0, 5000))
def test_time_alone_never_takes_ready_or_stuck_back(
    objects: list[Release], expected: Expected, first: float, more: float
) -> None:
    early, late = judged(objects, expected, first), judged(objects, expected, first, first + more)

    assert isinstance(late, type(early)) or isinstance(early, Progressing)


@PROFILE
@given(sets, expectations, st.floats(0, 5000), st.data())
def test_one_release_more_that_is_ready_never_takes_ready_away(
    objects: list[Release], expected: Expected, now: float, data: st.DataObject
) -> None:
    better = [data.draw(fine(r.id)) if item_of(r).phase is not Phase.READY else r for r in objects]

    assert isinstance(judged(objects, expected, now), Ready) <= isinstance(judged(better, expected, now), Ready)


@PROFILE
@given(sets, expectations, st.floats(0, 5000))
def test_whatever_is_not_ready_is_explained_by_at_least_one_root(
    objects: list[Release], expected: Expected, now: float
) -> None:
    verdict = judged(objects, expected, now)
    unready = [r for r in objects if item_of(r).phase is not Phase.READY]
    named = (
        verdict.waiting if isinstance(verdict, Progressing) else verdict.blockers if isinstance(verdict, Stuck) else ()
    )

    assert not unready or named
    assert all(b.remedy and b.cause and "{" not in b.remedy.replace('{"spec":{"suspend":false}}', "") for b in named)


@PROFILE
@given(sets, expectations)
def test_a_change_of_one_release_restarts_the_settling_period(objects: list[Release], expected: Expected) -> None:
    since = track(Since(started=0.0), objects, expected, 0.0, LIMITS)
    broken = [replace(r, conditions={}) for r in objects]
    since = track(since, broken, expected, 50.0, LIMITS)
    since = track(since, objects, expected, 60.0, LIMITS)

    assert not objects or not isinstance(judge(objects, expected, 61.0, since, LIMITS), Ready)
