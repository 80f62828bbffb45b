"""How long a large inventory takes to read, from the file to the site: `python -m bench.inventory`.

The floor is libyaml alone: its events of the same text, with nothing made of them. Printed for each size: the floor, reading the
text into plain data, and the whole way to a `Site` (`settings.load.from_file`), both as ratios to it. The best of a few rounds
counts: what the machine's other work adds is not ours. Exit code 1 when a budget is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from bench.rules import stack
from cozystack_iac import go_yaml
from cozystack_iac.settings.load import from_file

SIZES = (1_000, 10_000)
BUDGETS = {"plain data": 3.0, "site": 6.0}  # times libyaml alone
_ROUNDS = 3


def measured(nodes: int, folder: Path) -> dict[str, float]:
    """Seconds of the best round for the floor and each step."""
    raw = stack(nodes)
    text = yaml.dump(raw.pop("nodes"), Dumper=yaml.CSafeDumper, sort_keys=False)
    (folder / "nodes.yaml").write_text(text)
    config = {f"cozystack:{key}": value for key, value in raw.items()} | {"cozystack:nodes": {"file": "nodes.yaml"}}
    # What is measured is the inventory, so the approvals, one per disk, are left out of the stack file.
    del config["cozystack:storage"]["approvedDisks"]
    (folder / "Pulumi.bench.yaml").write_text(yaml.dump({"config": config}, Dumper=yaml.CSafeDumper))

    def floor() -> None:
        for _ in yaml.parse(text, Loader=yaml.CBaseLoader):
            pass

    def site() -> None:
        loaded = from_file(folder / "Pulumi.bench.yaml")
        if loaded.site is None or len(loaded.site.nodes) != nodes or loaded.findings:
            raise SystemExit(f"the bench's own site cannot be read: {loaded.findings[:1]}")

    steps: dict[str, Callable[[], object]] = {
        "floor": floor,
        "plain data": lambda: go_yaml.load(text),
        "site": site,
    }
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(_ROUNDS):  # in turns, so that all see the same machine
        for name, step in steps.items():
            began = time.process_time()
            step()
            best[name] = min(best[name], time.process_time() - began)
    return best | {"mib": len(text) / 2**20}


def main() -> int:
    """Both sizes, the ratios, the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, help="measure only this size")
    options = parser.parse_args()
    kept = True
    for nodes in (options.nodes,) if options.nodes else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            took = measured(nodes, Path(folder))
        print(f"{nodes} nodes, {took['mib']:.1f} MiB of YAML; libyaml alone {took['floor']:.2f} s")
        for name, budget in BUDGETS.items():
            ratio = took[name] / took["floor"]
            kept = kept and ratio <= budget
            print(f"  to {name:<11} {took[name]:6.2f} s   ratio {ratio:.2f} (budget {budget})")
    print(f"budgets: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
