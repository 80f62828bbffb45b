"""Machine configurations as a whole: are two the same, does a change need a reboot, and what in them is secret. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cozystack_iac.releases import Version
from cozystack_iac.talos.documents.diff import needs_reboot
from cozystack_iac.yaml_text import parse

_REBOOTS_BY_ITSELF_UP_TO = (1, 13)  # from 1.14 on applying never reboots

_SECRET_KEYS = frozenset(
    (
        "aescbcEncryptionSecret",
        "auth",
        "bootstrapToken",
        "clientSecret",
        "identityToken",
        "key",
        "passphrase",
        "password",
        "privateKey",
        "secret",
        "secretboxEncryptionSecret",
        "token",
    )
)


def digest(configuration: str) -> str:
    """A name for what the configuration says, whatever its formatting. Safe to show: its secrets have too much entropy.

    Raises ValueError when the text is no YAML.
    """
    canonical = json.dumps(parse(configuration), sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def change_takes_reboot(before: str, after: str) -> bool:
    """Whether a part changed that a running machine reads at boot only."""
    return needs_reboot(parse(before), parse(after))


def applying_reboots(version: str) -> bool:
    """Whether this Talos reboots by itself when a configuration needs it. An unreadable version is taken for an old one."""
    parsed = Version.parse(version)
    return parsed is None or parsed.series <= _REBOOTS_BY_ITSELF_UP_TO


def redacted(text: str, configuration: str) -> str:
    """`text` with every secret of the configuration replaced: machines quote what they refuse."""
    for secret in sorted(set(_secrets(parse(configuration))), key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text


def _secrets(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, key)
    elif key in _SECRET_KEYS and isinstance(value, str) and value.strip():
        yield value
