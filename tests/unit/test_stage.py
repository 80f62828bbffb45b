"""The base of every dynamic provider: what it does in each operation of the engine."""

import asyncio
import threading
from typing import ClassVar

import pulumi
import pytest
from pulumi.output import Unknown as _Unknown
from pulumi.runtime.rpc import UNKNOWN
from pydantic import Field

from cozystack_iac import engine_watch
from cozystack_iac.engine_watch import EngineGone, EngineWatch, until_gone
from cozystack_iac.findings import Finding, Rule, Severity
from cozystack_iac.stages.base import Known, Properties, StageProvider
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds

AN_UNKNOWN = _Unknown()  # type: ignore[no-untyped-call]  # the SDK has no types here
BAD = Rule("NODE-999", Severity.ERROR, why="the test says so", title="a door is open", remedy="open it")
ODD = Rule("NODE-998", Severity.WARNING, why="the test says so", title="a door is quiet", remedy="oil it")


class DoorInputs(Properties):
    name: str
    count: int = 0
    token: str = Field(default="", repr=False)
    deadline_s: float = 1


class DoorOutputs(Properties):
    opened: int


class DoorProvider(StageProvider[DoorInputs, DoorOutputs]):
    inputs = DoorInputs
    outputs = DoorOutputs
    secret = frozenset({"token"})
    replaces = frozenset({"name"})
    asked: ClassVar[list[tuple[str, DoorInputs | None]]] = []

    async def preflight(self, new: DoorInputs, known: DoorInputs | None) -> list[Finding]:
        self.asked.append((new.name, known))
        if new.name == "locked":
            return [
                BAD.at("door", problem="it is locked", fix="unlock it"),
                ODD.at("door", problem="it creaks", fix="oil"),
            ]
        return []

    async def establish(self, inputs: DoorInputs, progress: Progress) -> DoorOutputs:
        return DoorOutputs(opened=inputs.count + 1)

    async def observe(self, inputs: DoorInputs, outputs: DoorOutputs) -> DoorOutputs | None:
        return None if inputs.name == "gone" else DoorOutputs(opened=99)


@pytest.fixture
def door() -> DoorProvider:
    DoorProvider.asked.clear()
    return DoorProvider()


def test_a_subclass_that_does_not_say_what_is_secret_is_refused() -> None:
    with pytest.raises(TypeError, match="does not declare secret"):

        class Forgetful(StageProvider[DoorInputs, DoorOutputs]):
            inputs = DoorInputs
            outputs = DoorOutputs

            async def establish(self, inputs: DoorInputs, progress: Progress) -> DoorOutputs:
                return DoorOutputs(opened=0)


def test_a_subclass_that_names_a_property_which_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="tokem"):

        class Typo(StageProvider[DoorInputs, DoorOutputs]):
            inputs = DoorInputs
            outputs = DoorOutputs
            secret = frozenset({"tokem"})

            async def establish(self, inputs: DoorInputs, progress: Progress) -> DoorOutputs:
                return DoorOutputs(opened=0)


def test_an_output_that_would_take_an_inputs_place_in_the_state_is_refused() -> None:
    class Opened(Properties):
        count: str

    with pytest.raises(TypeError, match="called count that can never be equal"):

        class Confused(StageProvider[DoorInputs, Opened]):
            inputs = DoorInputs
            outputs = Opened
            secret = frozenset()

            async def establish(self, inputs: DoorInputs, progress: Progress) -> Opened:
                return Opened(count="one")


def test_create_takes_the_engines_floats_and_returns_inputs_beside_outputs(door: DoorProvider) -> None:
    made = door.create({"name": "front", "count": 2.0, "token": "t", "__provider": "x"})
    assert made.outs is not None
    took = made.outs.pop("took")
    assert made.outs == {"name": "front", "count": 2, "token": "t", "opened": 3}
    assert (took["seconds"] < 5, len(took["started"])) == (True, len("2026-11-30T17:00:00Z"))


