"""Machine configurations as a whole: are two the same, does a change need a reboot, and what in them is secret. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cozystack_iac.releases import Version
from cozystack_iac.talos.documents.text import parse

# Parts of `machine:` that Talos takes over while it runs (documented for its apply modes); the rest is read at boot.
_LIVE = frozenset(
    (
        "acceptedCAs",
        "ca",
        "certSANs",
        "controlPlane",
        "install",
        "kernel",
        "kubelet",
        "logging",
        "network",
        "nodeAnnotations",
        "nodeLabels",
        "nodeTaints",
        "pods",
        "registries",
        "sysctls",
        "sysfs",
        "time",
    )
)
_LIVE_FEATURES = frozenset(("kubernetesTalosAPIAccess",))
# Documents of 1.14 that replace the parts of `machine:` which are read at boot.
_BOOT_DOCUMENTS = frozenset(("EtcFileConfig", "CRICustomizationConfig", "UdevRulesConfig"))
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


def reboot_reasons(before: str, after: str) -> tuple[str, ...]:
    """The changed parts that take effect at boot only, e.g. `machine.files`. Empty: none."""
    old, new = dict(_read_at_boot(before)), dict(_read_at_boot(after))
    return tuple(sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)))


def applying_reboots(version: str) -> bool:
    """Whether this Talos reboots by itself when a configuration needs it. An unreadable version is taken for an old one."""
    parsed = Version.parse(version)
    return parsed is None or parsed.series <= _REBOOTS_BY_ITSELF_UP_TO


def redacted(text: str, configuration: str) -> str:
    """`text` with every secret of the configuration replaced: machines quote what they refuse."""
    for secret in sorted(set(_secrets(parse(configuration))), key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text


def _read_at_boot(configuration: str) -> Iterator[tuple[str, Any]]:
    for document in parse(configuration):
        if not isinstance(document, Mapping):
            continue
        kind = document.get("kind")
        if kind in _BOOT_DOCUMENTS:
            yield f"{kind} {document.get('name', '')}".strip(), document
        machine = document.get("machine") if kind is None else None
        if isinstance(machine, Mapping):
            yield from ((f"machine.{k}", v) for k, v in machine.items() if k not in _LIVE and k != "features")
            features = machine.get("features") or {}
            yield from ((f"machine.features.{k}", v) for k, v in features.items() if k not in _LIVE_FEATURES)


def _secrets(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, key)
    elif key in _SECRET_KEYS and isinstance(value, str) and value.strip():
        yield value
