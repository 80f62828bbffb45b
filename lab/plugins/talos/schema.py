"""What Talos knows: kinds of documents by minor version, their fields, and how each field is merged.

The data is in ``schema.yaml``; this module turns it into shapes and does the strict decoding ("unknown keys found").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cozystack_iac import yaml_text as text


class NotDecodable(ValueError):
    """A value does not fit its field; the message is in Talos' words."""


@dataclass(frozen=True)
class Scalar:
    """A leaf: text, bool, int, mode, argument or hostname-kind."""

    kind: str


@dataclass(frozen=True)
class Free:
    """Anything; mappings merge key by key, lists are appended."""


@dataclass(frozen=True)
class Struct:
    """Known fields; ``always`` is written for fields nobody set; ``open`` accepts further fields."""

    fields: Mapping[str, Shape]
    always: Mapping[str, Any] = field(default_factory=dict)
    open: bool = False


@dataclass(frozen=True)
class Map:
    """Free keys, values of one shape."""

    value: Shape


@dataclass(frozen=True)
class List:
    """Appended on merge, unless elements are matched ``by`` a key or the later list ``replaces``."""

    item: Shape
    by: tuple[str, ...] = ()
    replaces: bool = False


Shape = Scalar | Free | Struct | Map | List
_SCALARS = frozenset({"text", "bool", "int", "mode", "argument", "hostname-kind"})
_GO_BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True)
class Kind:
    """One kind of document, the minor version that brought it, and its fields."""

    since: int
    shape: Struct


@dataclass(frozen=True)
class Schema:
    """``config`` is the v1alpha1 document, ``kinds`` are all others."""

    config: Struct
    kinds: Mapping[str, Kind]


@cache
def schema() -> Schema:
    """Load the shapes once."""
    (data,) = text.parse((Path(__file__).parent / "schema.yaml").read_text())
    types: Mapping[str, Any] = data["types"]
    config = _shape(types["Config"], types)
    assert isinstance(config, Struct)
    kinds = {name: Kind(since, _document(fields, types)) for name, (since, fields) in data["documents"].items()}
    return Schema(config, kinds)


def _document(fields: Mapping[str, Any], types: Mapping[str, Any]) -> Struct:
    head: dict[str, Shape] = {"apiVersion": Scalar("text"), "kind": Scalar("text")}
    if not fields:
        return Struct(head, open=True)
    return Struct(head | {name: _shape(value, types) for name, value in fields.items()})


def _shape(notation: Any, types: Mapping[str, Any]) -> Shape:
    if isinstance(notation, str):
        if notation == "any":
            return Free()
        return Scalar(notation) if notation in _SCALARS else _shape(types[notation], types)
    if isinstance(notation, list):
        return List(_shape(notation[0], types))
    if "$list" in notation:
        by = tuple(notation.get("$by", ()))
        return List(_shape(notation["$list"], types), by, bool(notation.get("$replaces", False)))
    if "*" in notation:
        return Map(_shape(notation["*"], types))
    fields = {name: _shape(value, types) for name, value in notation.items() if not name.startswith("$")}
    return Struct(fields, notation.get("$always", {}), bool(notation.get("$open", False)))


def unknown_keys(value: Any, shape: Shape) -> Any:
    """Return the part of a value that the shape does not know, as a value of the same form; None when all is known."""
    if isinstance(shape, Struct) and isinstance(value, Mapping):
        unknown = {}
        for name, item in value.items():
            if name not in shape.fields:
                if not shape.open or name in ("metadata", "spec"):
                    unknown[name] = item
            elif (below := unknown_keys(item, shape.fields[name])) is not None:
                unknown[name] = below
        return unknown or None
    if isinstance(shape, Map) and isinstance(value, Mapping):
        found = {name: below for name, item in value.items() if (below := unknown_keys(item, shape.value)) is not None}
        return found or None
    if isinstance(shape, List) and isinstance(value, list):
        return [below for item in value if (below := unknown_keys(item, shape.item)) is not None] or None
    return None


def decode(value: Any, shape: Shape, minor: int) -> Any:
    """Return the value as its field holds it (numbers under text become text, and so on); raise NotDecodable."""
    if value is None:
        return None
    match shape:
        case Struct():
            free = Free()
            return {k: decode(v, shape.fields.get(k, free), minor) for k, v in _mapping(value).items()}
        case Map():
            return {str(k): decode(v, shape.value, minor) for k, v in _mapping(value).items()}
        case List():
            if not isinstance(value, list):
                raise NotDecodable(f"cannot unmarshal {_tag(value)} into a list")
            return [decode(item, shape.item, minor) for item in value]
        case Scalar():
            return _scalar(value, shape.kind, minor)
        case _:
            return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotDecodable(f"cannot unmarshal {_tag(value)} into a struct")
    return value


def _scalar(value: Any, kind: str, minor: int) -> Any:
    if kind == "argument" and isinstance(value, list):
        # Arguments may be lists from Talos 1.13 on.
        if minor < 13:
            raise NotDecodable("cannot unmarshal !!seq into string")
        return [_text(item) for item in value]
    if isinstance(value, (list, Mapping)):
        raise NotDecodable(f"cannot unmarshal {_tag(value)} into {'bool' if kind == 'bool' else 'string'}")
    if kind == "hostname-kind":
        if value not in ("off", "stable"):
            raise NotDecodable(f"{_text(value)} does not belong to AutoHostnameKind values")
        return value
    if kind == "bool":
        return _bool(value)
    if kind in ("int", "mode"):
        if isinstance(value, bool) or not isinstance(value, int):
            target = "v1alpha1.FileMode" if kind == "mode" else "int"
            raise NotDecodable(f"cannot construct {_tag(value)} `{value}` into {target}")
        return value
    return _text(value)


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _GO_BOOLS:
        return _GO_BOOLS[value.lower()]
    raise NotDecodable(f"cannot unmarshal {_tag(value)} `{value}` into bool")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tag(value: Any) -> str:
    if isinstance(value, bool):
        return "!!bool"
    names: tuple[tuple[type, str], ...] = ((int, "!!int"), (float, "!!float"), (str, "!!str"), (list, "!!seq"))
    return next((name for kind, name in names if isinstance(value, kind)), "!!map")