def test_blocking_findings_become_check_failures_and_warnings_are_shown(
    door: DoorProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    result = door.check({}, {"name": "locked"})
    assert [f.property for f in result.failures] == [""]
    assert "unlock it" in result.failures[0].reason
    assert "it creaks" in capsys.readouterr().out


def test_check_knows_what_was_built_already(door: DoorProvider) -> None:
    door.check({"name": "front", "count": 1.0}, {"name": "front", "count": 2.0})
    assert door.asked == [("front", DoorInputs(name="front", count=1))]


def test_unknown_inputs_are_not_judged(door: DoorProvider) -> None:
    result = door.check({}, {"name": AN_UNKNOWN, "count": 1.0})
    assert result.failures == []
    assert door.asked == []


def test_inputs_that_do_not_fit_the_model_are_failures_without_values(door: DoorProvider) -> None:
    result = door.check({}, {"name": "front", "count": "canary-value"})
    assert len(result.failures) == 1
    assert "count" in result.failures[0].reason
    assert "canary-value" not in result.failures[0].reason


@pytest.mark.parametrize(
    ("change", "changes", "replaces"),
    [
        ({}, False, []),
        ({"deadline_s": 5.0}, False, []),
        ({"count": 4.0}, True, []),
        ({"name": "back"}, True, ["name"]),
        ({"name": AN_UNKNOWN}, True, []),
    ],
)
def test_diff_looks_only_at_what_matters(
    door: DoorProvider, change: dict[str, object], changes: bool, replaces: list[str]
) -> None:
    old = {"name": "front", "count": 1.0, "deadline_s": 1.0, "opened": 2.0}
    result = door.diff("id", old, {"name": "front", "count": 1.0, "deadline_s": 1.0, **change})
    assert (result.changes, result.replaces) == (changes, replaces)


def test_update_returns_all_outputs(door: DoorProvider) -> None:
    updated = door.update("id", {"name": "front", "count": 1.0, "opened": 2.0}, {"name": "front", "count": 5.0})
    assert updated.outs is not None
    assert updated.outs.pop("took")
    assert updated.outs == {"name": "front", "count": 5, "opened": 6}


def test_a_state_that_another_version_wrote_reads_as_unknown_not_as_a_crash() -> None:
    seen: list[Known[DoorInputs, DoorOutputs]] = []

    class Watching(DoorProvider):
        async def revise(
            self, inputs: DoorInputs, known: Known[DoorInputs, DoorOutputs], progress: Progress
        ) -> DoorOutputs:
            seen.append(known)
            return DoorOutputs(opened=1)

    Watching().update("id", {"title": "front"}, {"name": "front"})
    assert seen == [Known(None, None)]


def test_refresh_reports_what_is_there_now_and_forgets_what_is_gone(door: DoorProvider) -> None:
    assert door.read("id", {"name": "front", "opened": 1.0}).outs == {"name": "front", "opened": 99}
    took = {"started": "2026-11-30T17:00:00Z", "seconds": 3.5}
    assert (door.read("id", {"name": "front", "opened": 1.0, "took": took}).outs or {})["took"] == took
    assert door.read("id", {"name": "gone", "opened": 1.0}).id == ""


def test_a_failure_stands_alone() -> None:
    failed = StageFailed(
        "cp2 did not come back.",
        details={"last seen": "installing"},
        means="it is not a member",
        next_step="look at it",
    )
    assert str(failed).splitlines() == [
        "cp2 did not come back.",
        "  last seen  installing",
        "  means      it is not a member",
        "  next       look at it",
    ]


async def test_a_budget_that_is_used_up_tells_what_was_last_seen() -> None:
    def expired() -> StageFailed:
        return StageFailed("too late", means="m", next_step="n")

    with pytest.raises(StageFailed, match="too late"):
        async with budget(0.01, expired):
            await asyncio.sleep(5)


async def test_somebody_elses_timeout_is_not_taken_for_the_budget() -> None:
    def expired() -> StageFailed:
        return StageFailed("too late", means="m", next_step="n")

    with pytest.raises(TimeoutError, match="theirs"):
        async with budget(5, expired):
            raise TimeoutError("theirs")


async def test_work_is_cancelled_once_the_engine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "POLL_S", 0.05)
    watch = EngineWatch(parent=lambda: 1)
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    threading.Timer(0.05, watch.gone.set).start()
    with pytest.raises(EngineGone):
        await until_gone(work(), watch)
    assert cancelled.is_set()


def test_a_changed_parent_means_the_engine_is_gone() -> None:
    parents = iter([10, 10, 1])
    watch = EngineWatch(parent=lambda: next(parents))
    watch.look()
    assert not watch.gone.is_set()
    watch.look()
    assert watch.gone.is_set()


def test_a_closed_engine_address_means_the_engine_is_gone() -> None:
    watch = EngineWatch(parent=lambda: 1, address=("127.0.0.1", 1))
    watch.look()
    assert watch.gone.is_set()


def test_progress_speaks_once_per_change() -> None:
    lines: list[str] = []
    progress = Progress("Door", write=lines.append)
    progress.say("opening")
    progress.say("opening")
    progress.say("open")
    assert [line.rsplit("] ", 1)[1] for line in lines] == ["opening", "open"]


async def test_a_stage_that_waits_in_silence_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "POLL_S", 0.05)
    lines: list[str] = []
    progress = Progress("Door", repeat_s=0.1, write=lines.append)

    async def work() -> None:
        progress.say("waiting")
        await asyncio.sleep(0.4)

    await until_gone(work(), EngineWatch(parent=lambda: 1), progress.heartbeat)
    assert len(lines) >= 2


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "3 s"), (75, "1 min 15 s"), (3720, "1 h 2 min")])
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_check_passes_secrets_through_unwrapped_for_the_stage(door: DoorProvider) -> None:
    secret = {pulumi.runtime.rpc._special_sig_key: pulumi.runtime.rpc._special_secret_sig, "value": "locked"}
    assert len(door.check({}, {"name": secret}).failures) == 1


class LateProvider(DoorProvider):
    late = frozenset({"token"})


def test_what_may_come_late_does_not_keep_the_rest_from_being_judged(door: DoorProvider) -> None:
    result = LateProvider().check({}, {"name": "locked", "token": UNKNOWN})
    assert len(result.failures) == 1
    assert result.inputs["token"] == UNKNOWN
    assert door.asked == [("locked", None)]


def test_anything_else_unknown_still_does(door: DoorProvider) -> None:
    assert LateProvider().check({}, {"name": UNKNOWN, "token": UNKNOWN}).failures == []
    assert door.asked == []


def test_what_may_come_late_needs_a_default() -> None:
    with pytest.raises(TypeError, match="no default for what may come late: name"):

        class Hasty(DoorProvider):
            late = frozenset({"name"})


class WatchfulProvider(DoorProvider):
    def drifted(self, inputs: DoorInputs, outputs: DoorOutputs) -> bool:
        return outputs.opened != inputs.count + 1


def test_what_a_refresh_saw_can_call_for_another_run() -> None:
    watchful, news = WatchfulProvider(), {"name": "front", "count": 2}

    assert watchful.diff("id", {**news, "opened": 99}, news).changes
    assert not watchful.diff("id", {**news, "opened": 3}, news).changes
    assert not watchful.diff("id", {**news, "opened": None}, news).changes  # nothing is known of it
    assert not DoorProvider().diff("id", {**news, "opened": 99}, news).changes
