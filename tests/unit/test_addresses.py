"""Every loopback network of a test comes from one place, or two workers meet on one and a lab stands still."""

import re
from pathlib import Path

import pytest

from tests import addresses

TESTS = Path(addresses.__file__).parent


def test_no_test_makes_up_a_network_of_its_own() -> None:
    made_up = re.compile(r"127\.\{|getpid\(\) *%")
    others = [path for path in TESTS.rglob("*.py") if path not in (Path(addresses.__file__), Path(__file__))]
    assert [str(path) for path in others if made_up.search(path.read_text())] == []


def test_workers_of_one_run_never_share_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for worker in range(6):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        seen += [addresses.prefix(number) for number in range(6)]
    assert len(set(seen)) == len(seen)
