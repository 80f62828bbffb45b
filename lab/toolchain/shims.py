"""The run's own `bin` directory: links to the tools, and scripts for what is written in Python.

It lives in the state directory of a run and is rewritten by every `ensure`, so nothing outside that directory refers to a
checkout or to a virtual environment.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.toolchain import ambient

CHECKOUT = Path(__file__).resolve().parents[2]

_MODULE = """#!/bin/sh
# -P: the working directory is the user's project, which may have a `lab` of its own.
PYTHONPATH={checkout}${{PYTHONPATH:+:$PYTHONPATH}}
export PYTHONPATH
exec {python} -P -u -m {module} "$@"
"""

_DYNAMIC = """#!/bin/sh
# The engine hands over the runtime options of Pulumi.yaml; a virtual environment is relative to the project.
PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{checkout}
export PYTHONPATH
venv=${{PULUMI_RUNTIME_VIRTUALENV:-}}
if [ -z "$venv" ] && [ "${{PULUMI_RUNTIME_TOOLCHAIN:-}}" = uv ]; then venv=.venv; fi
if [ -z "$venv" ]; then
    exec "${{PULUMI_PYTHON_CMD:-{python}}}" -u -m pulumi.dynamic "$@"
fi
if [ ! -x "$venv/bin/python" ]; then
    echo "the project's virtual environment $venv (from Pulumi.yaml) has no bin/python:" >&2
    echo "create it and install the project's dependencies into it" >&2
    exit 1
fi
unset PYTHONHOME
PATH="$venv/bin:$PATH"
export PATH
exec "$venv/bin/python" -u -m pulumi.dynamic "$@"
"""


def module_shim(module: str) -> str:
    """A script that runs a module of this checkout with this interpreter, whatever the working directory."""
    return _MODULE.format(checkout=shlex.quote(str(CHECKOUT)), python=shlex.quote(sys.executable), module=module)


def dynamic_provider_shim() -> str:
    """A script that runs the SDK's host of dynamic providers in the project's virtual environment."""
    return _DYNAMIC.format(checkout=shlex.quote(str(CHECKOUT)), python=shlex.quote(sys.executable))


def write(directory: Path, scripts: Mapping[str, str], links: Mapping[str, Path], copies: Mapping[str, Path]) -> None:
    """Add to `directory`: executable `scripts` by content, symbolic `links`, and `copies` (hard links where possible)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ambient.OURS).write_text("made by the lab for one run; see lab/toolchain/shims.py\n")
    for name, content in scripts.items():
        unfinished = _unfinished(directory, name)
        unfinished.write_text(content)
        unfinished.chmod(0o755)
        unfinished.replace(directory / name)
    for name, target in links.items():
        unfinished = _unfinished(directory, name)
        unfinished.symlink_to(target)
        unfinished.replace(directory / name)
    for name, target in copies.items():
        if not (directory / name).exists() or not (directory / name).samefile(target):
            unfinished = _unfinished(directory, name)
            _hard_link_or_copy(target, unfinished)
            unfinished.replace(directory / name)


def forget(directory: Path, names: set[str]) -> None:
    """Remove what an earlier run of another kind left: a stand-in must not hide the official plugin of today.

    Only the toolchain's own names: a running lab keeps its stub commands (`linstor`, `zpool`) in the same directory.
    """
    for name in names:
        (directory / name).unlink(missing_ok=True)


def _unfinished(directory: Path, name: str) -> Path:
    path = directory / f".{name}.{os.getpid()}"
    path.unlink(missing_ok=True)
    return path


def _hard_link_or_copy(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system
        shutil.copy2(source, target)
