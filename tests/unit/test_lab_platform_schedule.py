"""helm-controller's decisions in the lab: slots, polling, retries, and the states of the real thing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.platform import catalogue, timing
from lab.platform.helmstatus import Chart, HelmStatus
from lab.platform.schedule import Failing, Phase, Schedule, Step, View
from lab.platform.timing import Behaviour
from lab.scenario import ReleaseOverride

CHART = Chart("ns/a", "cozy-a", "0.0.0+1a2b3c4d5e6f")


def view(name: str, *needs: str, **changes: Any) -> View:
    fields = {"generation": 1, "fingerprint": "one", "depends_on": tuple(f"ns/{n}" for n in needs), "chart": CHART}
    return View(ref=f"ns/{name}", **{**fields, **changes})


def schedule(behaviours: dict[str, Behaviour] | None = None, **options: Any) -> Schedule:
    known = behaviours or {}
    return Schedule(lambda ref: known.get(ref.removeprefix("ns/"), Behaviour(10.0)), **options)


def play(subject: Schedule, until_s: float, start_s: float = 0.0) -> Iterator[tuple[float, Step]]:
    """Every step up to `until_s`; effects take no time."""
    now = start_s
    while True:
        while steps := subject.advance(now):  # a freed slot is filled in the same moment
            for step in steps:
                yield now, step
                if step.what == "applied" and (settled := subject.settle(step.ref, now)) is not None:
                    yield now, settled
        following = subject.next_at()
        if following is None or following > until_s:
            return
        now = max(now, following)


def told(subject: Schedule, until_s: float, start_s: float = 0.0) -> list[tuple[float, str, str]]:
    return [(at, s.ref.removeprefix("ns/"), s.what) for at, s in play(subject, until_s, start_s) if s.what != "applied"]


def words(status: HelmStatus) -> list[tuple[str, str, str, str]]:
    return [(kind, c.status, c.reason, c.message) for kind, c in status.conditions.items()]


def test_a_release_without_dependencies_installs_at_once() -> None:
    subject = schedule()
    subject.observe(view("a"), 0)
    assert told(subject, 100) == [(0.0, "a", "installing"), (10.0, "a", "ready")]
    assert subject.ready("ns/a")


def test_five_actions_run_at_a_time_and_tenants_have_slots_of_their_own() -> None:
    subject = schedule()
    for number in range(7):
        subject.observe(view(f"r{number}"), 0)
    subject.observe(view("t", pool="tenants"), 0)
    started = [(at, name) for at, name, what in told(subject, 100) if what == "installing"]
    assert started == [(0.0, f"r{n}") for n in range(5)] + [(0.0, "t"), (10.0, "r5"), (10.0, "r6")]


def test_a_hanging_wait_keeps_its_slot_for_ten_minutes() -> None:
    subject = schedule(gate=lambda ref: None if ref == "ns/last" else "Deployment/x")
    for number in range(5):
        subject.observe(view(f"h{number}"), 0)
    subject.observe(view("last"), 0)
    steps = told(subject, 620)
    assert [s for s in steps if s[1] == "last"] == [(600.0, "last", "installing"), (610.0, "last", "ready")]
    assert {s for s in steps if s[2] == "failed"} == {(600.0, f"h{n}", "failed") for n in range(5)}


def test_dependencies_are_polled_not_watched() -> None:
    subject = schedule()
    subject.observe(view("b", "a"), 0)
    missing = list(play(subject, 0))
    subject.observe(view("a"), 0.5)
    steps = [step for step in (*missing, *play(subject, 100, 0.5)) if step[1].ref == "ns/b"]
    messages = [s.status.conditions["Ready"].message for _, s in steps if s.what == "checked"]
    assert messages[0] == ("unable to get 'ns/a' dependency: helmreleases.helm.toolkit.fluxcd.io \"a\" not found")
    (installing,) = [at for at, s in steps if s.what == "installing"]
    first_look = next(at for at, s in steps[1:])
    assert installing > 11.0
    assert (installing - first_look) % timing.DEPENDENCY_RECHECK_S == 0


def test_a_dependency_that_lags_its_generation_is_not_ready() -> None:
    subject = schedule()
    subject.observe(view("a"), 0)
    told(subject, 20)
    subject.observe(view("a", generation=2, fingerprint="two"), 20)
    assert not subject.ready("ns/a")
    assert told(subject, 60, 20) == [(20.0, "a", "upgrading"), (30.0, "a", "ready")]


def test_failed_attempts_are_retried_as_upgrades_and_the_recovery_says_so() -> None:
    subject = schedule({"a": Behaviour(10.0, fails=1, error="boom")})
    subject.observe(view("a"), 0)
    assert told(subject, 100) == [
        (0.0, "a", "installing"),
        (10.0, "a", "failed"),
        (40.0, "a", "upgrading"),
        (50.0, "a", "ready"),
    ]
    subject.observe(view("b", "a"), 100)
    told(subject, 140, 100)
    assert subject.ready("ns/b")


def test_exhausted_retries_stall_until_a_person_resets_them() -> None:
    subject = schedule({"a": Behaviour(10.0, exhausts=True)})
    subject.observe(view("a"), 0)
    assert told(subject, 1000)[-1] == (10.0, "a", "stalled")
    subject.behave("ns/a", Behaviour(10.0))
    subject.observe(view("a", requested_at="now"), 1000)
    assert subject.phase("ns/a") == Phase.STALLED
    subject.observe(view("a", requested_at="again", reset=True), 1001)
    assert told(subject, 1100, 1001)[-1] == (1011.0, "a", "ready")


def test_a_request_ends_the_wait_for_the_next_poll() -> None:
    subject = schedule()
    subject.observe(view("b", "a"), 0)
    told(subject, 0)
    subject.observe(view("a"), 1)
    told(subject, 11, 1)
    subject.observe(view("b", "a", requested_at="t"), 11.5)
    started = [at for at, name, what in told(subject, 40, 11.5) if (name, what) == ("b", "installing")]
    assert started[0] <= 31.0
    assert subject.phase("ns/b") == Phase.READY


def test_ready_after_overrules_the_length_and_can_outlast_the_timeout() -> None:
    slow = Behaviour(10.0).overruled(ReleaseOverride(ready_after=700))
    subject = schedule({"a": slow})
    subject.observe(view("a"), 0)
    steps = told(subject, 1000)
    assert (600.0, "a", "failed") in steps
    assert steps[-1][2] == "ready"
    assert steps[-1][0] >= 700.0


def test_a_suspended_release_says_nothing_and_goes_on_when_resumed() -> None:
    subject = schedule()
    subject.observe(view("a", suspended=True), 0)
    (suspended,) = [step for _, step in play(subject, 100)]
    assert (suspended.what, words(suspended.status), suspended.status.observed_generation) == ("suspended", [], 1)
    subject.observe(view("a", generation=2), 100)
    assert told(subject, 200, 100) == [(100.0, "a", "installing"), (110.0, "a", "ready")]


def test_a_regressed_dependency_is_noticed_at_the_interval_and_needs_no_action_afterwards() -> None:
    subject = schedule({"a": Behaviour(10.0)})
    subject.observe(view("a"), 0)
    subject.observe(view("b", "a"), 0)
    told(subject, 60)
    subject.behave("ns/a", Behaviour(10.0, fails=1, error="boom"))
    subject.observe(view("a", generation=2, fingerprint="two"), 300)
    steps = [(at, what) for at, name, what in told(subject, 700, 300) if name == "b"]
    assert [what for _, what in steps] == ["checked", "ready"]


def test_remediation_uninstalls_and_installs_again_with_growing_pauses() -> None:
    subject = schedule({"a": Behaviour(10.0, fails=2, error="boom")})
    subject.observe(view("a", failing=Failing.REMEDIATE), 0)
    steps = told(subject, 200)
    assert [what for _, _, what in steps] == [
        "installing", "failed", "checked", "installing", "failed", "checked", "installing", "ready",
    ]  # fmt: skip
    pauses = [b[0] - a[0] for a, b in pairwise(steps) if (a[2], b[2]) == ("checked", "installing")]
    assert pauses == pytest.approx([0.75, 1.5])


def test_a_release_that_lacks_a_kind_is_retried_as_an_install_until_the_crd_is_there() -> None:
    subject = schedule({"rd": Behaviour(3.0, provider="ns/crd", lacks="ApplicationDefinition"), "crd": Behaviour(60.0)})
    subject.observe(view("crd"), 0)
    subject.observe(view("rd"), 0)
    steps = [(step.what, step.status) for _, step in play(subject, 200) if step.ref == "ns/rd"]
    assert "no matches for kind" in next(s for what, s in steps if what == "failed").conditions["Ready"].message
    assert {what for what, _ in steps} == {"installing", "failed", "applied", "ready"}
    assert "ns/a.v1 with" in steps[-1][1].conditions["Ready"].message


def test_deleting_takes_the_uninstall_and_a_suspended_one_none() -> None:
    subject = schedule()
    subject.observe(view("a"), 0)
    subject.observe(view("s", suspended=True), 0)
    told(subject, 20)
    subject.observe(view("a", deleting=True), 20)
    subject.observe(view("s", suspended=True, deleting=True), 20)
    assert told(subject, 100, 20) == [(20.0, "s", "uninstalled"), (20.0 + timing.UNINSTALL_S, "a", "uninstalled")]


# Against the recorded sequences --------------------------------------------------------------------------------------


def sequence(vectors: Path, name: str) -> list[dict[str, Any]]:
    recorded = json.loads((vectors / "cozystack" / "conditions.json").read_text())["sequences"]
    steps: list[dict[str, Any]] = next(s for s in recorded if s["id"] == name)["steps"]
    return steps


def filled(step: dict[str, Any], **more: str) -> list[tuple[str, str, str, str]]:
    known = {
        "ns": "ns",
        "name": "a",
        "release": "a",
        "chart": "cozy-a",
        "chart_version": "0.0.0+1a2b3c4d5e6f",
        "dep_ns": "ns",
        "dep_name": "d",
        "error": "boom",
        "revision": "2",
        **more,
    }
    text = json.dumps(step["conditions"])
    for key, value in known.items():
        text = text.replace("{" + key + "}", value)
    return sorted((c["type"], c["status"], c["reason"], c["message"]) for c in json.loads(text))


def seen(subject: Schedule, until_s: float, start_s: float = 0.0) -> list[tuple[list[tuple[str, str, str, str]], int]]:
    steps = [s for _, s in play(subject, until_s, start_s) if s.ref == "ns/a" and s.what != "applied"]
    return [(sorted(words(s.status)), s.status.observed_generation) for s in steps]


def test_install_and_dependency_states_are_the_recorded_ones(vectors: Path) -> None:
    recorded = sequence(vectors, "hr-dependency-not-ready")
    subject = schedule()
    subject.observe(view("d"), 0)
    subject.observe(view("a", "d"), 0)
    assert seen(subject, 100) == [(filled(s), s["observedGeneration"]) for s in recorded[2:]]


def test_failing_states_are_the_recorded_ones(vectors: Path) -> None:
    recorded = sequence(vectors, "hr-install-timeout-endless-retry")
    subject = schedule({"a": Behaviour(10.0, fails=2, error="boom")})
    subject.observe(view("a"), 0)
    wanted = [(filled(s), s["observedGeneration"]) for n, s in enumerate(recorded) if n in (2, 3, 5, 6)]
    assert seen(subject, 60)[:4] == wanted


def test_remediating_states_are_the_recorded_ones(vectors: Path) -> None:
    recorded = sequence(vectors, "hr-install-failure-remediation-1.3")
    subject = schedule({"a": Behaviour(10.0, fails=9, error="boom")})
    subject.observe(view("a", failing=Failing.REMEDIATE), 0)
    assert seen(subject, 35)[:4] == [(filled(s), s["observedGeneration"]) for s in recorded[2:]]


def test_the_stalled_state_is_the_recorded_one(vectors: Path) -> None:
    recorded = sequence(vectors, "hr-stalled-retries-exceeded")
    unready_children: list[str] = []
    subject = schedule(gate=lambda _ref: next(iter(unready_children), None))
    subject.observe(view("a", failing=Failing.GIVE_UP, timeout_s=900.0), 0)
    told(subject, 20)
    unready_children.append("HelmRelease/ns/b")
    subject.observe(view("a", generation=2, fingerprint="two", failing=Failing.GIVE_UP, timeout_s=900.0), 20)
    error = "timeout waiting for: [HelmRelease/ns/b status: 'InProgress']"
    assert seen(subject, 2000, 20) == [(filled(s, error=error), s["observedGeneration"]) for s in recorded]


@pytest.mark.parametrize("version", catalogue.known())
@pytest.mark.parametrize("oidc", [False, True])
def test_a_whole_platform_converges(version: str, oidc: bool) -> None:
    known = catalogue.load(version)
    choice = known.choice("isp-full", {"authentication": {"oidc": {"enabled": oidc}}})
    packages = {p.name: p for p in known.emitted(choice)}
    subject = Schedule(lambda ref: timing.behaviour(ref, known), kstatus=known.traits.kstatus)
    failing = Failing.RETRY if known.traits.retries else Failing.REMEDIATE
    refs = []
    for package in packages.values():
        for item in catalogue.releases(package, packages):
            refs.append(item.ref)
            subject.observe(View(item.ref, 1, "one", item.depends_on, failing=failing, chart=CHART), 0)
    times = {s.ref: at for at, s in play(subject, 3600) if s.what == "ready"}
    assert set(times) == set(refs)
    assert 300 < max(times.values()) < 1200


def test_a_blocked_release_never_begins_and_says_why_again_and_again() -> None:
    subject = schedule({"a": Behaviour(10.0, blocked="SourceNotReady", error="no artifact")})
    subject.observe(view("a"), 0.0)
    steps = told(subject, 200)
    assert [(what, name) for _, name, what in steps] == [("checked", "a")]  # said once, looked at every 30 s
    assert subject.phase("ns/a") is Phase.CHECKING
    assert not subject.attempted("ns/a")
