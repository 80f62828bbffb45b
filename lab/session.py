"""Pulumi on the lab: the real program, engine and policies, with state and stack file inside the lab's directory.

Used by `python -m lab play` and by the engine tests, so that both run the program in the same way.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from cozystack_iac.runner import GATED, POLICY_PACK, Engine, environment
from lab import belongings
from lab.toolchain import Toolchain

CHECKOUT = Path(__file__).resolve().parents[1]
STACK = "lab"
_PROVIDERS = ("pulumi-resource-command", "pulumi-resource-talos")


@dataclass(frozen=True)
class Done:
    """One engine operation: exit code and everything it printed."""

    code: int
    output: str


class Session:
    """One stack of the project on one lab. `program`: the folder of another program than the checkout's own."""

    def __init__(
        self, state: Path, tools: Toolchain, stack_file: Path, *, stack: str = STACK, program: Path = CHECKOUT
    ) -> None:
        self._program = program
        self._state, self._stack_file, self.stack = state.resolve(), stack_file, stack
        self._stand_ins = [tool for tool in tools.tools if tool.origin == "stand-in" and tool.name in _PROVIDERS]
        self.project = self._state / "project"
        temporary = self._state / "tmp"  # plugins leave things there, the kubeconfig among them: they go with the lab
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.environment = environment(
            {
                **tools.environment(_without_secrets(os.environ)),
                **belongings.mark(self._state),
                "TMPDIR": str(temporary),
                "PULUMI_BACKEND_URL": (self._state / "backend").as_uri(),
                "PULUMI_CONFIG_PASSPHRASE": self._passphrase(),
            }
        )

    @property
    def backend(self) -> Path:
        return self._state / "backend"

    @property
    def engine(self) -> Engine:
        return Engine(self.stack, env=self.environment, project=self.project)

    def prepare(self) -> None:
        """Project folder, backend and stack exist; the stack file is the given one, whatever an earlier run used.

        The project is a folder of its own because `pulumi stack init` writes the stack's salt into the stack file, and a lab
        must not change the checkout.
        """
        self.backend.mkdir(parents=True, exist_ok=True)
        self.project.mkdir(parents=True, exist_ok=True)
        yaml = YAML(typ="safe", pure=True)
        project = yaml.load((CHECKOUT / "Pulumi.yaml").read_text())
        project["main"] = str(self._program)
        project["runtime"]["options"]["virtualenv"] = str(CHECKOUT / ".venv")
        # Named here, the engine takes them without a warning that they were only found on PATH.
        named = [{"name": t.name.rpartition("-")[2], "path": str(t.path.parent)} for t in self._stand_ins]
        project |= {"plugins": {"providers": named}} if named else {}
        with (self.project / "Pulumi.yaml").open("w") as file:
            yaml.dump(project, file)
        self.configure(yaml.load(self._stack_file.read_text())["config"])

    def configure(self, config: Mapping[str, Any]) -> None:
        """Make `config` the stack's whole configuration; the stack is created at first use."""
        yaml = YAML(typ="safe", pure=True)
        path = self.project / f"Pulumi.{self.stack}.yaml"
        known = yaml.load(path.read_text()) if path.exists() else {}
        with path.open("w") as file:
            yaml.dump({**{k: v for k, v in known.items() if k != "config"}, "config": dict(config)}, file)
        if "encryptionsalt" not in known:
            done = self.pulumi("stack", "init", self.stack)
            if done.code and "already exists" not in done.output:
                raise RuntimeError(f"the lab's stack could not be created:\n{done.output}")

    def pulumi(self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 600) -> Done:
        """Run the engine and capture what it prints. For tests; people see it live through `engine`."""
        return self.finish(self.start(*arguments, env=env), timeout_s)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the engine in a process group of its own."""
        return subprocess.Popen(
            ["pulumi", *arguments, *self._options(arguments)],
            cwd=self.project,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 600) -> Done:
        """Wait for the engine; one that is not waited for to its end is ended, with its plugins."""
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.end()
            output, _ = process.communicate()
            return Done(-1, output + f"\n[the engine was ended after {timeout_s:.0f} s]")
        except BaseException:
            self.end()
            raise
        return Done(process.returncode, output)

    def end(self) -> None:
        """End every engine of this stack that still runs, and what it has started."""
        belongings.end(belongings.mark(self._state))

    def preview(self, *extra: str) -> Done:
        return self.pulumi("preview", *extra)

    def up(self, *extra: str) -> Done:
        return self.pulumi("up", "--yes", "--skip-preview", *extra)

    def destroy(self, *extra: str) -> Done:
        """The lab's machines are thrown away with their secrets, so protection ends here and only here."""
        return self.pulumi("destroy", "--yes", "--skip-preview", "--ignore-protect", *extra)

    def outputs(self, *, show_secrets: bool = False) -> dict[str, Any]:
        flags = ["--show-secrets"] if show_secrets else []
        done = self.pulumi("stack", "output", "--json", *flags)
        outputs: dict[str, Any] = json.loads(done.output)
        return outputs

    def _options(self, arguments: Sequence[str]) -> list[str]:
        operation = arguments[0] if arguments else ""
        if operation in {*GATED, "destroy", "refresh"}:
            policies = ["--policy-pack", str(POLICY_PACK)] if operation in GATED else []
            return ["--stack", self.stack, "--non-interactive", "--color", "never", *policies]
        return []

    def _passphrase(self) -> str:
        path = self._state / "passphrase"
        if not path.exists():
            self._state.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24))
        return path.read_text()


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """What the lab's engine inherits: nothing of Pulumi's or Kubernetes' own settings of this terminal."""
    return {k: v for k, v in environ.items() if not k.startswith(("PULUMI_", "KUBE"))}
