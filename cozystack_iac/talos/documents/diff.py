"""What changes on which machine, for people who review a plan: structural, without secrets, with the reboot it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from cozystack_iac.talos.documents.leaves import flatten, spelled
from cozystack_iac.yaml_text import Document

HIDDEN = "(secret)"
_SHOWN = 80
_SECRET_KEY = re.compile(
    r"(?i:^(?:key|keys|token|secret|clusterSecret|password|passphrase|auth|identityToken|privateKey|apiToken|psk|presharedKey"
    r"|bootstrapToken|uniqueToken)$|secret$|password$|token$|privatekey$)"
)
_SECRET_TEXT = re.compile(r"PRIVATE KEY|^[a-z0-9]{6}\.[a-z0-9]{16}$|://[^/@\s]*:[^/@\s]*@")
# What Talos applies to a running machine (apply mode no-reboot); any other v1alpha1 key takes a reboot.
# Documents of their own are applied at once. `install` is only read by installations and upgrades.
_LIVE = tuple(
    tuple(path.split("."))
    for path in (
        "debug",
        "cluster",
        "machine.acceptedCAs",
        "machine.ca",
        "machine.certSANs",
        "machine.controlPlane",
        "machine.features.kubernetesTalosAPIAccess",
        "machine.install",
        "machine.kernel",
        "machine.kubelet",
        "machine.logging",
        "machine.network",
        "machine.nodeAnnotations",
        "machine.nodeLabels",
        "machine.nodeTaints",
        "machine.pods",
        "machine.registries",
        "machine.sysctls",
        "machine.sysfs",
        "machine.time",
    )
)

Documents = Mapping[str, Sequence[Document]]
"""Documents by node name."""


@dataclass(frozen=True)
class Change:
    """What happens to one machine. `lines` start with `+` (added), `-` (removed) or `~` (changed)."""

    effect: str
    lines: tuple[str, ...]


def changes(
    old: Documents, new: Documents, *, complete: tuple[Documents, Documents] | None = None
) -> dict[str, Change]:
    """Every machine that changes, in the order of the new inventory. Secrets are never shown.

    `complete` are the machines' whole configurations before and after. They may hold anything, so of what stands only in
    them (the user's patches, the generated base) it is said that it changes, and never how.
    """
    whole_old, whole_new = complete or ({}, {})
    found = {}
    for name in dict.fromkeys((*new, *old)):
        change = _of_machine(old.get(name), new.get(name), whole_old.get(name), whole_new.get(name))
        if change is not None:
            found[name] = change
    return found


def needs_reboot(old: Sequence[Document], new: Sequence[Document]) -> bool:
    """Whether a running machine has to reboot for the change to be in force."""
    before, after = flatten(old), flatten(new)
    return any(_takes_reboot(path) for path in {*before, *after} if not _same(before, after, path))


def _of_machine(
    old: Sequence[Document] | None,
    new: Sequence[Document] | None,
    whole_old: Sequence[Document] | None,
    whole_new: Sequence[Document] | None,
) -> Change | None:
    if new is None:
        return Change("removed from the inventory", ())
    if old is None:
        return Change("new machine: it is installed and then rebooted", tuple(_lines({}, flatten(new))))
    lines = tuple(_lines(flatten(old), flatten(new)))
    reboot = needs_reboot(old, new)
    if whole_old is not None and whole_new is not None:
        beside = {*flatten(old), *flatten(new)}
        lines += tuple(_hidden_lines(flatten(whole_old), flatten(whole_new), beside))
        reboot = needs_reboot(whole_old, whole_new)
    return Change("needs a reboot" if reboot else "needs no reboot", lines) if lines else None


def _lines(before: Mapping[tuple[str, ...], Any], after: Mapping[tuple[str, ...], Any]) -> Iterator[str]:
    for path in dict.fromkeys((*after, *before)):
        if _same(before, after, path):
            continue
        if path not in before:
            yield f"+ {_place(path)}{_value(path, after[path])}"
        elif path not in after:
            yield f"- {_place(path)}{_value(path, before[path])}"
        else:
            yield f"~ {_place(path)}{_change(path, before[path], after[path])}"


def _hidden_lines(
    before: Mapping[tuple[str, ...], Any], after: Mapping[tuple[str, ...], Any], beside: Set[tuple[str, ...]]
) -> Iterator[str]:
    """Changes without their values, of paths that are not in `beside`."""
    for path in dict.fromkeys((*after, *before)):
        if path in beside or _same(before, after, path):
            continue
        sign = "~" if path in before and path in after else "+" if path in after else "-"
        yield f"{sign} {_place(path)}"


def _same(before: Mapping[tuple[str, ...], Any], after: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> bool:
    if path not in before or path not in after:
        return False
    # 1 and True are equal for Python, not for Talos.
    return bool(before[path] == after[path]) and type(before[path]) is type(after[path])


def _change(path: tuple[str, ...], before: Any, after: Any) -> str:
    if not _secret(path, before, after) and isinstance(before, list) and isinstance(after, list):
        gone, come = [x for x in before if x not in after], [x for x in after if x not in before]
        if gone or come:
            parts = [f"{sign}{_short(item)}" for sign, items in (("-", gone), ("+", come)) for item in items]
            return ": " + ", ".join(parts)
        return ": only the order or repetitions change"
    if _secret(path, before, after):
        return f": {HIDDEN} (changed)"
    return f": {_short(before)} -> {_short(after)}"


def _place(path: tuple[str, ...]) -> str:
    """Elements of lists are named by what tells them apart, and that may be an address with a password in it."""
    return spelled(tuple(f"[{HIDDEN}]" if _SECRET_TEXT.search(key) else key for key in path))


def _value(path: tuple[str, ...], value: Any) -> str:
    if value is True and (len(path) == 1 or path[-1].startswith("[")):
        return ""  # a document or element without further settings
    return f": {HIDDEN if _secret(path, value) else _short(value)}"


def _secret(path: tuple[str, ...], *values: Any) -> bool:
    # A label or sysctl may be called like a secret without being one, but hiding too much does no harm.
    return any(_SECRET_KEY.search(key) for key in path[1:]) or any(_secret_value(value) for value in values)


def _secret_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_SECRET_KEY.search(str(key)) or _secret_value(item) for key, item in value.items())
    if isinstance(value, list):
        return any(_secret_value(item) for item in value)
    return isinstance(value, str) and bool(_SECRET_TEXT.search(value))


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and value.get("$patch") == "delete":
        return "(deleted)"
    text = value if isinstance(value, str) else repr(value)
    if "\n" in text:
        return f"({len(text.splitlines())} lines)"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _takes_reboot(path: tuple[str, ...]) -> bool:
    who, *keys = path
    return not who and not any(tuple(keys[: len(live)]) == live for live in _LIVE)
