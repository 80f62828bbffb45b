"""The simulators' shared door to the API server: one watch per kind, few writes at a time, patience while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

from cozystack_iac.kube.client import Conflict, Kube, NotFound, Object, Ref, Refused, Snapshot, Unavailable, Unreachable
from lab.platform.objects import ref_of

WRITES_AT_ONCE = 6  # two cores are shared with the API server, etcd and the program under test
KIND_RECHECK_S = 5.0  # wall seconds; kinds usually come from the lab itself, which says so
PATIENCE_S = (0.05, 0.1, 0.2, 0.5, 1.0)

T = TypeVar("T")
Change = Callable[[Object | None, Object | None], None]  # (before, after)


class Store:
    """All objects of one kind as last seen, by (namespace, name)."""

    def __init__(self) -> None:
        self.objects: Mapping[tuple[str, str], Object] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.synced = asyncio.Event()
        self._reactions: list[Change] = []

    def on(self, reaction: Change) -> None:
        """Call `reaction` for everything already there and for every later change."""
        self._reactions.append(reaction)
        for obj in self.objects.values():
            reaction(None, obj)

    def get(self, name: str, namespace: str = "") -> Object | None:
        return self.objects.get((namespace, name))

    def update(self, objects: Mapping[tuple[str, str], Object]) -> None:
        before, self.objects = self.objects, objects
        for key in before.keys() - objects.keys():
            self._tell(before[key], None)
        for key, obj in objects.items():
            if before.get(key) is not obj:
                self._tell(before.get(key), obj)
        self.synced.set()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def next_change(self) -> asyncio.Future[None]:
        """Done at the next update. Take it before looking, wait afterwards: no change is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def _tell(self, before: Object | None, after: Object | None) -> None:
        for reaction in tuple(self._reactions):
            reaction(before, after)


class Hub:
    """Use inside a TaskGroup, which owns the watches and everything spawned. `refused` hears of writes that were."""

    def __init__(self, kube: Kube, tasks: asyncio.TaskGroup, refused: Callable[[str], None]) -> None:
        self.kube = kube
        self._tasks = tasks
        self._refused = refused
        self._stores: dict[tuple[Ref, str], Store] = {}
        self._awaiting_kinds: list[asyncio.Future[None]] = []
        self._turns = asyncio.Semaphore(WRITES_AT_ONCE)

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None] | None:
        """Run beside everything else; None when the lab is already going down."""
        guarded = self._guarded(work)
        try:
            return self._tasks.create_task(guarded, name=name)
        except RuntimeError:  # the group is shutting down
            guarded.close()
            work.close()
            return None

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A write that the API server refuses ends this piece of work, not the whole simulation."""
        try:
            await work
        except Refused as refused:
            self._refused(str(refused))

    def store(self, ref: Ref, selector: str = "") -> Store:
        """The one store of this collection; its watch starts with the first call."""
        key = (ref, selector)
        if key not in self._stores:
            self._stores[key] = Store()
            self.spawn(self._follow(ref, selector, self._stores[key]), name=f"watch {ref.plural}")
        return self._stores[key]

    async def _follow(self, ref: Ref, selector: str, store: Store) -> None:
        """Keep the store current. While its kind is missing, wait for CRDs instead of asking again and again."""
        while True:
            appeared = self._next_kinds()
            watch = cast("AsyncGenerator[Snapshot, None]", self.kube.watch(ref, selector=selector))
            async with aclosing(watch) as snapshots:
                async for snapshot in snapshots:
                    store.update(snapshot.objects or {})
                    if snapshot.objects is None:
                        break
            await asyncio.wait({appeared}, timeout=KIND_RECHECK_S)

    def kinds_appeared(self) -> None:
        """New CRDs are established: stores that waited for them look again."""
        waiting, self._awaiting_kinds = self._awaiting_kinds, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _next_kinds(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaiting_kinds.append(future)
        return future

    # Writes: they wait while the API server is away, and an object that is gone is no error --------------------------

    async def create(self, obj: Object) -> Object | None:
        """Create it unless it exists; None when it did."""
        try:
            return await self._patiently(lambda: self.kube.create(ref_of(obj), obj))
        except Conflict:
            return None

    async def ensure(self, obj: Object) -> Object:
        """Create it unless it exists; the object either way."""
        created = await self.create(obj)
        if created is not None:
            return created
        return await self._patiently(lambda: self.kube.get(ref_of(obj)))

    async def put(self, ref: Ref, obj: Object) -> None:
        """Create an object of any kind, whenever that is served, or bring the one that exists to the same content."""
        while True:
            appeared = self._next_kinds()
            try:
                await self._patiently(lambda: self.kube.create(ref, obj))
            except Conflict:
                await self._patiently(lambda: self.kube.merge_patch(ref, obj))
            except NotFound as missing:
                if not _lacks_kind(missing):
                    raise
                await asyncio.wait({appeared}, timeout=KIND_RECHECK_S)
                continue
            return

    async def apply(self, obj: Object) -> Object:
        return await self._patiently(
            lambda: self.kube.apply(ref_of(obj), obj, manager="cozystack-operator", force=True)
        )

    async def patch(self, ref: Ref, body: Object, *, subresource: str = "") -> Object | None:
        try:
            return await self._patiently(lambda: self.kube.merge_patch(ref, body, subresource=subresource))
        except NotFound:
            return None

    async def status(self, ref: Ref, status: Object) -> Object | None:
        return await self.patch(ref, {"status": status}, subresource="status")

    async def delete(self, ref: Ref) -> None:
        await self._patiently(lambda: self.kube.delete(ref))

    async def force_delete(self, ref: Ref) -> None:
        """Remove an object whose graceful deletion has come to its end."""
        await self._patiently(lambda: self.kube.delete(ref, grace_s=0))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        attempt = 0
        while True:
            try:
                async with self._turns:
                    return await call()
            except (Unreachable, Unavailable):
                await asyncio.sleep(PATIENCE_S[min(attempt, len(PATIENCE_S) - 1)])
            except Refused as refused:
                # A namespace made a moment ago, or a CRD not served yet, is worth another look; a real no is not.
                if not _soon(refused) or attempt >= 40:
                    raise
                await asyncio.sleep(PATIENCE_S[min(attempt, len(PATIENCE_S) - 1)])
            attempt += 1


def _soon(refused: Refused) -> bool:
    return isinstance(refused, NotFound) and (_lacks_kind(refused) or "namespace" in str(refused).lower())


def _lacks_kind(refused: Refused) -> bool:
    return "could not find the requested resource" in str(refused)
