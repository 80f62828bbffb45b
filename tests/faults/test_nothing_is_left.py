"""Whatever ends a test run or `make lab`, nothing that it started goes on: no process, no port, no door of the lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lab import belongings, doors, scenario
from lab.scenario import Scenario
from lab.session import CHECKOUT
from lab.state import StateDir
from tests.addresses import prefix

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(240)]

PREFIX = prefix(5)
GONE_WITHIN_S = 60.0  # a supervisor stops its children in order, then what belongs to it
BEGUN = "the engine works"
INNER = f"""
import time
from pathlib import Path
from lab.belongings import describe, of_lab
from tests.engine.site import TALOS_ONLY, site

def test_inner(tmp_path: Path) -> None:
    with site(tmp_path, "{PREFIX}", "one-node", program=TALOS_ONLY) as lab:
        lab.session.start("up", "--yes", "--skip-preview")
        while not any("pulumi.dynamic" in each for each in map(describe, of_lab(lab.state.root))):
            time.sleep(0.05)
        Path("begins").write_text(str(tmp_path))
        Path("begins").rename("begun")  # whoever waits for it reads all of it
        assert Path("go-on").exists(), "{BEGUN}"
        time.sleep(600)
"""


@dataclass
class Started:
    """A process that was started in a session of its own, as from a terminal, and all that comes from it."""

    process: subprocess.Popen[str]
    mark: dict[str, str]

    def group(self, number: signal.Signals) -> None:
        """What a terminal does with ^C."""
        os.killpg(self.process.pid, number)

    def alone(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def left(self) -> list[str]:
        return [belongings.describe(each) for each in belongings.marked(self.mark)]


@contextmanager
def started(*command: str, cwd: Path) -> Iterator[Started]:
    mark = {"COZYSTACK_IAC_TEST_OF_OWNERS": uuid.uuid4().hex}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    path = os.pathsep.join([str(CHECKOUT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment | mark | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Started(process, mark)
        finally:
            belongings.end(mark)


def until(condition: Callable[[], object], run: Started, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert run.process.poll() is None, run.process.stdout.read() if run.process.stdout else ""
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.05)


def nothing_is_left(run: Started, state: Path, chosen: Scenario) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := run.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert doors.problems(doors.doors(chosen)) == []
    assert not StateDir(state).socket.exists()
    # Children of the supervisor have an environment of their own, so they are found by the folder they work in.
    assert [each for each in commands() if str(state) in each] == []


def commands() -> list[str]:
    return [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short path: the inner run's own folders have to fit into a socket's address."""
    with tempfile.TemporaryDirectory(prefix="left-") as path:
        yield Path(path)


ENDS: dict[str, Callable[[Started], None]] = {
    "a test fails": lambda run: None,
    "^C": lambda run: run.group(signal.SIGINT),
    "the run is killed": lambda run: run.alone(signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_test_run_that_ends_takes_everything_with_it(how: str, folder: Path) -> None:
    chosen = scenario.load(scenario.FOLDER / "one-node.yaml").relocated(PREFIX)
    (folder / "test_inner.py").write_text(INNER)
    if how != "a test fails":
        (folder / "go-on").touch()
    options = ["-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={folder}"]
    with started(
        sys.executable, "-m", "pytest", *options, f"--basetemp={folder / 'b'}", "test_inner.py", cwd=folder
    ) as run:
        until((folder / "begun").exists, run)
        state = Path((folder / "begun").read_text())
        ENDS[how](run)
        said, _ = run.process.communicate(timeout=60)
        assert (BEGUN in said) is (how == "a test fails"), said
        nothing_is_left(run, state, chosen)


MOMENTS: dict[str, tuple[str, Callable[[Started], None]]] = {
    "^C while the engine works": ("pulumi.dynamic", lambda run: run.group(signal.SIGINT)),
    "make is killed while the engine works": ("pulumi.dynamic", lambda run: run.alone(signal.SIGKILL)),
    "everything is killed while the lab starts": ("kube-apiserver", lambda run: run.group(signal.SIGKILL)),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_make_lab_that_ends_early_takes_its_lab_with_it(moment: str, tmp_path: Path) -> None:
    process, end = MOMENTS[moment]
    chosen = scenario.load(scenario.FOLDER / "one-node.yaml").relocated(PREFIX)
    described = tmp_path / "one-node.yaml"
    described.write_text(chosen.model_dump_json(by_alias=True))
    state = StateDir(tmp_path / "lab")

    def begun() -> bool:
        """An engine's process carries the lab's mark; the control plane's are known by the folder they work in."""
        mine = [
            *map(belongings.describe, belongings.of_lab(state.root)),
            *(c for c in commands() if str(state.root) in c),
        ]
        return any(process in each for each in mine)

    with started("make", "lab", f"LAB_STATE={state.root}", f"ARGS=--scenario {described}", cwd=CHECKOUT) as run:
        until(begun, run)
        end(run)
        run.process.communicate(timeout=60)
        nothing_is_left(run, state.root, chosen)
