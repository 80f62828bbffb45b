"""Remote commands through the ``ssh`` program. Passwords, key passphrases and proxies are not supported: said so."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.plugins.command.process import Children, Ended, Failed

SSH_FAILED = 255  # ssh's own status when it could not connect
DIAL_ERROR_LIMIT = 10
PER_DIAL_TIMEOUT_S = 15
REDIAL_PAUSE_S = 1.0
UNSUPPORTED = ("agentSocketPath", "password", "privateKeyPassword", "proxy")


def unsupported(connection: Mapping[str, Any]) -> list[str]:
    """Return which given properties of a connection only the official plugin can serve."""
    return [name for name in UNSUPPORTED if connection.get(name) is not None]


async def run(
    children: Children,
    connection: Mapping[str, Any],
    command: str,
    *,
    environment: Mapping[str, str],
    stdin: str | None,
) -> Ended:
    """Run a command on the host, dialling again as often as the connection allows; raise Failed."""
    if shutil.which("ssh") is None:
        raise Failed("the lab's stand-in for the command plugin needs the ssh program, which is not on PATH")
    limit = int(connection.get("dialErrorLimit", DIAL_ERROR_LIMIT))
    with tempfile.TemporaryDirectory(prefix="lab-ssh-") as folder:  # mode 0700
        config = _configuration(Path(folder), connection, environment)
        attempts = 0
        while True:
            ended = await children.run(["ssh", "-F", str(config), "target", command], environment={}, stdin=stdin)
            attempts += 1
            if ended.status != SSH_FAILED or ended.stdout or (0 <= limit <= attempts):
                return ended
            await asyncio.sleep(REDIAL_PAUSE_S)


def _configuration(folder: Path, connection: Mapping[str, Any], environment: Mapping[str, str]) -> Path:
    """Write a client configuration: in a file, so that neither keys nor variables show in a process list."""
    options = {
        "HostName": connection["host"],
        "Port": int(connection.get("port", 22)),
        "User": connection.get("user", "root"),
        "BatchMode": "yes",
        "ConnectTimeout": int(connection.get("perDialTimeout", PER_DIAL_TIMEOUT_S)),
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
    }
    if key := connection.get("privateKey"):
        options |= {"IdentityFile": _private(folder / "key", key.rstrip("\n") + "\n"), "IdentitiesOnly": "yes"}
    if host_key := connection.get("hostKey"):
        known = _private(folder / "known_hosts", f"* {host_key}\n")
        options |= {"StrictHostKeyChecking": "yes", "UserKnownHostsFile": known}
    lines = ["Host target", *(f"  {name} {_quoted(value)}" for name, value in options.items())]
    if environment:
        lines.append("  SetEnv " + " ".join(_quoted(f"{name}={value}") for name, value in environment.items()))
    return _private(folder / "config", "\n".join(lines) + "\n")


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _quoted(value: object) -> str:
    text = str(value)
    if "\n" in text or '"' in text:
        raise Failed("ssh cannot be given a value with a newline or a quotation mark")
    return f'"{text}"'
