"""The lab as the engine tests see it: their own addresses, their own state directory, the real program and engine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from ruamel.yaml import YAML

from lab import control, launch, scenario, stack, toolchain
from lab.session import CHECKOUT, Session
from lab.state import StateDir

SCENARIOS = CHECKOUT / "lab" / "scenarios"
TALOS_ONLY = CHECKOUT / "tests" / "programs" / "talos_only"  # ends where Kubernetes has its nodes


@dataclass
class LabSite:
    """One running lab and the stack on it."""

    state: StateDir
    session: Session
    decoy: Decoy
    config: dict[str, Any] = field(default_factory=dict)

    def events(self, line: str = "") -> list[dict[str, Any]]:
        """Recorded events whose "subject what" contains `line`, in order. A lab that is broken is no lab to wait for."""
        record = self.state.read()
        assert record is not None and record.problems == [], record
        events: list[dict[str, Any]] = control.ask(self.state.socket, "events", since=0)
        return [e for e in events if line in f"{e['subject']} {e['what']}"]

    def ambient(self) -> dict[str, str]:
        """The environment of a person whose terminal points at another cluster."""
        return {"KUBECONFIG": str(self.decoy.kubeconfig), "HOME": str(self.decoy.home)}


@contextmanager
def site(
    root: Path,
    prefix: str,
    name: str = "three-nodes",
    *,
    program: Path = CHECKOUT,
    scale: float | None = None,
    spare: Sequence[str] = (),
) -> Iterator[LabSite]:
    """A lab on 127.x of its own, brought down whatever happens. `program`: another program than the main one.

    `scale`: real-life seconds per second, where the scenario's own pace leaves too little time to do something in between.
    `spare`: machines of the scenario day-two that are there as well and not in the stack yet.
    """
    console = Console(stderr=True)
    state = StateDir(root)
    tools = toolchain.ensure(root, console=console)
    chosen = scenario.load(SCENARIOS / f"{name}.yaml").relocated(prefix)
    spares = [m for m in scenario.load(SCENARIOS / "day-two.yaml").relocated(prefix).machines if m.name in spare]
    chosen = chosen.model_copy(update={"scale": scale or chosen.scale, "machines": (*chosen.machines, *spares)})
    stack_file = root / "stack.yaml"
    config = stack.checked_in(prefix, {m.name for m in chosen.machines} - set(spare))
    config["cozystack:access"]["kubeconfigFile"] = str(root / "handed-out.kubeconfig")
    with stack_file.open("w") as file:
        YAML(typ="safe", pure=True).dump({"config": config}, file)
    session = Session(root, tools, stack_file, program=program)
    with launch.held(state, chosen, console):
        session.prepare()
        with decoy(root / "decoy") as other:
            yield LabSite(state, session, other, config)


@dataclass
class Decoy:
    """Somebody else's cluster: a server that only counts who knocks, and the kubeconfigs that lead there."""

    kubeconfig: Path
    home: Path
    contacts: list[str]


@contextmanager
def decoy(root: Path) -> Iterator[Decoy]:
    contacts: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def count() -> None:
            while True:
                try:
                    connection, peer = server.accept()
                except OSError:
                    return
                contacts.append(str(peer))
                connection.close()

        threading.Thread(target=count, daemon=True).start()
        home = root / "home"
        (home / ".kube").mkdir(parents=True)
        text = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "decoy",
                "contexts": [{"name": "decoy", "context": {"cluster": "decoy", "user": "decoy"}}],
                "clusters": [{"name": "decoy", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
                "users": [{"name": "decoy", "user": {"token": "decoy"}}],
            }
        )
        (home / ".kube" / "config").write_text(text)
        (root / "kubeconfig").write_text(text)
        yield Decoy(root / "kubeconfig", home, contacts)
        server.close()
