"""The admin kubeconfig a control plane hands out, and the archive it comes in."""

from __future__ import annotations

import base64
import gzip
import io
import re
import tarfile

from lab.machines import pki
from lab.machines.config import AppliedConfig
from lab.machines.emit import emit

TALOS_IMAGE = re.compile(r":v1\.\d+\.\d+")  # a tag of a Talos release at the end of an image reference


def admin(config: AppliedConfig) -> str:
    """Server = the cluster's endpoint, user = an admin certificate of the cluster's own CA. Holds a private key."""
    ca = config.kubernetes_ca
    issued = pki.kubernetes_admin(pki.Issued(ca.crt, ca.key))
    name, user = config.cluster_name, f"admin@{config.cluster_name}"
    cluster = {"server": config.endpoint, "certificate-authority-data": _b64(ca.crt)}
    credentials = {"client-certificate-data": _b64(issued.crt), "client-key-data": _b64(issued.key)}
    return emit(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"context": {"cluster": name, "namespace": "default", "user": user}, "name": user}],
            "current-context": user,
        }
    )


def archive(text: str) -> bytes:
    """A gzipped tar with the one file `kubeconfig`, cut off behind its bytes as a real server does: no end blocks."""
    content = text.encode()
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        info = tarfile.TarInfo("kubeconfig")
        info.size, info.mode = len(content), 0o600
        tar.addfile(info, io.BytesIO(content))
    return gzip.compress(raw.getvalue()[: tarfile.BLOCKSIZE + len(content)])


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
