"""The provider plugins: which versions the installed Python SDKs ask for, where one is, and how one gets in.

The lab has a PULUMI_HOME of its own in the cache. The user's own is only read: nothing self-built ever goes there.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from lab.toolchain import ambient
from lab.toolchain.cache import Cache
from lab.toolchain.errors import ToolchainError
from lab.toolchain.recipes import KUBERNETES_PLUGIN, KUBERNETES_PLUGIN_SOURCE
from lab.toolchain.tool import Tool

_DISTRIBUTIONS = {"kubernetes": "pulumi-kubernetes", "command": "pulumi-command", "talos": "pulumiverse-talos"}

_DOWNLOAD_PATIENCE_S = 15.0  # without a byte arriving; a machine that can download starts within a few seconds
_DOWNLOAD_LIMIT_S = 600.0
_REMEMBER_FAILURE_S = 24 * 3600.0
_INSTALL_TIMEOUT_S = 120

USERS_OWN = "the user's own"


@dataclass(frozen=True)
class Package:
    """A provider package as its Python SDK describes it. `server` is where its plugin is published, "" = the default."""

    name: str
    version: str
    server: str = ""

    @property
    def binary(self) -> str:
        return f"pulumi-resource-{self.name}"

    @property
    def directory(self) -> str:
        return f"resource-{self.name}-v{self.version}"


def requested() -> tuple[Package, ...]:
    """kubernetes, command and talos, at the versions that are installed as Python packages."""
    return tuple(_requested(name, sdk) for name, sdk in _DISTRIBUTIONS.items())


def _requested(name: str, sdk: str) -> Package:
    installed = distribution(sdk)
    described = json.loads(Path(str(installed.locate_file(sdk.replace("-", "_") + "/pulumi-plugin.json"))).read_bytes())
    return Package(name, installed.version, described.get("server", ""))


def locate(package: Package, cache: Cache, directories: Sequence[Path], user_home: Path) -> Tool | None:
    """A plugin that is here already: the lab's plugin cache, then PATH, then the user's own plugin cache."""
    own = _in_cache(package, cache.plugins)
    if own is not None:
        key = _built(cache).get(own.parent.name)
        if key is None:
            return Tool(package.binary, _version_of(own), own, "plugin cache", official=True)
        if key == KUBERNETES_PLUGIN.key():
            note = f"built from source of {KUBERNETES_PLUGIN_SOURCE}"
            return Tool(package.binary, _version_of(own), own, "built", official=False, note=note)
    on_path = ambient.candidates(package.binary, directories)
    if on_path:
        return Tool(package.binary, "?", on_path[0], "PATH", official=True, note="the engine checks its version")
    theirs = _in_cache(package, user_home / "plugins")
    if theirs is not None:
        return Tool(package.binary, _version_of(theirs), theirs, "plugin cache", official=True, note=USERS_OWN)
    return None


def download(
    packages: Sequence[Package], engine: Path, cache: Cache, *, say: Callable[[str], None], insist: bool = False
) -> dict[str, str]:
    """Let the engine download `packages` into the lab's plugin cache, all at once.

    Returns the reason for each that failed, by name. A failure is remembered for a day, so that a machine without access
    pays its 15 seconds once; `insist` asks again and replaces what we built ourselves.
    """
    memory = _remembered(cache)
    fresh = {key: said for key, said in memory.items() if time.time() - said[0] < _REMEMBER_FAILURE_S}
    failed = {p.name: fresh[p.directory][1] for p in packages if p.directory in fresh and not insist}
    pending = [package for package in packages if package.name not in failed]
    if pending:
        say(
            f"asking the engine to download {', '.join(p.binary for p in pending)}: gave up after 15 s without progress"
        )
    attempts = [_Attempt(package, engine, cache, insist) for package in pending]
    results = {attempt.package: attempt.wait() for attempt in attempts}
    for package, reason in results.items():
        fresh.pop(package.directory, None)
        if reason is None:
            _record(cache, package.directory, None)
        else:
            failed[package.name] = reason
            fresh[package.directory] = (time.time(), reason)
    if attempts:
        _write_json(cache.pulumi_home / "download-failures.json", fresh)
    return failed


def install_built(package: Package, engine: Path, binary: Path, cache: Cache) -> None:
    """Put our own build into the lab's plugin cache, through the engine, and remember that it is ours."""
    # Before the installation: were it interrupted in between, our build must not pass for the official plugin.
    _record(cache, package.directory, KUBERNETES_PLUGIN.key())
    command = [str(engine), "plugin", "install", "resource", package.name, package.version]
    result = subprocess.run(
        [*command, "--reinstall", "--file", str(binary)],
        env=_engine_environment(cache),
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if result.returncode != 0 or _in_cache(package, cache.plugins) is None:
        raise ToolchainError(
            f"the engine did not install our build of the {package.name} plugin.",
            [("said", (result.stderr or result.stdout).strip()[-1500:]), ("into", str(cache.plugins))],
            next_step=f"remove {cache.plugins / package.directory}, then run this again",
        )


class _Attempt:
    """One download by the engine, stopped when nothing arrives."""

    def __init__(self, package: Package, engine: Path, cache: Cache, insist: bool) -> None:
        self.package = package
        self._arriving = tempfile.TemporaryDirectory(prefix="cozystack-iac-plugin-")
        self._output = (Path(self._arriving.name) / "output").open("w+b")
        command = [str(engine), "plugin", "install", "resource", package.name, package.version]
        command += ["--server", package.server] if package.server else []
        command += ["--reinstall"] if insist else []
        self._process = subprocess.Popen(
            command,
            # The engine downloads into TMPDIR first: a directory of its own shows whether anything arrives.
            env=_engine_environment(cache) | {"TMPDIR": self._arriving.name},
            cwd=self._arriving.name,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._started = time.monotonic()

    def wait(self) -> str | None:
        """None when the plugin is installed, else why not."""
        try:
            return self._wait()
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._output.close()
            self._arriving.cleanup()

    def _wait(self) -> str | None:
        size, moved = 0, self._started
        while (code := self._process.poll()) is None:
            now, arrived = time.monotonic(), self._bytes()
            size, moved = (arrived, now) if arrived > size else (size, moved)
            if now - moved > _DOWNLOAD_PATIENCE_S or now - self._started > _DOWNLOAD_LIMIT_S:
                return f"nothing arrived for {now - moved:.0f} s"
            time.sleep(0.1)
        if code == 0:
            return None
        self._output.seek(0)
        said = self._output.read().decode(errors="replace").strip().splitlines()
        return said[-1][:300] if said else f"ended with {code}"

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in Path(self._arriving.name).glob("pulumi-plugin*") if path.is_file())


def _in_cache(package: Package, plugins: Path) -> Path | None:
    """The plugin at the requested version, or the newest later one of the same major version."""
    exact = plugins / package.directory / package.binary
    if _complete(exact):
        return exact
    later = [path for path in plugins.glob(f"resource-{package.name}-v*/{package.binary}") if _complete(path)]
    fitting = [path for path in later if _compatible(_version_of(path), package.version)]
    return max(fitting, key=lambda path: Version(_version_of(path)), default=None)


def _complete(path: Path) -> bool:
    return os.access(path, os.X_OK) and not path.parent.with_name(path.parent.name + ".partial").exists()


def _compatible(version: str, wanted: str) -> bool:
    try:
        return Version(version) >= Version(wanted) and Version(version).major == Version(wanted).major
    except InvalidVersion:
        return False


def _version_of(path: Path) -> str:
    return path.parent.name.rpartition("-v")[2]


def _engine_environment(cache: Cache) -> dict[str, str]:
    cache.pulumi_home.mkdir(parents=True, exist_ok=True)
    return os.environ | {"PULUMI_HOME": str(cache.pulumi_home), "PULUMI_SKIP_UPDATE_CHECK": "true"}


def _built(cache: Cache) -> dict[str, str]:
    """Plugin directories of the lab's PULUMI_HOME that hold our own build, with the recipe's key."""
    return _read_json(cache.pulumi_home / "built.json")


def _record(cache: Cache, directory: str, key: str | None) -> None:
    built = _built(cache)
    if built.get(directory) == key:
        return
    built.pop(directory, None)
    _write_json(cache.pulumi_home / "built.json", built | ({directory: key} if key else {}))


def _remembered(cache: Cache) -> dict[str, tuple[float, str]]:
    told = _read_json(cache.pulumi_home / "download-failures.json")
    return {name: (float(value[0]), str(value[1])) for name, value in told.items() if isinstance(value, list)}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content))
    unfinished.replace(path)
