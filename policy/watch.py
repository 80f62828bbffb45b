"""The pack ends with the engine that started it: a killed engine cannot end it, and it would serve nobody for ever."""

from __future__ import annotations

import os
import threading
import time

LOOK_EVERY_S = 0.5


def end_with_parent() -> None:
    """Watch the parent process in the background; once there is another one (the old one is dead), end this process."""
    threading.Thread(target=_watch, args=(os.getppid(),), name="engine-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)
