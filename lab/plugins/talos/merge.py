"""Talos' patching of machine configuration: strategic merge over several documents, ``$patch: delete``, JSON patches.

Documents are matched by (apiVersion, kind, name). Inside, an absent, empty-string or zero value on the right changes
nothing, a false one does; lists are appended unless the schema says otherwise. ``machinery`` is the Talos minor whose
library does the work: it decides which kinds exist, not the contract that the configuration was generated for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from cozystack_iac import yaml_text as text
from cozystack_iac.yaml_text import Document
from lab.plugins.talos import json_patch
from lab.plugins.talos.schema import Free, List, Map, NotDecodable, Scalar, Shape, Struct, decode, schema, unknown_keys

DELETE = "$patch"
Stage = Literal["load_patch", "patch", "panic"]


class Refused(Exception):
    """A patch that Talos refuses: at decoding (``load_patch``), at applying (``patch``), or by crashing (``panic``)."""

    def __init__(self, stage: Stage, message: str) -> None:
        super().__init__(message)
        self.stage = stage


@dataclass(frozen=True)
class Identity:
    """What makes two documents the same one. The v1alpha1 document has neither kind nor name."""

    api_version: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Deletion:
    """A ``$patch: delete``: steps are keys, or the identifying fields of a list element; no steps: the document."""

    steps: tuple[str | Mapping[str, Any], ...]

    def __str__(self) -> str:
        return ".".join(
            step if isinstance(step, str) else "[" + ",".join(f"{k}={v}" for k, v in step.items()) + "]"
            for step in self.steps
        )


@dataclass(frozen=True)
class Patched:
    """One document of a strategic patch: what to delete, then what to merge (None: nothing)."""

    identity: Identity
    deletions: tuple[Deletion, ...]
    document: Document | None


def patch(config: Sequence[Document], patches: Iterable[str], machinery: int = 13) -> tuple[Document, ...]:
    """Return the configuration with every patch (YAML text) applied in order; raise Refused."""
    result = tuple(config)
    for one in patches:
        result = _patch_one(result, one, machinery)
    return tuple(complete(document) for document in result)


def _patch_one(config: tuple[Document, ...], patch_text: str, machinery: int) -> tuple[Document, ...]:
    try:
        items = text.parse(patch_text)
    except text.BadYaml as error:
        raise Refused("load_patch", f"decode error: yaml: {error}") from error
    if items and isinstance(items[0], list):
        return _apply_json(config, items[0], machinery)
    return apply(config, load(items, text.lines(patch_text), machinery), machinery)


def _apply_json(config: tuple[Document, ...], operations: list[Any], machinery: int) -> tuple[Document, ...]:
    if len(config) != 1:
        raise Refused("patch", "JSON6902 patches are not supported for multi-document machine configuration")
    try:
        changed = json_patch.apply(config[0], operations)
    except json_patch.NotApplicable as error:
        raise Refused("patch", str(error)) from error
    return (_decoded(changed, 1, machinery),)


def load(items: Sequence[Any], lines: Sequence[int], machinery: int) -> tuple[Patched, ...]:
    """Decode the documents of a strategic patch strictly; raise Refused at stage ``load_patch``."""
    loaded: list[Patched] = []
    seen: set[Identity] = set()
    for item, line in zip(items, lines, strict=True):
        if not isinstance(item, Mapping):
            raise Refused("load_patch", f"error decoding document (line {line}): not a mapping")
        identity = identify(item)
        # Up to 1.13 a patch names each document once; 1.14 merges repetitions.
        if identity in seen and machinery < 14:
            raise Refused("load_patch", f"duplicate document {identity} is not allowed (line {line})")
        seen.add(identity)
        deletions: list[Deletion] = []
        rest = _without_deletions(item, (), deletions)
        merges = rest is not _GONE and (identity.kind == "" or len(rest) > len(_head(identity)) or not deletions)
        loaded.append(Patched(identity, tuple(deletions), _decoded(rest, line, machinery) if merges else None))
    return tuple(loaded)


def identify(document: Mapping[str, Any]) -> Identity:
    """Return a document's identity from its own fields."""
    kind = str(document.get("kind") or "")
    return Identity(
        str(document.get("apiVersion") or ("v1alpha1" if kind else "")),
        kind,
        str(document.get("name") or "") if kind else "",
    )


def _head(identity: Identity) -> dict[str, str]:
    head = {"apiVersion": identity.api_version, "kind": identity.kind, "name": identity.name}
    return {key: value for key, value in head.items() if value}


def _shape_of(identity: Identity, machinery: int) -> Struct:
    if not identity.kind:
        return schema().config
    kind = schema().kinds.get(identity.kind)
    if kind is None or kind.since > machinery or identity.api_version != "v1alpha1":
        raise NotDecodable(f'"{identity.kind}" "{identity.api_version}": not registered')
    return kind.shape


def _decoded(document: Any, line: int, machinery: int) -> Document:
    identity = identify(document)
    where = f"error decoding document {identity if identity.kind else '/v1alpha1/'} (line {line})"
    try:
        shape = _shape_of(identity, machinery)
        if (unknown := unknown_keys(document, shape)) is not None:
            raise NotDecodable("unknown keys found during decoding:\n" + text.emit([unknown]))
        decoded: Document = decode(document, shape, machinery)
    except NotDecodable as error:
        raise Refused("load_patch", f"{where}: {error}") from error
    return decoded


_GONE: Any = object()


