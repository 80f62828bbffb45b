"""Shims of the toolchain: what they run, wherever they are called, and which of them are forgotten."""

import os
import subprocess
from pathlib import Path

import pytest

from lab.toolchain import shims
from tests.toolbox import script


def test_a_shim_runs_this_checkout_whatever_the_working_directory_holds(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "shim", "")
    (tmp_path / "bin" / "shim").write_text(shims.module_shim("lab.toolchain.project"))
    (tmp_path / "project" / "lab").mkdir(parents=True)
    (tmp_path / "project" / "lab" / "__init__.py").write_text("raise SystemExit('the wrong lab')")
    result = subprocess.run(
        [tmp_path / "bin" / "shim"], cwd=tmp_path / "project", capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("venv", ["venv", "absolute"])
def test_the_dynamic_provider_runs_in_the_projects_virtual_environment(tmp_path: Path, venv: str) -> None:
    script(tmp_path / "shim", "")
    (tmp_path / "shim").write_text(shims.dynamic_provider_shim())
    script(tmp_path / "project" / "venv" / "bin" / "python", 'echo "$@"')
    chosen = "venv" if venv == "venv" else str(tmp_path / "project" / "venv")
    environment = os.environ | {"PULUMI_RUNTIME_VIRTUALENV": chosen}
    command = [str(tmp_path / "shim"), "127.0.0.1:1"]
    said = subprocess.run(
        command, cwd=tmp_path / "project", env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "-u -m pulumi.dynamic 127.0.0.1:1"


def test_a_missing_virtual_environment_is_said(tmp_path: Path) -> None:
    script(tmp_path / "shim", "")
    (tmp_path / "shim").write_text(shims.dynamic_provider_shim())
    environment = os.environ | {"PULUMI_RUNTIME_VIRTUALENV": "venv"}
    said = subprocess.run(
        [tmp_path / "shim"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 1
    assert "has no bin/python" in said.stderr


def test_the_toolchain_leaves_the_stub_commands_of_a_running_lab(tmp_path: Path) -> None:
    shims.write(tmp_path, {"linstor": "#!/bin/sh\n", "pulumi-resource-talos": "#!/bin/sh\n"}, {}, {})

    shims.forget(tmp_path, {"pulumi-resource-talos", "pulumi-resource-command"})

    assert (tmp_path / "linstor").exists()
    assert not (tmp_path / "pulumi-resource-talos").exists()
