"""The readiness judgement: which release is to blame, when some are missing, wait in a circle or are many."""

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import item_of
from cozystack_iac.readiness.verdicts import Progressing, Stuck, StuckClass
from tests.hr import Wait, done, expecting, failing, rid, running, settled, stalled, waiting


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
    assert late.blockers[0].evidence == "the chart of n/parent should have created it"


def test_releases_that_wait_for_each_other_are_named_as_a_circle() -> None:
    verdict = Wait(expecting()).at(0, [waiting("n/a", "n/b"), waiting("n/b", "n/a"), waiting("n/c", "n/a")])

    assert isinstance(verdict, Stuck)
    assert [b.subject for b in verdict.blockers] == ["n/a"]
    assert "depends on itself" in verdict.blockers[0].cause


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
