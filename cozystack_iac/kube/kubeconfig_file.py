"""The kubeconfig as a file for people: private, written in one piece, and never over another cluster's entry."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from cozystack_iac.kube.kubeconfig import BadKubeconfig

PRIVATE = 0o600


def target(given: str) -> Path:
    """The file that is really written: a symbolic link stays one, and what it points at is replaced."""
    return Path(os.path.realpath(Path(given).expanduser()))


def read(path: Path) -> str:
    """The file's text; empty when there is none. Raises OSError, and BadKubeconfig for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise BadKubeconfig("it is not a text file") from None


def is_open(path: Path) -> bool:
    """Whether anybody but the owner may do anything with it."""
    return path.exists() and bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def write(path: Path, text: str) -> None:
    """All of it or nothing, and private before the first byte is in it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(PRIVATE)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
