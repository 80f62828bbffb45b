"""What the engine's calls mean is written once: a break in it is seen by Pulumi's methods and by the stories alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.stages.base import StageProvider
from cozystack_iac.stages.disk_ledger import DiskLedgerProvider
from lab import scenario
from lab.story.platform import platform_story
from tests.addresses import prefix

LEDGER = {"disks": {}, "places": {}, "approved": {}, "deadline_s": 1}
STATE = {**LEDGER, "ledger": {}}
CALLS: dict[str, Callable[[DiskLedgerProvider], object]] = {
    "on_check": lambda stage: stage.check({}, dict(LEDGER)),
    "on_create": lambda stage: stage.create(dict(LEDGER)),
    "on_update": lambda stage: stage.update("id", dict(STATE), dict(LEDGER)),
    "on_read": lambda stage: stage.read("id", dict(STATE)),
    "on_delete": lambda stage: stage.delete("id", dict(STATE)),
}


class Broken(Exception):
    pass


@contextmanager
def broken(method: str) -> Iterator[None]:
    async def fails(*_: object) -> Any:
        raise Broken(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageProvider, method, fails)
        yield


@pytest.mark.parametrize("method", CALLS)
def test_pulumis_own_method_calls_the_contract(method: str) -> None:
    CALLS[method](DiskLedgerProvider())
    with broken(method), pytest.raises(Broken, match=method):
        CALLS[method](DiskLedgerProvider())


@pytest.mark.timeout(90)
async def test_the_stories_call_it_too(tmp_path: Path) -> None:
    one = scenario.load(scenario.FOLDER / "one-node.yaml").relocated(prefix())
    async with platform_story(one, tmp_path) as told:
        with broken("on_check"):
            assert "Broken: on_check" in (await told.plan()).failure
        with broken("on_create"):
            assert "Broken: on_create" in (await told.install()).failure
        done = await told.install()
        assert done.succeeded, done.text
        with broken("on_read"), pytest.raises(Broken, match="on_read"):
            await told.refresh()
        told.change(tenant={"seaweedfs": False})
        with broken("on_update"):
            assert "Broken: on_update" in (await told.install()).failure
        told.change(storage={"classes": "skip"})
        with broken("on_delete"), pytest.raises(Broken, match="on_delete"):
            await told.install()
