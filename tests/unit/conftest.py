"""Fixtures of the platform's stages: a cluster in memory behind every connection.

What they need is imported in them: the process that only hands tests out reads this file, too.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cozystack_iac.kube.client import Kube
    from lab.memory import MemoryApi, MemoryKube


def pytest_collection_finish() -> None:
    """What was imported stays to the end; not to look through it again and again is a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> MemoryApi:
    """A cluster in memory behind every connection."""
    from cozystack_iac.kube.client import Kube
    from lab.memory import MemoryApi, MemoryKube

    made = MemoryApi()

    async def no_command(*_: object) -> None:
        return None

    @asynccontextmanager
    async def connect(kubeconfig: str, **_: Any) -> AsyncIterator[Kube]:
        yield MemoryKube(made, no_command)

    monkeypatch.setattr(Kube, "connect", connect)
    return made


@pytest.fixture
def kube(api: MemoryApi) -> MemoryKube:
    from lab.memory import MemoryKube

    async def no_command(*_: object) -> None:
        return None

    return MemoryKube(api, no_command, inside=True)
