"""Questions that outlast an outage of the API server: it moves between control planes, and is away for a minute then."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cozystack_iac.kube.client import Unavailable, Unreachable
from cozystack_iac.waiting import interval, pause

ASK_EVERY_S = 1.0

T = TypeVar("T")


async def outlasting(ask: Callable[[], Awaitable[T]], within_s: float, say: Callable[[str], None]) -> T:
    """What `ask` gives, which is safe to repeat. While nobody answers it is asked again, for `within_s` seconds at most.

    Raises the last Unreachable or Unavailable after that, and every other KubeError at once: that is an answer.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            return await ask()
        except (Unreachable, Unavailable) as error:
            if time.monotonic() + interval(ASK_EVERY_S) > until:
                raise
            say(f"waiting for the API server ({error})")
        await pause(ASK_EVERY_S)
