"""Fixtures of subjects with several files: the toolchain.

What they need is imported in them: the process that only hands tests out reads this file, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rich.console import Console

    from lab.toolchain.cache import Cache


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
