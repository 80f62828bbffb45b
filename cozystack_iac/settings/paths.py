"""Places in the stack file, spelled as `pulumi config set --path` reads them."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import TypeAlias

Step: TypeAlias = str | int

NAMESPACE = "cozystack"  # the project's name: Pulumi's own prefix for its keys
ROOT = "stack file"  # where a finding stands that concerns the whole of it, or something that is not in it

_PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]*$", re.ASCII)


def spelled(steps: Sequence[Step]) -> str:
    """`("nodes", 1, "address")` as `cozystack:nodes[1].address`; a path that starts with a number stands in a nodes file."""
    text = ""
    for position, step in enumerate(steps):
        if isinstance(step, int):
            text += f"[{step}]"
        elif position == 0:
            text += f"{NAMESPACE}:{step}"
        elif _PLAIN.match(step):
            text += f".{step}"
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def config_set(path: str, value: str) -> str | None:
    """The command that sets `path`, or None where Pulumi cannot (a nodes file, the whole stack file)."""
    if not path.startswith(f"{NAMESPACE}:"):
        return None
    return f"pulumi config set --path {shlex.quote(path)} {shlex.quote(value)}"
