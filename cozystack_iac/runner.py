"""Runs the Pulumi engine the way this project needs it: `python -m cozystack_iac.runner up --stack prod`.

What it adds to a bare `pulumi up`: the policy pack, no ambient kubeconfig for any plugin, a folder for temporary files that
goes away with the run (the Kubernetes plugin writes the kubeconfig, keys included, into one and leaves it there), and the
cleaning up after a run that was killed on this very host (its lock before, its pending creates after). `pulumi` itself works as
well, without these.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil

from cozystack_iac.diagnosis import bundle
from cozystack_iac.findings import table
from cozystack_iac.rules import verdict
from cozystack_iac.settings.load import from_file

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "cozystack"
POLICY_PACK = ROOT / "policy" / "pack"
GATED = frozenset({"preview", "up"})  # the operations policies are for
LOCKING = frozenset({"up", "destroy", "refresh"})


@dataclass(frozen=True)
class Lock:
    """One lock file of a file backend: who holds the stack."""

    path: Path
    pid: int
    host: str
    since: datetime

    def is_dead(self, host: str) -> bool:
        """Only a process of this very host can be proven dead: gone, a zombie, or its number used by a younger one."""
        if self.host != host:
            return False
        try:
            process = psutil.Process(self.pid)
            return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > self.since.timestamp()
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """The engine's environment: an *empty* kubeconfig file, because an empty variable falls back to ~/.kube/config."""
    return {**base, "KUBECONFIG": os.devnull, "PULUMI_SKIP_UPDATE_CHECK": "true"}


def support(project: Path, stack: str, base: Mapping[str, str]) -> dict[str, str]:
    """Where stages leave their support bundles, and the stack file whose findings belong in them."""
    return {
        bundle.FOLDER_VARIABLE: base.get(bundle.FOLDER_VARIABLE) or str(project.absolute() / bundle.FOLDER),
        bundle.STACK_VARIABLE: str(project.absolute() / f"Pulumi.{stack}.yaml"),
    }


def locks(backend: Path, stack: str) -> list[Lock]:
    """The locks a file backend holds on a stack; unreadable ones are left out, the engine will name them."""
    found = []
    for path in sorted((backend / ".pulumi" / "locks" / "organization" / PROJECT / stack).glob("*.json")):
        try:
            data = json.loads(path.read_text())
            found.append(Lock(path, int(data["pid"]), str(data["hostname"]), datetime.fromisoformat(data["timestamp"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def file_backend(url: str) -> Path | None:
    """`file:///srv/state` or `file://~` as a folder; None for every other backend."""
    parts = urlsplit(url)
    return Path(unquote(parts.netloc + parts.path)).expanduser() if parts.scheme == "file" else None


class Engine:
    """One stack of this project, driven through the `pulumi` executable found on PATH."""

    def __init__(self, stack: str, *, env: Mapping[str, str], project: Path = ROOT) -> None:
        """`project` is the folder with Pulumi.yaml and the stack file."""
        self._stack = stack
        self._env = {**environment(env), **support(project, stack, env)}
        self._project = project
        self._executable = shutil.which("pulumi", path=self._env.get("PATH")) or ""
        if not self._executable:
            raise RunnerError("`pulumi` is not on PATH; install it, or run `make doctor` to see what the lab would use")

    def run(self, operation: str, extra: Sequence[str] = ()) -> int:
        """Run one operation on the terminal; returns the engine's exit code."""
        if operation in GATED and self._blocked():
            return 1
        if operation in LOCKING:
            self._release_dead_lock()
        code = self._call([operation, *self._options(operation), *extra])
        if code == 0 and operation == "up" and self._pending_creates():
            print("clearing pending creates left in the state by an earlier run that was killed", flush=True)
            code = self._call(
                ["refresh", *self._options("refresh"), "--yes", "--clear-pending-creates", "--skip-preview"]
            )
        return code

    def export(self) -> dict[str, Any]:
        """The stack's state, secrets encrypted."""
        answer = self._capture(["stack", "export", "--stack", self._stack])
        state: dict[str, Any] = json.loads(answer)
        return state

    def _blocked(self) -> bool:
        """The offline verdict, before the engine: some stack files (too large ones) never get as far as the program."""
        stack_file = self._project / f"Pulumi.{self._stack}.yaml"
        if not stack_file.exists():
            return False  # a stack without a file: the engine and the program say what is missing
        judged = verdict(from_file(stack_file))
        if judged.blocking:
            print(table(judged), file=sys.stderr)
        return judged.blocking

    def _options(self, operation: str) -> list[str]:
        options = ["--stack", self._stack]
        if operation in GATED:
            options += ["--policy-pack", str(POLICY_PACK)]
        return options

    def _pending_creates(self) -> bool:
        pending = (self.export().get("deployment") or {}).get("pending_operations") or []
        return any(operation.get("type") == "creating" for operation in pending)

    def _release_dead_lock(self) -> None:
        backend = file_backend(self._backend_url())
        held = locks(backend, self._stack) if backend else []
        for lock in held:
            if lock.is_dead(socket.gethostname()):
                print(
                    f"removing the lock of process {lock.pid}, which is dead (held since "
                    f"{lock.since:%Y-%m-%d %H:%M:%S} UTC)",
                    flush=True,
                )
                lock.path.unlink(missing_ok=True)

    def _backend_url(self) -> str:
        if url := self._env.get("PULUMI_BACKEND_URL"):
            return url
        return str(json.loads(self._capture(["whoami", "--json"])).get("url") or "")

    def _call(self, arguments: Sequence[str]) -> int:
        """Raises KeyboardInterrupt after an interrupted engine has ended: it got the same signal and does so in its own order."""
        with tempfile.TemporaryDirectory(prefix="cozystack-iac-", dir=self._env.get("TMPDIR")) as folder:
            env = {**self._env, "TMPDIR": folder}
            process = subprocess.Popen([self._executable, *arguments], cwd=self._project, env=env)
            interrupted = False
            while True:
                try:
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    interrupted = True
        if interrupted:
            raise KeyboardInterrupt
        return code

    def _capture(self, arguments: Sequence[str]) -> str:
        done = subprocess.run(
            [self._executable, *arguments],
            cwd=self._project,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RunnerError(done.stderr.strip() or f"pulumi {arguments[0]} failed with exit code {done.returncode}")
        return done.stdout


class RunnerError(Exception):
    """The engine could not be run; the text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cozystack-iac", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("operation", choices=sorted(GATED | LOCKING))
    parser.add_argument("--stack", required=True)
    parser.add_argument(
        "--project", type=Path, default=ROOT, help="directory with Pulumi.yaml (default: this checkout)"
    )
    options, extra = parser.parse_known_args(argv)
    try:
        return Engine(options.stack, env=os.environ, project=options.project).run(options.operation, extra)
    except RunnerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; run `make up` to continue from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
