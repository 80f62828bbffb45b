"""How a scenario writes sizes, durations and addresses, and the strictness all its parts share."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LOOPBACK = IPv4Network("127.0.0.0/8")
RESERVED = IPv4Network("127.0.0.0/16")  # the host's own localhost lives here

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write it like 200GiB")
    return int(float(match[1]) * _UNITS[match[2] or "B"])


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smh])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value.replace(" ", ""):
        raise ValueError(f"{value!r} is not a duration; write it like 8m or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _loopback(value: IPv4Address) -> IPv4Address:
    if value not in LOOPBACK or value in RESERVED:
        raise ValueError(f"{value} must be a loopback address outside {RESERVED}: the lab touches no other network")
    return value


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Loopback = Annotated[IPv4Address, Field(), BeforeValidator(lambda v: _loopback(IPv4Address(v)))]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def unique(what: str, names: list[str]) -> None:
    """Raises ValueError when a name is given twice."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"{what} given more than once: {', '.join(doubled)}")
