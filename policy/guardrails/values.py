"""Resource inputs as plain data in which unknown values are marked, and what a guardrail says about them.

Reading an unknown value raises and would turn a whole mandatory policy into an advisory note. So it is read here, once,
and every guardrail decides what it can still say without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulumi_policy.proxy import UnknownValueError


@dataclass(frozen=True)
class Unknown:
    """A value that is not known during preview; `path` is where it would be."""

    path: str


@dataclass(frozen=True)
class Violation:
    """The guardrail does not hold."""

    text: str


@dataclass(frozen=True)
class Unverified:
    """Whether the guardrail holds depends on a value that is not known yet; `up` judges it before anything is created."""

    text: str


Statement = Violation | Unverified


def plain(props: Any, path: str = "") -> Any:
    """Dicts, lists and scalars, with `Unknown` where the engine has no value yet."""
    if isinstance(props, Mapping):
        return {str(key): _read(props, key, path) for key in props}
    if isinstance(props, Sequence) and not isinstance(props, str | bytes):
        return [_read(props, index, path) for index in range(len(props))]
    return props


def _read(holder: Any, key: Any, path: str) -> Any:
    here = f"{path}.{key}" if path else str(key)
    try:
        return plain(holder[key], here)
    except UnknownValueError:
        return Unknown(here)


def at(props: Any, *keys: str) -> Any:
    """The value below `keys`: None when absent, `Unknown` when it or something above it is unknown."""
    for key in keys:
        if isinstance(props, Unknown):
            return props
        props = props.get(key) if isinstance(props, dict) else None
    return props


def entries(value: Any) -> Iterator[Any]:
    """Items of a list; an unknown list is one unknown item."""
    if isinstance(value, list):
        yield from value
    elif isinstance(value, Unknown):
        yield value


def is_on(value: Any) -> bool:
    """Whether a switch is on, also where somebody wrote it as text."""
    return value is True or (isinstance(value, str) and value.lower() == "true")
