"""Overrides: a finding that somebody allowed with a reason and a date."""

from typing import Any

import pytest

from cozystack_iac.findings import Severity
from tests.mistakes import ALLOWED
from tests.sites import GONE, TODAY, changed, codes, found, good, judged

TWO_STORAGE_NODES: list[tuple[str, Any]] = [("nodes.2.dataDisks", []), ("storage.approvedDisks.cp3", GONE)]


def test_an_override_turns_the_finding_into_a_note_with_its_reason() -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED]))
    finding = found(raw, "STO-012")
    assert finding.severity is Severity.NOTE
    assert "a test site" in finding.fix
    assert codes(judged(raw)) == []


@pytest.mark.parametrize("spoiled", [{"reason": " "}, {"until": "2026-11-29"}, {"guardrail": "sto-012"}])
def test_an_override_that_is_not_valid_overrides_nothing(spoiled: dict[str, Any]) -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED | spoiled]))
    assert found(raw, "STO-012").severity is Severity.WARNING
    assert judged(raw).blocking


def test_an_override_holds_through_its_last_day() -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED | {"until": TODAY.isoformat()}]))
    assert codes(judged(raw)) == []


def test_the_look_from_outside_is_skipped_by_whoever_says_why() -> None:
    raw = changed(good(), ("publishing.reachability", "skip"), ("allow", [ALLOWED | {"guardrail": "RCH-002"}]))
    assert codes(judged(raw)) == []
    assert found(raw, "RCH-002").fix == f"overridden: {ALLOWED['reason']}"


def test_a_live_check_may_be_named() -> None:
    assert "OVR-001" not in judged(changed(good(), ("allow", [ALLOWED | {"guardrail": "XYZ-011"}]))).codes
