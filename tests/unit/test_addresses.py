"""Every loopback network of a test comes from one place, or two workers meet on one and a lab stands still."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import addresses

TESTS = Path(addresses.__file__).parent


def test_no_test_makes_up_a_network_of_its_own() -> None:
    made_up = re.compile(r"127\.\{|getpid\(\) *%")
    others = [path for path in TESTS.rglob("*.py") if path not in (Path(addresses.__file__), Path(__file__))]
    assert [str(path) for path in others if made_up.search(path.read_text())] == []


def test_processes_never_share_a_network_and_a_dead_one_lets_go(tmp_path: Path) -> None:
    script = f"from tests.addresses import claimed; from pathlib import Path; print(claimed(Path({str(tmp_path)!r})))"
    waits = script + "; import sys; sys.stdout.flush(); sys.stdin.read()"
    argv = [sys.executable, "-c", waits]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS.parent) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        ours = addresses.claimed(tmp_path)
        assert ours != theirs
        other.kill()
    after = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=TESTS.parent)
    assert int(after.stdout) == theirs


def test_the_networks_of_one_process_differ() -> None:
    assert len({addresses.prefix(number) for number in range(6)}) == 6
    with pytest.raises(ValueError, match="networks 0 to 5"):
        addresses.prefix(6)
