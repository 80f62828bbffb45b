"""Fixtures shared by all tests, and the owner of everything that a run starts."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from lab import belongings
from tests import recorded
from tests.matrix import LONG

if TYPE_CHECKING:
    from tests.asked import Answer, ServedBy

STORIES = "tests/stories/"
SLOWER_THAN_S = 600.0  # what the whole suite may take on two cores with tools cached
SLOWEST = 10
ENDS_WITHIN_S = 10.0  # a plugin notices within a second or so that its engine is gone

_watcher = pytest.StashKey["subprocess.Popen[bytes]"]()
_began = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark what this run starts. A watcher outlives the run, however that ends, and ends what is left of it."""
    config.stash[_began] = time.monotonic()
    # A suite that every change hangs on plays the same examples in every run; a long run looks for new ones.
    # A busy machine is no reason to fail: neither time nor the health of a strategy's speed is judged here.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("suite", derandomize=not LONG, deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("suite")
    if hasattr(config, "workerinput"):
        return  # a worker of a run that has its watcher
    run = os.environ[belongings.RUN] = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != belongings.RUN}
    config.stash[_watcher] = subprocess.Popen(
        [sys.executable, "-m", "lab.belongings", run],
        cwd=Path(__file__).parents[1],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def pytest_collection_finish() -> None:
    """What was imported stays to the end; not to look through it again and again is a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def served_by() -> Iterator[ServedBy]:
    """Puts an API server of the test's own behind every connection: what answers a request."""
    import httpx  # here, like all that the process which only hands tests out has no use for

    from cozystack_iac.kube.client import routed

    with ExitStack() as stack:

        def install(answer: Answer) -> None:
            stack.enter_context(routed(lambda _: httpx.MockTransport(answer)))

        yield install


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What is dealt out to the workers: a file, whose tests may share a lab, as one; a story, which shares nothing, by itself."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class OneFileOrOneStory(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(STORIES) else nodeid.split("::", 1)[0]

    return OneFileOrOneStory(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that leaves a process behind has not passed, whatever it said."""
    if _watcher not in session.config.stash:
        return
    mine = {belongings.RUN: os.environ[belongings.RUN]}
    deadline = time.monotonic() + ENDS_WITHIN_S
    while (left := belongings.marked(mine)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        print(
            "\nleft behind by the tests, and ended now:", *map(belongings.describe, left), sep="\n  ", file=sys.stderr
        )
        belongings.end(mine)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    if watcher := config.stash.get(_watcher, None):
        watcher.communicate()
        del os.environ[belongings.RUN]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where the time went, when it went."""
    took_s = time.monotonic() - config.stash[_began]
    if took_s < SLOWER_THAN_S:
        return
    reports = [r for reports in terminalreporter.stats.values() for r in reports if isinstance(r, pytest.TestReport)]
    terminalreporter.section(f"{took_s:.0f} s are too long: the slowest {SLOWEST}")
    for report in sorted(reports, key=lambda each: each.duration, reverse=True)[:SLOWEST]:
        terminalreporter.write_line(f"{report.duration:7.1f} s {report.when:<8} {report.nodeid}")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """The folder of recorded data that lives outside the repository; tests that need it skip without it."""
    if not recorded.FOLDER.is_dir():
        pytest.skip("the optional folder of recorded vectors is not here")
    return recorded.FOLDER


@pytest.fixture(autouse=True)
def pace(request: pytest.FixtureRequest) -> Iterator[None]:
    """The product waits at the pace of the test's marker, e.g. `pace(looks=0.01)`: worlds of tests go faster than life."""
    marker = request.node.get_closest_marker("pace")
    if marker is None:
        yield
        return
    from cozystack_iac.waiting import Pace, at_pace  # the process that only hands tests out reads this file, too

    with at_pace(Pace(**marker.kwargs)):
        yield


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
