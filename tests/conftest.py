"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

VECTORS = Path(__file__).parents[2] / "shared" / "vectors"


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of recorded data that lives outside the repository; tests that need it skip without it."""
    if not VECTORS.is_dir():
        pytest.skip("the optional folder of recorded vectors is not here")
    return VECTORS
