"""Recorded sequences of conditions: where each step stands, and what a person is told when nothing more happens."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.readiness.expected import PLATFORM, Package, PackageSource, expected_releases
from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import HelmRelease, Phase, item_of, source_item
from cozystack_iac.readiness.verdicts import Progressing, Ready, State, Stuck, StuckClass, Suspended, Unknown
from tests.hr import Wait, expecting

F, S, R, W, ST = Phase.FAILING, Phase.STARTING, Phase.RUNNING, Phase.WAITING, Phase.STALE
OK, FETCH, GONE, REJECTED = Phase.READY, Phase.FETCHING, None, Phase.REJECTED
GIVEN_UP, REPEATING, OVERDUE = StuckClass.GIVEN_UP, StuckClass.REPEATING, StuckClass.OVERDUE
HOUR_S = 3600.0

# Sequence -> phases along it, and the state or the kind of Stuck that it amounts to when it goes on like that for an hour.
Row = tuple[list[Phase | None], State | StuckClass]
Look = tuple[float, tuple[list[HelmRelease], Expected]]
RELEASES: Mapping[str, Row] = {
    "hr-install-success": ([S, S, R, ST, OK], State.READY),
    "hr-dependency-not-ready": ([S, S, W, R, OK], State.READY),
    "hr-dependency-missing": ([S, S, W], StuckClass.MISSING),  # said of the dependency, not of what waits for it
    "hr-dependency-regressed": ([OK, W, OK], State.READY),
    "hr-artifact-not-found": ([S, S, FETCH, FETCH, R, OK], State.READY),
    "hr-artifact-download-404": ([FETCH, R], OVERDUE),  # the record ends while it installs; no action takes an hour
    "hr-values-secret-missing": ([S, FETCH], OVERDUE),
    "hr-install-timeout-endless-retry": ([S, S, R, F, F, F, F, F, F], REPEATING),
    "hr-install-fails-fast": ([R, F], REPEATING),
    "hr-install-webhook-refused": ([R, F, F, OK], State.READY),
    "hr-render-error-endless-retry": ([R, F, F, F], REPEATING),
    "hr-unknown-kind-until-crd": ([R, F, F, OK], State.READY),
    "hr-install-failure-remediation-1.3": ([S, S, R, F, F, F], REPEATING),
    "hr-upgrade-success": ([OK, ST, R, OK], State.READY),
    "hr-upgrade-failed-endless-retry": ([OK, ST, R, F, F, F], REPEATING),
    "hr-upgrade-failed-rollback-1.3": ([R, F, F], REPEATING),
    "hr-recovers-after-failures": ([F, F, OK], State.READY),
    "hr-suspended-before-install": ([S, S], OVERDUE),  # played as if it were not suspended; see below
    "hr-suspended-while-ready": ([OK, Phase.SUSPENDED, ST, OK], State.READY),
    "hr-suspended-while-failing": ([F, Phase.SUSPENDED], State.SUSPENDED),
    "hr-stalled-retries-exceeded": ([R, Phase.STALLED], GIVEN_UP),
    "hr-stalled-invalid-cel": ([S, Phase.STALLED], GIVEN_UP),
    "hr-stalled-access-denied": ([S, Phase.STALLED], GIVEN_UP),
    "hr-deleting-success": (
        [OK, Phase.DELETING, GONE],
        StuckClass.MISSING,
    ),  # it is expected, and nobody writes it again
    "hr-deleting-stuck": ([Phase.DELETING, Phase.DELETING], StuckClass.DELETING),
    "hr-deleting-suspended": ([Phase.SUSPENDED, GONE], StuckClass.MISSING),
    "hr-platform-success": ([S, S, FETCH, R, OK], State.READY),
    "hr-platform-isp-hosted-broken": ([R, F, F, F], REPEATING),
}
PACKAGES: Mapping[str, Row] = {
    "pkg-success": ([S, W, W, OK], State.READY),
    "pkg-no-dependencies": ([S, OK], State.READY),
    "pkg-source-not-found": ([S, FETCH, OK], State.READY),
    "pkg-variant-not-found": ([REJECTED, REJECTED], StuckClass.REJECTED),
    "pkg-blocked-forever": ([S, W], StuckClass.MISSING),  # said of the Package that does not exist
    "pkg-invalid-component-dependency": ([S, REJECTED], StuckClass.REJECTED),
    "pkg-helmrelease-write-failed": ([F, OK], State.READY),
}
SOURCES: Mapping[str, Row] = {
    "ps-success": ([S, R, R, R, OK], State.READY),
    "ps-source-missing": ([R, FETCH, FETCH, OK], State.READY),
    "ps-sourceref-not-set": ([REJECTED], StuckClass.REJECTED),
    "ps-watcher-stall-recovered": ([R, R, R, OK], State.READY),
    "ps-watcher-stall-gives-up": ([R, R, R, R, R, R, Phase.STALLED], GIVEN_UP),
    "ps-watcher-stall-no-recovery": ([R], OVERDUE),
    "ag-success": ([S, R, OK], State.READY),
    "ag-source-not-ready": ([S, FETCH, OK], State.READY),
    "ag-build-failed": ([R, F], REPEATING),
    "ea-success": ([S, OK], State.READY),
    "ea-removed": ([OK, GONE], State.READY),  # nobody needs it any more: its component is gone from the package
    "oci-success": ([S, R, R, OK], State.READY),
    "oci-registry-unreachable": ([S, F], REPEATING),
}
# Where we say something else than the object alone would suggest.
DEVIATIONS = {
    "hr-artifact-download-404": "cut off in the middle of an action that succeeds in real life",
    "hr-deleting-success": "deleted as intended, but part of what the Packages ask for",
    "hr-deleting-suspended": "as above",
    "hr-stalled-retries-exceeded": "for tenant-root itself only after three minutes: tests upstream saw it recover",
}


def recorded(vectors: Path, *kinds: str) -> dict[str, dict[str, Any]]:
    data = json.loads((vectors / "cozystack" / "conditions.json").read_text())
    return {s["id"]: s for s in data["sequences"] if s["kind"] in kinds}


def obj(step: Mapping[str, Any], **more: Any) -> dict[str, Any] | None:
    """A step as the object that the API would return; None when it is gone."""
    if step["conditions"] is None:
        return None
    metadata: dict[str, Any] = {"namespace": "n", "name": "a", "generation": step["generation"]}
    if step.get("deletionTimestamp"):
        metadata["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    status = {"conditions": step["conditions"]}
    if step.get("observedGeneration") is not None:
        status["observedGeneration"] = step["observedGeneration"]
    return {"metadata": metadata, "spec": {"suspend": bool(step.get("suspend")), **more}, "status": status}


def at_s(step: Mapping[str, Any], sequence: Mapping[str, Any]) -> float:
    """When a step happens: the longest of a range, what has no number is half a minute."""
    typical = {k: str(v) for k, v in (sequence.get("typical") or {}).items()}
    text = re.sub(r"\{(\w+)\}", lambda m: typical.get(m[1], "30"), str(step["after_s"]))
    return sum(max(float(n) for n in re.findall(r"\d+(?:\.\d+)?", part)) for part in text.split("+"))


def outcome(wait: Wait, steps: list[Look]) -> State | StuckClass:
    """Looks at every step and then every half minute for an hour, the last step standing."""
    last = steps[-1]
    looks = [*steps, *((last[0] + 30.0 * n, last[1]) for n in range(1, round(HOUR_S / 30)))]
    for now, (objects, expected) in looks:
        wait.expected = expected
        judgement = wait.look(now, objects)
    found = {s.subject: s.stuck or s.state for s in judgement.standings if not s.root}
    bad = {state for state in found.values() if state is not State.READY}
    assert len(bad) <= 1, found
    return bad.pop() if bad else State.READY


def test_every_recorded_sequence_has_a_row_here(vectors: Path) -> None:
    kinds = ("HelmRelease", "Package", "PackageSource", "ArtifactGenerator", "ExternalArtifact", "OCIRepository")

    assert recorded(vectors, *kinds).keys() == RELEASES.keys() | PACKAGES.keys() | SOURCES.keys()
    assert DEVIATIONS.keys() <= RELEASES.keys()


# HelmReleases --------------------------------------------------------------------------------------------------------


def release_at(step: Mapping[str, Any], needs: bool) -> HelmRelease | None:
    more = {"dependsOn": [{"name": "gone"}]} if needs else {}
    found = obj(step, **more)
    return HelmRelease.parse(found) if found else None


@pytest.mark.parametrize("name", RELEASES)
def test_phases_along_a_sequence_of_a_release(vectors: Path, name: str) -> None:
    steps = recorded(vectors, "HelmRelease")[name]["steps"]
    seen = [release_at(step, needs=False) for step in steps]

    assert [release and item_of(release).phase for release in seen] == RELEASES[name][0]


@pytest.mark.parametrize("name", RELEASES)
def test_what_a_person_is_told_of_a_release_that_goes_on_like_this(vectors: Path, name: str) -> None:
    sequence = recorded(vectors, "HelmRelease")[name]
    needs, expected = name == "hr-dependency-missing", expecting("n/a")
    seen = [(at_s(step, sequence), release_at(step, needs)) for step in sequence["steps"]]
    steps: list[Look] = [(now, ([release] if release else [], expected)) for now, release in seen]

    assert outcome(Wait(expected), steps) is RELEASES[name][1]


def test_a_release_that_is_suspended_before_its_first_action_waits_for_a_person(vectors: Path) -> None:
    steps = recorded(vectors, "HelmRelease")["hr-suspended-before-install"]["steps"]
    frozen = HelmRelease.parse(obj({**steps[-1], "suspend": True}) or {})

    assert outcome(Wait(expecting("n/a")), [(0.0, ([frozen], expecting("n/a")))]) is State.SUSPENDED


@pytest.mark.parametrize("name", [n for n, (phases, _) in RELEASES.items() if phases[-1] is OK])
def test_a_sequence_that_ends_well_is_never_stuck_and_ready_only_at_its_end(vectors: Path, name: str) -> None:
    wait = Wait(expecting("n/a"))
    sequence = recorded(vectors, "HelmRelease")[name]
    steps = [(at_s(s, sequence), release_at(s, needs=False)) for s in sequence["steps"] if not s.get("suspend")]
    verdicts = [wait.at(now, [release] if release else []) for now, release in steps]
    ended, release = steps[-1]

    assert not any(isinstance(v, Ready) for v in verdicts)
    assert not any(isinstance(v, Stuck | Suspended | Unknown) for v in verdicts)
    assert release is not None
    assert wait.at(ended + 30, [release]) == Ready(1)


@pytest.mark.parametrize(
    "name",
    [
        "hr-install-timeout-endless-retry",
        "hr-render-error-endless-retry",
        "hr-install-failure-remediation-1.3",
        "hr-platform-isp-hosted-broken",
        "hr-upgrade-failed-endless-retry",
    ],
)
def test_a_loop_without_end_is_stuck_within_two_rounds_of_ten_minutes(vectors: Path, name: str) -> None:
    sequence = recorded(vectors, "HelmRelease")[name]
    loop = [release_at(step, needs=False) for step in sequence["steps"][-3:]]
    wait, turn = Wait(expecting("n/a")), 0
    failed_at: float | None = None
    while True:
        release, now = loop[turn % len(loop)], turn * 210.0
        verdict, turn = wait.at(now, [release] if release else []), turn + 1
        failed_at = now if failed_at is None and release and item_of(release).phase is F else failed_at
        if not isinstance(verdict, Progressing):
            break

    assert failed_at is not None
    assert 600 <= now - failed_at <= 1260
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is REPEATING
    assert not re.search(r"\{(ns|name|kind)\}", verdict.blockers[0].remedy)


# Packages ------------------------------------------------------------------------------------------------------------


def packages_at(step: Mapping[str, Any], name: str) -> Expected:
    """The expected set with one Package in that step beside the platform's own; what it needs exists and is written."""
    found = obj(step) or {}
    missing = name == "pkg-blocked-forever"
    variant = {"name": "default", "dependsOn": ["other"], "components": []}
    there = {"metadata": {"name": "a"}, "spec": {"variants": [variant]}}
    written = {"conditions": [{"type": "Ready", "status": "True"}]}
    others = [{"metadata": {"name": n}, "status": written} for n in (PLATFORM, *([] if missing else ["other"]))]
    found["spec"]["variant"] = "no-such" if name == "pkg-variant-not-found" else "default"
    waits_for_source = name == "pkg-source-not-found" and step["conditions"]
    sources = [] if waits_for_source and step["conditions"][0]["status"] != "True" else [there]
    return expected_releases(map(Package.parse, [found, *others]), map(PackageSource.parse, sources), {}, "default")


