"""The engine is killed in the middle of an install, and again in the next run; `make up` continues and cleans up after both."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from cozystack_iac.runner import locks
from tests.addresses import prefix
from tests.engine.site import LabSite, site

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def providers(lab: LabSite) -> list[psutil.Process]:
    """Dynamic providers that belong to this lab's project."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        line = " ".join(process.info["cmdline"] or [])
        home = (process.info["environ"] or {}).get("PULUMI_BACKEND_URL", "")
        if "pulumi.dynamic" in line and home == lab.session.environment["PULUMI_BACKEND_URL"]:
            found.append(process)
    return found


def until(condition: object, timeout_s: float = 60) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.1)


MOMENTS = ("machine cp1 zpool create", "release cozy-cilium/cilium")


def killed_at(lab: LabSite, moment: str) -> None:
    """One run, killed. Its lock stays where it is."""
    for lock in locks(lab.session.backend, lab.session.stack):
        lock.path.unlink()
    process = lab.session.start("up", "--yes", "--skip-preview")
    until(lambda: lab.events(moment), 120)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert locks(lab.session.backend, lab.session.stack)
    until(lambda: providers(lab) == [], 30)


def test_an_install_whose_engine_was_killed_twice_is_finished_by_the_next_up(tmp_path: Path) -> None:
    with site(tmp_path, prefix(), "one-node") as lab:
        for moment in MOMENTS:
            killed_at(lab, moment)
        code = subprocess.run(
            [
                lab.session.environment["PULUMI_PYTHON_CMD"],
                *("-m", "cozystack_iac.runner", "up", "--stack", lab.session.stack),
                *("--project", str(lab.session.project), "--yes", "--skip-preview", "--non-interactive"),
            ],
            env=lab.session.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert code.returncode == 0, code.stdout[-4000:] + code.stderr[-2000:]
        assert locks(lab.session.backend, lab.session.stack) == []
        state = json.loads(lab.session.pulumi("stack", "export").output)
        assert not state["deployment"].get("pending_operations")
        assert len(lab.events("cluster bootstrapped")) == 1
        assert len(lab.events("machine cp1 config applied")) == 1
        assert len(lab.events("machine cp1 zpool create")) == 1
