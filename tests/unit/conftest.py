"""Fixtures of the platform's stages: a cluster in memory behind every connection, and no patience.

What they need is imported in them: the process that only hands tests out reads this file, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cozystack_iac.kube.client import Kube
    from lab.memory import MemoryApi, Server


@pytest.fixture
def server() -> Iterator[Server]:
    """A cluster in memory behind every connection."""
    from lab.memory import MemoryApi, Server

    made = Server(MemoryApi())
    with made.behind_every_connection():
        yield made


@pytest.fixture
def api(server: Server) -> MemoryApi:
    return server.api


@pytest.fixture
def kube(server: Server) -> Kube:
    """A client of it that no outage concerns."""
    return server.kube(inside=True)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from cozystack_iac.platform import claim_stage, hook_stage, stages

    for module, name, value in (
        (claim_stage, "LOOK_EVERY_S", 0.01),
        (claim_stage, "PATIENCE_S", 0.0),
        (hook_stage, "LOOK_EVERY_S", 0.01),
        (stages, "TENANT_EVERY_S", 0.01),
    ):
        monkeypatch.setattr(module, name, value)
