"""The talosconfig: how a client reaches a cluster's machines, and with which certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cozystack_iac import yaml_text as text


@dataclass(frozen=True)
class Access:
    """The certificate authority of the Talos API and a client certificate with key, each base64 of PEM."""

    ca: str
    cert: str
    key: str


def talosconfig(cluster: str, access: Access, endpoints: Sequence[str] = (), nodes: Sequence[str] = ()) -> str:
    """Return the file's text, with one context named like the cluster."""
    context: dict[str, Any] = {"endpoints": list(endpoints)}
    if nodes:
        context["nodes"] = list(nodes)
    context |= {"ca": access.ca, "crt": access.cert, "key": access.key}
    return text.emit([{"context": cluster, "contexts": {cluster: context}}])
