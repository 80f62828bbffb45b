"""What the plan gate costs: a preview of three machines, as a ratio to a program that declares as little as possible.

Floor: the same engine, language host, policy pack and plugins (kubernetes, talos, dynamic), one resource each. Nothing answers
on the machines' addresses, so live checks are off. Budget: 1.25 (docs/architecture.md).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from ruamel.yaml import YAML

from lab import toolchain
from lab.session import CHECKOUT, Session
from lab.stack import checked_in

ROUNDS = 5
BUDGET = 1.25
PREFIX = "127.29"
FLOOR = '''"""One resource per plugin, and nothing else."""
import pulumi_kubernetes as kubernetes
import pulumiverse_talos as talos
from pulumi import Output, ResourceOptions
from cozystack_iac.kube.stages import Unclaimed

talos.machine.Secrets("s", talos_version="v1.13.6", opts=ResourceOptions(protect=True))
provider = kubernetes.Provider("k", kubeconfig=Output.secret("{}"), cluster_identifier="bench")
kubernetes.core.v1.ConfigMap("c", metadata={"name": "c"}, opts=ResourceOptions(provider=provider))
Unclaimed("u", {"kubeconfig": Output.secret("{}"), "claims": [], "next_step": "", "deadline_s": 1})
'''


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tools = toolchain.ensure(root, console=Console(stderr=True))
        config = checked_in(PREFIX, {"cp1", "cp2", "cp3"}) | {"cozystack:checks": "offline"}
        real = _session(root / "real", tools, config)
        floor = _session(root / "floor", tools, {})
        program = root / "floor" / "program"
        program.mkdir()
        (program / "__main__.py").write_text(FLOOR)
        _run_program(floor, program)
        times: dict[str, list[float]] = {"floor": [], "real": []}
        for _ in range(ROUNDS):  # in turns, so that both see the same machine
            times["floor"].append(_seconds(floor))
            times["real"].append(_seconds(real))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ratio = medians["real"] / medians["floor"]
    print(
        f"preview of 3 machines: {medians['real']:.2f} s, floor {medians['floor']:.2f} s, ratio {ratio:.2f} (budget {BUDGET})"
    )


def _session(root: Path, tools: toolchain.Toolchain, config: dict[str, object]) -> Session:
    root.mkdir()
    stack_file = root / "stack.yaml"
    with stack_file.open("w") as file:
        YAML(typ="safe", pure=True).dump({"config": config}, file)
    session = Session(root, tools, stack_file)
    session.prepare()
    return session


def _run_program(session: Session, program: Path) -> None:
    """Point the project at another program than the checkout's."""
    yaml = YAML(typ="safe", pure=True)
    path = session.project / "Pulumi.yaml"
    project = yaml.load(path.read_text())
    assert project["main"] == str(CHECKOUT)
    project["main"] = str(program)
    with path.open("w") as file:
        yaml.dump(project, file)


def _seconds(session: Session) -> float:
    began = time.monotonic()
    done = session.preview()
    if done.code:
        raise SystemExit(f"the preview failed, so there is nothing to measure:\n{done.output[-3000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
