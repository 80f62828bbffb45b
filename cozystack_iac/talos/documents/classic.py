"""Documents for Talos 1.10 to 1.13: one v1alpha1 patch; from 1.12 on the network in documents of its own."""

from __future__ import annotations

from typing import Any

from cozystack_iac.talos.documents import install, network, preset, registries, sans
from cozystack_iac.talos.documents.subject import MULTIDOC_NETWORK, Subject, document

KUBESPAN_DOCUMENT = 13


def patches(subject: Subject) -> list[dict[str, Any]]:
    """The v1alpha1 patch, then the documents."""
    main = {"machine": _machine(subject), "cluster": _cluster(subject)}
    if subject.minor < MULTIDOC_NETWORK:
        return [main]
    found = [main, *registries.documents(subject.site), *network.documents(subject), *network.time_documents(subject)]
    if subject.site.network.kubespan and subject.minor >= KUBESPAN_DOCUMENT:
        found.append(document("KubeSpanConfig", enabled=True))
    return found


def _machine(subject: Subject) -> dict[str, Any]:
    site = subject.site
    kubelet: dict[str, Any] = {"extraConfig": dict(preset.KUBELET)}
    if subject.subnets:
        kubelet["nodeIP"] = {"validSubnets": list(subject.subnets)}
    machine: dict[str, Any] = {
        "kubelet": kubelet,
        "sysctls": preset.sysctls(subject),
        "kernel": {"modules": preset.modules(subject)},
        "certSANs": sans.machine(subject),
        "files": [dict(preset.CONTAINERD_FILE), preset.lvm_file(subject)],
    }
    optional = {
        "nodeLabels": preset.labels(subject),
        "install": install.legacy(subject),
        "env": network.proxy_environment(subject),
        "network": _network(subject),
    }
    if subject.minor < MULTIDOC_NETWORK:
        optional["registries"] = registries.legacy(site)
        optional["time"] = {"servers": list(site.talos.time_servers)} if site.talos.time_servers else {}
    return machine | {key: value for key, value in optional.items() if value}


def _network(subject: Subject) -> dict[str, Any]:
    spanned = subject.site.network.kubespan and subject.minor < KUBESPAN_DOCUMENT
    kubespan: dict[str, Any] = {"kubespan": {"enabled": True}} if spanned else {}
    return (network.legacy(subject) if subject.minor < MULTIDOC_NETWORK else {}) | kubespan


def _cluster(subject: Subject) -> dict[str, Any]:
    site = subject.site
    cluster: dict[str, Any] = {
        "network": {
            "cni": {"name": "none"},
            "dnsDomain": site.cluster.domain,
            "podSubnets": [site.network.pod_cidr],
            "serviceSubnets": [site.network.service_cidr],
        },
        # KubeSpan finds its peers through discovery; nothing else of Cozystack needs it.
        "discovery": {"enabled": site.network.kubespan},
    }
    if not subject.control_plane:
        return cluster
    api_server: dict[str, Any] = {"certSANs": sans.api_server(subject)}
    if issuer := preset.oidc_issuer(subject):
        api_server["extraArgs"] = {
            "oidc-issuer-url": issuer,
            "oidc-client-id": preset.OIDC_CLIENT,
            "oidc-username-claim": preset.OIDC_USERNAME,
            "oidc-groups-claim": preset.OIDC_GROUPS,
        }
    return cluster | {
        "allowSchedulingOnControlPlanes": site.talos.schedule_on_control_planes,
        "apiServer": api_server,
        "controllerManager": {"extraArgs": preset.controller_manager(subject)},
        "scheduler": {"extraArgs": {"bind-address": "0.0.0.0"}},
        "proxy": {"disabled": True},
        "etcd": preset.etcd(subject),
    }
