"""`python -m lab play`: the main job from nothing to an installed platform, on the lab, with the real program."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from cozystack_iac import releases
from cozystack_iac.platform import package, tenant
from cozystack_iac.settings.load import from_file
from lab import control, launch, toolchain
from lab import stack as stacks
from lab.critical_path import critical_path, measured, side_by_side
from lab.scenario import Scenario
from lab.session import CHECKOUT, Session
from lab.state import Record, StateDir
from lab.supervisor import LabFailed

DEFAULT = "three-nodes"  # the scenario that Pulumi.lab.yaml describes


def session(state: StateDir, console: Console, stack_file: Path | None = None) -> Session:
    """The stack on this lab, with all tools ready."""
    tools = toolchain.ensure(state.root, console=console)
    return Session(state.root, tools, stack_file or CHECKOUT / "Pulumi.lab.yaml")


def fitting(state: StateDir, scenario: Scenario) -> Path:
    """The stack file for a scenario: the checkout's own for the default one, else one made to fit, in the lab's directory."""
    if scenario.name == DEFAULT:
        return CHECKOUT / "Pulumi.lab.yaml"
    path = state.root / "stack.yaml"
    state.root.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump({"config": stacks.stack_file(scenario)}, file)
    return path


def play(state: StateDir, scenario: Scenario, console: Console, stack_file: Path | None = None) -> int:
    """Lab up, preview, up, access summary, times. Continues where an earlier run stopped; returns an exit code.

    The lab goes on afterwards, after a failure as well, so that there is something to look at. When this process is interrupted
    or killed, a lab that it had started ends with it.
    """
    stack_file = stack_file or fitting(state, scenario)
    played = session(state, console, stack_file)
    began = time.monotonic()
    with launch.held(state, scenario, console) as lab:
        try:
            code = _installed(_Play(played, state, scenario, stack_file, console, began), lab.record)
        except KeyboardInterrupt:
            played.end()
            after = (
                "is stopped as well"
                if lab.started
                else "was already running and keeps running: `make lab-down` stops it"
            )
            console.print(f"interrupted; the lab {after}")
            raise
        lab.stays()
    return code


@dataclass(frozen=True)
class _Play:
    session: Session
    state: StateDir
    scenario: Scenario
    stack_file: Path
    console: Console
    began: float  # time.monotonic()


def _installed(play: _Play, lab: Record) -> int:
    state, console = play.state, play.console
    phases = [("lab ready", time.monotonic() - play.began)]
    console.rule("preview: the plan gate")
    play.session.prepare()
    span = (0.0, 0.0)
    for title, operation, flags in (
        ("preview", "preview", ["--non-interactive"]),
        ("install", "up", ["--non-interactive", "--yes", "--skip-preview"]),
    ):
        started = time.monotonic()
        began_at = _now(state)
        code = play.session.engine.run(operation, flags)
        span = (began_at, _now(state))
        phases.append((title, time.monotonic() - started))
        if code:
            console.print(
                f"{operation} failed; the lab keeps running: run `make lab` to continue, or `make lab-down` to stop it"
            )
            return code
    console.print(_summary(play.session))
    console.print(_times(phases, lab.control_plane_s, time.monotonic() - play.began))
    _compare(play, span)
    console.print("the lab keeps running: `make lab-status` shows it, `make lab-down` stops it")
    return 0


def _now(state: StateDir) -> float:
    """The world's time, in real-life seconds since the lab began."""
    return float(control.ask(state.socket, "state")["now"])


def _compare(play: _Play, span: tuple[float, float]) -> None:
    """The install beside its critical path; nothing when an earlier run had begun it."""
    site, scenario = from_file(play.stack_file).site, play.scenario
    release = releases.find(site.cluster.cozystack) if site is not None else None
    events = [(e["time"], f"{e['subject']} {e['what']}") for e in control.ask(play.state.socket, "events", since=0)]
    fresh = any(line == "cluster bootstrapped" and at > span[0] for at, line in events)
    if site is None or release is None or not fresh:
        return
    path = critical_path(scenario, tenant.root_spec(site, release), package.platform_values(site, release))
    play.console.print(side_by_side(path, measured(events, *span)))
    took_s = span[1] - span[0]
    late_s = (took_s - path.total_s) / scenario.scale  # as this machine's clock counts
    play.console.print(
        f"the install took {took_s / path.total_s:.2f} times the critical path, with {late_s:.0f} s of "
        f"overhead on this machine: one second here is {scenario.scale:.0f} s of lab time. In real time, "
        f"the same {late_s:.0f} s would make {1 + late_s / path.total_s:.2f} times"
    )


def run_pulumi(state: StateDir, console: Console, operation: str, flags: list[str]) -> int:
    """Any engine operation on the lab's stack."""
    if state.read() is None:
        raise LabFailed(f"no lab is running in {state.root}\n  next  `make lab-up`")
    stack = session(state, console)
    if operation == "destroy":
        flags = ["--ignore-protect", *flags]  # the machines' secrets end with the lab; nowhere else
    return stack.engine.run(operation, ["--non-interactive", *flags])


def _summary(stack: Session) -> Table:
    table = Table(title="access", title_justify="left", show_header=False)
    for _ in range(2):
        table.add_column(overflow="fold")  # a cut-off address is no address
    outputs = stack.outputs()
    for name, value in outputs.get("access", {}).items():
        table.add_row(name, str(value))
    table.add_row("releases ready", json.dumps(outputs.get("releases")))
    for url, answer in (outputs.get("reached") or {}).items():
        table.add_row(url, str(answer))
    return table


def _times(phases: list[tuple[str, float]], control_plane_s: float | None, total_s: float) -> Table:
    table = Table(title="durations", title_justify="left", show_header=False)
    table.add_row("control plane ready", f"{control_plane_s} s")
    for title, seconds in phases:
        table.add_row(title, f"{seconds:.1f} s")
    table.add_row("total, without building tools", f"{total_s:.1f} s")
    return table
