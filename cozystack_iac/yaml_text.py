"""Machine-config documents as text: YAML 1.2 in and out, safe for Talos' own (Go) reader and for YAML 1.1 readers.

Three values change their meaning between YAML readers: ``0o644`` (a string in YAML 1.1), ``off`` (false there) and a
MAC address of digits (a sexagesimal number in YAML 1.1). So integers are written in decimal, and every string that
some reader could take for something else is quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

Document = Mapping[str, Any]
"""One YAML document: plain dicts, lists, strings, ints, floats, bools and None."""

_C_OCTAL = re.compile(r"[-+]?0[0-7]+\Z")
# Words and numbers that YAML 1.1 reads as something other than a string.
_AMBIGUOUS = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null|~|)\Z"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z"
    r"|[-+]?0[box]?[0-9a-fA-F_]+\Z"
    r"|[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?\Z"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
)
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


class BadYaml(ValueError):
    """The text is not YAML, or a mapping repeats a key."""


class _Constructor(SafeConstructor):
    """YAML 1.2, except that ``0644`` is octal, as it is for Talos."""


class _Representer(SafeRepresenter):
    """Mappings in insertion order; ambiguous strings quoted, multi-line strings as blocks."""


def _int(constructor: _Constructor, node: ScalarNode) -> int:
    if _C_OCTAL.match(node.value):
        return int(node.value, 8)
    return int(constructor.construct_yaml_int(node))


def _str(representer: _Representer, text: str) -> ScalarNode:
    style = None
    plain = text.replace("\n", "").replace("\t", " ").isprintable()
    if not plain or text != text.strip(" \t") or text.startswith("\n"):
        style = '"'
    elif "\n" in text:
        style = '"' if re.search(r"[ \t]\n", text) else "|"
    elif _AMBIGUOUS.match(text) or _MAC.fullmatch(text):
        style = '"'
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


_Constructor.add_constructor("tag:yaml.org,2002:int", _int)
_Representer.add_representer(str, _str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    yaml.Representer = _Representer
    # ruamel infers the type None from this attribute's first value.
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.default_flow_style = False
    yaml.width = 1 << 20
    yaml.indent(mapping=4, sequence=6, offset=4)
    return yaml


def parse(text: str) -> tuple[Any, ...]:
    """Return every document of a YAML stream, empty documents left out; raise BadYaml.

    Items are mappings for documents and strategic patches, lists for JSON patches.
    """
    try:
        return tuple(item for item in _yaml().load_all(text) if item is not None)
    except (YAMLError, ValueError) as error:
        raise BadYaml(" ".join(str(error).split())) from error


def emit(documents: Iterable[Document]) -> str:
    """Return the documents as one YAML stream, separated by ``---`` lines, without a leading one."""
    return "---\n".join(_emit_one(document) for document in documents)


def _emit_one(document: Document) -> str:
    try:
        key = json.dumps(document)
        if json.loads(key) == document:
            return _emitted(key)
    except (TypeError, ValueError):
        pass  # a date, say: YAML has values and keys that JSON has not
    return _dumped(document)


@lru_cache(maxsize=4096)
def _emitted(document: str) -> str:
    """The YAML of a JSON document: machines share most of theirs, and a run asks for each several times."""
    return _dumped(json.loads(document))


def _dumped(document: Document) -> str:
    stream = StringIO()
    _yaml().dump(dict(document), stream)
    return stream.getvalue()


def lines(text: str) -> tuple[int, ...]:
    """Return the 1-based line each item of ``parse(text)`` starts on; raise BadYaml."""
    try:
        nodes = tuple(_yaml().compose_all(text))
    except YAMLError as error:
        raise BadYaml(" ".join(str(error).split())) from error
    null = "tag:yaml.org,2002:null"
    return tuple(node.start_mark.line + 1 for node in nodes if node is not None and str(node.tag) != null)