@pytest.mark.parametrize("name", PACKAGES)
def test_phases_and_outcome_of_a_sequence_of_a_package(vectors: Path, name: str) -> None:
    sequence = recorded(vectors, "Package")[name]
    steps: list[Look] = [(at_s(step, sequence), ([], packages_at(step, name))) for step in sequence["steps"]]
    items = [{i.subject: i.phase for i in expected.items} for _, (_, expected) in steps]

    assert [phases.get("Package a", OK) for phases in items] == PACKAGES[name][0]
    assert outcome(Wait(steps[0][1][1]), steps) is PACKAGES[name][1]


# What charts come from -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_phases_and_outcome_of_a_sequence_of_a_source(vectors: Path, name: str) -> None:
    sequence = recorded(vectors, "PackageSource", "ArtifactGenerator", "ExternalArtifact", "OCIRepository")[name]
    found = [(at_s(step, sequence), obj(step)) for step in sequence["steps"]]
    items = [source_item(sequence["kind"], seen) if seen else None for _, seen in found]
    expected = [Expected(items=(item,) if item else (), floor=0) for item in items]
    steps: list[Look] = [(now, ([], each)) for (now, _), each in zip(found, expected, strict=True)]

    assert [item and item.phase for item in items] == SOURCES[name][0]
    assert outcome(Wait(expected[0]), steps) is SOURCES[name][1]
