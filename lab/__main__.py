"""`python -m lab`: bring the lab up, look at it, take it down."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab import launch, play, scenario
from lab.scenario import Scenario, ScenarioError
from lab.state import Busy, Record, StateDir, default_state, log_names
from lab.supervisor import LabFailed, process_bytes
from lab.toolchain import ToolchainError

OK, RED, NOT_RUNNING = 0, 1, 3
PARENT_POLL_S = 0.5
_SCENARIOS = Path(__file__).parent / "scenarios"
_MIB = 2**20


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if not getattr(args, "held", False):  # a supervisor has its own way to end with its holder
        _end_with_make()
    console = Console(highlight=False, soft_wrap=True)
    try:
        return int(args.run(args, StateDir(args.state), console))
    except (LabFailed, ScenarioError, ToolchainError, Busy, ValueError) as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), style="red", markup=False)
        return RED
    except KeyboardInterrupt:
        return 130


def _end_with_make() -> None:
    """A `make` that was killed cannot end what it started; whoever holds a lab lets it go by dying."""
    if "MAKELEVEL" not in os.environ:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="make-watch", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--state", type=Path, default=default_state(), help=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True, metavar="command")
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument(
        "--state",
        type=Path,
        default=argparse.SUPPRESS,
        help="directory for all files of this lab (default: $COZYSTACK_IAC_LAB or .lab)",
    )

    up = commands.add_parser("up", parents=[state], help="start the lab and return when it is ready")
    up.add_argument("--scenario", default="three-nodes", help="a file, or the name of a scenario in lab/scenarios")
    up.add_argument("--prefix", help="move every address to another loopback /16, for example 127.20")
    up.add_argument("--foreground", action="store_true", help="stay in this terminal; ^C stops the lab")
    up.add_argument(
        "--held", action="store_true", help=argparse.SUPPRESS
    )  # stdin is the lifeline of whoever started it
    up.set_defaults(run=_up)

    status = commands.add_parser(
        "status", parents=[state], help="show what is running; exit code 0 healthy, 1 unhealthy, 3 not running"
    )
    status.set_defaults(run=_status)

    down = commands.add_parser("down", parents=[state], help="stop the lab, and clean up after a crash")
    down.set_defaults(run=_down)

    play_ = commands.add_parser("play", parents=[state], help="install the platform from scratch (the main job)")
    play_.add_argument("--scenario", default="three-nodes", help="a file, or the name of a scenario in lab/scenarios")
    play_.add_argument("--stack-file", type=Path, help="a stack file other than Pulumi.lab.yaml")
    play_.set_defaults(run=_play)

    engine = commands.add_parser("pulumi", parents=[state], help="run an engine operation on the lab's stack")
    engine.add_argument("operation", choices=["preview", "up", "refresh", "destroy"])
    engine.add_argument("flags", nargs=argparse.REMAINDER, help="arguments for the engine")
    engine.set_defaults(run=_pulumi)

    logs = commands.add_parser("logs", parents=[state], help="show a log, or the names of all logs")
    logs.add_argument("name", nargs="?", help="a process, supervisor, or events")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log")
    logs.set_defaults(run=_logs)
    return parser


def _up(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    chosen = _scenario(args.scenario, args.prefix)
    if args.foreground:
        with state.locked():
            asyncio.run(launch.foreground(state, chosen, console, held=args.held).run())
        return OK
    before = state.read()
    record = launch.up(state, chosen, console)
    if before is not None and before.supervisor == record.supervisor:
        console.print(f"lab {record.scenario} is already running in {state.root}")
        return OK if record.healthy else RED
    console.print(
        f"lab {record.scenario} is ready: control plane after {record.control_plane_s} s, everything "
        f"after {record.ready_s} s"
    )
    return OK


def _scenario(given: str, prefix: str | None) -> Scenario:
    path = Path(given)
    if not path.exists() and path.name == given:
        path = _SCENARIOS / f"{given}.yaml"
    if not path.exists():
        known = ", ".join(sorted(each.stem for each in _SCENARIOS.glob("*.yaml")))
        raise ScenarioError(f"{given} is neither a file nor one of these scenarios: {known}")
    chosen = scenario.load(path)
    return chosen.relocated(prefix) if prefix else chosen


def _status(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    record = state.read()
    if record is None:
        console.print(f"no lab is running in {state.root}")
        return NOT_RUNNING
    console.print(_table(record))
    if not record.alive:
        console.print("the supervisor is not running; `python -m lab down` cleans up after it", style="red")
    for problem in record.problems:
        console.print(f"problem: {problem}", style="red", markup=False)
    peak = record.memory.peak_bytes
    console.print(
        f"{record.phase}; control plane in {record.control_plane_s} s, ready in {record.ready_s} s; peak {peak // _MIB} MiB"
    )
    return OK if record.healthy else RED


def _table(record: Record) -> Table:
    table = Table(title=f"lab {record.scenario}", title_justify="left")
    for name in ("process", "pid", "port", "MiB", "state"):
        table.add_column(name, justify="right" if name in ("pid", "port", "MiB") else "left")
    total = 0
    for each in record.processes:
        alive = each.identity.alive()
        used = process_bytes(each.pid) if alive else 0
        total += used
        health = "[green]running[/]" if alive else f"[red]{each.exit or 'gone'}[/]"
        table.add_row(each.name, str(each.pid), str(each.port or ""), str(used // _MIB), health)
    table.add_row("all", "", "", str(total // _MIB), "")
    return table


def _down(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    done = launch.down(state)
    for name in done.forced:
        console.print(f"had to be killed: {name}", style="yellow")
    if not done.was_there:
        console.print(f"no lab is running in {state.root}")
        return OK
    if not done.orderly:
        console.print(f"the supervisor did not stop cleanly; see {state.supervisor_log}", style="yellow")
    for port in done.taken:
        console.print(f"port {port} is in use again by another program", style="yellow")
    console.print(f"the lab was stopped within {done.seconds} s")
    return OK


def _play(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    return play.play(state, _scenario(args.scenario, None), console, args.stack_file)


def _pulumi(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    return play.run_pulumi(state, console, args.operation, args.flags)


def _logs(args: argparse.Namespace, state: StateDir, console: Console) -> int:
    known = log_names(state)
    if args.name is None:
        for name, path in known.items():
            console.print(f"{name:<26}{path.stat().st_size // 1024:>8} KiB")
        return OK
    if args.name not in known:
        raise LabFailed(f"there is no log called {args.name}; available logs: {', '.join(known) or 'none'}")
    with known[args.name].open(encoding="utf-8", errors="replace") as log:
        while True:
            sys.stdout.writelines(log)
            sys.stdout.flush()
            if not args.follow:
                return OK
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
