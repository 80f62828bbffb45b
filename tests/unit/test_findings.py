"""Findings: rendering, sorting, the way a run is stopped."""

import json

import pulumi
import pytest

from cozystack_iac.findings import (
    ERROR,
    NOTE,
    WARNING,
    Finding,
    Rule,
    Verdict,
    as_json,
    as_markdown,
    block,
    stop,
    summary,
    table,
)

BROKEN = Rule("TST-001", ERROR, title="it works", why="it is needed", remedy="make it work")
FINDING = BROKEN.at("cozystack:a.b", problem="it is `broken`", fix="repair it", command="pulumi config set x y")
NOTED = Finding("TST-002", NOTE, "cozystack:c", "a | b", "c < d", "nothing\nto do")


def test_a_finding_says_where_what_why_and_how() -> None:
    assert block(FINDING).splitlines() == [
        "error   TST-001  cozystack:a.b",
        "  problem  it is `broken`",
        "  why      it is needed",
        "  fix      repair it",
        "           pulumi config set x y",
    ]


def test_the_table_ends_with_the_count() -> None:
    assert table(Verdict.of([NOTED, FINDING])).splitlines()[-1] == "1 error, 1 note"
    assert table(Verdict()).startswith("no findings")


def test_json_can_be_read_back() -> None:
    document = json.loads(as_json(Verdict.of([FINDING])))
    assert document["blocking"] is True
    assert document["findings"][0]["command"] == "pulumi config set x y"


def test_markdown_cells_cannot_break_the_table() -> None:
    row = as_markdown(Verdict.of([NOTED])).splitlines()[-1]
    assert "a \\| b" in row
    assert "c &lt; d" in row
    assert "nothing to do" in row


def test_the_worst_comes_first_and_nothing_twice() -> None:
    warned = Finding("AAA-001", WARNING, "x", "p", "w", "f")
    assert [finding.code for finding in Verdict.of([NOTED, warned, FINDING, FINDING])] == [
        "TST-001",
        "AAA-001",
        "TST-002",
    ]


def test_places_sort_by_number() -> None:
    findings = [Finding("A", ERROR, f"nodes[{n}]", "p", "w", "f") for n in (10, 9, 100)]
    assert [finding.path for finding in Verdict.of(findings)] == ["nodes[9]", "nodes[10]", "nodes[100]"]


def test_verdicts_add_up() -> None:
    both = Verdict.of([NOTED]) + Verdict.of([FINDING])
    assert both.codes == {"TST-001", "TST-002"}
    assert both.blocking
    assert summary(both) == "1 error, 1 note"


def test_secrets_are_taken_out_of_everything_that_is_shown() -> None:
    leaking = BROKEN.at("cozystack:a", problem="canary-4711 is bad", fix="not canary-4711", command="set canary-4711")
    cleaned = table(Verdict.of([leaking]).redacted(["canary-4711", ""]))
    assert "canary" not in cleaned
    assert cleaned.count("[secret]") == 3


def test_a_rule_is_declared_once() -> None:
    with pytest.raises(ValueError, match="TST-001"):
        Rule("TST-001", ERROR, why="something else")
    assert Rule("TST-001", ERROR, title="it works", why="it is needed", remedy="make it work") == BROKEN


def test_a_run_is_stopped_with_the_table_and_without_a_traceback() -> None:
    with pytest.raises(pulumi.RunError, match="1 error"):
        stop(Verdict.of([FINDING]))
