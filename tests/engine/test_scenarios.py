"""Every scenario that says what a user must see is played, and that is what is seen."""

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
from cozystack_iac.talos import etcd_bootstrap, gate, rollout
from cozystack_iac.talos.documents import emit
from lab import control, launch, scenario, toolchain
from lab.machines import Machines
from lab.plugins.talos import secrets
from lab.scenario import PlanExpectation, Scenario
from lab.session import Session
from lab.stack import stack_file
from lab.state import StateDir
from lab.world import World
from tests.addresses import prefix
from tests.engine.site import TALOS_ONLY
from tests.engine.story import Outcome, Story, story

PREFIX = prefix()
SCENARIOS = sorted((Path(__file__).parents[2] / "lab" / "scenarios").glob("*.yaml"))
SCALE = 1000  # real-life seconds per second: nobody but the machines takes time here


def talos_stage(path: Path) -> Scenario | None:
    """The scenario on its own addresses, when it is about the Talos stage."""
    chosen = scenario.load(path)
    return chosen.relocated(PREFIX) if "expect" in chosen.model_fields_set else None


PLAYED = {path.stem: chosen for path in SCENARIOS if (chosen := talos_stage(path)) is not None}


@pytest.fixture(scope="module")
def bundle() -> secrets.Bundle:
    return secrets.generate()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world is a thousand times faster, so whoever looks at it has to look more often."""
    for module in (rollout, etcd_bootstrap, gate):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(rollout, "STUBBORN_S", 1.0)


@pytest.mark.parametrize("name", PLAYED)
async def test_a_user_sees_what_the_scenario_says(name: str, bundle: secrets.Bundle) -> None:
    chosen = PLAYED[name].model_copy(update={"scale": float(SCALE)})
    expect = chosen.expect
    async with story(chosen, bundle) as told:
        planned = await told.plan()
        check_plan(planned, expect.plan)
        assert planned.succeeded is (expect.install is not None), planned.text
        if expect.install is not None:
            await told.meanwhile()
            done = await told.install()
            assert done.succeeded is expect.install.succeeds, done.text
            seen = told.events()
            assert [text for text in expect.install.says if text not in done.text] == [], done.text
            assert [line for line in expect.install.events if line not in seen] == [], seen
            assert [line for line in expect.install.never if line in seen] == []
            assert leaked(done, bundle) == []
            assert keys_of_workers(told) == []
        if expect.afterwards is not None:
            check_plan(await told.plan(client=told.client), expect.afterwards)
        assert seen_once(told.events(), expect.install is not None and expect.install.succeeds, chosen)


def check_plan(planned: Outcome, expect: PlanExpectation) -> None:
    assert planned.codes == sorted(expect.findings), planned.text
    assert [text for text in expect.says if text not in planned.text] == [], planned.text
    assert [text for text in expect.hides if text in planned.text] == [], planned.text


def leaked(done: Outcome, bundle: secrets.Bundle) -> list[str]:
    hidden = (bundle.cluster_secret, bundle.bootstrap_token, bundle.trustd_token, bundle.os.key, bundle.etcd.key)
    return [value[:8] for value in hidden if value in done.text]


def keys_of_workers(told: Story) -> list[str]:
    """Workers whose configuration carries a private key of the cluster (siderolabs/talos 8134)."""
    bundle, made = told.bundle, told.configurations()
    private = (bundle.os, bundle.kubernetes, bundle.etcd, bundle.aggregator)
    keys = [bundle.service_account_key, *(pair.key for pair in private)]
    return [node.name for node in told.site.workers if any(key in made[node.name] for key in keys)]


def seen_once(events: list[str], installed: bool, chosen: Scenario) -> bool:
    """One bootstrap and one configuration per machine where it succeeded; nowhere more than one, whatever happened."""
    applied = [events.count(f"machine {machine.name} config applied") for machine in chosen.machines]
    bootstrapped = events.count("cluster bootstrapped")
    return max(applied) <= 1 and bootstrapped <= 1 and (not installed or (min(applied), bootstrapped) == (1, 1))


# The same through the real engine -------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("name", ["talos-1-10", "talos-1-14", "five-control-planes"])
def test_an_install_by_the_engine_ends_where_the_nodes_are_registered(name: str, tmp_path: Path) -> None:
    chosen, state = PLAYED[name], StateDir(tmp_path)
    stack, console = tmp_path / "stack.yaml", Console(stderr=True)
    stack.write_text(emit([{"config": stack_file(chosen)}]))
    session = Session(tmp_path, toolchain.ensure(tmp_path, console=console), stack, program=TALOS_ONLY)
    try:
        launch.up(state, chosen, console)
        session.prepare()
        done = session.up()
        seen = [f"{e['subject']} {e['what']}" for e in control.ask(state.socket, "events", since=0)]
    finally:
        launch.down(state)
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
