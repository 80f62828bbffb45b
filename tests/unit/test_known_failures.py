"""The table of known failures is whole: every row is there, is recognised or said elsewhere, and is played by a scenario."""

import re
from functools import cache

import pytest

from cozystack_iac.diagnosis import known
from cozystack_iac.diagnosis.known import KnownFailure, known_failures
from cozystack_iac.diagnosis.signs import Kind, Sign
from cozystack_iac.rules.reference import declared
from lab import scenario

ROOMS = ("platform", "storage")


@cache
def shown() -> frozenset[str]:
    """Every text that some scenario of storage or platform wants the user to see."""
    scenarios = [scenario.load(path) for room in ROOMS for path in sorted((scenario.FOLDER / room).glob("*.yaml"))]
    said = [text for each in scenarios for text in each.expect.plan.says]
    return frozenset([*said, *(text for each in scenarios if each.expect.install for text in each.expect.install.says)])


@cache
def codes() -> frozenset[str]:
    return frozenset(rule.code for rule in declared())


def test_every_row_of_the_list_is_in_the_table() -> None:
    assert {failure.row for failure in known_failures() if failure.row} == set(range(1, known.ROWS + 1))


@pytest.mark.parametrize("failure", known_failures(), ids=lambda f: str(f.id))
def test_codes_that_say_it_before_exist(failure: KnownFailure) -> None:
    assert set(failure.caught_by) <= codes()


@pytest.mark.parametrize(
    "failure", [f for f in known_failures() if f.signs and not f.unplayed], ids=lambda f: str(f.id)
)
def test_a_scenario_shows_its_cause_to_the_user(failure: KnownFailure) -> None:
    texts = (re.sub(r"\w+\.lab\.example\.org", "{host}", text) for text in shown())

    assert [text for text in texts if len(text) > 20 and text in failure.cause] != []


@pytest.mark.parametrize("failure", known_failures(), ids=lambda f: str(f.id))
def test_an_entry_is_written_for_people(failure: KnownFailure) -> None:
    texts = (failure.title, failure.cause, failure.remedy)

    assert all(text and not text.endswith((".", ";", ":")) and "  " not in text for text in texts)
    assert all(command.partition(" ")[0] in TOOLS for command in failure.commands)
    assert all(link.startswith("https://") for link in failure.links)
    placeholders = re.findall(r"\{(\w+)\}", " ".join((failure.cause, *failure.commands)))
    assert set(placeholders) <= {"ns", "name", "host"}


TOOLS = {"kubectl", "pulumi", "helm", "dig", "curl", "sysctl", "mokutil", "iptables"}


@pytest.mark.parametrize(
    ("span", "version", "holds"),
    [
        ({"before": "1.6"}, "1.5.4", True),
        ({"before": "1.6"}, "1.6.0-rc.1", True),
        ({"before": "1.6"}, "v1.6.0", False),
        ({"since": "1.4", "before": "1.5"}, "1.4.0", True),
        ({"since": "1.4", "before": "1.5"}, "1.3.6", False),
        ({"before": "1.33.10"}, "v1.33.9+k3s1", True),
        ({"before": "1.6"}, "", True),
        ({}, "2.0.0", True),
    ],
)
def test_a_failure_belongs_to_its_versions_and_an_unknown_version_excludes_nothing(
    span: dict[str, str], version: str, holds: bool
) -> None:
    assert known.Range(**span).holds(version) is holds


@pytest.mark.parametrize(
    "broken",
    [
        {"signs": (), "unseen": ""},
        {"signs": ({"text": "x"},), "unseen": "nowhere"},
        {"signs": ({"text": "x"},), "cozystack": {"since": "soon"}},
        {"signs": ({"text": "x", "colour": "red"},)},
    ],
)
def test_an_entry_that_could_never_be_found_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        KnownFailure.model_validate({"id": "x", "title": "t", "cause": "c", "remedy": "r", **broken})


def test_a_sign_is_matched_by_kind_subject_and_text() -> None:
    match = known.Match.model_validate({"kind": ["pod", "event"], "subject": "^cozy-x/", "text": "OOMKilled"})

    assert match.read(Sign(Kind.POD, "cozy-x/p", "CrashLoopBackOff", "ended with oomkilled"))
    assert match.read(Sign(Kind.LOG, "cozy-x/p/c", "log", "OOMKilled")) is None
    assert match.read(Sign(Kind.POD, "cozy-y/p", "OOMKilled")) is None
