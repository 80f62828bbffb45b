"""Fixtures of the platform's stages: a cluster in memory behind every connection.

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
