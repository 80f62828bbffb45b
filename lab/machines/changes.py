"""What a config change means for a running machine: applied as it is, or only with a reboot. And how it is shown."""

from __future__ import annotations

import difflib
import re
from typing import Any

from lab.machines.config import AppliedConfig, Doc

# Sections that v1.13 and before take over without a reboot, to our knowledge: not checked against a recording. Changes in
# other documents never need one here.
_IMMEDIATE = frozenset(
    {
        "ca", "acceptedCAs", "certSANs", "controlPlane", "install", "kernel", "kubelet", "logging", "network", "nodeAnnotations",
        "nodeLabels", "nodeTaints", "pods", "registries", "sysctls", "sysfs", "time",
    }
)  # fmt: skip
_SECRET = re.compile(r"^(\s*-?\s*)(\S*(key|token|secret|crt|cert|encryptionsecret)):\s*\S.*$", re.IGNORECASE)


def reboot_reason(before: AppliedConfig, after: AppliedConfig) -> str | None:
    """Why the change needs a reboot, in the words of the server up to v1.13; None when it does not."""
    old, new = _lasting(before.main or {}), _lasting(after.main or {})
    if old == new:
        return None
    fields = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    changed = "".join(f"  \t... machine.{name}\n" for name in fields)
    return f"this config change can't be applied in immediate mode\ndiff:   &v1alpha1.Config{{\n{changed}  }}\n"


def _lasting(main: Doc) -> dict[str, Any]:
    """The parts of a config that are read at boot only."""
    machine: Doc = dict(main.get("machine") or {})
    features: Doc = dict(machine.pop("features", None) or {})
    features.pop("kubernetesTalosAPIAccess", None)
    return {key: value for key, value in machine.items() if key not in _IMMEDIATE} | {"features": features}


def diff(before: AppliedConfig | None, after: AppliedConfig) -> str:
    """The config diff of a dry run, without secrets."""
    old = _redacted(before.text) if before is not None else []
    lines = list(difflib.unified_diff(old, _redacted(after.text), "a", "b", lineterm=""))
    return "\n".join(lines) if lines else "No changes."


def _redacted(text: str) -> list[str]:
    return [_SECRET.sub(r"\1\2: ***", line) for line in text.splitlines()]
