"""Fixtures shared by all tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[2] / "shared" / "vectors"


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of recorded data that lives outside the repository; tests that need it skip without it."""
    if not VECTORS.is_dir():
        pytest.skip("the optional folder of recorded vectors is not here")
    return VECTORS


@pytest.fixture(autouse=True)
def bundles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that fail leave support bundles: not in this checkout."""
    monkeypatch.setenv("COZYSTACK_IAC_BUNDLES", str(tmp_path_factory.getbasetemp() / "bundles"))


@pytest.fixture(autouse=True)
def frames_are_shown() -> Iterator[None]:
    """Code that hides frames from users does so for its whole process; the SDK's mocks cannot work without them."""
    yield
    if hasattr(sys, "tracebacklimit"):
        del sys.tracebacklimit
