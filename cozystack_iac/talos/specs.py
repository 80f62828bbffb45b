"""Reads the YAML text of one resource. Pure.

Machines send the specs of their resources as YAML written by Go. A YAML 1.2 parser in Python takes 0.7 ms for one of
them; a thousand machines send some 40,000. So the flat subset that nearly all of them are is read line by line, and
anything beyond that subset goes to the real parser, which also decides what is right (tests compare the two).
"""

from __future__ import annotations

import json
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):(?: (.*))?$")
_ITEM = re.compile(r" {4}- (.*)$")
_NESTED = re.compile(r" {4}([A-Za-z_][A-Za-z0-9_]*): (.+)$")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)$")
_QUOTED = re.compile(r'"[^"\\]*"$')
# Words, paths, hardware and IP addresses, sizes, serial numbers: nothing in them could mean something else to YAML 1.2.
_WORD = re.compile(
    r"(?:[A-Za-z/](?:[A-Za-z0-9_./ ()@+,-]|:(?=\S))*"
    r"|(?!0[xo])[0-9][0-9A-Za-z]*[ac-dg-np-wyzAC-DG-NP-WYZ][0-9A-Za-z]*"
    r"|[0-9]+\.[0-9]+\.[0-9.]+(?:/[0-9]+)?"
    r"|[0-9]+(?:\.[0-9]+)? [kMGTP]?B"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|[0-9A-F]{4}:[0-9A-F]{4})$"
)
_CONSTANTS: dict[str, object] = {"true": True, "false": False, '""': "", "[]": [], "{}": {}}
_RESERVED = frozenset({"null", "Null", "NULL", "True", "TRUE", "False", "FALSE"})


class _Beyond(Exception):
    """Not in the subset."""


def load_spec(text: str) -> Any:
    """The spec as plain Python: a mapping for nearly every type, a bare scalar for some. Raises ValueError."""
    try:
        return _flat(text)
    except _Beyond:
        pass
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(f"a resource is not valid YAML: {error.__class__.__name__}") from error


def _flat(text: str) -> dict[str, object]:
    """Scalars, and one level of lists or mappings of scalars."""
    spec: dict[str, object] = {}
    open_key: str | None = None
    for line in text.splitlines():
        if open_key is not None and line.startswith("    "):
            _below(spec, open_key, line)
            continue
        field = _KEY.match(line)
        if field is None or field[1] in spec or _means_something(field[1]) or (open_key and spec[open_key] is None):
            raise _Beyond
        open_key = None if field[2] is not None else field[1]
        spec[field[1]] = None if open_key else _scalar(field[2])
    if not spec or (open_key and spec[open_key] is None):
        raise _Beyond
    return spec


def _below(spec: dict[str, object], key: str, line: str) -> None:
    present = spec[key]
    if (item := _ITEM.match(line)) and (present is None or isinstance(present, list)):
        spec[key] = [*(present or ()), _scalar(item[1])]
    elif (field := _NESTED.match(line)) and (present is None or isinstance(present, dict)):
        if _means_something(field[1]) or (present and field[1] in present):
            raise _Beyond
        spec[key] = {**(present or {}), field[1]: _scalar(field[2])}
    else:
        raise _Beyond


def _means_something(key: str) -> bool:
    return key in _RESERVED or key in _CONSTANTS


def _scalar(text: str) -> object:
    if text in _CONSTANTS:
        value = _CONSTANTS[text]
        return type(value)() if isinstance(value, list | dict) else value
    if _INTEGER.match(text):
        return int(text)
    if _QUOTED.match(text):
        return json.loads(text)
    if _WORD.match(text) and text not in _RESERVED and text == text.rstrip() and text.isascii():
        return text
    raise _Beyond
