"""Property values of the provider protocol as plain Python values, and back with secrets marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulumi.provider.experimental.property_value import Computed, PropertyValue
from pulumi.runtime import rpc

Properties = Mapping[str, PropertyValue]


@dataclass(frozen=True)
class Secret:
    """A plain value that leaves the plugin marked secret."""

    value: Any


class Unknown:
    """Stands for a value that the engine does not know yet (only in previews)."""

    def __repr__(self) -> str:
        return "<unknown>"


UNKNOWN = Unknown()


def plain(value: PropertyValue) -> Any:
    """Return the value without secret marks and dependencies; whole numbers become ints."""
    inner = value.value
    if isinstance(inner, Computed) or inner == rpc.UNKNOWN:
        return UNKNOWN
    if isinstance(inner, Mapping):
        return {key: plain(item) for key, item in inner.items()}
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return [plain(item) for item in inner]
    if isinstance(inner, float) and inner.is_integer():
        return int(inner)
    return inner


def plain_all(properties: Properties) -> dict[str, Any]:
    """Return all properties plainly, nulls left out."""
    return {key: plain(value) for key, value in properties.items() if value.value is not None}


def wire(value: Any) -> PropertyValue:
    """Return a plain or received value (with Secret and UNKNOWN inside) as one that can be sent.

    The SDK cannot marshal its own Computed values: an unknown leaves as the engine's text for it.
    """
    if isinstance(value, PropertyValue):
        return _sendable(value)
    if isinstance(value, Secret):
        return wire(value.value).with_secret(True)
    if value is UNKNOWN:
        return PropertyValue(rpc.UNKNOWN)
    if isinstance(value, Mapping):
        return PropertyValue({str(key): wire(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return PropertyValue([wire(item) for item in value])
    if isinstance(value, int) and not isinstance(value, bool):
        return PropertyValue(float(value))
    return PropertyValue(value)


def _sendable(value: PropertyValue) -> PropertyValue:
    inner = value.value
    if isinstance(inner, Computed):
        return value.with_value(rpc.UNKNOWN)
    if isinstance(inner, Mapping):
        return value.with_value({key: _sendable(item) for key, item in inner.items()})
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        return value.with_value([_sendable(item) for item in inner])
    return value


def wire_all(properties: Mapping[str, Any]) -> dict[str, PropertyValue]:
    """Return properties, plain or received, as ones that can be sent."""
    return {key: wire(value) for key, value in properties.items()}


def changed(old: Properties, new: Properties, names: Sequence[str]) -> list[str]:
    """Return which of the named properties differ in value; an unknown one counts as different."""
    before, after = plain_all(old), plain_all(new)
    return [name for name in names if before.get(name) != after.get(name)]
