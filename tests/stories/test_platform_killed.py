"""The engine dies somewhere between the installer and the last release; the next `up` finishes what it began, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cozystack_iac import record
from lab import scenario
from lab.story.platform import Story, platform_story
from tests.addresses import prefix

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

# Every kind of thing that can be half done: Helm's own record, what the operator makes of it, the Package, LINSTOR's
# controller, the root tenant, and the end, when only the verification is missing.
EVERYWHERE = (
    "helm cozy-system/cozy-installer pending-install",
    "operator platform source written",
    "package cozystack.cozystack-platform ready",
    "linstor controller available",
    "tenant root patched",
    "release cozy-system/vm-disk-rd ready",
)
WHERE_SIGN_ON_COMES_LATER = (
    "operator packages written",
    "release cozy-keycloak/keycloak installing",
    "release cozy-keycloak/keycloak-configure ready",
)


@pytest.mark.parametrize(
    ("name", "moment"),
    [("clean-1-6-oidc", m) for m in EVERYWHERE] + [("clean-1-5-oidc", m) for m in WHERE_SIGN_ON_COMES_LATER],
)
async def test_the_next_up_finishes_an_install_that_was_killed(name: str, moment: str, tmp_path: Path) -> None:
    chosen = scenario.load(scenario.FOLDER / "platform" / f"{name}.yaml").relocated(prefix())
    async with platform_story(chosen, tmp_path) as told:
        killed = await told.killed_at(moment)
        assert moment in told.events()
        assert not killed.succeeded
        assert not await completed(told)

        finished = await told.install()
        assert finished.succeeded, finished.text
        assert await completed(told)
        assert set(pools_made(told).values()) == {1}
        assert told.events().count("helm cozy-system/cozy-installer deployed") == 1
        assert (await told.install()).changes == ()


async def test_an_engine_that_has_lost_its_state_finds_everything_as_it_wants_it(tmp_path: Path) -> None:
    chosen = scenario.load(scenario.FOLDER / "platform" / "clean-1-6-oidc.yaml").relocated(prefix())
    async with platform_story(chosen, tmp_path) as told:
        assert (await told.install()).succeeded
        before = Counter(told.events())

        again = await told.again()
        assert again.succeeded, again.text
        assert {line for line, n in (Counter(told.events()) - before).items() if n and "installing" in line} == set()
        assert set(pools_made(told).values()) == {1}


async def completed(told: Story) -> bool:
    """Whether the cluster's own record says that the install came to its end, and nothing else."""
    found = (await told.kube().find(record.PLACE) or {}).get("data") or {}
    assert not ("completed" in found and "failed" in found)
    return "completed" in found


def pools_made(told: Story) -> Counter[str]:
    """How often each machine's zpool was made."""
    return Counter(line.split()[1] for line in told.events() if line.endswith(" zpool create"))
