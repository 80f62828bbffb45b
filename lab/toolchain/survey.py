"""What is there and what is missing, without changing anything. `ensure` acts on it, `doctor` prints it."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.toolchain import ambient, build, plugins
from lab.toolchain.ambient import DEMANDS, Unfit
from lab.toolchain.cache import Cache
from lab.toolchain.plugins import Package
from lab.toolchain.recipes import KUBERNETES_PLUGIN, RECIPES, Recipe
from lab.toolchain.tool import Tool

LANGUAGE_HOST = "pulumi-language-python"
DYNAMIC_PROVIDER = "pulumi-resource-pulumi-python"
BINARIES = tuple(demand.name for demand in DEMANDS)
PLUGINS = ("pulumi-resource-kubernetes", "pulumi-resource-command", "pulumi-resource-talos")
NAMES: tuple[str, ...] = (*BINARIES, LANGUAGE_HOST, DYNAMIC_PROVIDER, *PLUGINS)


@dataclass(frozen=True)
class Survey:
    """The state of the tools asked for.

    `present` can be used as they are. `to_build` are the pieces the rest of the binaries need, in build order; the
    Kubernetes plugin's is among them only while the plugin is absent. `packages` are the absent plugins. `unfit` was
    found on PATH and passed over.
    """

    wanted: tuple[str, ...]
    present: Mapping[str, Tool]
    to_build: tuple[Recipe, ...]
    packages: tuple[Package, ...]
    unfit: tuple[Unfit, ...]


def names_with_needs(only: Collection[str] | None) -> tuple[str, ...]:
    """The tools asked for, plus the engine where plugins or hosts are among them. Raises ValueError for unknown names."""
    if only is None:
        return NAMES
    unknown = sorted(set(only) - set(NAMES))
    if unknown:
        raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    needs_engine = any(name in PLUGINS or name in (LANGUAGE_HOST, DYNAMIC_PROVIDER) for name in only)
    return tuple(name for name in NAMES if name in only or (needs_engine and name == "pulumi"))


def survey(cache: Cache, only: Collection[str] | None = None, environ: Mapping[str, str] = os.environ) -> Survey:
    """Look at PATH, the cache and the plugin caches; starts the tools on PATH to ask their version, nothing else."""
    wanted = names_with_needs(only)
    directories = ambient.search_path(environ.get("PATH", ""), without=cache.root)
    present, unfit = _binaries(wanted, cache, directories)
    to_build = {_recipe(name) for name in wanted if name in BINARIES and name not in present}
    user_home = Path(environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    packages = []
    for package in plugins.requested():
        if package.binary in wanted:
            found = plugins.locate(package, cache, directories, user_home)
            if found is None:
                packages.append(package)
            else:
                present[package.binary] = found
    present |= _hosts(wanted, present.get("pulumi"), directories, unfit)
    if "pulumi-resource-kubernetes" in (package.binary for package in packages):
        to_build |= set() if build.built(KUBERNETES_PLUGIN, cache) else {KUBERNETES_PLUGIN}
    ordered = tuple(recipe for recipe in RECIPES if recipe in to_build)
    return Survey(wanted, present, ordered, tuple(packages), tuple(unfit))


def _binaries(wanted: Collection[str], cache: Cache, directories: list[Path]) -> tuple[dict[str, Tool], list[Unfit]]:
    present: dict[str, Tool] = {}
    unfit: list[Unfit] = []
    for recipe in dict.fromkeys(demand.recipe for demand in DEMANDS):
        demands = [demand for demand in DEMANDS if demand.recipe is recipe]
        if not any(demand.name in wanted for demand in demands):
            continue
        found, passed = ambient.find_set(demands, directories)
        unfit += passed
        for tool in found:
            present[tool.name] = Tool(tool.name, str(tool.version), tool.path, "PATH", official=True)
        if not found and build.built(recipe, cache):
            place = cache.tool(recipe.name, recipe.key()) / "bin"
            for name in recipe.binaries:
                note = "; ".join(f"skipped {p.path}: {p.reason}" for p in passed if p.path.name == name)
                present[name] = Tool(name, recipe.version, place / name, "built", official=True, note=note)
    return {name: tool for name, tool in present.items() if name in wanted}, unfit


def _hosts(
    wanted: Collection[str], engine: Tool | None, directories: list[Path], unfit: list[Unfit]
) -> dict[str, Tool]:
    """The official language host and dynamic provider: beside the official engine, or on PATH."""
    found: dict[str, Tool] = {}
    too_old = {passed.path.parent for passed in unfit if passed.path.name == "pulumi"}
    beside = [engine.path.resolve().parent] if engine is not None and engine.origin == "PATH" else []
    usable = [*beside, *(directory for directory in directories if directory not in too_old)]
    for name in (LANGUAGE_HOST, DYNAMIC_PROVIDER):
        paths = ambient.candidates(name, usable)
        if name in wanted and paths:
            version = engine.version if engine is not None and paths[0].parent in beside else "?"
            found[name] = Tool(name, version, paths[0], "PATH", official=True)
    return found


def _recipe(name: str) -> Recipe:
    return next(demand.recipe for demand in DEMANDS if demand.name == name)
