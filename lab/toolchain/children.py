"""The processes a language host starts, each leading a process group of its own so that it can be ended with all of its."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_CHILD = Path(__file__).with_name("child.py")
_INTERRUPT_GRACE_S = 2.0
_TERMINATE_GRACE_S = 1.0
"""Together below the 5 seconds that the engine leaves a plugin before it kills it."""


class Child:
    """One running child; `stop` may be called from any thread, any number of times."""

    def __init__(
        self,
        python: Path,
        spec: Mapping[str, Any],
        *,
        directory: str,
        environment: Mapping[str, str],
        output: int | IO[bytes] | None = None,
    ) -> None:
        self.stopped = False
        self._stopping = threading.Lock()
        argument = json.dumps({**spec, "parent": os.getpid()})
        self.process = subprocess.Popen(
            [str(python), "-u", str(_CHILD), argument],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )

    def wait(self) -> int:
        return self.process.wait()

    def stop(self) -> None:
        """Interrupt, then terminate, then kill, with a moment for each."""
        with self._stopping:
            if self.process.poll() is not None:
                return
            self.stopped = True
            for number, grace in ((signal.SIGINT, _INTERRUPT_GRACE_S), (signal.SIGTERM, _TERMINATE_GRACE_S)):
                self._signal(number)
                try:
                    self.process.wait(grace)
                    break
                except subprocess.TimeoutExpired:
                    continue
            # Whatever is left of the group, also when its leader went in peace.
            self._signal(signal.SIGKILL)
            self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


class Children:
    """All children of the host, so that all end with it."""

    def __init__(self) -> None:
        self._running: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def add(self, child: Child) -> Child:
        with self._lock:
            closed = self._closed
            self._running.add(child)
        if closed:
            child.stop()
        return child

    def remove(self, child: Child) -> None:
        with self._lock:
            self._running.discard(child)

    def stop_all(self) -> None:
        """Stop everything, side by side, and refuse newcomers."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        threads = [threading.Thread(target=child.stop) for child in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def inherited_environment() -> dict[str, str]:
    """This process's environment without what only the host needs: the checkout that its script put on PYTHONPATH."""
    environment = dict(os.environ)
    first, _, rest = environment.get("PYTHONPATH", "").partition(os.pathsep)
    if first == str(Path(__file__).resolve().parents[2]):
        environment["PYTHONPATH"] = rest
        if not rest:
            del environment["PYTHONPATH"]
    return environment


def interpreter(options: Mapping[str, Any], root: Path) -> Path:
    """The Python of a project: its `virtualenv` option (relative to `root`), uv's `.venv`, PULUMI_PYTHON_CMD, or ours.

    Raises FileNotFoundError with a readable message when the virtual environment is not there.
    """
    venv = options.get("virtualenv") or (".venv" if options.get("toolchain") == "uv" else "")
    if not venv:
        return Path(os.environ.get("PULUMI_PYTHON_CMD") or sys.executable)
    python = root / str(venv) / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(
            f"the project's virtual environment {root / str(venv)} (from Pulumi.yaml) has no bin/python; "
            "create it and install the project's dependencies into it"
        )
    return python


def in_environment_of(python: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` as an activated virtual environment has it, when `python` belongs to one."""
    if not (python.parent.parent / "pyvenv.cfg").exists():
        return dict(environment)
    path = f"{python.parent}{os.pathsep}{environment.get('PATH', '')}"
    kept = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    return kept | {"VIRTUAL_ENV": str(python.parent.parent), "PATH": path}
