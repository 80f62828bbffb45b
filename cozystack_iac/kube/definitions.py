"""CustomResourceDefinitions, which come with the platform while it is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cozystack_iac.kube.client import Ref

DEFINITIONS = Ref("apiextensions.k8s.io/v1", "customresourcedefinitions")


def established(definition: Mapping[str, Any]) -> bool:
    """Whether objects of the kind can be made."""
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)
