"""Machine configuration from a cluster's secrets: what ``talosctl gen config`` writes for contracts 1.10 to 1.14.

A contract is a Talos minor version; it decides which settings the generated configuration carries. Contract 1.14 moves
nearly everything out of the v1alpha1 document into documents of its own.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from cozystack_iac.yaml_text import Document
from lab.plugins.talos import generate_multidoc
from lab.plugins.talos.contracts import (
    AUDIT_POLICY,
    CONTROL_PLANE_LABELS,
    POD_SECURITY,
    POD_SUBNETS,
    SERVICE_SUBNETS,
    Request,
    authority,
    identity,
)
from lab.plugins.talos.secrets import Bundle


def generate(secrets: Bundle, request: Request) -> tuple[Document, ...]:
    """Return the documents of one machine's configuration."""
    if request.minor >= 14:
        return generate_multidoc.generate(secrets, request)
    main: Document = {
        "version": "v1alpha1",
        "debug": False,
        "persist": True,
        "machine": _machine(secrets, request),
        "cluster": _cluster(secrets, request),
    }
    if request.minor >= 12:
        return main, {"apiVersion": "v1alpha1", "kind": "HostnameConfig", "auto": "stable"}
    return (main,)


def _machine(secrets: Bundle, request: Request) -> dict[str, Any]:
    install: dict[str, Any] = {"disk": request.disk, "image": request.installer, "wipe": False}
    features: dict[str, Any] = {
        "diskQuotaSupport": True,
        "kubePrism": {"enabled": True, "port": 7445},
        "hostDNS": {"enabled": True, "forwardKubeDNSToHost": True},
    }
    machine = identity(secrets, request) | {
        "kubelet": {
            "image": request.image("kubelet"),
            "defaultRuntimeSeccompProfileEnabled": True,
            "disableManifestsDirectory": True,
        },
        "install": install,
        "features": features,
    }
    if request.minor >= 12:
        install["grubUseUKICmdline"] = True
    else:
        features |= {"rbac": True, "stableHostname": True, "apidCheckExtKeyUsage": True}
    if request.minor <= 12:
        machine["network"] = {}
    if request.control_plane:
        machine["nodeLabels"] = dict(CONTROL_PLANE_LABELS)
    return machine


def _cluster(secrets: Bundle, request: Request) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "id": secrets.cluster_id,
        "secret": secrets.cluster_secret,
        "controlPlane": {"endpoint": request.endpoint},
        "clusterName": request.cluster,
        "network": {"dnsDomain": "cluster.local", "podSubnets": POD_SUBNETS, "serviceSubnets": SERVICE_SUBNETS},
        "token": secrets.bootstrap_token,
        "ca": authority(secrets.kubernetes, request),
        "discovery": {"enabled": True, "registries": {"kubernetes": {"disabled": True}, "service": {}}},
    }
    if not request.control_plane:
        return cluster
    api_server: dict[str, Any] = {
        "image": request.image("kube-apiserver"),
        "admissionControl": [{"name": "PodSecurity", "configuration": POD_SECURITY}],
        "auditPolicy": AUDIT_POLICY,
    }
    if request.minor <= 11:
        api_server |= {"certSANs": [urlsplit(request.endpoint).hostname], "disablePodSecurityPolicy": True}
    return cluster | {
        "secretboxEncryptionSecret": secrets.secretbox_secret,
        "aggregatorCA": authority(secrets.aggregator, request),
        "serviceAccount": {"key": secrets.service_account_key},
        "apiServer": api_server,
        "controllerManager": {"image": request.image("kube-controller-manager")},
        "proxy": {"image": request.image("kube-proxy")},
        "scheduler": {"image": request.image("kube-scheduler")},
        "etcd": {"ca": authority(secrets.etcd, request)},
    }
