"""Which disks an inventory entry means, on one machine. Pure.

Identities are compared with what the machine reports. Of Talos' disk expressions (CEL) the usual subset is understood;
an expression beyond it raises `Unjudged`, because a disk that nobody could check must not be written to.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos.machine import ReportedDisk

_FIELDS: Mapping[str, Callable[[ReportedDisk], str | int | bool]] = {
    "size": lambda disk: disk.size_bytes,
    "model": lambda disk: disk.model,
    "serial": lambda disk: disk.serial,
    "wwid": lambda disk: disk.wwid,
    "uuid": lambda disk: disk.uuid,
    "transport": lambda disk: disk.transport,
    "bus_path": lambda disk: disk.bus_path,
    "dev_path": lambda disk: disk.path,
    "rotational": lambda disk: disk.rotational,
    "readonly": lambda disk: disk.readonly,
    "cdrom": lambda disk: disk.cdrom,
}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_CALLS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": operator.contains,
}
# Talos' own unit constants in disk expressions.
_UNITS = {f"{p}{s}": b**n for n, p in enumerate("KMGTP", 1) for s, b in (("B", 1000), ("iB", 1024))}

_FLAG = re.compile(r"(!?)disk\.(\w+)$")
_COMPARISON = re.compile(r"disk\.(\w+) *(==|!=|<=|>=|<|>) *(.+)$")
_CALL = re.compile(r'disk\.(\w+)\.(startsWith|endsWith|contains)\( *("[^"\\]*"|\'[^\'\\]*\') *\)$')
_NUMBER = re.compile(r"(\d+)u?(?: *\* *(\w+))?$")
_TEXT = re.compile(r'"([^"\\]*)"$|\'([^\'\\]*)\'$')


_ANY = ReportedDisk("", "")  # for the types of its properties


class Unjudged(Exception):
    """The expression is beyond the subset; the message names the part."""


def matching(wanted: Disk, disks: Iterable[ReportedDisk]) -> tuple[ReportedDisk, ...]:
    """The physical disks that carry every identity of `wanted`. Raises Unjudged."""
    tests = [_test(kind, value) for kind, value in wanted.identities]
    return tuple(disk for disk in disks if disk.physical and tests and all(test(disk) for test in tests))


def _test(kind: str, value: str) -> Callable[[ReportedDisk], bool]:
    match kind:
        case "wwid":
            return lambda disk: disk.wwid == value
        case "serial":
            return lambda disk: disk.serial == value
        case "byId":
            path = value if value.startswith("/") else f"/dev/disk/by-id/{value}"
            return lambda disk: path in disk.symlinks
        case _:
            return _expression(value)


def _expression(text: str) -> Callable[[ReportedDisk], bool]:
    tests = [_term(_unwrapped(part.strip())) for part in text.split("&&")]
    return lambda disk: all(test(disk) for test in tests)


def _unwrapped(term: str) -> str:
    while term.startswith("(") and term.endswith(")") and term.count("(") == 1:
        term = term[1:-1].strip()
    return term


def _term(term: str) -> Callable[[ReportedDisk], bool]:
    if flag := _FLAG.match(term):
        field, expected = _field(flag[2], term, bool), not flag[1]
        return lambda disk: field(disk) is expected
    if call := _CALL.match(term):
        field, test, argument = _field(call[1], term, str), _TEXT_CALLS[call[2]], call[3][1:-1]
        return lambda disk: test(str(field(disk)), argument)
    if comparison := _COMPARISON.match(term):
        literal, compare = _literal(comparison[3].strip(), term), _COMPARE[comparison[2]]
        field = _field(comparison[1], term, type(literal))
        return lambda disk: compare(field(disk), literal)
    raise Unjudged(term)


def _field(name: str, term: str, kind: type) -> Callable[[ReportedDisk], str | int | bool]:
    """The property `name`, if it is of that kind: CEL compares nothing with a value of another type."""
    if name not in _FIELDS or type(_FIELDS[name](_ANY)) is not kind:
        raise Unjudged(term)
    return _FIELDS[name]


def _literal(text: str, term: str) -> str | int | bool:
    if text in ("true", "false"):
        return text == "true"
    if quoted := _TEXT.match(text):
        return quoted[1] if quoted[1] is not None else quoted[2]
    number = _NUMBER.match(text)
    if number is None or (number[2] and number[2] not in _UNITS):
        raise Unjudged(term)
    return int(number[1]) * (_UNITS[number[2]] if number[2] else 1)
