"""The tools of the lab: taken from PATH where they will do, else built once into a cache outside the checkout.

`ensure` is the way in; `python -m lab.toolchain doctor` tells what is there.
"""

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial
from importlib import metadata
from pathlib import Path

from rich.console import Console

from lab.toolchain import build, plugins, shims
from lab.toolchain.cache import Cache
from lab.toolchain.errors import ToolchainError
from lab.toolchain.plugins import Package
from lab.toolchain.progress import say
from lab.toolchain.recipes import KUBERNETES_PLUGIN
from lab.toolchain.survey import BINARIES, DYNAMIC_PROVIDER, LANGUAGE_HOST, PLUGINS, Survey, survey
from lab.toolchain.tool import Origin, Tool

__all__ = ["Origin", "Tool", "Toolchain", "ToolchainError", "ensure"]

_STAND_INS = {
    LANGUAGE_HOST: "lab.toolchain.language_host",
    "pulumi-resource-command": "lab.plugins.command",
    "pulumi-resource-talos": "lab.plugins.talos",
}


@dataclass(frozen=True)
class Toolchain:
    """Tools that are ready to be started, and the environment in which the engine finds them."""

    tools: list[Tool]
    bin: Path
    pulumi_home: Path
    python: str

    def path(self, name: str) -> Path:
        """The executable of a tool. Raises KeyError when it was not asked for."""
        return next((tool.path for tool in self.tools if tool.name == name), None) or self._absent(name)

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """`environ` (default: this process's) with what makes the engine use these tools and ask nobody for others."""
        base = dict(os.environ if environ is None else environ)
        path = [str(self.bin), *(entry for entry in base.get("PATH", "").split(os.pathsep) if entry != str(self.bin))]
        return base | {
            "PATH": os.pathsep.join(path),
            "PULUMI_HOME": str(self.pulumi_home),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_PYTHON_CMD": self.python,
        }

    def _absent(self, name: str) -> Path:
        raise KeyError(f"{name} is not among {', '.join(tool.name for tool in self.tools)}")


def ensure(
    state: Path,
    *,
    only: Collection[str] | None = None,
    official: bool = False,
    console: Console | None = None,
) -> Toolchain:
    """Make every tool (or those in `only`, plus the engine where they need it) ready, building what is missing.

    `state` is the directory of this run; its `bin` gets links and scripts. With `official`, our own builds and stand-ins of
    provider plugins are refused. The first call may take some 17 minutes on two cores, later ones well below a second.
    Raises ToolchainError when a tool cannot be had, ValueError for an unknown name.
    """
    console = console or Console(stderr=True)
    cache = Cache.of()
    before = survey(cache, only)
    lacking = _without_official(before) if official else list(before.packages)

    @once
    def refused() -> dict[str, str]:
        """Why which downloads failed; tried at most once, when the engine is there."""
        engine = survey(cache, ["pulumi"]).present["pulumi"].path
        return plugins.download(lacking, engine, cache, say=partial(say, console), insist=official)

    wanted = [recipe for recipe in before.to_build if not (official and recipe is KUBERNETES_PLUGIN)]
    build.build_missing(wanted, cache, console, instead={KUBERNETES_PLUGIN: lambda: "kubernetes" not in refused()})
    reasons = refused() if lacking else {}
    after = survey(cache, only)
    if official:
        _insist(after, reasons)
    elif any(package.name == "kubernetes" for package in after.packages):
        _install_built(cache, after, console)
        after = survey(cache, only)
    return _assemble(state.absolute() / "bin", after, cache, reasons, complete=only is None)


def _without_official(found: Survey) -> list[Package]:
    """The plugins asked for whose official build is not here, whether or not ours is."""
    absent = [name for name in PLUGINS if name in found.wanted and not _is_official(found, name)]
    return [package for package in plugins.requested() if package.binary in absent]


def _is_official(found: Survey, name: str) -> bool:
    return name in found.present and found.present[name].official


def _insist(found: Survey, reasons: Mapping[str, str]) -> None:
    missing = _without_official(found)
    if missing:
        raise ToolchainError(
            "these official provider plugins are not available, and --official allows no others.",
            [(package.name, f"{package.version}: {reasons.get(package.name, 'not found')}") for package in missing],
            next_step="install them with `pulumi plugin install resource NAME VERSION`, or run without --official",
        )


def _install_built(cache: Cache, found: Survey, console: Console) -> None:
    """Our build of the Kubernetes plugin goes into the lab's plugin cache; one process at a time."""
    with cache.locked("installing the Kubernetes plugin", partial(say, console)):
        again = survey(cache, found.wanted)
        for package in again.packages:
            if package.name == "kubernetes":
                binary = cache.tool(KUBERNETES_PLUGIN.name, KUBERNETES_PLUGIN.key()) / "bin" / package.binary
                plugins.install_built(package, again.present["pulumi"].path, binary, cache)


def _assemble(bin_: Path, found: Survey, cache: Cache, reasons: Mapping[str, str], *, complete: bool) -> Toolchain:
    """Write the run's `bin` and describe what it leads to."""
    tools = {name: found.present.get(name) or _stand_in(name, bin_, reasons) for name in found.wanted}
    scripts = {name: _script(name) for name, tool in tools.items() if tool.origin == "stand-in"}
    links = {name: tool.path for name, tool in tools.items() if name in BINARIES or tool.note == plugins.USERS_OWN}
    copies: dict[str, Path] = {}
    if LANGUAGE_HOST in scripts and tools["pulumi"].origin == "built":
        # The engine takes what lies beside its own file for its own; a host elsewhere on PATH earns a warning per run.
        copies["pulumi"] = links.pop("pulumi")
        tools["pulumi"] = replace(tools["pulumi"], path=bin_ / "pulumi")
    shims.write(bin_, scripts, links, copies)
    if complete:
        shims.forget(bin_, {*tools} - {*scripts, *links, *copies})
    return Toolchain(list(tools.values()), bin_, cache.pulumi_home, sys.executable)


def _stand_in(name: str, bin_: Path, reasons: Mapping[str, str]) -> Tool:
    packages = {package.binary: package for package in plugins.requested()}
    if name in packages:
        reason = reasons.get(packages[name].name, "not found")
        return Tool(
            name, packages[name].version, bin_ / name, "stand-in", official=False, note=f"official one: {reason}"
        )
    return Tool(
        name, metadata.version("pulumi"), bin_ / name, "stand-in", official=False, note="on the SDK's own stubs"
    )


def _script(name: str) -> str:
    if name == DYNAMIC_PROVIDER:
        return shims.dynamic_provider_shim()
    return shims.module_shim(_STAND_INS[name])
