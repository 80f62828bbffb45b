"""YAML as Pulumi's engine and Talos read it, so that what is judged here is what they will take it for.

Their reader is Go's yaml.v3: a port of libyaml with scalars of its own, between YAML 1.1 and 1.2 (`on` is text, `0o14` and `014`
are twelve, `1_000` is a thousand, a number too large is a float). Whole floats are integers, because the engine hands them on as
JSON. So libyaml splits the text here as well, which is also an order of magnitude faster than any parser in Python.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from datetime import date, datetime
from typing import Any

import yaml

_WORDS: dict[str, Any] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_NUMERIC = frozenset("+-.0123456789")  # how everything begins that is neither a word nor text
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_CLOCK = r"[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(?:\.[0-9]+)?"
_MOMENT = re.compile(rf"[0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}(?:[Tt]{_CLOCK}(?:Z|[-+][0-9]{{2}}:[0-9]{{2}})| {_CLOCK})?")
_LARGEST = 2**63

_CORE = "tag:yaml.org,2002:"
_TEXT = f"{_CORE}str"
_NO_TAG = frozenset({None, "!"})
_TAGS = frozenset({*_NO_TAG, _TEXT, *(_CORE + name for name in ("map", "seq", "int", "float", "bool", "null"))})

_EVENTS: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # a PyYAML built without libyaml reads the same, slowly


class BadYaml(yaml.MarkedYAMLError):  # type: ignore[misc]  # PyYAML has no types
    """YAML by its form, but nothing Go would take. The text quotes nothing of what was read."""


class DuplicateKey(BadYaml):
    """A mapping says the same key twice; `problem_mark` is the second place."""


def load(text: str) -> Any:
    """The one document in `text`, None when there is none. Raises yaml.YAMLError (or RecursionError, when nested too deep)."""
    documents = load_all(text)
    value = next(documents, None)
    for _ in documents:
        raise BadYaml(problem="there is a second document")
    return value


def load_all(text: str) -> Iterator[Any]:
    """Every document in `text`, empty ones as None. Raises like `load`."""
    reader = _Reader(text)
    try:
        yield from reader.documents()
    finally:
        reader.close()


class _Reader:
    def __init__(self, text: str) -> None:
        self._source = _EVENTS(text)
        self._next, self.close = self._source.get_event, self._source.dispose
        self._anchors: dict[str, Any] = {}

    def documents(self) -> Iterator[Any]:
        self._next()  # the stream's start
        while not isinstance(self._next(), yaml.StreamEndEvent):
            self._anchors.clear()
            yield self._value(self._next())
            self._next()  # the document's end

    def _value(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _bad("an alias without its anchor", event)
            return self._anchors[event.anchor]
        if event.tag not in _TAGS:
            raise _bad("a tag nobody knows", event)
        if isinstance(event, yaml.ScalarEvent):
            is_text = event.tag == _TEXT or (event.tag in _NO_TAG and event.style)
            return self._named(event, event.value if is_text else scalar(event.value))
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(self._named(event, []))
        return self._mapping(self._named(event, {}))

    def _named(self, event: Any, value: Any) -> Any:
        """Known by its anchor before it is filled, so that one that contains itself ends in a value and not in an error."""
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _sequence(self, items: list[Any]) -> list[Any]:
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event))
        return items

    def _mapping(self, items: dict[Any, Any]) -> dict[Any, Any]:
        merged: list[Any] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            merges = isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style
            key = self._value(event)
            if not isinstance(key, Hashable):
                raise _bad("a key is not text", event)
            if key in items:
                raise DuplicateKey(problem="a key stands there twice", problem_mark=event.start_mark)
            value = self._value(self._next())
            if not merges:
                items[key] = value
            elif all(isinstance(each, dict) for each in _listed(value)):
                merged += _listed(value)
            else:
                raise _bad("only mappings can be merged", event)
        for each in merged:
            items |= {key: value for key, value in each.items() if key not in items}
        return items


def scalar(text: str) -> Any:
    """The value of a text without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    return _number(text) if text[0] in _NUMERIC else text


def _number(text: str) -> Any:
    if _MOMENT.fullmatch(text):
        return _moment(text)
    digits = text if text[0] == "." else text.replace("_", "")
    if _OCTAL.fullmatch(digits) or _INTEGER.fullmatch(digits):
        value = int(digits, 8 if _OCTAL.fullmatch(digits) else 0)
        if -_LARGEST <= value < _LARGEST:
            return value
    if _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        return int(number) if number.is_integer() and abs(number) < _LARGEST else number
    return text


def _moment(text: str) -> date | str:
    """A date as it is written, whatever the time zone behind it; text when the calendar has no such day."""
    numbers = [int(part) for part in re.findall("[0-9]+", text)[:6]]
    try:
        return date(*numbers) if len(numbers) == 3 else datetime(*numbers)  # type: ignore[arg-type]  # six numbers
    except ValueError:
        return text


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _bad(problem: str, event: Any) -> BadYaml:
    return BadYaml(problem=problem, problem_mark=event.start_mark)
