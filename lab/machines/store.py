"""A machine's COSI state server: versions and times around what `resources` computes. Filled when first asked."""

from __future__ import annotations

import time
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from cozystack_iac.talos.api.state_pb2 import Metadata, Resource, Spec
from lab.machines.resources import Kind
from lab.world import MachineState, World

UNDEFINED = "undefined"  # the version of something that does not exist


@dataclass
class _Stored:
    yaml: str
    version: int
    created: int
    updated: int


class Store:
    def __init__(self, world: World, machine: MachineState) -> None:
        self._world = world
        self._machine = machine
        self._known: dict[tuple[str, str], _Stored] = {}

    def snapshot(self, kind: Kind) -> dict[str, Resource]:
        """Every resource of a kind by id, in id order. A changed spec has a higher version."""
        found: dict[str, Resource] = {}
        now = time.time_ns()
        for resource in kind.resources(self._world, self._machine):
            key = (kind.type, resource.id)
            stored = self._known.get(key)
            if stored is None:
                stored = self._known[key] = _Stored(resource.yaml, 1, now, now)
            elif stored.yaml != resource.yaml:
                stored.yaml, stored.version, stored.updated = resource.yaml, stored.version + 1, now
            found[resource.id] = Resource(
                metadata=Metadata(
                    namespace=kind.namespace, type=kind.type, id=resource.id, version=str(stored.version),
                    owner=kind.owner, phase="running", created=_stamp(stored.created), updated=_stamp(stored.updated),
                ),
                spec=Spec(yaml_spec=stored.yaml),
            )  # fmt: skip
        for key in [k for k in self._known if k[0] == kind.type and k[1] not in found]:
            del self._known[key]
        return found


def tombstone(kind: Kind, id_: str) -> Resource:
    """What stands for a resource that is not there: no spec, version `undefined`."""
    now = _stamp(time.time_ns())
    metadata = Metadata(
        namespace=kind.namespace, type=kind.type, id=id_, version=UNDEFINED, phase="running", created=now, updated=now
    )
    return Resource(metadata=metadata, spec=Spec())


def _stamp(nanoseconds: int) -> Timestamp:
    return Timestamp(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)
