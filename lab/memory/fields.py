"""Objects as nested fields: merging, owners of fields, selectors. Pure; nothing is changed in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[str, ...]


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386); parts that do not change are shared with `target`."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field that is no mapping, with its path. A list is one field: nothing here owns a part of one."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, value


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def without(value: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`value` without one field; mappings that become empty go as well."""
    result = dict(value)
    head, *rest = path
    if not rest:
        result.pop(head, None)
    elif isinstance(result.get(head), Mapping):
        inner = without(result[head], tuple(rest))
        if inner:
            result[head] = inner
        else:
            del result[head]
    return result


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Equality-based label selectors: `a=b,c!=d,e,!f`."""
    return all(_one(part.strip(), labels) for part in selector.split(",") if part.strip())


def _one(part: str, labels: Mapping[str, str]) -> bool:
    if "!=" in part:
        key, value = part.split("!=", 1)
        return labels.get(key) != value
    if "=" in part:
        key, value = part.replace("==", "=").split("=", 1)
        return labels.get(key) == value
    return part[1:] not in labels if part.startswith("!") else part in labels


def has_fields(selector: str, obj: Mapping[str, Any]) -> bool:
    """Field selectors: `spec.nodeName=w1,status.phase!=Running`."""
    for part in filter(None, selector.split(",")):
        wanted = "!=" not in part
        key, value = part.split("=" if wanted else "!=", 1)
        if (str(at(obj, tuple(key.split("."))) or "") == value) is not wanted:
            return False
    return True
