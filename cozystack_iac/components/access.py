"""How components reach what they work on."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulumi import Input


@dataclass(frozen=True)
class Access:
    """`kubeconfig`: of the cluster. `client`: Talos' client configuration, empty where the machines have no API of their own."""

    kubeconfig: Input[str] = ""
    client: Input[dict[str, str]] = field(default_factory=dict)
