"""Engine or provider are killed again and again at moments of the Talos stage; the next `up` always goes on from there.

Every lab is one life of a cluster: a run is killed, the machines go on by themselves, the next run is killed a little later.
Moments are drawn with a seed: events of the world, and points in time between them. `make test` lives two of the lives.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cozystack_iac.runner import locks
from lab import control
from tests.addresses import prefix
from tests.engine.site import TALOS_ONLY, LabSite, site
from tests.matrix import sampled

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(240)]

SCALE = 5.0  # slow enough for a run to be killed eight times before the machines are done
START_S = 3.0  # the engine reads its state and starts the program
BETWEEN_S = 1.0
WAITS_S = 30.0


@dataclass(frozen=True)
class Moment:
    """When a run is killed, and which process. `event`: of the world, newer than the last kill; else a time after `since`."""

    victim: str  # engine | provider
    event: str = ""
    since: str = "provider"  # engine | provider: when its process is there
    delay_s: float = 0.0


def moments(seed: int, *events: str) -> list[Moment]:
    """One kill while the engine starts, one while the gate asks, then the events, each followed by one between them."""
    chance = random.Random(seed)
    victims = ["engine", "provider"] * len(events)
    chance.shuffle(victims)
    told = [Moment("engine", since="engine", delay_s=chance.random() * START_S), Moment("provider")]
    for event, first, second in zip(events, victims[::2], victims[1::2], strict=True):
        told += [Moment(first, event), Moment(second, delay_s=chance.random() * BETWEEN_S)]
    return told


STORIES = {
    "three, first": ("three-nodes", moments(1, "cp2 config applied", "cp1 bootstrap", "cp3 etcd joined")),
    "three, second": ("three-nodes", moments(2, "cp1 installing", "cluster bootstrapped", "cp3 etcd running")),
    "one": ("one-node", moments(3, "cp1 config applied")),
}


def test_there_are_twenty_moments_and_both_victims_have_their_share() -> None:
    victims = [moment.victim for _, story in STORIES.values() for moment in story]
    assert len(victims) == 20
    assert min(victims.count("engine"), victims.count("provider")) >= 8


@pytest.mark.parametrize("name", sampled(list(STORIES), 2, seed=11))
def test_whatever_is_killed_whenever_the_next_up_converges(tmp_path: Path, name: str) -> None:
    scenario, story = STORIES[name]
    with site(tmp_path, prefix(), scenario, program=TALOS_ONLY, scale=SCALE) as lab:
        kills: list[int] = [0]
        told = [kill(lab, moment, kills) for moment in story]
        done = run_to_the_end(lab)

        assert done.returncode == 0, f"{told}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
        names = [machine["name"] for machine in control.ask(lab.state.socket, "state")["machines"]]
        assert {name: len(lab.events(f"machine {name} config applied")) for name in names} == dict.fromkeys(names, 1)
        assert len(lab.events("cluster bootstrapped")) == 1
        assert {m["machine"]: m["learner"] for m in members(lab)} == dict.fromkeys(names, False)
        assert locks(lab.session.backend, lab.session.stack) == []
        state = json.loads(lab.session.pulumi("stack", "export").output)
        assert not state["deployment"].get("pending_operations")


def members(lab: LabSite) -> list[dict[str, object]]:
    found: list[dict[str, object]] = control.ask(lab.state.socket, "state")["cluster"]["members"]
    return found


def kill(lab: LabSite, moment: Moment, kills: list[int]) -> str:
    """One run, killed; when that was, for the report of a failure. The run must not have ended before.

    `kills` holds the number of the newest event at each kill so far.
    """
    release(lab)
    process = start(lab)
    until(lambda: bool(providers(process)) or moment.since == "engine", process)
    if moment.event:
        until(lambda: any(e["seq"] > kills[-1] for e in lab.events(moment.event)), process)
    time.sleep(moment.delay_s)
    assert process.poll() is None, f"{moment} came too late"
    for pid in [process.pid] if moment.victim == "engine" else providers(process):
        os.kill(pid, signal.SIGKILL)
    process.wait(60)
    last = lab.events()[-1]
    kills.append(int(last["seq"]))
    return f"{moment.victim} at {last['subject']} {last['what']}"


def providers(engine: subprocess.Popen[bytes]) -> list[int]:
    """The dynamic providers of this run; those of an earlier one may still be about to notice that they are orphans."""
    found = []
    for process in psutil.Process(engine.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "pulumi.dynamic" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def start(lab: LabSite) -> subprocess.Popen[bytes]:
    """The engine alone: its policies take seconds at each start and have no part in this."""
    return subprocess.Popen(
        ["pulumi", "up", "--yes", "--skip-preview", "--stack", lab.session.stack, "--non-interactive"],
        cwd=lab.session.project,
        env=lab.session.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAITS_S
    while not condition():
        assert process.poll() is None, "the run ended before the moment came"
        assert time.monotonic() < deadline, "the moment did not come"
        time.sleep(0.02)


def release(lab: LabSite) -> None:
    """What `make up` does about the lock of a dead run. Providers of that run may still be about to notice."""
    for lock in locks(lab.session.backend, lab.session.stack):
        assert lock.is_dead(socket.gethostname())
        lock.path.unlink()


def run_to_the_end(lab: LabSite) -> subprocess.CompletedProcess[str]:
    """`make up`."""
    command = [lab.session.environment["PULUMI_PYTHON_CMD"], "-m", "cozystack_iac.runner", "up"]
    options = ["--stack", lab.session.stack, "--project", str(lab.session.project), "--yes", "--skip-preview"]
    return subprocess.run(
        [*command, *options, "--non-interactive"],
        env=lab.session.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
