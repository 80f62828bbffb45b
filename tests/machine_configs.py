"""Machine configs for simulated machines, made in the test: nothing recorded is needed."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from lab.machines import pki
from lab.machines.emit import emit


def _pair(ca: pki.Issued, *, key: bool = True) -> dict[str, str]:
    key_type = "" if isinstance(pki.load_key(ca.key), ec.EllipticCurvePrivateKey) else "ED25519 "
    pem = ca.key.replace("PRIVATE KEY", f"{key_type}PRIVATE KEY")  # as Talos writes it
    return {"crt": _b64(ca.crt), "key": _b64(pem) if key else ""}


def _ecdsa(organization: str) -> pki.Issued:
    return pki.new_ca(organization, ec.generate_private_key(ec.SECP256R1()))


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@dataclass
class Secrets:
    """The CAs of one cluster."""

    os: pki.Issued = field(default_factory=lambda: pki.new_ca("talos"))
    kubernetes: pki.Issued = field(default_factory=lambda: _ecdsa("kubernetes"))
    etcd: pki.Issued = field(default_factory=lambda: _ecdsa("etcd"))

    def client(self, role: str = "os:admin") -> pki.Issued:
        return pki.client_certificate(self.os, role)

    def config(self, role: str = "controlplane", hostname: str = "cp1", **changes: Any) -> str:
        """A complete single-document config that Talos 1.10 to 1.14 accept; `changes` go into `machine`."""
        plane = role == "controlplane"
        machine = {
            "type": role,
            "token": "abcdef.0123456789abcdef",
            "ca": _pair(self.os, key=plane),
            "certSANs": ["127.0.0.1"],
            "kubelet": {"image": "ghcr.io/siderolabs/kubelet:v1.33.12"},
            "network": {"hostname": hostname},
            "install": {"disk": "/dev/sda", "image": "ghcr.io/cozystack/cozystack/talos:v1.13.6"},
            "kernel": {"modules": [{"name": "drbd"}, {"name": "zfs"}, {"name": "openvswitch"}]},
        }
        cluster: dict[str, Any] = {
            "clusterName": "lab",
            "controlPlane": {"endpoint": "https://127.10.0.10:6443"},
            "network": {"dnsDomain": "cozy.local", "cni": {"name": "none"}},
            "ca": _pair(self.kubernetes, key=plane),
        }
        if plane:
            cluster |= {"etcd": {"ca": _pair(self.etcd)}, "allowSchedulingOnControlPlanes": True}
            cluster["apiServer"] = {"certSANs": ["127.0.0.1"]}
        return emit({"version": "v1alpha1", "persist": True, "machine": machine | changes, "cluster": cluster})
