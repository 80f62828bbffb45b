"""Processes that an engine starts end with it, also one that died before it had said a word to them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lab.toolchain import shims

ENDS_WITHIN_S = 30  # a process has to start before it can notice
ENGINE = """
import socket, subprocess, sys, time
listening = socket.create_server(("127.0.0.1", 0))
address = f"127.0.0.1:{listening.getsockname()[1]}"
process = subprocess.Popen([*sys.argv[1:], address], stdout=subprocess.PIPE, text=True)
print(process.pid, flush=True)
print(process.stdout.readline().strip(), flush=True)
time.sleep(600)
"""
PLUGINS = {
    "the dynamic provider": [sys.executable, "-u", "-m", "pulumi.dynamic"],
    "the Talos plugin": [sys.executable, "-u", "-m", "lab.plugins.talos"],
    "the command plugin": [sys.executable, "-u", "-m", "lab.plugins.command"],
    "the language host": [sys.executable, "-u", "-m", "lab.toolchain.language_host"],
}


@contextlib.contextmanager
def ended(process: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_that_nobody_has_called_yet_ends_with_its_engine(plugin: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, *PLUGINS[plugin]], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        with ended(psutil.Process(int(engine.stdout.readline()))) as process:
            assert int(engine.stdout.readline()) > 0  # it serves
            engine.kill()
            process.wait(timeout=ENDS_WITHIN_S)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_that_starts_after_its_engine_has_died_ends(plugin: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    started = psutil.Popen([*PLUGINS[plugin], address], stdout=subprocess.PIPE)
    with started, ended(started):
        assert started.wait(timeout=ENDS_WITHIN_S) == (0 if plugin == "the language host" else 1)


def test_the_engine_s_own_way_to_start_dynamic_providers_is_watched_as_well(tmp_path: Path) -> None:
    shim = tmp_path / "pulumi-resource-pulumi-python"
    shim.write_text(shims.dynamic_provider_shim())
    shim.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = f"127.0.0.1:{gone.getsockname()[1]}"
    started = psutil.Popen([shim, address], stdout=subprocess.PIPE)
    with started, ended(started):
        assert started.wait(timeout=ENDS_WITHIN_S) == 1


def test_other_processes_of_the_same_python_are_left_alone() -> None:
    script = "import sys; sys.exit('cozystack_iac' in str(list(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
