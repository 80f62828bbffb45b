"""JSON patches (RFC 6902) on one document, as far as Talos accepts them: add, remove, replace, move, copy, test."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


class NotApplicable(ValueError):
    """An operation is malformed, or its path does not exist."""


def apply(document: Mapping[str, Any], operations: list[Any]) -> dict[str, Any]:
    """Return a copy of the document with the operations applied in order; raise NotApplicable."""
    result: dict[str, Any] = deepcopy(dict(document))
    for operation in operations:
        if not isinstance(operation, Mapping) or "op" not in operation or "path" not in operation:
            raise NotApplicable(f"not a JSON patch operation: {operation!r}")
        _apply_one(result, operation)
    return result


def _apply_one(document: dict[str, Any], operation: Mapping[str, Any]) -> None:
    path = _steps(operation["path"])
    match operation["op"]:
        case "add":
            _add(document, path, deepcopy(operation.get("value")))
        case "remove":
            _take(document, path)
        case "replace":
            _take(document, path)
            _add(document, path, deepcopy(operation.get("value")))
        case "move":
            _add(document, path, _take(document, _steps(operation.get("from", ""))))
        case "copy":
            _add(document, path, deepcopy(_look(document, _steps(operation.get("from", "")))))
        case "test":
            if _look(document, path) != operation.get("value"):
                raise NotApplicable(f"testing value {operation['path']} failed: test failed")
        case other:
            raise NotApplicable(f"unexpected kind: {other}")


def _steps(pointer: str) -> list[str]:
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise NotApplicable(f"not a JSON pointer below the document: {pointer!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _look(value: Any, steps: list[str]) -> Any:
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise NotApplicable(f"missing value: /{'/'.join(steps)}") from error
    return value


def _take(document: dict[str, Any], steps: list[str]) -> Any:
    value = _look(document, steps)
    parent = _look(document, steps[:-1])
    del parent[int(steps[-1]) if isinstance(parent, list) else steps[-1]]
    return value


def _add(document: dict[str, Any], steps: list[str], value: Any) -> None:
    parent = _look(document, steps[:-1])
    if isinstance(parent, dict):
        parent[steps[-1]] = value
    elif isinstance(parent, list) and (steps[-1] == "-" or (steps[-1].isdecimal() and int(steps[-1]) <= len(parent))):
        parent.insert(len(parent) if steps[-1] == "-" else int(steps[-1]), value)
    else:
        raise NotApplicable(f"cannot add at /{'/'.join(steps)}")
