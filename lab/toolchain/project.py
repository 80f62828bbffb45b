"""Questions about the Python of a project, answered by that Python itself."""

import json
import subprocess
from pathlib import Path

_TIMEOUT_S = 30

_DEPENDENCIES = """
import json, re
from importlib.metadata import distributions
name = lambda text: re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", text)[0]).lower()
found = {name(d.metadata["Name"]): d for d in distributions() if d.metadata["Name"]}
needed = {name(r) for d in found.values() for r in d.requires or () if "extra ==" not in r}
print(json.dumps([[d.metadata["Name"], d.version, key in needed] for key, d in sorted(found.items())]))
"""


def python_version(python: Path) -> str:
    """`3.11.7`. Raises OSError when the interpreter does not answer."""
    return _ask(python, "import platform; print(platform.python_version())")


def dependencies(python: Path, *, transitive: bool) -> list[tuple[str, str]]:
    """(name, version) of what is installed there; without `transitive` only what nothing else there needs."""
    found = json.loads(_ask(python, _DEPENDENCIES))
    return [(name, version) for name, version, is_needed in found if transitive or not is_needed]


def _ask(python: Path, script: str) -> str:
    try:
        command = [str(python), "-I", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout.strip()
    except subprocess.SubprocessError as error:
        raise OSError(f"{python} does not answer: {error}") from error
