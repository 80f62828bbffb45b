"""Every rule fires on its own mistake, and findings come together in one verdict."""

from typing import Any

import pytest

from cozystack_iac import findings
from tests.mistakes import BAD, BAD_EXISTING
from tests.sites import changed, codes, existing, found, good, judged, node

OFFLINE_FAMILIES = frozenset(
    {
        "CFG",
        "CRT",
        "END",
        "INV",
        "NET",
        "OVR",
        "PLT",
        "PUB",
        "RCH",
        "REG",
        "ROL",
        "RUN",
        "SAN",
        "STO",
        "TAL",
        "TEN",
        "VER",
    }
)
ELSEWHERE = frozenset({"CFG-001", "CFG-006", "CFG-007", "CFG-008"})  # files: test_settings_load.py
FOREIGN = frozenset(
    {"CRT-020", "CRT-021", "RCH-001", "RUN-010", "TAL-101", "TAL-102", "TAL-103"}
)  # declared by other rooms, tested there


def test_a_good_site_has_nothing_above_a_note() -> None:
    assert codes(judged(good())) == []
    assert codes(judged(existing())) == []


@pytest.mark.parametrize(("code", "changes"), BAD, ids=[f"{row[0]} {row[1][0][0]}" for row in BAD])
def test_a_rule_fires_on_its_mistake(code: str, changes: list[tuple[str, Any]]) -> None:
    finding = found(changed(good(), *changes), code)
    assert finding.problem
    assert finding.fix


@pytest.mark.parametrize(("code", "changes"), BAD_EXISTING, ids=[f"{row[0]} {row[1][0][0]}" for row in BAD_EXISTING])
def test_a_rule_about_existing_clusters_fires(code: str, changes: list[tuple[str, Any]]) -> None:
    assert found(changed(existing(), *changes), code).fix


def test_every_offline_rule_has_a_row_here() -> None:
    declared = {rule.code for rule in findings.rules() if rule.code.partition("-")[0] in OFFLINE_FAMILIES}
    assert declared - FOREIGN - ELSEWHERE == {code for code, _ in (*BAD, *BAD_EXISTING)} | {"NET-011"}


def test_every_rule_says_what_why_and_how() -> None:
    assert [rule.code for rule in findings.rules() if not (rule.title and rule.why and rule.remedy)] == []


# Aggregation ------------------------------------------------------------------------------------------------------------


def test_a_thousand_nodes_in_the_pod_range_are_one_finding() -> None:
    nodes = [node(1, name=f"n{n}", address=f"10.244.{n // 250}.{n % 250 + 1}") for n in range(1000)]
    problem = found(changed(good(), ("nodes", nodes)), "NET-010").problem
    assert "and 997 more" in problem


def test_a_free_range_is_really_free() -> None:
    raw = changed(good(), ("network.podCIDR", "10.96.0.0/16"), ("network.reserved", ["10.244.0.0/16", "10.42.0.0/16"]))
    command = found(raw, "NET-004").command
    assert command is not None
    assert command.endswith(" 10.128.0.0/16")
    assert codes(judged(changed(raw, ("network.podCIDR", "10.128.0.0/16")))) == []


def test_findings_are_sorted_worst_first_and_by_number() -> None:
    nodes = [node(n, name=f"N{n}") for n in range(1, 12)]
    result = judged(changed(good(), ("nodes", nodes)))
    assert [f.severity.rank for f in result] == sorted(f.severity.rank for f in result)
    names = [finding.path for finding in result if finding.code == "INV-001"]
    assert names == [f"cozystack:nodes[{n}].name" for n in range(11)]
