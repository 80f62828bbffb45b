"""Helm's own memory of a release: one Secret per revision, type helm.sh/release.v1. Reading is pure; nothing here asks anybody.

Helm refuses to work on a release whose last revision is pending, which is what a killed install or upgrade leaves behind. A
person would edit that revision by hand; `failed` is that edit. (helm 3: action/install.go `availableName`, action/upgrade.go
`prepareUpgrade`, storage/driver/secrets.go.)
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cozystack_iac.kube.client import Ref

DEPLOYED, FAILED = "deployed", "failed"
# Statuses that a revision only has while a Helm process works on it.
UNDER_WAY = frozenset({"pending-install", "pending-upgrade", "pending-rollback", "uninstalling"})


@dataclass(frozen=True)
class Revision:
    """One revision of a release. `chart` is `name version`; texts are empty when the payload cannot be read."""

    name: str
    namespace: str
    number: int
    status: str
    secret: str
    since: datetime
    description: str = ""
    chart: str = ""
    version: str = ""

    @property
    def release(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def under_way(self) -> bool:
        return self.status in UNDER_WAY

    @property
    def ref(self) -> Ref:
        return Ref("v1", "secrets", self.namespace, self.secret)


def collection(namespace: str) -> Ref:
    return Ref("v1", "secrets", namespace)


def selector(name: str) -> str:
    """Labels of the Secrets that hold a release's revisions."""
    return f"owner=helm,name={name}"


def last(secrets: Iterable[Mapping[str, Any]]) -> Revision | None:
    """The newest revision among Secrets of one release; None when there is none. Raises ValueError for one without a number."""
    return max(map(revision, secrets), key=lambda found: found.number, default=None)


def revision(secret: Mapping[str, Any]) -> Revision:
    """Labels decide (Helm itself selects by them); the payload adds what a person wants to read."""
    metadata = secret["metadata"]
    labels = metadata.get("labels") or {}
    content = _content(secret) or {}
    info, chart = content.get("info") or {}, (content.get("chart") or {}).get("metadata") or {}
    touched = labels.get("modifiedAt") or labels.get("createdAt")
    since = (
        datetime.fromtimestamp(int(touched)).astimezone()
        if touched
        else datetime.fromisoformat(metadata["creationTimestamp"])
    )
    return Revision(
        name=str(labels["name"]),
        namespace=str(metadata["namespace"]),
        number=int(labels["version"]),
        status=str(labels.get("status") or info.get("status") or "unknown"),
        secret=str(metadata["name"]),
        since=since,
        description=str(info.get("description") or ""),
        chart=" ".join(str(chart[key]) for key in ("name", "version") if chart.get(key)),
        version=str(chart.get("version") or ""),
    )


def restated(secret: Mapping[str, Any], status: str, description: str) -> dict[str, Any]:
    """A merge patch that gives a revision another status. It holds only for the Secret as it was read: a Helm process that
    finishes meanwhile wins. Raises ValueError when the payload cannot be read.
    """
    content = _content(secret)
    if content is None:
        raise ValueError(f"secret {secret['metadata']['name']} contains no readable Helm release")
    content = {**content, "info": {**(content.get("info") or {}), "status": status, "description": description}}
    packed = base64.b64encode(gzip.compress(json.dumps(content).encode()))
    return {
        "metadata": {"resourceVersion": secret["metadata"]["resourceVersion"], "labels": {"status": status}},
        "data": {"release": base64.b64encode(packed).decode()},
    }


def _content(secret: Mapping[str, Any]) -> dict[str, Any] | None:
    """Helm encodes twice: its own base64 over gzip, and the API's base64 of bytes around it."""
    try:
        packed = base64.b64decode((secret.get("data") or {})["release"])
        content = json.loads(gzip.decompress(base64.b64decode(packed)))
    except (KeyError, ValueError, binascii.Error, OSError, EOFError, zlib.error):
        return None
    return content if isinstance(content, dict) else None
