"""Fixtures of subjects with several files: simulated machines, the zpool script, public names, the toolchain, the talos stand-in.

What they need is imported in them: the process that only hands tests out reads this file, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rich.console import Console

    from lab.machines import Machines
    from lab.plugins.talos import secrets
    from lab.scenario import Scenario
    from lab.toolchain.cache import Cache
    from tests.loopback import Pki
    from tests.simulated_machines import Lab, Start
    from tests.zpool_machine import Machine


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts scenarios; everything is closed at the end of the test."""
    from lab.machines import Machines
    from lab.world import World
    from tests.machine_configs import Secrets
    from tests.simulated_machines import Lab

    running: list[Machines] = []

    async def begin(chosen: Scenario) -> Lab:
        world = World(chosen)
        machines = Machines(world)
        await machines.__aenter__()
        running.append(machines)
        return Lab(world, Secrets())

    yield begin
    for machines in running:
        await machines.__aexit__(None, None, None)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine for the zpool script, with two empty disks."""
    from tests.zpool_machine import Machine

    made = Machine(tmp_path)
    made.disk("sda", serial="A1")
    made.disk("sdb", serial="B1")
    return made


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    from tests.loopback import Pki

    return Pki(tmp_path)


@pytest.fixture(scope="session")
def bundle() -> secrets.Bundle:
    """Secrets of one Talos cluster."""
    from lab.plugins.talos import secrets

    return secrets.generate()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The toolchain's cache of a user who has nothing yet."""
    from lab.toolchain.cache import Cache

    monkeypatch.setenv("COZYSTACK_IAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return Cache.of()


@pytest.fixture
def quiet() -> Console:
    from rich.console import Console

    return Console(quiet=True)
