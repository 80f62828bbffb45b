"""What the plan gate costs: a preview of three machines, as ratios to programs that declare nothing of substance.

Both floors use the same engine, language host, policy pack and plugins (kubernetes, talos, dynamic). The first declares one
resource per plugin: what is there before anything is declared. The second declares as many resources of each kind as the real
program, one after the other where the real ones are stages, and loads as much of the Kubernetes SDK: what any program of that
size costs. Nothing answers on the machines' addresses, so live checks are off. Budget: 1.25 against the second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from ruamel.yaml import YAML

from lab import toolchain
from lab.session import CHECKOUT, Session
from lab.stack import checked_in

ROUNDS = 5
BUDGET = 1.25
PREFIX = "127.29"
KINDS = {"pulumi-python:dynamic": "stages", "kubernetes": "objects", "talos": "secrets", "cozystack": "components"}
ONE_EACH = {"components": 0, "secrets": 1, "objects": 1, "stages": 1}
SDK = (
    "batch.v1",
    "core.v1",
    "helm.v3",
    "storage.v1",
)  # whose objects the real program declares; generated, slow to import
FLOOR = '''"""So many resources of each kind, and nothing in them."""
from importlib import import_module
import pulumi_kubernetes as kubernetes
import pulumiverse_talos as talos
from pulumi import ComponentResource, Output, ResourceOptions
from pulumi.dynamic import Resource, ResourceProvider

class Nothing(ResourceProvider):
    pass

class Stage(Resource, module="bench", name="Nothing"):
    pass

for module in {sdk}:
    import_module(f"pulumi_kubernetes.{{module}}")
for n in range({components}):
    ComponentResource("cozystack:bench:Nothing", f"component{{n}}").register_outputs({{}})
for n in range({secrets}):
    talos.machine.Secrets(f"s{{n}}", talos_version="v1.13.6", opts=ResourceOptions(protect=True))
provider = kubernetes.Provider("k", kubeconfig=Output.secret("{{}}"), cluster_identifier="bench")
for n in range({objects}):
    kubernetes.core.v1.ConfigMap(f"c{{n}}", metadata={{"name": f"c{{n}}"}}, opts=ResourceOptions(provider=provider))
stages = []
for n in range({stages}):
    stages.append(Stage(Nothing(), f"stage{{n}}", {{}}, ResourceOptions(depends_on=stages[-1:])))
'''


def main() -> None:
    """All three in turns, and the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tools = toolchain.ensure(root, console=Console(stderr=True))
        config = checked_in(PREFIX, {"cp1", "cp2", "cp3"}) | {"cozystack:checks": "offline"}
        real = _session(root / "real", tools, config)
        counts = _counted(real)
        sessions = {
            "one of each": _floor(root / "one", tools, ONE_EACH, sdk=()),
            "as many": _floor(root / "many", tools, counts, SDK),
            "real": real,
        }
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(options.rounds):  # in turns, so that all see the same machine
            for name, session in sessions.items():
                times[name].append(_seconds(session))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    one, many = medians["real"] / medians["one of each"], medians["real"] / medians["as many"]
    declared = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"preview of 3 machines: {medians['real']:.2f} s, median of {options.rounds} ({declared})")
    print(f"  one resource per plugin  {medians['one of each']:6.2f} s   ratio {one:.2f}")
    print(f"  as many of each kind     {medians['as many']:6.2f} s   ratio {many:.2f} (budget {BUDGET})")


def _session(root: Path, tools: toolchain.Toolchain, config: Mapping[str, object], program: Path = CHECKOUT) -> Session:
    root.mkdir(exist_ok=True)
    stack_file = root / "stack.yaml"
    with stack_file.open("w") as file:
        YAML(typ="safe", pure=True).dump({"config": dict(config)}, file)
    session = Session(root, tools, stack_file, program=program)
    session.prepare()
    return session


def _floor(root: Path, tools: toolchain.Toolchain, counts: Mapping[str, int], sdk: tuple[str, ...]) -> Session:
    program = root / "program"
    program.mkdir(parents=True)
    (program / "__main__.py").write_text(FLOOR.format(**counts, sdk=sdk))
    return _session(root, tools, {}, program)


def _counted(session: Session) -> Counter[str]:
    """How many resources of each kind the program declares, without the stack and its provider."""
    output = session.preview("--json").output
    steps = json.loads(output[output.index("{") : output.rindex("}") + 1])["steps"]
    types = [step["newState"]["type"] for step in steps]
    return Counter(kind for each in types for prefix, kind in KINDS.items() if each.startswith(prefix))


def _seconds(session: Session) -> float:
    began = time.monotonic()
    done = session.preview()
    if done.code:
        raise SystemExit(f"the preview failed, so there is nothing to measure:\n{done.output[-3000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
