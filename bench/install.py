"""How much longer than necessary is an install? Measured against the critical path of its own scenario, link by link.

    python -m bench.install [--scenario NAME] [--scale 60]

The product's own program and stages on the cluster in memory (see lab/story/platform.py), beginning with registered
nodes. At scale 60 one second of the machine it runs on is a minute of the world's: what the program, the simulators and the
scripts of the storage jobs (real shells, two per node) compute counts sixty-fold, so both are named. Budget: 1.05.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from rich.console import Console

from lab import scenario
from lab.critical_path import measured, side_by_side
from lab.scenario import Scenario
from lab.story.platform import platform_story

BUDGET = 1.05


async def run(chosen: Scenario, scale: float, state: Path, console: Console) -> float:
    """Install once; the ratio of the whole install. Prints the table."""
    async with platform_story(chosen, state, scale=scale) as told:
        await told.plan()  # imports and caches are no part of an install
        started, computing = told.world.clock.now(), time.process_time()
        done = await told.install()
        ended, computing = told.world.clock.now(), time.process_time() - computing
        assert done.succeeded, done.text
        events = [(event.time, event.line) for event in told.world.log.events]
        path, seen = told.critical_path(), measured(events, started, ended)
        console.print(side_by_side(path, seen))
    took_s, scripts_s = ended - started, seen["zpools online"] - path.links["zpools online"]
    ratio = took_s / path.total_s
    console.print(
        f"ratio {ratio:.3f} (budget {BUDGET}): {(took_s - path.total_s) / scale:.1f} s of this machine's time late, of which "
        f"{scripts_s / scale:.1f} s while the jobs' scripts really ran; this process computed {computing:.1f} s\n"
        f"without the scripts {(took_s - scripts_s) / path.total_s:.3f}"
    )
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.install")
    parser.add_argument("--scenario", default="three-nodes")
    parser.add_argument("--scale", type=float, default=60.0, help="real-life seconds per second")
    options = parser.parse_args()
    chosen = scenario.load(scenario.FOLDER / f"{options.scenario}.yaml").relocated("127.41")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(chosen, options.scale, Path(folder), Console()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
