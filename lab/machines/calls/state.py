"""COSI: Get, List, Watch over the machine's resources, and the refusals of the state access policy."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator
from typing import NoReturn

from grpclib import Status

from cozystack_iac.talos.api import state_pb2 as api
from lab.machines.call import Call, refuse
from lab.machines.resources import KINDS, NAMESPACES, Kind, is_sensitive
from lab.machines.store import UNDEFINED, tombstone

_BOOKMARK = b"lab-mark"  # eight bytes of a server's identity; a position follows


class StateCalls:
    async def Get(self, call: Call, request: api.GetRequest) -> api.GetResponse:
        kind = _readable(call, request.namespace, request.type)
        found = _snapshot(call, kind, request.namespace).get(request.id)
        if found is None:
            where = f"{request.namespace}/{request.id}@{UNDEFINED}"
            refuse(Status.NOT_FOUND, f"resource {request.type}({where}) doesn't exist")
        return api.GetResponse(resource=found)

    async def List(self, call: Call, request: api.ListRequest) -> AsyncIterator[api.ListResponse]:
        kind = _readable(call, request.namespace, request.type)
        if any(query.terms for query in request.options.label_query):
            return  # no resource here carries labels
        for resource in _snapshot(call, kind, request.namespace).values():
            yield api.ListResponse(resource=resource)

    async def Watch(self, call: Call, request: api.WatchRequest) -> AsyncIterator[api.WatchResponse]:
        kind = _readable(call, request.namespace, request.type)
        wanted = request.id if request.HasField("id") else None
        if wanted is not None and request.options.bootstrap_contents:
            refuse(Status.UNIMPLEMENTED, "bootstrap contents is not implemented for resource watch")
        yield api.WatchResponse()  # every stream starts so: it only says that the watch is set up
        state = call.node.state
        seen, before = state.generation, _watched(call, kind, request.namespace, wanted)
        for event in _first_events(kind, request, before):
            yield api.WatchResponse(event=[event])
        while True:
            while state.generation == seen:
                await state.changed.wait()
            seen, now = state.generation, _watched(call, kind, request.namespace, wanted)
            for event in _differences(before, now, seen):
                yield api.WatchResponse(event=[event])
            before = now

    async def Create(self, call: Call, request: api.CreateRequest) -> api.CreateResponse:
        _no_writing()

    async def Update(self, call: Call, request: api.UpdateRequest) -> api.UpdateResponse:
        _no_writing()

    async def Destroy(self, call: Call, request: api.DestroyRequest) -> api.DestroyResponse:
        _no_writing()


def _no_writing() -> NoReturn:
    refuse(Status.PERMISSION_DENIED, "write access is not allowed")


def _readable(call: Call, namespace: str, type_: str) -> Kind:
    if namespace not in NAMESPACES:
        refuse(Status.PERMISSION_DENIED, f'namespace "{namespace}" is not supported')
    kind = KINDS.get(type_)
    if is_sensitive(type_) and not call.admin:
        refuse(Status.PERMISSION_DENIED, "not authorized")
    if kind is None or kind.since > call.node.state.minor:
        refuse(Status.PERMISSION_DENIED, f'resource type "{type_}" is not supported')
    return kind


def _snapshot(call: Call, kind: Kind, namespace: str) -> dict[str, api.Resource]:
    return call.node.store.snapshot(kind) if namespace == kind.namespace else {}


def _watched(call: Call, kind: Kind, namespace: str, wanted: str | None) -> dict[str, api.Resource]:
    found = _snapshot(call, kind, namespace)
    return found if wanted is None else {wanted: found[wanted]} if wanted in found else {}


def _first_events(kind: Kind, request: api.WatchRequest, present: dict[str, api.Resource]) -> Iterator[api.Event]:
    if request.HasField("id"):
        if request.id in present:
            yield api.Event(resource=present[request.id])
        else:
            yield api.Event(resource=tombstone(kind, request.id), event_type=api.DESTROYED)
        return
    if request.options.bootstrap_contents:
        yield from (api.Event(resource=resource) for resource in present.values())
        if request.api_version >= 1:  # older clients do not know this event and get none
            yield api.Event(resource=tombstone(kind, ""), event_type=api.BOOTSTRAPPED, bookmark=_bookmark(len(present)))


def _differences(before: dict[str, api.Resource], now: dict[str, api.Resource], mark: int) -> Iterator[api.Event]:
    for id_, resource in now.items():
        old = before.get(id_)
        if old is None:
            yield api.Event(resource=resource, bookmark=_bookmark(mark))
        elif old.metadata.version != resource.metadata.version:
            yield api.Event(resource=resource, event_type=api.UPDATED, old=old, bookmark=_bookmark(mark))
    for id_, resource in before.items():
        if id_ not in now:
            yield api.Event(resource=resource, event_type=api.DESTROYED, bookmark=_bookmark(mark))


def _bookmark(position: int) -> bytes:
    return _BOOKMARK + struct.pack(">Q", position)
