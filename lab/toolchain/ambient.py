"""Tools that are already on PATH: which there are, whether they run, and whether their version will do."""

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from lab.toolchain.recipes import ETCD, KUBERNETES, KWOK, PULUMI, Recipe

_PROBE_TIMEOUT_S = 20
OURS = ".cozystack-iac"
"""A file in every `bin` directory of ours, so that a PATH with an earlier run's directory on it does not fool us."""


@dataclass(frozen=True)
class Ambient:
    """A tool of somebody else's, usable."""

    name: str
    version: Version
    path: Path


@dataclass(frozen=True)
class Unfit:
    """Something with the right name on PATH that cannot be used, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Demand:
    """What an ambient tool has to be, how to ask it, and what is built when there is none."""

    name: str
    arguments: tuple[str, ...]
    minimum: Version
    recipe: Recipe


_KUBERNETES_MINIMUM = Version("1.33")
DEMANDS: tuple[Demand, ...] = (
    Demand("pulumi", ("version",), Version("3.255"), PULUMI),  # policy packs as executable files since 3.255
    *(Demand(name, ("--version",), _KUBERNETES_MINIMUM, KUBERNETES) for name in KUBERNETES.binaries),
    Demand("etcd", ("--version",), Version("3.5"), ETCD),
    Demand("kwok", ("--version",), Version("0.6"), KWOK),
)


def find(demand: Demand, directories: Sequence[Path]) -> tuple[Ambient | None, list[Unfit]]:
    """The first tool on `directories` that satisfies `demand`, and those that were passed over."""
    unfit: list[Unfit] = []
    for path in candidates(demand.name, directories):
        version = probe(path, demand.arguments)
        if isinstance(version, str):
            unfit.append(Unfit(path, version))
        elif version < demand.minimum:
            unfit.append(Unfit(path, f"{version} is older than {demand.minimum}"))
        else:
            return Ambient(demand.name, version, path), unfit
    return None, unfit


def find_set(demands: Sequence[Demand], directories: Sequence[Path]) -> tuple[list[Ambient], list[Unfit]]:
    """Tools that only go together: all of them, of one minor version, or none."""
    results = [find(demand, directories) for demand in demands]
    unfit = [reason for _, reasons in results for reason in reasons]
    found = [tool for tool, _ in results if tool is not None]
    if len(found) < len(demands):
        alone = [Unfit(tool.path, "the other tools it has to match are not all available") for tool in found]
        return [], unfit + alone
    minors = {tool.version.release[:2] for tool in found}
    if len(minors) > 1:
        return [], unfit + [Unfit(tool.path, f"{tool.version}: the minor versions differ") for tool in found]
    return found, unfit


def probe(path: Path, arguments: Iterable[str]) -> Version | str:
    """The version a tool reports, or in words why it cannot be told."""
    try:
        result = subprocess.run(
            [str(path), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PULUMI_SKIP_UPDATE_CHECK": "true"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not report a version within {_PROBE_TIMEOUT_S} s"
    except OSError as error:
        return f"does not run: {error.strerror or error}"
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[-1][:120]
        return f"is broken: it exited with {result.returncode} and printed: {said}"
    found = re.search(r"\bv?(\d+\.\d+\.\d+)", result.stdout) or re.search(r"\bv?(\d+\.\d+\.\d+)", result.stderr)
    if found is None:
        return "reports no version"
    try:
        return Version(found[1])
    except InvalidVersion:
        return "reports no version"


def candidates(name: str, directories: Sequence[Path]) -> list[Path]:
    """Executable files called `name`, in the order in which a shell would find them."""
    paths = [directory / name for directory in directories]
    return [path for path in paths if path.is_file() and os.access(path, os.X_OK)]


def search_path(path: str, *, without: Path) -> list[Path]:
    """The directories of a PATH value, in order, once each, except what is ours: below `without` (the cache) or marked."""
    directories = dict.fromkeys(Path(entry).absolute() for entry in path.split(os.pathsep) if entry)
    return [path for path in directories if not path.is_relative_to(without) and not (path / OURS).exists()]
