"""Whose an object is, by the marks that tools leave on it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def foreign_owner(found: Mapping[str, Any], marks: Mapping[str, str]) -> str | None:
    """Who owns it, in words, when it does not carry all of our `marks` (labels or annotations); None when it is ours."""
    there = _marks(found)
    if all(there.get(key) == value for key, value in marks.items()):
        return None
    helm = there.get("meta.helm.sh/release-name")
    if helm:
        return f"belongs to Helm release {there.get('meta.helm.sh/release-namespace')}/{helm}"
    manager = there.get("app.kubernetes.io/managed-by") or "an unknown tool"
    return f"created {(found.get('metadata') or {}).get('creationTimestamp')}, managed by {manager}"


def _marks(found: Mapping[str, Any]) -> dict[str, str]:
    metadata = found.get("metadata") or {}
    return {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
