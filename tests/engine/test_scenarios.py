"""Scenarios of the machines through the real engine: it shows and does what the same scenario does in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from cozystack_iac import report
from cozystack_iac.talos.documents import emit
from lab import control, launch, toolchain
from lab.machines import Machines
from lab.scenario import Scenario
from lab.session import Session
from lab.stack import stack_file
from lab.state import StateDir
from lab.world import World
from tests.engine.site import TALOS_ONLY
from tests.machine_scenarios import PLAYED, seen_once
from tests.matrix import sampled


@contextmanager
def machines_of(chosen: Scenario) -> Iterator[None]:
    """The scenario's machines in a thread of this process; a preview needs no control plane."""
    up, over = threading.Event(), threading.Event()

    async def live() -> None:
        async with Machines(World(chosen)):
            up.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, live())
        try:
            if not up.wait(20):
                running.result(1)
            yield
        finally:
            over.set()
        running.result(10)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    state = tmp_path_factory.mktemp("scenarios")
    stack = state / "stack.yaml"
    stack.write_text("config: {}\n")
    made = Session(state, toolchain.ensure(state, console=Console(stderr=True)), stack)
    made.prepare()
    return made


@pytest.mark.engine
@pytest.mark.parametrize("name", ["probe-every-class", "disk-residue", "host-name-other", "behind-nat"])
def test_a_preview_by_the_engine_shows_the_same(name: str, session: Session, tmp_path: Path) -> None:
    chosen, summary = PLAYED[name], tmp_path / "summary.md"
    session.configure(stack_file(chosen))
    with machines_of(chosen):
        done = session.pulumi("preview", env={report.VARIABLE: str(summary)}, timeout_s=120)
    told = " ".join(done.output.split())
    assert (done.code == 0) is (chosen.expect.install is not None), done.output
    assert [code for code in chosen.expect.plan.findings if code not in told] == [], done.output
    assert [text for text in chosen.expect.plan.says if " ".join(text.split()) not in told] == [], done.output
    assert "Traceback" not in done.output
    assert summary_fits(summary, chosen), done.output


@pytest.mark.engine
@pytest.mark.parametrize("name", sampled(["talos-1-10", "talos-1-14", "five-control-planes"], 2))
def test_an_install_by_the_engine_ends_where_the_nodes_are_registered(name: str, tmp_path: Path) -> None:
    chosen, state = PLAYED[name], StateDir(tmp_path)
    stack, console = tmp_path / "stack.yaml", Console(stderr=True)
    stack.write_text(emit([{"config": stack_file(chosen)}]))
    session = Session(tmp_path, toolchain.ensure(tmp_path, console=console), stack, program=TALOS_ONLY)
    with launch.held(state, chosen, console):
        session.prepare()
        done = session.up()
        seen = [f"{e['subject']} {e['what']}" for e in control.ask(state.socket, "events", since=0)]
    assert done.code == 0, done.output[-6000:]
    assert [line for line in expected(chosen) if line not in seen] == [], done.output[-6000:]
    assert seen_once(seen, True, chosen)


def expected(chosen: Scenario) -> list[str]:
    """What the scenario asks for, and every machine as a node."""
    install = chosen.expect.install
    return [*(install.events if install else ()), *(f"node {m.name} registered" for m in chosen.machines)]


def summary_fits(summary: Path, chosen: Scenario) -> bool:
    """Every machine is in the Markdown matrix, when the offline rules let anybody be asked."""
    live = any(code.startswith(("NODE", "DSK", "RES")) for code in chosen.expect.plan.findings) or chosen.expect.install
    if not live:
        return not summary.exists()
    text = summary.read_text()
    return all(f"| {machine.name} |" in text for machine in chosen.machines)
