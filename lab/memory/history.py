"""What happened to the objects of one kind: kept for a while, because a watch begins where a list ended."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from cozystack_iac.kube.client import Object

KEPT = 1000  # changes; whoever asks for older ones has to list again


@dataclass(frozen=True)
class Change:
    """One write. `before` is None for a new object, `after` for one that is gone."""

    version: int
    before: Object | None
    after: Object | None


class History:
    """The latest changes of a kind, and a bell that rings at each. `forgotten`: everything up to this version."""

    def __init__(self, forgotten: int) -> None:
        self.closed = False
        self._forgotten = forgotten
        self._changes: deque[Change] = deque()
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > KEPT:
            self._forgotten = self._changes.popleft().version
        self.ring()

    def since(self, version: int) -> list[Change] | None:
        """All changes after this version, in order; None when they are not known any more."""
        if version < self._forgotten:
            return None
        found: list[Change] = []
        for change in reversed(self._changes):
            if change.version <= version:
                break
            found.append(change)
        return found[::-1]

    def next(self) -> asyncio.Future[None]:
        """Done at the next ring. Taken before looking, it misses nothing."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """The kind is not served any more."""
        self.closed = True
        self.ring()
