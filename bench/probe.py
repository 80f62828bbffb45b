"""How long the plan gate takes for 1,000 machines and what it costs: `python -m bench.probe`.

The machines live in a process of their own, so that neither their time nor their memory is the gate's. They think for up to
two seconds over every answer, each for another while. The floor is the slowest of them, asked alone in the same process. Then
all are asked, and in other processes all of them again while one has gone silent. The better of two rounds counts: what other
work on the machine adds is not ours. Exit code 1 when a budget is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NODES = 1_000
ROUNDS = 2
PREFIX = "127.46"
THINKS_S = 2.0  # of the slowest machine, over every answer; the others take less
BUDGET_RATIO, BUDGET_EXTRA_S = 2.0, 2.0  # times the slowest machine's answer, plus seconds
BUDGET_MIB = 300.0
DEADLINE_S = 60.0  # of a machine; only the silent one ever needs it


def fleet(nodes: int, silent: bool) -> Any:
    """The simulated machines; the last one is the slowest, the first one may be silent."""
    from lab.scenario import Scenario

    plain = Scenario.fleet(nodes, PREFIX, scale=1)
    machines = [
        machine.model_copy(update={"thinks": THINKS_S * (number + 1) / nodes})
        for number, machine in enumerate(plain.machines)
    ]
    if silent:
        machines[0] = machines[0].model_copy(update={"stage": "silent"})
    return plain.model_copy(update={"machines": tuple(machines)})


def targets(nodes: int) -> list[Any]:
    """The same machines as the plan gate's inventory."""
    from cozystack_iac.talos.probe import Target

    addresses = [str(machine.address) for machine in fleet(nodes, False).machines]
    return [
        Target(
            name=f"m{number}",
            role="worker",
            path=f"cozystack:nodes[{number}]",
            maintenance=address,
            address=address,
            internal=address,
        )
        for number, address in enumerate(addresses)
    ]


async def serve(nodes: int, silent: bool) -> None:
    """Be the machines until the standard input ends."""
    from lab.machines import Machines
    from lab.world import World

    async with Machines(World(fleet(nodes, silent))):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def ask(nodes: int, deadline_s: float) -> dict[str, float]:
    """The slowest machine alone, then all of them, in this process."""
    from cozystack_iac.talos.probe import Answer, ask_all

    every, heard = targets(nodes), list[float]()
    began = time.perf_counter()
    await ask_all(every[-1:], deadline_s=deadline_s)
    alone = time.perf_counter() - began

    def note(answer: Answer) -> None:
        if answer.facts is not None:
            heard.append(time.perf_counter() - began)

    began = time.perf_counter()
    await ask_all(every, deadline_s=deadline_s, heard=note)
    whole = time.perf_counter() - began
    return {"alone": alone, "whole": whole, "last": max(heard), "ready": len(heard), "peak_mib": _peak_mib()}


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


@contextmanager
def _machines(nodes: int, silent: bool) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.probe", "--serve", "--nodes", str(nodes), *(["--silent"] if silent else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdin is None or process.stdout.readline() != "ready\n":
            raise SystemExit("the simulated machines did not come up")
        try:
            yield
        finally:
            process.stdin.close()


def _asked(nodes: int, deadline_s: float) -> dict[str, float]:
    """The round in which the machines that answer had all answered soonest."""
    command = [sys.executable, "-m", "bench.probe", "--ask", str(deadline_s), "--nodes", str(nodes)]
    rounds = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True) for _ in range(ROUNDS)]
    best: dict[str, float] = min((json.loads(done.stdout) for done in rounds), key=lambda found: found["last"])
    return best


def main() -> int:
    """Both rounds, the ratios, the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--serve", action="store_true", help="be the machines")
    parser.add_argument("--silent", action="store_true", help="with --serve: one machine never answers")
    parser.add_argument("--ask", type=float, metavar="DEADLINE", help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.nodes, options.silent))
        return 0
    if options.ask:
        print(json.dumps(asyncio.run(ask(options.nodes, options.ask))))
        return 0
    with _machines(options.nodes, silent=False):
        fine = _asked(options.nodes, DEADLINE_S)
    budget = BUDGET_RATIO * fine["alone"] + BUDGET_EXTRA_S
    deadline_s = 2 * budget
    with _machines(options.nodes, silent=True):
        one_silent = _asked(options.nodes, deadline_s)
    return _report(options.nodes, fine, one_silent, budget, deadline_s)


def _report(nodes: int, fine: dict[str, float], silent: dict[str, float], budget: float, deadline_s: float) -> int:
    ratio = fine["whole"] / fine["alone"]
    print(f"slowest machine alone    {fine['alone']:6.2f} s")
    print(f"{nodes} machines            {fine['whole']:6.2f} s   {ratio:.2f} x the slowest, budget {budget:.2f} s")
    print(f"one of them silent       {silent['last']:6.2f} s   until the last of the others had answered")
    print(
        f"                         {silent['whole']:6.2f} s   until the silent one was given up, deadline {deadline_s:.2f} s"
    )
    print(f"peak memory of the gate  {max(fine['peak_mib'], silent['peak_mib']):6.0f} MiB, budget {BUDGET_MIB:.0f} MiB")
    kept = (
        (fine["ready"], silent["ready"]) == (nodes, nodes - 1)
        and fine["whole"] <= budget
        and silent["last"] <= budget
        and silent["whole"] <= deadline_s + BUDGET_EXTRA_S
        and max(fine["peak_mib"], silent["peak_mib"]) < BUDGET_MIB
    )
    print(f"budgets: {'kept' if kept else 'MISSED'} ({fine['ready']:.0f} and {silent['ready']:.0f} machines answered)")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