def _without_deletions(value: Any, steps: tuple[str | Mapping[str, Any], ...], found: list[Deletion]) -> Any:
    """Return the value without its ``$patch: delete`` parts (and without what they leave empty); collect those."""
    if isinstance(value, Mapping):
        if value.get(DELETE) == "delete":
            found.append(Deletion(steps))
            return _GONE
        kept = {k: below for k, v in value.items() if (below := _without_deletions(v, (*steps, k), found)) is not _GONE}
        return _GONE if value and not kept else kept
    if isinstance(value, list):
        rest = []
        for item in value:
            by = {k: v for k, v in item.items() if k != DELETE} if isinstance(item, Mapping) else {}
            if (below := _without_deletions(item, (*steps, by), found)) is not _GONE:
                rest.append(below)
        return _GONE if value and not rest else rest
    return value


def apply(config: Sequence[Document], patches: Sequence[Patched], machinery: int) -> tuple[Document, ...]:
    """Apply decoded patch documents in order: deletions first, then the merge; new documents go to the end."""
    result = list(config)
    for one in patches:
        index = next((i for i, document in enumerate(result) if identify(document) == one.identity), None)
        if one.deletions:
            index = _delete_from(result, index, one, machinery)
        if one.document is None:
            continue
        shape = _shape_of(one.identity, machinery)
        if index is None:
            result.append(merge({}, one.document, shape))
        else:
            result[index] = merge(result[index], one.document, shape)
    return tuple(result)


def _delete_from(result: list[Document], index: int | None, one: Patched, machinery: int) -> int | None:
    if index is None:
        if machinery >= 14:
            return None
        # What the 1.13 library does: the selector stays behind as a document that cannot be encoded.
        raise Refused("panic", "reflect.Value.Interface: cannot return value obtained from unexported field or method")
    for deletion in one.deletions:
        if not deletion.steps:
            del result[index]
            return None
        changed = deepcopy(dict(result[index]))
        if not _delete(changed, deletion.steps, _shape_of(one.identity, machinery)):
            path = f"'{deletion}'"
            where = "/v1alpha1" if not one.identity.kind else f"{one.identity.kind}/{one.identity.api_version}"
            raise Refused(
                "patch",
                f"patch delete: path {path} in document '{where}': failed to delete path {path}: lookup failed",
            )
        result[index] = changed
    return index


def _delete(container: Any, steps: tuple[str | Mapping[str, Any], ...], shape: Shape) -> bool:
    """Delete in place; drop maps and lists that become empty, as they are not written then. False: no such path."""
    step, rest = steps[0], steps[1:]
    key = _find(container, step)
    if key is None:
        return False
    below = _below(shape, step)
    if not rest:
        del container[key]
        return True
    if not _delete(container[key], rest, below):
        return False
    if not container[key] and not isinstance(below, Struct):
        del container[key]
    return True


def _find(container: Any, step: str | Mapping[str, Any]) -> Any:
    if isinstance(step, str):
        return step if isinstance(container, Mapping) and step in container else None
    if not isinstance(container, list):
        return None
    return next(
        (i for i, e in enumerate(container) if isinstance(e, Mapping) and all(e.get(k) == v for k, v in step.items())),
        None,
    )


def _below(shape: Shape, step: str | Mapping[str, Any]) -> Shape:
    match shape:
        case Struct():
            return shape.fields.get(step, Free()) if isinstance(step, str) else Free()
        case Map():
            return shape.value
        case List():
            return shape.item
        case _:
            return Free()


def merge(left: Any, right: Any, shape: Shape) -> Any:
    """Return ``right`` merged over ``left``; pure, both stay as they are. Associative; without lists also idempotent."""
    if right is None:
        return left
    match shape:
        case Scalar():
            return left if right in ("", 0) and not isinstance(right, bool) else right
        case List():
            return _merge_lists(left, right, shape)
        case Free() if isinstance(right, list) and isinstance(left, list):
            return [*left, *right]
        case Free() if not isinstance(right, Mapping):
            return deepcopy(right)
    merged = dict(left) if isinstance(left, Mapping) else {}
    for key, value in right.items():
        below = _below(shape, key)
        if key in merged or not isinstance(shape, Struct):
            merged[key] = merge(merged.get(key), value, below) if key in merged else deepcopy(value)
        elif (fresh := merge(None, value, below)) is not None:
            merged[key] = fresh
    return merged


def _merge_lists(left: Any, right: list[Any], shape: List) -> list[Any]:
    if shape.replaces:
        return deepcopy(right)
    merged = list(left or [])
    for item in right:
        twin = next((i for i, known in enumerate(merged) if _same(known, item, shape.by)), None)
        if twin is None:
            merged.append(merge(None, item, shape.item))
        else:
            merged[twin] = merge(merged[twin], item, shape.item)
    return merged


def _same(one: Any, other: Any, by: tuple[str, ...]) -> bool:
    key = next((k for k in by if other.get(k)), None)
    return key is not None and one.get(key) == other[key]


def complete(document: Document) -> Document:
    """Return the document with what Talos writes for fields that nobody set (``permissions: 0`` and a few more)."""
    identity = identify(document)
    kind = schema().kinds.get(identity.kind)
    shape: Shape = schema().config if not identity.kind else kind.shape if kind else Free()
    completed: Document = _complete(document, shape)
    return completed


def _complete(value: Any, shape: Shape) -> Any:
    if isinstance(shape, List) and isinstance(value, list):
        return [_complete(item, shape.item) for item in value]
    if isinstance(shape, (Struct, Map)) and isinstance(value, Mapping):
        written = {key: _complete(item, _below(shape, key)) for key, item in value.items()}
        if isinstance(shape, Struct):
            written |= {key: deepcopy(unset) for key, unset in shape.always.items() if key not in written}
        return written
    return value
