"""The platform's objects as the API server last showed them: one watch per kind, and whether it still answers at all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cozystack_iac.kube.client import (
    Kube,
    NotFound,
    Object,
    Ref,
    Refused,
    Snapshot,
    Unavailable,
    Unreachable,
)
from cozystack_iac.readiness.expected import ClusterObjects
from cozystack_iac.readiness.verdicts import QueryFailed
from cozystack_iac.waiting import pause

RELEASES = Ref("helm.toolkit.fluxcd.io/v2", "helmreleases")
PACKAGES = Ref("cozystack.io/v1alpha1", "packages")
SOURCES = Ref("cozystack.io/v1alpha1", "packagesources")
REPOSITORIES = Ref("source.toolkit.fluxcd.io/v1", "ocirepositories")
DECISIVE = (RELEASES, PACKAGES, SOURCES)
KINDS = (*DECISIVE, REPOSITORIES)  # repositories only explain: a platform may come from elsewhere

PULSE_S = 5.0  # a watch that is silent looks like one that is cut off: ask now and then whether anybody is there
RETURN_S = 0.5  # while nobody answers: how soon a return is noticed


@dataclass
class View:
    """What is known now. `changed` is set by every event; `seen_s` is a clock that stands still while the API is away.

    Limits count on that clock: what could not be observed did not last.
    """

    kube: Kube
    clock: Callable[[], float] = time.monotonic
    objects: dict[Ref, Mapping[tuple[str, str], Object] | None] = field(default_factory=dict)
    away: str = ""
    refused: Refused | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _events: Counter[Ref] = field(default_factory=Counter)
    _blind_s: float = 0.0
    _lost_at: float | None = None
    _contact_at: float = 0.0

    def __post_init__(self) -> None:
        self._contact_at = self.clock()

    def seen_s(self) -> float:
        return (self.clock() if self._lost_at is None else self._lost_at) - self._blind_s

    def cluster(self) -> ClusterObjects | QueryFailed:
        """The objects of all kinds, or why there is no complete picture."""
        if self.away:
            return QueryFailed(f"the API server does not respond: {self.away}")
        parts: list[list[Object]] = []
        for ref in DECISIVE:
            if ref not in self.objects:
                return QueryFailed(f"the API server has not listed {ref.plural} yet")
            found = self.objects[ref]
            if found is None:
                return QueryFailed(f"the API server does not know {ref.plural} yet")
            parts.append(list(found.values()))
        releases, packages, sources = parts
        return ClusterObjects(releases, packages, sources, list((self.objects.get(REPOSITORIES) or {}).values()))

    async def refresh(self, kinds: Iterable[Ref] = DECISIVE) -> None:
        """Ask for everything once more: a judgement that ends the wait must not rest on what a cut watch showed."""
        try:
            for ref in kinds:
                await self._list(ref)
        except (Unreachable, Unavailable) as error:
            self._lost(str(error))
        except Refused as error:
            self.refused = error
        else:
            self._heard()

    async def _list(self, ref: Ref) -> None:
        before = self._events[ref]
        try:
            items = await self.kube.objects(ref)
        except NotFound:
            self.objects[ref] = None
            return
        if self._events[ref] == before:  # else a watch, which is alive, has shown something newer than this answer
            self.objects[ref] = {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in items}

    async def follow(self, ref: Ref) -> None:
        snapshot: Snapshot
        try:
            async for snapshot in self.kube.watch(ref):
                self.objects[ref] = snapshot.objects
                self._events[ref] += 1
                self._heard()
                self.changed.set()
        except Refused as error:
            if ref in DECISIVE:
                self.refused = error
                self.changed.set()

    async def pulse(self) -> None:
        while True:
            was_away = bool(self.away)
            try:
                await self.kube.text("/version")
            except (Unreachable, Unavailable) as error:
                self._lost(str(error))
            except Refused:
                self._heard()  # a refusal is an answer
            else:
                self._heard()
            if was_away and not self.away:
                await self.refresh()  # watches come back by and by; what happened meanwhile is asked for at once
                self.changed.set()
            await pause(RETURN_S if self.away else PULSE_S)

    def _lost(self, why: str) -> None:
        if not self.away:
            self._lost_at = self._contact_at  # silence since the last contact may already have been the outage
            self.away = why
            self.changed.set()

    def _heard(self) -> None:
        now = self.clock()
        if self._lost_at is not None:
            self._blind_s += now - self._lost_at
            self._lost_at, self.away = None, ""
            self.changed.set()
        self._contact_at = now


@asynccontextmanager
async def watching(kube: Kube) -> AsyncIterator[View]:
    """A view that is kept current in the background until the block ends."""
    view = View(kube)
    tasks = [asyncio.create_task(view.follow(ref)) for ref in KINDS] + [asyncio.create_task(view.pulse())]
    try:
        yield view
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
