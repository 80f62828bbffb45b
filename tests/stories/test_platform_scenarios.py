"""Every scenario of storage and platform is played in memory, and the user sees what the scenario says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lab import scenario
from lab.scenario import InstallExpectation, PlanExpectation, Scenario
from lab.story.platform import Outcome, Story, platform_story
from tests.addresses import prefix

PREFIX = prefix()
PATIENCE_S = 60.0
FILES = [path for room in ("platform", "storage") for path in sorted((scenario.FOLDER / room).glob("*.yaml"))]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.timeout(90)
@pytest.mark.parametrize("path", FILES, ids=named)
async def test_a_user_sees_what_the_scenario_says(path: Path, tmp_path: Path) -> None:
    chosen = scenario.load(path).relocated(PREFIX)
    async with platform_story(chosen, tmp_path) as told:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await play(told, chosen)
        except TimeoutError:
            pytest.fail("\n".join(["nothing comes to an end:", *told.program.run.said]))


async def play(told: Story, chosen: Scenario) -> None:
    expect = chosen.expect
    planned = await told.plan()
    check_plan(planned, expect.plan)
    assert planned.succeeded is (expect.install is not None), planned.text
    if expect.install is None:
        return
    told.meanwhile()
    began_s = told.world.clock.now()
    check_install(await told.until(expect.install.until), told, expect.install)
    took_s = told.world.clock.now() - began_s
    if expect.afterwards is not None:
        check_plan(await told.plan(), expect.afterwards)
    if chosen.name.startswith("clean-") and expect.install.until is None:
        assert took_s > told.critical_path().total_s * 0.95  # waits are looked at every 30 s: a little luck is possible
        await check_at_rest(told)


async def check_at_rest(told: Story) -> None:
    """After an install there is nothing left to do, and a refresh sees what was written down."""
    assert await told.refresh() == []
    second = await told.install()
    assert second.succeeded, second.text
    assert second.changes == ()


def check_plan(planned: Outcome, expect: PlanExpectation) -> None:
    assert planned.codes == sorted(expect.findings), planned.text
    assert [text for text in expect.says if text not in planned.text] == [], planned.text
    assert [text for text in expect.hides if text in planned.text] == [], planned.text


def check_install(done: Outcome, told: Story, expect: InstallExpectation) -> None:
    seen = told.events()
    assert done.succeeded is expect.succeeds, done.text
    assert [text for text in expect.says if text not in done.text] == [], done.text
    assert [text for text in expect.once if done.failure.count(text) != 1] == [], done.failure
    assert [line for line in expect.events if line not in seen] == [], seen
    assert [line for line in expect.never if line in seen] == [], seen
