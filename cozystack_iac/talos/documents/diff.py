"""What changes on which machine, for people who review a plan: structural, without secrets, with the reboot it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cozystack_iac.talos.documents.leaves import flatten, spelled
from cozystack_iac.talos.documents.text import Document

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


def redacted_diff(old: Documents, new: Documents) -> str:
    """Every change by machine, in the order of the new inventory; empty when there is none. Secrets are never shown.

    Lines start with `+` (added), `-` (removed) or `~` (changed).
    """
    blocks = [_block(name, old.get(name), new.get(name)) for name in dict.fromkeys((*new, *old))]
    return "\n".join(block for block in blocks if block)


def needs_reboot(old: Sequence[Document], new: Sequence[Document]) -> bool:
    """Whether a running machine has to reboot for the change to be in force."""
    before, after = flatten(old), flatten(new)
    return any(_takes_reboot(path) for path in {*before, *after} if not _same(before, after, path))


def _block(name: str, old: Sequence[Document] | None, new: Sequence[Document] | None) -> str:
    if old is None:
        return f"{name}  new machine: installed, then rebooted" + _lines({}, flatten(new or ()))
    if new is None:
        return f"{name}  no longer in the inventory"
    before, after = flatten(old), flatten(new)
    lines = _lines(before, after)
    reboot = "takes a reboot" if needs_reboot(old, new) else "no reboot"
    return f"{name}  {reboot}{lines}" if lines else ""


def _lines(before: Mapping[tuple[str, ...], Any], after: Mapping[tuple[str, ...], Any]) -> str:
    lines = []
    for path in dict.fromkeys((*after, *before)):
        if _same(before, after, path):
            continue
        if path not in before:
            lines.append(f"  + {spelled(path)}{_value(path, after[path])}")
        elif path not in after:
            lines.append(f"  - {spelled(path)}{_value(path, before[path])}")
        else:
            lines.append(f"  ~ {spelled(path)}{_change(path, before[path], after[path])}")
    return "".join(f"\n{line}" for line in lines)


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
        return ": other order or repetitions"
    if _secret(path, before, after):
        return f": {HIDDEN} changes"
    return f": {_short(before)} -> {_short(after)}"


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
