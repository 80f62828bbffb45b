"""Machine-config documents as text: read as Talos' own (Go) reader does, written safely for it and for YAML 1.1 and 1.2 readers.

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

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from cozystack_iac import go_yaml

Document = Mapping[str, Any]
"""One YAML document: plain dicts, lists, strings, ints, floats, bools and None."""

# Words and numbers that YAML 1.1 reads as something other than a string.
_AMBIGUOUS = re.compile(
    r"(?i:y|n|yes|no|on|off|true|false|null|~|)\Z"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z"
    r"|[-+]?0[box]?[0-9a-fA-F_]+\Z"
    r"|[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?\Z"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
)
_NODES: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")


class BadYaml(ValueError):
    """The text is not YAML, or a mapping repeats a key."""


class _Representer(SafeRepresenter):
    """Mappings in insertion order; ambiguous strings quoted, multi-line strings as blocks."""


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


_Representer.add_representer(str, _str)


def _writer() -> YAML:
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Representer
    # ruamel infers the type None from this attribute's first value.
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.default_flow_style = False
    writer.width = 1 << 20
    writer.indent(mapping=4, sequence=6, offset=4)
    return writer


def parse(text: str) -> tuple[Any, ...]:
    """Return every document of a YAML stream, empty documents left out; raise BadYaml.

    Items are mappings for documents and strategic patches, lists for JSON patches.
    """
    try:
        return tuple(item for item in go_yaml.load_all(text) if item is not None)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
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
    _writer().dump(dict(document), stream)
    return stream.getvalue()


def lines(text: str) -> tuple[int, ...]:
    """Return the 1-based line each item of ``parse(text)`` starts on; raise BadYaml."""
    try:
        nodes = tuple(yaml.compose_all(text, Loader=_NODES))
    except yaml.YAMLError as error:
        raise BadYaml(" ".join(str(error).split())) from error
    null = "tag:yaml.org,2002:null"
    return tuple(node.start_mark.line + 1 for node in nodes if node is not None and str(node.tag) != null)
