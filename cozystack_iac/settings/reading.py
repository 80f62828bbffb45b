"""From plain data to a `Site`: every mistake becomes a finding, and what is left is still read, so that rules see it too.

Pure. A value that cannot be used is replaced by its likeliest meaning (a misspelt key, a misspelt choice) or left out; the site
remembers what was left out, so that no rule draws conclusions from the gap.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cozystack_iac.findings import ERROR, NOTE, Finding, Rule
from cozystack_iac.settings.base import stack_key
from cozystack_iac.settings.paths import ROOT, Step
from cozystack_iac.settings.site import Origin, Site

CFG_002 = Rule(
    "CFG-002",
    ERROR,
    title="Every key is known",
    why="an unknown key has no effect, and the setting it was meant for keeps its default",
    remedy="correct the spelling, or remove the key",
)
CFG_003 = Rule(
    "CFG-003",
    ERROR,
    title="Every value has the right format",
    why="a value that cannot be parsed cannot be used",
    remedy="write the value in the format given in the message; `docs/settings.md` lists every key",
)
CFG_005 = Rule(
    "CFG-005",
    NOTE,
    title="Encrypted values are not checked offline",
    why="only the Pulumi engine can decrypt the value",
    remedy="no action needed; the preview checks the value",
)
CFG_008 = Rule(
    "CFG-008",
    ERROR,
    title="Keys are strings, and nesting is finite",
    why="the stack file is converted to JSON, which has string keys only and no endless nesting",
    remedy="put the key in quotes, or write out the anchor",
)

_DEPTH = 40  # deeper than anything here; stops self-referring YAML anchors
_BUDGET = 1_000_000  # values; stops anchors that multiply
_ROUNDS = 60
_CLOSE = 0.75  # similarity from which a misspelling is taken for what it resembles

# What people coming from other tools write.
_SYNONYMS: Mapping[str, str] = {
    "ip": "address",
    "host": "address",
    "hostname": "name",
    "disk": "installDisk",
    "disks": "dataDisks",
    "certsans": "extraSans",
    "floatingip": "vip",
    "podsubnets": "podCIDR",
    "servicesubnets": "serviceCIDR",
    "svccidr": "serviceCIDR",
    "issuername": "issuer",
    "exposedservices": "exposed",
    "enabledpackages": "enable",
    "disabledpackages": "disable",
    "publicip": "publicAddress",
    "privateip": "internalAddress",
    "internalip": "internalAddress",
    "externalip": "publicAddress",
}


Place: TypeAlias = Callable[[Sequence[Step]], str]
"""Spells a place for people."""


class Sealed:
    """Stands for an encrypted value that cannot be read without the engine."""

    def __repr__(self) -> str:
        return "[encrypted]"


@dataclass(slots=True)
class _Reading:
    """One reading in progress: the data under repair and what was found."""

    data: dict[str, Any]
    place: Place
    findings: list[Finding]
    unread: set[tuple[Step, ...]] = field(default_factory=set)
    tried: dict[tuple[Step, ...], int] = field(default_factory=dict)


def read(raw: Mapping[Any, Any], nodes_file: str | None = None) -> tuple[Site | None, list[Finding]]:
    """The site in `raw` (keys without `cozystack:`; nodes resolved), and what is wrong with its form. Never raises."""
    findings: list[Finding] = []
    given = plain(raw, findings, places_in(raw, nodes_file))
    if not isinstance(given, dict):
        return None, findings
    reading = _Reading(_copy(given), places_in(given, nodes_file), findings)
    for _ in range(_ROUNDS):
        try:
            site = Site.model_validate(reading.data, by_alias=True, by_name=False)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=True, include_input=True):
                _repair(reading, problem)
        else:
            return site.read_from(Origin(given, nodes_file, frozenset(reading.unread))), reading.findings
    return None, reading.findings


def places_in(given: Mapping[str, Any], nodes_file: str | None) -> Place:
    """How places in that data are spelled."""
    locator = Site().read_from(Origin(given, nodes_file))
    return lambda steps: locator.where(*steps)


def plain(value: object, findings: list[Finding], place: Place) -> Any:
    """`value` as fresh JSON-like data (and dates), nulls left out of mappings, encrypted values as `Sealed`."""
    budget = [_BUDGET]

    def items(mapping: Mapping[Any, Any], steps: tuple[Step, ...]) -> Iterator[tuple[str, Any]]:
        for key, inner in mapping.items():
            if not isinstance(key, str):
                text = (
                    f"the key {key!r} is not a string"
                    if isinstance(key, int | float | bool)
                    else "a key is not a string"
                )
                findings.append(CFG_008.at(place(steps), problem=text, fix="put the key in quotes"))
            elif inner is not None:
                yield key, walk(inner, (*steps, key))

    def walk(value: object, steps: tuple[Step, ...]) -> Any:
        budget[0] -= 1
        if len(steps) > _DEPTH or budget[0] < 0:
            raise RecursionError
        match value:
            case dict():
                return _sealed(value) or dict(items(value, steps))
            case list() | tuple():
                return [walk(item, (*steps, position)) for position, item in enumerate(value)]
            case float() if not math.isfinite(value):
                return str(value)
            case None | bool() | int() | float() | str() | date() | datetime() | Sealed():
                return value
            case _:
                return repr(type(value))

    try:
        return walk(value, ())
    except RecursionError:
        problem = "values are nested without end, or multiplied by anchors"
        findings.append(CFG_008.at(ROOT, problem=problem, fix="write the values out instead of using anchors"))
        return None


def _sealed(mapping: Mapping[Any, Any]) -> Sealed | None:
    return Sealed() if set(mapping) == {"secure"} and isinstance(mapping["secure"], str) else None


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# Repairs ----------------------------------------------------------------------------------------------------------------


def _repair(reading: _Reading, error: ErrorDetails) -> None:
    """Report one validation error and change the data so that it cannot come back."""
    steps = tuple(error["loc"])
    if not isinstance(_at(reading.data, steps[:-1]), dict | list):
        return  # an earlier repair of this round has already taken the branch away
    attempts = reading.tried[steps] = reading.tried.get(steps, 0) + 1
    if attempts > 2:
        _drop(reading, steps[:-1])
        return
    if error["type"] == "extra_forbidden":
        _unknown_key(reading, steps)
        return
    value = _at(reading.data, steps)
    if isinstance(value, Sealed):
        problem, fix = "the value is encrypted", "no action needed here: the preview checks it"
        reading.findings.append(CFG_005.at(reading.place(steps), problem=problem, fix=fix))
    elif attempts == 1 and not _below(reading.unread, steps):
        reading.findings.append(_malformed(reading, steps, error, value))
    if error["type"] == "literal_error" and isinstance(value, str):
        meant = _closest(value, _choices(error))
        if meant is not None:
            _put(reading.data, steps, meant)
            return
    _leave_out(reading, steps, error)


def _unknown_key(reading: _Reading, steps: tuple[Step, ...]) -> None:
    *parents, key = steps
    known = _known_keys(parents)
    meant = _closest(str(key), known) or _synonym(str(key), known)
    where = "here" if parents else "in the stack file"
    fix = f"did you mean `{meant}`?" if meant else f"use one of the keys {where}: {_listed(known)}"
    problem = f"`{key}` is not a known key"
    reading.findings.append(CFG_002.at(reading.place(steps), problem=problem, fix=fix))
    container = _at(reading.data, parents)
    value = container.pop(key)
    if meant is not None and meant not in container:
        container[meant] = value  # judge it as what it was meant to be: no follow-up findings


def _malformed(reading: _Reading, steps: tuple[Step, ...], error: ErrorDetails, value: object) -> Finding:
    secret = _is_secret(steps)
    shown = "" if secret or isinstance(value, dict | list) else f"`{_short(value)}` "
    problem = f"{shown}is {_kind(value)}" if error["type"] not in _SPEAKING else f"{shown}is not usable"
    problem = problem if shown else f"the value {problem}"
    fix = _expected(error)
    if error["type"] == "literal_error" and isinstance(value, str):
        meant = _closest(value, _choices(error))
        problem = f"`{_short(value)}` is not an allowed value"
        fix = f"did you mean `{meant}`? ({fix})" if meant else fix
    return CFG_003.at(reading.place(steps), problem=problem, fix=fix)


_SPEAKING = frozenset({"value_error", "literal_error"})  # whose message says what is expected

_FORMS: Mapping[str, str] = {
    "string_type": "write a string; put numbers and versions in quotes",
    "bool_type": "write true or false, without quotes",
    "int_type": "write a whole number, without quotes",
    "dict_type": "write a mapping (`key: value`)",
    "model_type": "write a mapping (`key: value`)",
    "model_attributes_type": "write a mapping (`key: value`)",
    "tuple_type": "write a list",
    "list_type": "write a list",
}


def _expected(error: ErrorDetails) -> str:
    if error["type"] == "model_type" and error.get("ctx", {}).get("class_name") == "Disk":
        return "use a stable identity: `{serial: …}`, `{wwid: …}` or `{byId: …}`"
    if error["type"] == "literal_error":
        return f"use one of: {', '.join(_choices(error))}"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    return _FORMS.get(error["type"], error["msg"][:1].lower() + error["msg"][1:])


def _choices(error: ErrorDetails) -> tuple[str, ...]:
    # pydantic spells them "'a', 'b' or 'c'"; none of ours contains a quote.
    return tuple(error.get("ctx", {}).get("expected", "").split("'")[1::2])


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case date():
            return "a date"
        case None:
            return "empty"
        case _:
            return "of an unknown type"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _leave_out(reading: _Reading, steps: tuple[Step, ...], error: ErrorDetails) -> None:
    reading.unread.add(steps)
    container = _at(reading.data, steps[:-1])
    if isinstance(container, dict):
        container.pop(steps[-1], None)
    elif isinstance(container, list) and isinstance(steps[-1], int) and steps[-1] < len(container):
        # The place in the list is kept: the findings of its neighbours name them by position.
        empty: Any = "" if error["type"].startswith("string") else {}
        container[steps[-1]] = empty if reading.tried[steps] == 1 else ""
    else:
        _drop(reading, steps[:-1])


def _drop(reading: _Reading, steps: tuple[Step, ...]) -> None:
    """Give a whole branch up, and the branch above when it cannot be removed by itself."""
    if not steps:
        reading.data.clear()
        return
    reading.unread.add(steps)
    container = _at(reading.data, steps[:-1])
    if isinstance(container, dict) and steps[-1] in container:
        del container[steps[-1]]
    else:
        _drop(reading, steps[:-1])


def _at(data: Any, steps: Sequence[Step]) -> Any:
    for step in steps:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data


def _put(data: Any, steps: Sequence[Step], value: object) -> None:
    _at(data, steps[:-1])[steps[-1]] = value


def _below(places: set[tuple[Step, ...]], steps: tuple[Step, ...]) -> bool:
    return any(steps[:length] in places for length in range(1, len(steps) + 1))


# What is known at a place -----------------------------------------------------------------------------------------------


def _known_keys(parents: Sequence[Step]) -> tuple[str, ...]:
    model = _model_at(parents)
    if model is None:
        return ()
    return tuple(info.alias or stack_key(name) for name, info in model.model_fields.items())


def _model_at(steps: Sequence[Step]) -> type[BaseModel] | None:
    """The model that describes the mapping at a place, by its annotations."""
    annotation: Any = Site
    for step in steps:
        model = _model_in(annotation)
        if model is not None and isinstance(step, str):
            names = {info.alias or stack_key(name): info for name, info in model.model_fields.items()}
            if step not in names:
                return None
            annotation = names[step].annotation
    return _model_in(annotation)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _is_secret(steps: Sequence[Step]) -> bool:
    return any(str(step).lower() in {"password", "auth", "token", "secret"} for step in steps)


def _closest(text: str, known: Sequence[str]) -> str | None:
    folded = {_folded(key): key for key in known}
    if _folded(text) in folded:
        return folded[_folded(text)]
    close = difflib.get_close_matches(_folded(text), list(folded), n=1, cutoff=_CLOSE)
    return folded[close[0]] if close else None


def _synonym(text: str, known: Sequence[str]) -> str | None:
    meant = _SYNONYMS.get(_folded(text))
    return meant if meant in known else None


def _folded(text: str) -> str:
    return text.replace("_", "").replace("-", "").lower()[:100]


def _listed(known: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(known)) or "nothing"
