"""The record of the install in the cluster, through whole installs of the product's own program in one process."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from cozystack_iac import record, report
from lab import scenario
from lab.story.platform import Story, platform_story
from tests.addresses import prefix


def chosen(name: str) -> scenario.Scenario:
    return scenario.load(scenario.FOLDER / f"{name}.yaml").relocated(prefix())


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Story]:
    state = tmp_path / "state"
    state.mkdir()
    async with platform_story(chosen("one-node"), state) as made:
        yield made


async def recorded(told: Story) -> Mapping[str, str]:
    found = await record.read(told.kube())
    assert found is not None
    return found


async def test_a_run_that_fails_says_so_and_the_next_one_takes_it_back(
    told: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(report.VARIABLE, str(tmp_path / "report.md"))
    told.change(waits={"tenant": "1s"})
    told.api.refuse("PATCH tenants", 500, "InternalError", "failed calling webhook", times=10_000)
    broken = await told.install()
    assert not broken.succeeded, broken.text
    after_failure = await recorded(told)
    assert after_failure["stage"] == "RootTenantPatched"
    assert "completed" not in after_failure
    assert after_failure["failed"] >= after_failure["started"]
    assert after_failure["message"] in broken.text

    told.api._refusals.clear()
    told.change(waits={})
    done = await told.install()
    assert done.succeeded, done.text
    after_success = await recorded(told)
    assert set(after_success) == {"started", "completed", "revision", *(f"version.{n}" for n in VERSIONS)}

    # Nothing changed, so nothing runs, and nothing is written again.
    assert (await told.install()).changes == ()
    assert await recorded(told) == after_success
    assert "lab-record" not in await told.refresh()

    # The report of the run holds the page for people and the picture of its links.
    page = (tmp_path / "report.md").read_text()
    assert "dashboard.lab.example.org" in page
    assert "PlatformReady (" in page
    assert "flowchart LR" in page


VERSIONS = ("chart", "cozystack", "cozystack-iac", "kubernetes", "talos")


async def test_a_run_that_is_killed_leaves_that_it_has_started(told: Story) -> None:
    await told.killed_at("machine cp1 zpool create")
    killed = await recorded(told)
    assert "started" in killed
    assert not {"completed", "failed"} & set(killed)

    done = await told.install()
    assert done.succeeded, done.text
    assert "completed" in await recorded(told)


async def test_what_a_later_run_did_is_seen_by_a_refresh_and_goes_with_the_platform(told: Story) -> None:
    assert (await told.install()).succeeded
    body = await told.kube().get(record.PLACE)
    hidden = (told.bundle.cluster_secret, told.bundle.bootstrap_token, told.bundle.os.key, told.kubeconfig)
    assert [value[:8] for value in hidden if value in str(body)] == []

    await record.write(told.kube(), record.failed("ZpoolsOnline", "a pool is degraded", record.PROCESS_STARTED))
    assert "lab-record" in await told.refresh()
    assert told.program.state[RECORD].outputs["stage"] == "ZpoolsOnline"
    assert "lab-record" not in (await told.install()).changes  # seen, and no reason to write anything

    await told.program._drop({RECORD})
    assert await told.kube().find(record.PLACE) is None


RECORD = ("pulumi-python:dynamic/cozystack:InstallRecord", "lab-record")
