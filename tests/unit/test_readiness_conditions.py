"""Recorded sequences of conditions, step by step: where the judgement stands after each."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.readiness.phases import Phase, Release, item_of
from cozystack_iac.readiness.releases import Progressing, Ready, Stuck
from tests.hr import Wait, expecting

F, S, R, W, ST = Phase.FAILING, Phase.STARTING, Phase.RUNNING, Phase.WAITING, Phase.STALE
OK, FETCH, GONE = Phase.READY, Phase.FETCHING, None

PHASES: Mapping[str, list[Phase | None]] = {
    "hr-install-success": [S, S, R, ST, OK],
    "hr-dependency-not-ready": [S, S, W, R, OK],
    "hr-dependency-missing": [S, S, W],
    "hr-dependency-regressed": [OK, W, OK],
    "hr-artifact-not-found": [S, S, FETCH, FETCH, R, OK],
    "hr-artifact-download-404": [FETCH, R],
    "hr-values-secret-missing": [S, FETCH],
    "hr-install-timeout-endless-retry": [S, S, R, F, F, F, F, F, F],
    "hr-install-fails-fast": [R, F],
    "hr-install-webhook-refused": [R, F, F, OK],
    "hr-render-error-endless-retry": [R, F, F, F],
    "hr-unknown-kind-until-crd": [R, F, F, OK],
    "hr-install-failure-remediation-1.3": [S, S, R, F, F, F],
    "hr-upgrade-success": [OK, ST, R, OK],
    "hr-upgrade-failed-endless-retry": [OK, ST, R, F, F, F],
    "hr-upgrade-failed-rollback-1.3": [R, F, F],
    "hr-recovers-after-failures": [F, F, OK],
    "hr-suspended-before-install": [S, S],
    "hr-suspended-while-ready": [OK, Phase.SUSPENDED, ST, OK],
    "hr-suspended-while-failing": [F, Phase.SUSPENDED],
    "hr-stalled-retries-exceeded": [R, Phase.STALLED],
    "hr-stalled-invalid-cel": [S, Phase.STALLED],
    "hr-stalled-access-denied": [S, Phase.STALLED],
    "hr-deleting-success": [OK, Phase.DELETING, GONE],
    "hr-deleting-stuck": [Phase.DELETING, Phase.DELETING],
    "hr-deleting-suspended": [Phase.SUSPENDED, GONE],
    "hr-platform-success": [S, S, FETCH, R, OK],
    "hr-platform-isp-hosted-broken": [R, F, F, F],
}


def sequences(vectors: Path) -> dict[str, dict[str, Any]]:
    data = json.loads((vectors / "cozystack" / "conditions.json").read_text())
    return {s["id"]: s for s in data["sequences"] if s["kind"] == "HelmRelease"}


def seen_at(step: Mapping[str, Any]) -> Release | None:
    if step["conditions"] is None:
        return None
    metadata = {"namespace": "n", "name": "a", "generation": step["generation"]}
    if step.get("deletionTimestamp"):
        metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    status = {"observedGeneration": step["observedGeneration"], "conditions": step["conditions"]}
    return Release.parse({"metadata": metadata, "spec": {"suspend": bool(step.get("suspend"))}, "status": status})


def test_every_recorded_sequence_has_a_row_here(vectors: Path) -> None:
    assert sequences(vectors).keys() == PHASES.keys()


@pytest.mark.parametrize("name", PHASES)
def test_phases_along_a_recorded_sequence(vectors: Path, name: str) -> None:
    steps = map(seen_at, sequences(vectors)[name]["steps"])

    assert [release and item_of(release).phase for release in steps] == PHASES[name]


@pytest.mark.parametrize("name", [n for n, phases in PHASES.items() if phases[-1] is OK])
def test_a_sequence_that_ends_well_is_never_stuck_and_ready_only_at_its_end(vectors: Path, name: str) -> None:
    wait = Wait(expecting("n/a"))
    objects = [[r for r in [seen_at(s)] if r] for s in sequences(vectors)[name]["steps"] if not s.get("suspend")]
    verdicts = [wait.at(number * 20.0, now) for number, now in enumerate(objects)]

    assert all(isinstance(v, Progressing) for v in verdicts)
    assert wait.at(len(objects) * 20.0 + 30, objects[-1]) == Ready(1)


@pytest.mark.parametrize(
    "name",
    [
        "hr-install-timeout-endless-retry",
        "hr-render-error-endless-retry",
        "hr-install-failure-remediation-1.3",
        "hr-platform-isp-hosted-broken",
        "hr-deleting-stuck",
    ],
)
def test_a_loop_without_end_is_stuck_within_two_rounds(vectors: Path, name: str) -> None:
    wait = Wait(expecting("n/a"))
    steps = sequences(vectors)[name]["steps"]
    loop = steps[-3:]
    wait.at(0, [r for r in map(seen_at, steps[:1]) if r])
    verdicts = [wait.at(600 + turn * 210.0, [r for r in [seen_at(loop[turn % len(loop)])] if r]) for turn in range(6)]

    assert isinstance(verdicts[-1], Stuck)
    assert not re.search(r"[{}]", verdicts[-1].remedy)
