"""The pack ends with the engine that started it: a killed engine cannot end it, and it would serve nobody for ever.

The pack stands on its own, so this is not the stages' watch (cozystack_iac/engine_watch.py), only the same idea.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

LOOK_EVERY_S = 0.5


def end_with_engine() -> None:
    """Watch in the background; end this process once its parent is another one or nobody listens at the engine's address.

    The address is needed because an engine can die while this process is still starting.
    """
    threading.Thread(target=_watch, args=(os.getppid(), _address(sys.argv)), name="engine-watch", daemon=True).start()


def _address(argv: list[str]) -> tuple[str, int] | None:
    for argument in argv[1:]:
        host, _, port = argument.rpartition(":")
        if host and port.isdigit():
            return host, int(port)
    return None


def _watch(parent: int, engine: tuple[str, int] | None) -> None:
    while os.getppid() == parent and (engine is None or _listens(engine)):
        time.sleep(LOOK_EVERY_S)
    os._exit(1)


def _listens(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2) as connection:
            return bool(connection.getsockname() != connection.getpeername())  # else it talks to itself
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # slow is not dead
    return True
