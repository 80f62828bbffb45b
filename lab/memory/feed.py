"""A watch: the changes of a collection since a version, one line each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx

from cozystack_iac.kube.client import Object, Refused
from lab.memory.api import MemoryApi, Target
from lab.memory.history import Change
from lab.memory.wire import Encoder, encoded, failure

_CUT = "peer closed connection without sending complete message body (incomplete chunked read)"


class Feed(httpx.AsyncByteStream):
    """The body of a watch's answer. Ends with its kind, and breaks once the connection is `lost`."""

    def __init__(
        self,
        api: MemoryApi,
        encoder: Encoder,
        target: Target,
        *,
        since: int,
        shows: Callable[[Object], bool],
        lost: Callable[[], bool],
    ) -> None:
        self._history = api.history(target.kind)
        self._encoder, self._shows, self._lost = encoder, shows, lost
        self._api_version = target.kind.api_version(target.version)
        self._seen = since

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._history.closed:
            if self._lost():
                raise httpx.RemoteProtocolError(_CUT)
            changes = self._history.since(self._seen)
            if changes is None:
                expired = Refused(410, "Expired", f"too old resource version: {self._seen}")
                yield encoded({"type": "ERROR", "object": failure(expired)}) + b"\n"
                return
            if changes:
                self._seen = changes[-1].version
                yield b"".join(map(self._line, changes))
            else:  # nothing was awaited since the look: no change is missed
                await self._history.next()

    def _line(self, change: Change) -> bytes:
        """For who sees a part of the collection, an object comes and goes as it begins and ceases to belong there."""
        before = change.before if change.before is not None and self._shows(change.before) else None
        after = change.after if change.after is not None and self._shows(change.after) else None
        if after is None:
            return self._event("DELETED", change.after or before) if before is not None else b""
        return self._event("ADDED" if before is None else "MODIFIED", after)

    def _event(self, kind: str, obj: Object | None) -> bytes:
        assert obj is not None
        return self._encoder.event(kind, {**obj, "apiVersion": self._api_version})
