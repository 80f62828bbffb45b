"""The state directory of a lab: where its files are, who runs it, and the record that outlives a crash.

`<state>/supervisor.json` names every process of the lab by pid and start time, so that `status` can tell the truth and `down`
can clean up after a supervisor that was killed. `<state>/lock` is held by the living supervisor and by nobody else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from lab.identity import Identity
from lab.scenario import Scenario

Phase = Literal["starting", "ready", "failed", "stopping"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProcessRecord(Model):
    """One real process. `exit` is set when it ended although nobody asked it to."""

    name: str
    pid: int
    started: float
    boot: str
    port: int | None = None
    exit: str | None = None

    @classmethod
    def of(cls, name: str, identity: Identity, port: int | None = None) -> ProcessRecord:
        return cls(name=name, pid=identity.pid, started=identity.started, boot=identity.boot, port=port)

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.started, self.boot)


class Memory(Model):
    """Resident bytes of all processes of the lab together, an upper bound: shared pages count in each."""

    now_bytes: int = 0
    peak_bytes: int = 0


class Record(Model):
    """What is known about the lab that runs, or ran, in a state directory. Times are seconds of wall time."""

    scenario: str
    fingerprint: str
    supervisor: ProcessRecord
    phase: Phase = "starting"
    children: list[ProcessRecord] = []
    problems: list[str] = []
    control_plane_s: float | None = None
    ready_s: float | None = None
    memory: Memory = Memory()

    @property
    def processes(self) -> list[ProcessRecord]:
        return [self.supervisor, *self.children]

    @property
    def alive(self) -> bool:
        """Whether the supervisor lives."""
        return self.supervisor.identity.alive()

    @property
    def healthy(self) -> bool:
        return self.phase == "ready" and not self.problems and all(each.identity.alive() for each in self.processes)


class Busy(Exception):
    """Another supervisor holds this state directory."""


class StateDir:
    """Paths of one lab. Nothing else is written anywhere."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def supervisor_log(self) -> Path:
        return self.logs / "supervisor.log"

    @property
    def scenario(self) -> Path:
        """The scenario as it is run, with everything filled in."""
        return self.root / "scenario.yaml"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def socket(self) -> Path:
        return self.root / "control.sock"

    @property
    def _record(self) -> Path:
        return self.root / "supervisor.json"

    def prepare(self) -> None:
        """Empty what belongs to one run only; the tools stay. A stack whose machines are gone is worthless: it goes, too."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("etcd", "pki", "kubeconfig", "backend", "project"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        for path in (self.events, self.socket, *(log for log in self.logs.glob("*.log") if log != self.supervisor_log)):
            path.unlink(missing_ok=True)
        for folder in (self.logs, self.bin):
            folder.mkdir(exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; the kernel lets go when it dies. Raises Busy."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.root / "lock").open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"another lab is running in {self.root}") from None
            yield

    def read(self) -> Record | None:
        """The record, None when no lab ran here since the last orderly `down`. Raises ValueError when it is unreadable."""
        try:
            return Record.model_validate_json(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ValueError(f"{self._record} is not a record of a lab ({error.error_count()} problems)") from None

    def write(self, record: Record) -> None:
        fresh = self._record.with_suffix(".new")
        fresh.write_text(record.model_dump_json(indent=1), encoding="utf-8")
        fresh.replace(self._record)

    def forget(self) -> None:
        """After everything is gone: no record, no socket."""
        self._record.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)


def fingerprint(scenario: Scenario) -> str:
    """Equal for scenarios that mean the same, whatever their files look like."""
    return hashlib.sha256(scenario.model_dump_json(by_alias=True).encode()).hexdigest()[:16]


def log_names(state: StateDir) -> dict[str, Path]:
    """What `logs` can show, by name."""
    found: dict[str, Any] = {path.stem: path for path in sorted(state.logs.glob("*.log"))}
    return found | ({"events": state.events} if state.events.exists() else {})


def default_state() -> Path:
    return Path(os.environ.get("COZYSTACK_IAC_LAB") or ".lab")
