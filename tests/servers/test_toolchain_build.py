"""Building tools without a compiler: the key of a recipe, the cache, and what a failed or an interrupted build leaves."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from rich.console import Console

import lab.toolchain as toolchain
from lab.toolchain import build, golang, recipes
from lab.toolchain.cache import Cache
from lab.toolchain.progress import Progress
from lab.toolchain.recipes import RECIPES, Recipe
from tests.toolbox import script


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


# The key -------------------------------------------------------------------------------------------------------------


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


# Building ------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(toolchain.ToolchainError, match="did not create thing"):
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
        ("undefined: x", "run this again"),
    ],
)
def test_the_next_step_fits_what_the_compiler_said(said: str, advice: str) -> None:
    assert advice in build._advice(said)


def test_too_little_space_is_said_before_the_build_starts(
    cache: Cache, recipe: Recipe, fake_go: Callable[[str], Path], quiet: Console
) -> None:
    calls = fake_go(GOOD_BUILD)
    roomy = Recipe("thing", "1.0", ("thing",), ("example.org/thing",), expected_s=2, scratch_gb=1e9)
    with pytest.raises(toolchain.ToolchainError, match="not enough space"):
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
