"""Documents for Talos 1.14: nearly every key of v1alpha1 has moved, and old keys beside the new documents are refused.

Left in v1alpha1: the machine's certificate names, etcd, and `/etc/lvm/lvm.conf`: `EtcFileConfig` refuses everything below
`lvm/` as managed by Talos. `machine.files` still works there, with a warning that it is deprecated.
"""

from __future__ import annotations

from typing import Any

from cozystack_iac.talos.documents import install, network, preset, registries, sans
from cozystack_iac.talos.documents.subject import Subject, delete, document

CONTROL_PLANE_TAINT = "node-role.kubernetes.io/control-plane"
# `customization` is the name Talos reserves for the file that this document replaces.
CONTAINERD_NAME = "cozystack"


def patches(subject: Subject) -> list[dict[str, Any]]:
    """The v1alpha1 patch, then the documents."""
    main: dict[str, Any] = {
        "machine": {"certSANs": sans.machine(subject), "files": [preset.lvm_file(subject)]},
    }
    if subject.control_plane:
        main["cluster"] = {"etcd": preset.etcd(subject)}
    return [
        main,
        *install.unattended(subject),
        *_host(subject),
        *registries.documents(subject.site),
        *network.documents(subject),
        *network.time_documents(subject),
        *_kubernetes(subject),
        *(_control_plane(subject) if subject.control_plane else []),
    ]


def _host(subject: Subject) -> list[dict[str, Any]]:
    found = [
        document("SysctlConfig", params=preset.sysctls(subject)),
        *(document("KernelModuleConfig", **module) for module in preset.modules(subject)),
        document("CRICustomizationConfig", name=CONTAINERD_NAME, content=preset.CONTAINERD),
    ]
    if environment := network.proxy_environment(subject):
        found.append(document("EnvironmentConfig", variables=environment))
    # There is no switch: discovery is off when its document is gone. KubeSpan finds its peers through it.
    if subject.site.network.kubespan:
        found.append(document("KubeSpanConfig", enabled=True))
    else:
        found.append(delete("DiscoveryServiceConfig", name="default"))
    return found


def _kubernetes(subject: Subject) -> list[dict[str, Any]]:
    site = subject.site
    node: dict[str, Any] = {}
    if subject.subnets:
        node["nodeIP"] = {"validSubnets": list(subject.subnets)}
    if labels := preset.labels(subject):
        node["labels"] = labels
    if subject.control_plane and site.talos.schedule_on_control_planes:
        node["taints"] = {CONTROL_PLANE_TAINT: {"$patch": "delete"}}
    networks = {
        "dnsDomain": site.cluster.domain,
        "podSubnets": [site.network.pod_cidr],
        "serviceSubnets": [site.network.service_cidr],
    }
    return [
        *([document("KubeNodeConfig", **node)] if node else []),
        document("KubeletConfig", config=dict(preset.KUBELET)),
        document("KubeNetworkConfig", **networks),
    ]


def _control_plane(subject: Subject) -> list[dict[str, Any]]:
    found = [
        document("KubeAPIServerConfig", certExtraSANs=sans.api_server(subject)),
        document("KubeControllerManagerConfig", extraArgs=preset.controller_manager(subject)),
        document("KubeSchedulerConfig", extraArgs={"bind-address": "0.0.0.0"}),
        # Deleting this document would bring the proxy back: without it Talos falls back to v1alpha1's default, enabled.
        document("KubeProxyConfig", enabled=False),
        delete("KubeFlannelCNIConfig"),
    ]
    if issuer := preset.oidc_issuer(subject):
        found.append(document("KubeAuthenticationConfig", configuration={"jwt": [_issuer(issuer)]}))
    return found


def _issuer(url: str) -> dict[str, Any]:
    """What the oidc-* arguments say, which 1.14 refuses; the prefix is what kube-apiserver puts before names by default."""
    return {
        "issuer": {"url": url, "audiences": [preset.OIDC_CLIENT]},
        "claimMappings": {
            "username": {"claim": preset.OIDC_USERNAME, "prefix": f"{url}#"},
            "groups": {"claim": preset.OIDC_GROUPS, "prefix": ""},
        },
    }
