"""Every scenario of the machines is played in this process, and the user sees what the scenario says."""

from __future__ import annotations

import pytest

from lab.plugins.talos import secrets
from lab.scenario import PlanExpectation
from lab.story.machines import Outcome, Story, story
from tests.machine_scenarios import PLAYED, seen_once

pytestmark = pytest.mark.pace(looks=0.1, patience=1 / 60)

SCALE = 1000  # real-life seconds per second: nobody but the machines takes time here


@pytest.fixture(scope="module")
def bundle() -> secrets.Bundle:
    return secrets.generate()


@pytest.mark.parametrize("name", PLAYED)
async def test_a_user_sees_what_the_scenario_says(name: str, bundle: secrets.Bundle) -> None:
    chosen = PLAYED[name].model_copy(update={"scale": float(SCALE)})
    expect = chosen.expect
    async with story(chosen, bundle) as told:
        planned = await told.plan()
        check_plan(planned, expect.plan)
        assert planned.succeeded is (expect.install is not None), planned.text
        if expect.install is not None:
            await told.meanwhile()
            done = await told.install()
            assert done.succeeded is expect.install.succeeds, done.text
            seen = told.events()
            assert [text for text in expect.install.says if text not in done.text] == [], done.text
            assert [line for line in expect.install.events if line not in seen] == [], seen
            assert [line for line in expect.install.never if line in seen] == []
            assert leaked(done, bundle) == []
            assert keys_of_workers(told) == []
        if expect.afterwards is not None:
            check_plan(await told.plan(client=told.client), expect.afterwards)
        assert seen_once(told.events(), expect.install is not None and expect.install.succeeds, chosen)


def check_plan(planned: Outcome, expect: PlanExpectation) -> None:
    assert planned.codes == sorted(expect.findings), planned.text
    assert [text for text in expect.says if text not in planned.text] == [], planned.text
    assert [text for text in expect.hides if text in planned.text] == [], planned.text


def leaked(done: Outcome, bundle: secrets.Bundle) -> list[str]:
    hidden = (bundle.cluster_secret, bundle.bootstrap_token, bundle.trustd_token, bundle.os.key, bundle.etcd.key)
    return [value[:8] for value in hidden if value in done.text]


def keys_of_workers(told: Story) -> list[str]:
    """Workers whose configuration carries a private key of the cluster (siderolabs/talos 8134)."""
    bundle, made = told.bundle, told.configurations()
    private = (bundle.os, bundle.kubernetes, bundle.etcd, bundle.aggregator)
    keys = [bundle.service_account_key, *(pair.key for pair in private)]
    return [node.name for node in told.site.workers if any(key in made[node.name] for key in keys)]
