"""What every generated machine configuration shares: the request, version contracts, defaults, certificate shapes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from cozystack_iac.yaml_text import Document
from lab.plugins.talos.secrets import Bundle, Pair, pem
from lab.talos import MINORS

MachineType = Literal["controlplane", "worker"]

KUBELET_IMAGE = "ghcr.io/siderolabs/kubelet"
INSTALLER_IMAGE = "ghcr.io/siderolabs/installer"
CONTROL_PLANE_LABELS = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
POD_SUBNETS = ["10.244.0.0/16"]
SERVICE_SUBNETS = ["10.96.0.0/12"]
POD_SECURITY: Document = {
    "apiVersion": "pod-security.admission.config.k8s.io/v1alpha1",
    "defaults": {
        "audit": "restricted",
        "audit-version": "latest",
        "enforce": "baseline",
        "enforce-version": "latest",
        "warn": "restricted",
        "warn-version": "latest",
    },
    "exemptions": {"namespaces": ["kube-system"], "runtimeClasses": [], "usernames": []},
    "kind": "PodSecurityConfiguration",
}
AUDIT_POLICY: Document = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


class UnknownContract(ValueError):
    """Not a Talos version, or one that this generator does not know."""


@dataclass(frozen=True)
class Request:
    """What a configuration is generated for. ``kubernetes`` is a version with or without ``v``."""

    cluster: str
    endpoint: str
    machine_type: MachineType
    minor: int
    kubernetes: str
    installer: str
    disk: str = "/dev/sda"

    @property
    def control_plane(self) -> bool:
        """Whether the machine runs the control plane."""
        return self.machine_type == "controlplane"

    def image(self, component: str) -> str:
        """Return a Kubernetes component's image."""
        registry = KUBELET_IMAGE if component == "kubelet" else f"registry.k8s.io/{component}"
        return f"{registry}:v{self.kubernetes.removeprefix('v')}"


def contract(version: str) -> int:
    """Return the minor of ``v1.12``, ``1.12.1`` and the like; raise UnknownContract."""
    match = re.fullmatch(r"v?1\.(\d+)(?:\.\d+(?:-[\w.]+)?)?", version)
    if match is None:
        raise UnknownContract(f"error parsing version {version!r}")
    if int(match[1]) not in MINORS:
        raise UnknownContract(f"Talos {version} is not one of 1.{min(MINORS)} to 1.{max(MINORS)}")
    return int(match[1])


def identity(secrets: Bundle, request: Request) -> dict[str, Any]:
    """Return the first keys of ``machine``; only control planes hold the authority's key."""
    return {
        "type": request.machine_type,
        "token": secrets.trustd_token,
        "ca": authority(secrets.os, request),
        "certSANs": [],
    }


def authority(pair: Pair, request: Request) -> dict[str, str]:
    """Return a certificate authority, without its key on a worker."""
    return {"crt": pair.cert, "key": pair.key if request.control_plane else ""}


def issuing(pair: Pair) -> dict[str, str]:
    """Return a certificate authority as the 1.14 documents hold it: PEM text."""
    return {"cert": pem(pair.cert), "key": pem(pair.key)}
