"""Running one child process: both streams apart and interleaved, secrets only in its environment or on its stdin."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field


class Failed(Exception):
    """The command could not be started or ended with another status than 0; the message holds both streams."""


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit status and streams, ``both`` in the order of writing."""

    status: int
    stdout: str
    stderr: str
    both: str

    def checked(self, command: str) -> Ended:
        """Return this, one trailing newline less per stream; raise Failed in the official plugin's words."""
        if self.status < 0:
            raise Failed(f"signal: {signal.strsignal(-self.status)}: running {_quoted(command)}:\n{self.both}")
        if self.status:
            raise Failed(f"exit status {self.status}: running {_quoted(command)}:\n{self.both}")
        return Ended(0, self.stdout.removesuffix("\n"), self.stderr.removesuffix("\n"), self.both)


@dataclass
class Children:
    """The processes that run now, so that a cancelled update can end them."""

    _running: set[asyncio.subprocess.Process] = field(default_factory=set)
    _over: bool = False

    async def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: str | None = None,
        directory: str | None = None,
    ) -> Ended:
        """Run to the end; the environment is added to this process' own. Raise Failed when it cannot start."""
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=directory,
                env={**os.environ, **environment},
                # A group of its own: what the command itself starts ends with it.
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"cannot start {argv[0]}: {error.strerror or error}") from error
        self._running.add(process)
        if self._over:  # it was being started when all were told to end
            _kill_group(process)
        try:
            out: list[bytes] = []
            err: list[bytes] = []
            both: list[bytes] = []
            await asyncio.gather(
                _read(process.stdout, out, both), _read(process.stderr, err, both), _write(process.stdin, stdin)
            )
            status = await process.wait()
        finally:
            self._running.discard(process)
            _kill_group(process)
        stdout, stderr, streams = (b"".join(parts).decode(errors="replace") for parts in (out, err, both))
        return Ended(status, stdout, stderr, streams)

    def kill(self) -> None:
        """End everything that runs, at once, as the official plugin does when an update is cancelled. Nothing runs after it."""
        self._over = True
        for process in self._running:
            _kill_group(process)


async def _read(stream: asyncio.StreamReader | None, own: list[bytes], both: list[bytes]) -> None:
    while stream is not None and (part := await stream.read(65_536)):
        own.append(part)
        both.append(part)


async def _write(stream: asyncio.StreamWriter | None, text: str | None) -> None:
    if stream is None or text is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):  # the command need not read its stdin
        stream.write(text.encode())
        await stream.drain()
    stream.close()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _quoted(command: str) -> str:
    escaped = command.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
