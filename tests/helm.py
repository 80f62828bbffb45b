"""Records of Helm as they lie in a cluster."""

import base64
import gzip
import json

from cozystack_iac.kube.client import Object


def secret(status: str, number: int = 1, **labels: str) -> Object:
    """One revision of the installer as Helm keeps it."""
    content = {
        "name": "cozy-installer",
        "version": number,
        "info": {"status": status, "description": "Initial install underway"},
        "chart": {"metadata": {"name": "cozy-installer", "version": "1.6.2"}},
        "config": {"cozystackOperator": {"variant": "talos"}},
    }
    packed = base64.b64encode(gzip.compress(json.dumps(content).encode()))
    return {
        "metadata": {
            "name": f"sh.helm.release.v1.cozy-installer.v{number}",
            "namespace": "cozy-system",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T12:00:00Z",
            "labels": {"owner": "helm", "name": "cozy-installer", "status": status, "version": str(number), **labels},
        },
        "data": {"release": base64.b64encode(packed).decode()},
    }
