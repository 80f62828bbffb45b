"""The stub commands of the lab: installs them into `<state>/bin` and answers what they ask over the control socket."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.control import handler
from lab.platform import zpool
from lab.platform.hostroot import executable
from lab.platform.linstor import Linstor
from lab.world import World

_SOURCE = Path(__file__).parent / "tools"
ASKING = ("linstor", "zpool")


def install(target: Path) -> Path:
    """Write the stub commands; the Python ones with this interpreter, without site packages, as they start often."""
    target.mkdir(parents=True, exist_ok=True)
    script = (_SOURCE / "ask.py").read_text(encoding="utf-8")
    for name in ASKING:
        (target / name).write_text(f"#!{sys.executable} -IS\n{script}", encoding="utf-8")
        executable(target / name)
    (target / "nsenter").write_text((_SOURCE / "nsenter").read_text(encoding="utf-8"), encoding="utf-8")
    executable(target / "nsenter")
    return target


def answer(world: World, linstor: Linstor) -> None:
    """Register the answers; a second platform in the same world is refused by the control socket."""

    async def ask_linstor(request: Mapping[str, Any]) -> dict[str, Any]:
        return linstor.command(_argv(request)).as_json()

    async def ask_zpool(request: Mapping[str, Any]) -> dict[str, Any]:
        name = str(request.get("machine") or "")
        if name not in world.machines:
            raise ValueError(f"no machine {name!r}; there are {', '.join(world.machines)}")
        return zpool.command(world, world.machines[name], _argv(request)).as_json()

    handler(world, "linstor", ask_linstor)
    handler(world, "zpool", ask_zpool)


def _argv(request: Mapping[str, Any]) -> list[str]:
    argv = request.get("argv")
    if not isinstance(argv, list):
        raise ValueError("argv must be a list of words")
    return [str(word) for word in argv]
