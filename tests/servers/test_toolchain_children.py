"""Programs that the language host starts: their interpreter and environment, and that they end when they have to."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.toolchain import children, shims
from lab.toolchain.children import Child, in_environment_of, inherited_environment, interpreter
from tests.toolbox import script

# Interpreter and environment -----------------------------------------------------------------------------------------


def test_the_interpreter_is_the_projects_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = script(tmp_path / "venv" / "bin" / "python", "exit 0")
    script(tmp_path / ".venv" / "bin" / "python", "exit 0")
    monkeypatch.delenv("PULUMI_PYTHON_CMD", raising=False)
    assert interpreter({"virtualenv": "venv"}, tmp_path) == python
    assert interpreter({"toolchain": "uv"}, tmp_path) == tmp_path / ".venv" / "bin" / "python"
    assert interpreter({}, tmp_path) == Path(sys.executable)
    with pytest.raises(FileNotFoundError, match="create it"):
        interpreter({"virtualenv": "absent"}, tmp_path)


def test_a_virtual_environment_is_activated_for_the_program(tmp_path: Path) -> None:
    python = script(tmp_path / "bin" / "python", "exit 0")
    (tmp_path / "pyvenv.cfg").touch()
    environment = in_environment_of(python, {"PATH": "/usr/bin", "PYTHONHOME": "/nowhere"})
    assert environment == {"PATH": f"{tmp_path / 'bin'}:/usr/bin", "VIRTUAL_ENV": str(tmp_path)}


@pytest.mark.parametrize("rest", [[], ["/of/the/user"]])
def test_the_program_does_not_inherit_the_path_of_the_shim(monkeypatch: pytest.MonkeyPatch, rest: list[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(shims.CHECKOUT), *rest]))
    assert inherited_environment().get("PYTHONPATH", "") == os.pathsep.join(rest)


# Children ------------------------------------------------------------------------------------------------------------


def child(tmp_path: Path, program: str) -> Child:
    (tmp_path / "program.py").write_text(program)
    spec = {"kind": "path", "path": str(tmp_path / "program.py"), "args": ["a", "b"]}
    return Child(
        Path(sys.executable), spec, directory=str(tmp_path), environment=os.environ.copy(), output=subprocess.PIPE
    )


def test_a_child_runs_a_path_as_python_would(tmp_path: Path) -> None:
    started = child(tmp_path, "import sys; print(__name__, sys.argv[1:])")
    output, _ = started.process.communicate(timeout=20)
    assert output.decode().strip() == "__main__ ['a', 'b']"


def ends_within(pid: int, deadline_s: float) -> bool:
    """Whether a process that is not our child is gone, or a zombie, before the deadline."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_stopping_a_child_stops_what_it_started_even_when_it_resists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_INTERRUPT_GRACE_S", 0.2)
    monkeypatch.setattr(children, "_TERMINATE_GRACE_S", 0.2)
    program = (
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    started = child(tmp_path, program)
    assert started.process.stdout is not None
    grandchild = int(started.process.stdout.readline())
    started.stop()
    started.stop()
    assert started.stopped
    assert started.wait() == -signal.SIGKILL
    assert ends_within(grandchild, 5.0)


def test_an_interrupted_child_says_nothing(tmp_path: Path) -> None:
    started = child(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    assert started.process.stdout is not None and started.process.stderr is not None
    started.process.stdout.readline()
    started.stop()
    assert started.wait() == 128 + signal.SIGINT
    assert started.process.stderr.read() == b""


def test_a_child_ends_by_itself_when_its_host_is_gone(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; time.sleep(60)")
    spec = {"kind": "path", "path": str(tmp_path / "program.py"), "args": [], "parent": 1}
    file = Path(children.__file__).with_name("child.py")
    result = subprocess.run([sys.executable, file, json.dumps(spec)], process_group=0, timeout=20, check=False)
    assert result.returncode == -signal.SIGTERM
