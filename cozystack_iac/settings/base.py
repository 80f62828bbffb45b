"""What all models of the stack file share: spelling of keys, strictness, and values written for people (durations, sizes)."""

import re
from datetime import timedelta
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, StrictBool, StrictInt, WithJsonSchema
from pydantic.alias_generators import to_camel

_DURATION = re.compile(r"^(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s)?$", re.ASCII)
_SIZE = re.compile(r"^(?P<number>\d+(?:\.\d+)?) ?(?P<unit>B|[KMGTP]i?B)$", re.ASCII)
_UNITS = {
    unit: base**power
    for power, prefix in enumerate(("", "K", "M", "G", "T", "P"))
    for unit, base in ((f"{prefix}B", 1000), (f"{prefix}iB", 1024))
}

# A machine configuration document or Helm values: free-form, judged only where we know what it means.
Document: TypeAlias = dict[str, Any]

Flag = StrictBool
Count = StrictInt


def parse_duration(value: object) -> timedelta:
    """`90s`, `20m`, `1h30m` as a timedelta. Raises ValueError for anything else, for zero, and for more than a week."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.match(value) if isinstance(value, str) and len(value) <= 20 else None
    if match is None or not match.group(0):
        raise ValueError("write a duration such as 90s, 20m or 1h30m")
    hours, minutes, seconds = (int(match.group(name) or 0) for name in "hms")
    total_s = hours * 3600 + minutes * 60 + seconds
    if not 0 < total_s <= 7 * 86400:
        raise ValueError("a duration must be longer than zero and at most a week")
    return timedelta(seconds=total_s)


def duration_text(value: timedelta) -> str:
    """The shortest spelling `parse_duration` reads back."""
    seconds = int(value.total_seconds())
    parts = ((seconds // 3600, "h"), (seconds % 3600 // 60, "m"), (seconds % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def parse_size(value: object) -> int:
    """`50GiB`, `1.5TB` or a plain number of bytes, as bytes. Raises ValueError otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.match(value) if isinstance(value, str) and len(value) <= 30 else None
    if match is None:
        raise ValueError("write a size such as 50GiB or 1.5TB")
    size_bytes = int(float(match["number"]) * _UNITS[match["unit"]])
    if size_bytes <= 0:
        raise ValueError("a size must be larger than zero")
    return size_bytes


def size_text(size_bytes: int) -> str:
    """The largest binary unit that divides the size evenly."""
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        if size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}"
    return f"{size_bytes}B"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?([0-9]+s)?$", "minLength": 2}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(size_text, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "pattern": "^[0-9]+(\\.[0-9]+)? ?([KMGTP]i?)?B$"}),
]

_ACRONYMS = {
    "pod_cidr": "podCIDR",
    "service_cidr": "serviceCIDR",
    "join_cidr": "joinCIDR",
    "node_cidr": "nodeCIDR",
    "external_ips": "externalIPs",
}


def stack_key(name: str) -> str:
    """How a Python attribute is spelled in the stack file."""
    return _ACRONYMS.get(name) or to_camel(name)


class Model(BaseModel):
    """A frozen part of the stack file: camelCase keys, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=stack_key,
        populate_by_name=True,
        defer_build=True,  # a provider's process sees the models and validates none of them
    )
