"""The API server in memory: objects by kind, changes told to whoever watches, refusals in the real one's words.

Objects are never changed in place, so handing them out needs no copies: whoever reads must not write into them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from cozystack_iac.kube.client import Conflict, NotFound, Object, Refused, Unavailable
from lab.memory import fields, kinds
from lab.memory.admission import admit, admit_deletion, defaulted, established
from lab.memory.history import Change, History
from lab.memory.kinds import Kind
from lab.platform.objects import timestamp

NO_RESOURCE = "the server could not find the requested resource"
_PROTECTED = ("uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion")

Key = tuple[str, str]
Reaction = Callable[[Kind, Object | None, Object | None], None]  # (kind, before, after)


@dataclass(frozen=True)
class Target:
    """What a path names: a collection or one object of a kind."""

    kind: Kind
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True)
class Refusal:
    """A call that is refused instead of carried out, so often. `call`: "PATCH tenants"."""

    call: str
    error: Refused
    times: int


class MemoryApi:
    """One cluster. Writes take effect at once; `on` hears of each of them, in order."""

    def __init__(self, kubernetes: str = "v1.36.2") -> None:
        self.kubernetes = kubernetes
        self.away = False
        self.outages = 0  # so far; a connection does not survive one, however short it is
        self.version = 0  # of the latest write
        self.kinds = kinds.built_in()
        self._objects: dict[tuple[str, str], dict[Key, Object]] = {}
        self._histories: dict[tuple[str, str], History] = {}
        self._reactions: list[Reaction] = []
        self._owners: dict[str, dict[fields.Path, str]] = {}  # uid -> field -> manager
        self._refusals: list[Refusal] = []
        self._random = Random()  # not the system's for each object: that costs more than making it
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(self.target("v1", "namespaces"), {"metadata": {"name": name}})

    # Looking ----------------------------------------------------------------------------------------------------------

    def target(
        self, api_version: str, plural: str, namespace: str = "", name: str = "", subresource: str = ""
    ) -> Target:
        """Raises NotFound for a kind, or a version of it, that is not served."""
        group, _, version = api_version.rpartition("/")
        kind = self.kinds.get((group, plural))
        if kind is None or version not in kind.versions:
            raise NotFound(404, "NotFound", NO_RESOURCE)
        return Target(kind, version, namespace if kind.namespaced else "", name, subresource)

    def all(self, kind: Kind) -> Mapping[Key, Object]:
        return self._objects.get((kind.group, kind.plural), {})

    def of(self, plural: str, group: str = "") -> Mapping[Key, Object]:
        """All objects of a kind by its plural; empty when it is not served."""
        return self._objects.get((group, plural), {})

    def get(self, target: Target) -> Object:
        found = self.all(target.kind).get(target.key)
        if found is None:
            raise NotFound(404, "NotFound", f'{target.kind.resource} "{target.name}" not found')
        return _shown(found, target)

    def select(self, target: Target, labels: str = "", wanted: str = "") -> dict[Key, Object]:
        shows = self.shows(target, labels, wanted)
        return {key: _shown(obj, target) for key, obj in self.all(target.kind).items() if shows(obj)}

    def shows(self, target: Target, labels: str = "", wanted: str = "") -> Callable[[Object], bool]:
        """Whether an object of this kind is one of those that were asked for."""
        if not (target.namespace or labels or wanted):
            return lambda _: True
        return lambda obj: (
            target.namespace in ("", obj["metadata"].get("namespace", ""))
            and fields.selects(labels, obj["metadata"].get("labels") or {})
            and fields.has_fields(wanted, obj)
        )

    def history(self, kind: Kind) -> History:
        """What happened to the objects of a kind, as long as it is served."""
        place = (kind.group, kind.plural)
        if place not in self._histories:
            self._histories[place] = History(self.version)
        return self._histories[place]

    def everything(self) -> Iterator[tuple[Kind, Object]]:
        for place, found in list(self._objects.items()):
            for obj in list(found.values()):
                if place in self.kinds:
                    yield self.kinds[place], obj

    def on(self, reaction: Reaction) -> None:
        self._reactions.append(reaction)

    # Trouble ----------------------------------------------------------------------------------------------------------

    def go_away(self, away: bool) -> None:
        """Every connection from outside is cut, and none is accepted until it is back."""
        self.away = away
        self.outages += away
        for history in self._histories.values():
            history.ring()

    def refuse(self, call: str, status: int, reason: str, message: str, times: int) -> None:
        """The next `times` calls of this verb and plural ("PATCH tenants") get this answer."""
        kind: type[Refused] = {404: NotFound, 409: Conflict}.get(status, Unavailable if status in _RETRIED else Refused)
        self._refusals.append(Refusal(call, kind(status, reason, message), times))

    def refusal(self, verb: str, plural: str) -> None:
        """Raises what was ordered by `refuse`."""
        for index, each in enumerate(self._refusals):
            if each.call == f"{verb} {plural}":
                left = replace(each, times=each.times - 1)
                self._refusals[index : index + 1] = [left] if left.times > 0 else []
                raise each.error

    # Writing ----------------------------------------------------------------------------------------------------------

    def create(self, target: Target, body: Object, *, manager: str = "create") -> Object:
        body = json.loads(json.dumps(body))
        metadata = dict(body.get("metadata") or {})
        metadata.setdefault("name", metadata.pop("generateName", "") + f"{self._random.getrandbits(20):05x}")
        namespace = (target.namespace or metadata.get("namespace") or "default") if target.kind.namespaced else ""
        target = replace(target, namespace=namespace, name=metadata["name"])
        if target.kind.namespaced:
            self._must_exist(namespace)
            metadata["namespace"] = namespace
        if target.key in self.all(target.kind):
            raise Conflict(409, "AlreadyExists", f'{target.kind.resource} "{target.name}" already exists')
        metadata |= {
            "uid": str(uuid.UUID(int=self._random.getrandbits(128), version=4)),
            "creationTimestamp": timestamp(),
            "generation": 1,
        }
        metadata.pop("deletionTimestamp", None)
        obj = {
            **_typed(target),
            **{k: v for k, v in body.items() if k not in ("apiVersion", "kind")},
            "metadata": metadata,
        }
        if target.kind.status and target.kind.name != "Node":
            obj.pop("status", None)
        obj = defaulted(target.kind, obj)
        admit(self, target.kind, None, obj)
        self._own(obj, {}, manager)
        return self._put(target, None, obj)

    def update(
        self, target: Target, change: Callable[[Object], Object], *, manager: str = "update", dry_run: bool = False
    ) -> Object:
        """Replace an object by what `change` makes of it; of a status write only the status counts."""
        before = self.all(target.kind).get(target.key)
        if before is None:
            return self.get(target)  # raises
        wanted = change(before)
        expected = (wanted.get("metadata") or {}).get("resourceVersion")
        if expected not in (None, "", before["metadata"]["resourceVersion"]):
            text = "the object has been modified; please apply your changes to the latest version and try again"
            raise Conflict(
                409, "Conflict", f'Operation cannot be fulfilled on {target.kind.resource} "{target.name}": {text}'
            )
        after = self._combined(target, before, wanted)
        if after == before:
            return _shown(before, target)
        admit(self, target.kind, before, after)
        if dry_run:
            return _shown(after, target)
        self._own(after, before, manager)
        return _shown(self._put(target, before, after), target)

    def apply(self, target: Target, body: Object, *, manager: str, force: bool) -> Object:
        """Server-side apply: fields that others own with other values are conflicts, fields left out are given up."""
        body = json.loads(json.dumps(body))
        before = self.all(target.kind).get(target.key)
        if before is None:
            return self.create(target, body, manager=manager)
        owners = self._owners.get(before["metadata"]["uid"], {})
        applied = dict(_owned(body))
        current = dict(_owned(before))
        clashes = sorted(
            f'conflict with "{owners[path]}": .{".".join(path)}'
            for path, value in applied.items()
            if path in owners and owners[path] != manager and current.get(path, value) != value
        )
        if clashes and not force:
            count = f"Apply failed with {len(clashes)} conflict{'s' if len(clashes) > 1 else ''}: "
            raise Conflict(409, "Conflict", count + ", ".join(clashes))
        given_up = [
            path for path, owner in owners.items() if owner == manager and path not in applied and path in current
        ]

        def change(obj: Object) -> Object:
            for path in given_up:
                obj = fields.without(obj, path)
            return dict(
                fields.merged(obj, {k: v for k, v in body.items() if k not in ("apiVersion", "kind", "status")})
            )

        made = self.update(target, change, manager=manager)
        taken = {
            path: manager for path in applied if force or owners.get(path) is None or current.get(path) != applied[path]
        }
        self._owners.setdefault(before["metadata"]["uid"], {}).update(taken)
        return made

    def delete(self, target: Target, *, grace_s: float | None = None) -> None:
        obj = self.all(target.kind).get(target.key)
        if obj is None:
            self.get(target)  # raises
            return
        admit_deletion(self, obj)
        waits = bool(obj["metadata"].get("finalizers"))
        if target.kind.name == "Pod":
            waits = waits or (grace_s != 0 and bool((obj.get("spec") or {}).get("nodeName")))
        if target.kind.name == "Namespace":
            waits = waits or any(key[0] == target.name for found in self._objects.values() for key in found)
        if not waits:
            self._remove(target, obj)
        elif "deletionTimestamp" not in obj["metadata"]:
            marked = {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": timestamp()}}
            if target.kind.name == "Namespace":
                marked["status"] = {"phase": "Terminating"}
            self._put(target, obj, marked)

    # ------------------------------------------------------------------------------------------------------------------

    def _must_exist(self, namespace: str) -> None:
        found = self.of("namespaces").get(("", namespace))
        if found is None:
            raise NotFound(404, "NotFound", f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in found["metadata"]:
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise Refused(403, "Forbidden", text)

    def _combined(self, target: Target, before: Object, wanted: Object) -> Object:
        """`wanted` with what a client cannot write taken from `before`."""
        if target.subresource == "status":
            return {**before, "status": wanted.get("status")}
        metadata = {key: value for key, value in (wanted.get("metadata") or {}).items() if key not in _PROTECTED}
        metadata |= {key: value for key, value in before["metadata"].items() if key in _PROTECTED}
        after = {**wanted, **_typed(target), "metadata": metadata}
        if target.kind.status:
            after.pop("status", None)
            if "status" in before:
                after["status"] = before["status"]
        after = defaulted(target.kind, after)
        if any(before.get(key) != after.get(key) for key in {*before, *after} - {"metadata", "status"}):
            after["metadata"] = metadata | {"generation": metadata["generation"] + 1}
        return after

    def _put(self, target: Target, before: Object | None, after: Object) -> Object:
        place = (target.kind.group, target.kind.plural)
        self.version += 1
        after = {**after, "metadata": {**after["metadata"], "resourceVersion": str(self.version)}}
        metadata = after["metadata"]
        if (
            "deletionTimestamp" in metadata
            and before
            and before["metadata"].get("finalizers")
            and not metadata.get("finalizers")
        ):
            self._remove(target, after)
            return after
        self._objects.setdefault(place, {})[target.key] = after
        if target.kind.name == "CustomResourceDefinition" and before is None:
            self.kinds[after["spec"]["group"], after["spec"]["names"]["plural"]] = kinds.of_crd(after)
            after = self._objects[place][target.key] = established(after)
        self._told(target.kind, before, after)
        return after

    def _remove(self, target: Target, obj: Object) -> None:
        self.version += 1
        self._objects[target.kind.group, target.kind.plural].pop(target.key, None)
        self._owners.pop(obj["metadata"]["uid"], None)
        if target.kind.name == "CustomResourceDefinition":
            place = (obj["spec"]["group"], obj["spec"]["names"]["plural"])
            self.kinds.pop(place, None)
            self._objects.pop(place, None)
            if place in self._histories:
                self._histories.pop(place).close()
        self._told(target.kind, obj, None)

    def _told(self, kind: Kind, before: Object | None, after: Object | None) -> None:
        self.history(kind).add(Change(self.version, before, after))
        for reaction in tuple(self._reactions):
            reaction(kind, before, after)

    def _own(self, obj: Object, before: Object, manager: str) -> None:
        """Whoever writes a field with a new value owns it."""
        current = dict(_owned(before))
        owners = self._owners.setdefault(obj["metadata"]["uid"], {})
        owners.update({path: manager for path, value in _owned(obj) if current.get(path) != value})


_RETRIED = (429, 500, 502, 503, 504)


def _owned(obj: Object) -> Iterator[tuple[fields.Path, Any]]:
    """The fields whose owner matters."""
    for path, value in fields.leaves({k: v for k, v in obj.items() if k not in ("apiVersion", "kind", "status")}):
        if path[:1] not in ((), ("metadata",)) or path[1:2] in (("labels",), ("annotations",)):
            yield path, value


def _typed(target: Target) -> dict[str, str]:
    return {"apiVersion": target.kind.api_version(target.version), "kind": target.kind.name}


def _shown(obj: Object, target: Target) -> Object:
    """The object in the version that was asked for."""
    wanted = target.kind.api_version(target.version)
    return obj if obj["apiVersion"] == wanted else {**obj, "apiVersion": wanted}
