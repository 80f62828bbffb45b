"""The cache outside the checkout: where it is, who may write to it, and how a finished piece gets into it.

Layout: `tools/<name>-<key>/bin`, `pulumi-home` (the lab's own PULUMI_HOME), `go` (the Go of the wheel, if one was
needed), `logs`, and one lock. Whatever is unfinished has a name that starts with a dot and is removed by the next writer.
"""

import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT_VARIABLE = "COZYSTACK_IAC_CACHE"
_WAIT_NOTICE_S = 15.0
_WAIT_STEP_S = 0.5


@dataclass(frozen=True)
class Cache:
    """The directory tree that survives checkouts and runs."""

    root: Path

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> "Cache":
        """The cache named by `COZYSTACK_IAC_CACHE`, else `cozystack-iac` in the user's cache directory."""
        named = environ.get(ENVIRONMENT_VARIABLE)
        if named:
            return cls(Path(named).expanduser().absolute())
        base = environ.get("XDG_CACHE_HOME")
        return cls((Path(base) if base else Path.home() / ".cache") / "cozystack-iac")

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    @property
    def pulumi_home(self) -> Path:
        return self.root / "pulumi-home"

    @property
    def plugins(self) -> Path:
        return self.pulumi_home / "plugins"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def tool(self, name: str, key: str) -> Path:
        """Where the piece `name` of this content is, once it is finished."""
        return self.tools / f"{name}-{key}"

    @contextmanager
    def staged(self, final: Path) -> Iterator[Path]:
        """A directory beside `final` that takes its place when the block succeeds and vanishes when it does not."""
        staging = self.scratch(final.parent, final.name)
        try:
            yield staging
            if final.exists():
                shutil.rmtree(final)
            staging.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def scratch(self, parent: Path, name: str) -> Path:
        """A fresh throw-away directory; its name tells a person which process made it."""
        path = parent / f".{name}.{os.getpid()}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def sweep(self) -> list[Path]:
        """Remove what interrupted runs left behind, and return it.

        Only with the lock held: everything unfinished is then of the dead, whatever has their pid today.
        """
        parents = (self.root, self.tools, self.root / "go")
        stale = [
            path for parent in parents for path in parent.glob(".*") if path.is_dir() and path.suffix[1:].isdigit()
        ]
        for path in stale:
            shutil.rmtree(path, ignore_errors=True)
        return stale

    @contextmanager
    def locked(self, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the cache's only lock. Whoever has to wait is told for whom, at once and every 15 seconds.

        The lock belongs to the process: it is free again when its holder dies, however it died.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a+") as file:
            _acquire(file.fileno(), lambda: say(_holder(self.root / "lock")))
            file.truncate(0)
            json.dump(
                {"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose, "since": time.time()}, file
            )
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)


def _acquire(descriptor: int, notice: Callable[[], None]) -> None:
    due = 0.0
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= due:
                notice()
                due = time.monotonic() + _WAIT_NOTICE_S
            time.sleep(_WAIT_STEP_S)


def _holder(lock: Path) -> str:
    try:
        told = json.loads(lock.read_text())
        since = time.time() - float(told["since"])
        return f"waiting for process {told['pid']} on {told['host']}: {told['purpose']}, for {since:.0f} s now"
    except (OSError, ValueError, KeyError):
        return f"waiting for another process that holds {lock}"
