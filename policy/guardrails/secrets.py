"""Machine secrets are protected from deletion, and what opens a cluster never stands in the state as plain text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from policy.guardrails.values import Statement, Unknown, Unverified, Violation

MACHINE_SECRETS = "talos:machine/secrets:Secrets"
STAGE = "pulumi-python:dynamic/cozystack:"

# Outputs that official plugins hand out and that have to be secret as a whole.
OUTPUTS: dict[str, frozenset[str]] = {"talos:cluster/kubeconfig:Kubeconfig": frozenset({"kubeconfigRaw"})}

# Names whose value opens something; compared without case and underscores.
_OPENERS = re.compile(
    r"^(.*kubeconfig(raw)?|.*talosconfig|(machine)?configurations?|(machine|control)?secrets?|clientconfiguration"
    r"|.*(password|passphrase|token|clientkey|privatekey|secretkey))$"
)
_KEY_MATERIAL = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|client-key-data:\s*\S|secretboxEncryptionSecret:\s*\S"
)
_BASE64_PEM = re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=\s]+")  # base64 of "-----BEGIN "


@dataclass(frozen=True)
class Sealed:
    """A value that the engine treats as a secret; `value` is what it hides."""

    value: Any


def protected(token: str, protect: bool) -> Iterator[Statement]:
    """Losing the machine secrets means that no machine of the cluster can ever be reached again."""
    if token == MACHINE_SECRETS and not protect:
        yield Violation(
            "the machine secrets are not protected: a single `pulumi destroy` or rename would make every "
            "machine permanently unreachable. Create them with protect=True."
        )


def outputs(token: str, names: Collection[str], secret_outputs: Collection[str]) -> Iterator[Statement]:
    """Outputs that open a cluster are registered as secret. `names`: inputs, which a stage's state repeats as outputs."""
    openers = {n for n in names if opens(n)} if token.startswith(STAGE) else set()
    for name in sorted((openers | OUTPUTS.get(token, frozenset())) - set(secret_outputs)):
        yield Violation(
            f"{name} would be stored as plain text, because it is not one of this resource's secret outputs."
        )


def opens(name: str) -> bool:
    """Whether a property of that name holds something that opens a cluster or a machine."""
    return bool(_OPENERS.match(name.replace("_", "").replace("-", "").lower()))


def guards(token: str) -> bool:
    """Whether inputs of that resource are judged by name; key material is looked for in all."""
    return token.startswith(STAGE) or token == "pulumi:providers:kubernetes"


def exposed(token: str, tree: Any) -> Iterator[Statement]:
    """Values that should be sealed and are not. `tree`: inputs with `Sealed` and `Unknown` marks."""
    if not isinstance(tree, dict):
        return
    for name, value in tree.items():
        if guards(token) and opens(name) and not _closed(value):
            if isinstance(value, Unknown):
                yield Unverified(f"{name}: whether it is a secret is not known yet")
            else:
                yield Violation(f"{name} is passed as plain text. Wrap it with pulumi.Output.secret.")
        else:
            yield from _key_material(value, name)


def _closed(value: Any) -> bool:
    """Sealed as a whole, or in every leaf."""
    if isinstance(value, dict):
        return all(map(_closed, value.values()))
    if isinstance(value, list):
        return all(map(_closed, value))
    return isinstance(value, Sealed) or value in (None, "")


def _key_material(value: Any, path: str) -> Iterator[Violation]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _key_material(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _key_material(inner, f"{path}[{index}]")
    elif isinstance(value, str) and is_key_material(value):
        yield Violation(f"{path} contains a private key as plain text. Wrap it with pulumi.Output.secret.")


def is_key_material(text: str) -> bool:
    """Whether a text carries a private key: PEM, base64 of PEM, or inside a kubeconfig or talosconfig."""
    if _KEY_MATERIAL.search(text):
        return True
    return any(_KEY_MATERIAL.search(_decoded(match[0])) for match in _BASE64_PEM.finditer(text))


def _decoded(text: str) -> str:
    compact = "".join(text.split())
    try:
        return base64.b64decode(compact[: len(compact) // 4 * 4]).decode("latin-1")
    except (binascii.Error, ValueError):
        return ""
