"""How long a verdict takes and what it costs, for 100, 1,000 and 10,000 nodes: `python -m bench.rules`.

Each size runs in a process of its own, so that peak memory is its own. Printed: seconds to read (models) and to judge (rules),
peak resident memory, and the growth from size to size against n log n. Exit code 1 when a budget is missed.
"""

import argparse
import gc
import json
import math
import resource
import subprocess
import sys
import time
from datetime import date
from itertools import pairwise
from typing import Any

SIZES = (100, 1_000, 10_000)
BUDGET_NODES = 1_000
BUDGET_S = 1.0
BUDGET_MIB = 150.0
SLACK = 1.5  # timings of a shared machine; a quadratic rule would be off by a factor of eight
_ROUNDS = 3


def stack(nodes: int) -> dict[str, Any]:
    """A good site of that size: three control planes, the rest workers with storage, and a pod range that holds them."""
    inventory = [
        {
            "name": f"n{number:05}",
            "role": "controlPlane" if number < 3 else "worker",
            "address": f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}",
            "publicAddress": f"198.{18 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}",
            "link": "ens5",
            "zone": f"z{number % 3}",
            "labels": {"rack": f"r{number // 40}"},
            "installDisk": {"serial": f"SYS{number:06}"},
            "dataDisks": [{"serial": f"A{number:06}"}, {"serial": f"B{number:06}"}],
        }
        for number in range(nodes)
    ]
    return {
        "cluster": {"name": "large", "cozystack": "1.6.2"},
        "nodes": inventory,
        "talos": {"vip": "10.0.0.254"},
        "network": {"podCIDR": "10.128.0.0/9", "serviceCIDR": "172.20.0.0/16", "nodeCIDR": "10.0.0.0/10"},
        "storage": {
            "layout": "mirror",
            "approvedDisks": {node["name"]: [f"A{n:06}", f"B{n:06}"] for n, node in enumerate(inventory)},
        },
        "publishing": {"host": "large.example.org", "hostOwned": True},
    }


def measured(nodes: int) -> dict[str, float]:
    """One size, in this process. The best of a few rounds: what the machine's other work adds is not ours."""
    from cozystack_iac.rules import judge
    from cozystack_iac.settings.reading import read

    raw = stack(nodes)
    reading, judging, before_mib = math.inf, math.inf, _peak_mib()
    for _ in range(_ROUNDS):
        gc.collect()
        started = time.perf_counter()
        site, formal = read(raw)
        read_at = time.perf_counter()
        assert site is not None
        verdict = judge(site, date(2026, 11, 30))
        judged_at = time.perf_counter()
        if formal or verdict.blocking:
            raise SystemExit(f"the bench's own site is not fine: {sorted(verdict.codes)} {formal[:1]}")
        reading, judging = min(reading, read_at - started), min(judging, judged_at - read_at)
        del site, verdict
    return {"nodes": nodes, "read_s": reading, "judge_s": judging, "start_mib": before_mib, "peak_mib": _peak_mib()}


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _growth(before: dict[str, float], after: dict[str, float]) -> tuple[float, float]:
    """How much longer the larger size took, and how much n log n would allow."""
    allowed = after["nodes"] * math.log(after["nodes"]) / (before["nodes"] * math.log(before["nodes"]))
    return after["judge_s"] / before["judge_s"], allowed


def main() -> int:
    """Run all sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, help="measure one size in this process and print JSON")
    options = parser.parse_args()
    if options.nodes:
        print(json.dumps(measured(options.nodes)))
        return 0
    results = []
    for nodes in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "bench.rules", "--nodes", str(nodes)], check=True, capture_output=True, text=True
        )
        results.append(json.loads(done.stdout))
    print(f"{'nodes':>8} {'read':>9} {'judge':>9} {'peak':>9} {'of which imports':>17}")
    for row in results:
        peaks = f"{row['peak_mib']:>5.0f} MiB {row['start_mib']:>13.0f} MiB"
        print(f"{row['nodes']:>8.0f} {row['read_s']:>7.3f} s {row['judge_s']:>7.3f} s {peaks}")
    growths = [_growth(before, after) for before, after in pairwise(results)]
    for (before, after), (growth, allowed) in zip(pairwise(results), growths, strict=True):
        print(
            f"{before['nodes']:.0f} to {after['nodes']:.0f} nodes: {growth:.1f} x the time, n log n is {allowed:.1f} x"
        )
    budget = next(row for row in results if row["nodes"] == BUDGET_NODES)
    fine = budget["judge_s"] < BUDGET_S and budget["peak_mib"] < BUDGET_MIB
    fine = fine and all(growth <= allowed * SLACK for growth, allowed in growths)
    print(
        f"budget: {BUDGET_NODES} nodes in {BUDGET_S} s and {BUDGET_MIB:.0f} MiB, n log n: {'kept' if fine else 'MISSED'}"
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
