"""Fixtures of the vectors: secrets of one Talos cluster."""

import pytest

from lab.plugins.talos import secrets


@pytest.fixture(scope="session")
def bundle() -> secrets.Bundle:
    return secrets.generate()
