"""Documents as flat paths, for comparing them: which setting, of which document, has which value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cozystack_iac.yaml_text import Document

DELETE = "$patch"
# What tells elements of a list apart; without any of these a list is one value.
_KEYS = ("name", "interface", "path", "address", "url", "vlanId")


def identity(document: Document) -> str:
    """`` for the v1alpha1 document, else `Kind` or `Kind/name`."""
    kind, name = document.get("kind"), document.get("name")
    if not kind:
        return ""
    return f"{kind}/{name}" if name else str(kind)


def flatten(documents: Iterable[Document]) -> dict[tuple[str, ...], Any]:
    """Every setting by its path: identity of the document, then keys; list elements by their name."""
    found: dict[tuple[str, ...], Any] = {}
    for document in documents:
        who = identity(document)
        head = {"apiVersion", "kind", "name"} if who else set()
        body = {key: value for key, value in document.items() if key not in head}
        if not body:
            found[(who,)] = True
        for path, value in _walk(body):
            found[(who, *path)] = value
    return found


def _walk(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value and DELETE not in value:
        for key, item in value.items():
            for path, leaf in _walk(item):
                yield (str(key), *path), leaf
    elif isinstance(value, list) and value and (key := _key_of(value)):
        for item in value:
            rest = {name: below for name, below in item.items() if name != key}
            for path, leaf in _walk(rest) if rest else [((), True)]:
                yield (f"[{item[key]}]", *path), leaf
    else:
        yield (), value


def _key_of(items: list[Any]) -> str | None:
    """The key whose values tell all elements apart."""
    if not all(isinstance(item, Mapping) for item in items):
        return None
    for key in _KEYS:
        values = [item.get(key) for item in items]
        if None not in values and len({str(value) for value in values}) == len(values):
            return key
    return None


def spelled(path: tuple[str, ...]) -> str:
    """A path for people: `machine.files[/etc/lvm/lvm.conf].content`, `LinkConfig/ens5: addresses`."""
    who, *keys = path
    text = ""
    for key in keys:
        text += key if key.startswith("[") or not text else f".{key}"
    if not who:
        return text
    return f"{who}: {text}" if text else who
