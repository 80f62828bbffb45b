"""Machine configuration of contract 1.14: a small v1alpha1 document and up to 28 further ones."""

from __future__ import annotations

from typing import Any

from cozystack_iac.yaml_text import Document
from lab.plugins.talos.contracts import (
    AUDIT_POLICY,
    CONTROL_PLANE_LABELS,
    POD_SECURITY,
    POD_SUBNETS,
    SERVICE_SUBNETS,
    Request,
    authority,
    identity,
    issuing,
)
from lab.plugins.talos.secrets import Bundle, pem

HEALTH_PATHS = ("/livez", "/readyz", "/healthz")


def generate(secrets: Bundle, request: Request) -> tuple[Document, ...]:
    """Return the documents in the order in which Talos writes them."""
    cluster: dict[str, Any] = {"token": secrets.bootstrap_token}
    if request.control_plane:
        cluster["etcd"] = {"ca": authority(secrets.etcd, request)}
    main: Document = {
        "version": "v1alpha1",
        "debug": False,
        "persist": True,
        "machine": identity(secrets, request) | {"features": {"diskQuotaSupport": True}},
        "cluster": cluster,
    }
    control_plane = _control_plane(secrets, request) if request.control_plane else []
    return main, *_host(secrets, request), *_kubernetes(secrets, request), *control_plane


def _document(kind: str, **fields: Any) -> Document:
    return {"apiVersion": "v1alpha1", "kind": kind} | fields


def _host(secrets: Bundle, request: Request) -> list[Document]:
    selector = {"match": f'disk.dev_path == "{request.disk}"'}
    return [
        _document("DiscoveryServiceConfig", name="default", endpoint="https://discovery.talos.dev/"),
        _document("DiscoveryIdentityConfig", clusterID=secrets.cluster_id, clusterSecret=secrets.cluster_secret),
        _document(
            "UnattendedInstallConfig",
            installer={"image": request.installer},
            provisioning={"diskSelector": selector, "wipe": False},
        ),
        _document("ResolverConfig", hostDNS={"enabled": True, "forwardKubeDNSToHost": True}),
        _document("VolumeConfig", name="EPHEMERAL", mount={"secure": True}),
        _document("FilesystemTrimConfig", interval="168h0m0s"),
        _document("SecurityProfileConfig", workloadIsolation=True),
        _document("HostnameConfig", auto="stable"),
    ]


def _kubernetes(secrets: Bundle, request: Request) -> list[Document]:
    role = "node-role.kubernetes.io/control-plane"
    node: dict[str, Any] = {"nodeIP": {}}
    authorities: dict[str, Any] = {"acceptedCAs": [pem(secrets.kubernetes.cert)]}
    if request.control_plane:
        node |= {"labels": {role: ""} | CONTROL_PLANE_LABELS, "taints": {role: "NoSchedule"}}
        authorities = {"issuingCA": issuing(secrets.kubernetes)}
    return [
        _document("KubeClusterConfig", clusterName=request.cluster, endpoint=request.endpoint),
        _document("KubeNodeConfig", **node),
        _document("KubeletConfig", image=request.image("kubelet"), config={}, defaultRuntimeSeccompProfileEnabled=True),
        _document(
            "KubeNetworkConfig", dnsDomain="cluster.local", podSubnets=POD_SUBNETS, serviceSubnets=SERVICE_SUBNETS
        ),
        _document("KubeAPIServerCAConfig", **authorities),
        _document("KubePrismConfig", port=7445),
    ]


def _control_plane(secrets: Bundle, request: Request) -> list[Document]:
    anonymous = {"conditions": [{"path": path} for path in HEALTH_PATHS], "enabled": True}
    box = {"secretbox": {"keys": [{"name": "key2", "secret": secrets.secretbox_secret}]}}
    issuer = {"privateKey": pem(secrets.service_account_key)}
    return [
        _document("KubeAggregatorCAConfig", issuingCA=issuing(secrets.aggregator)),
        _document("KubeAdmissionControlConfig", name="PodSecurity", configuration=POD_SECURITY),
        _document("KubeAuditPolicyConfig", configuration=AUDIT_POLICY),
        _document("KubeAuthenticationConfig", configuration={"anonymous": anonymous, "jwt": []}),
        _document("KubeAuthorizerConfig", name="node", type="Node"),
        _document("KubeAuthorizerConfig", name="rbac", type="RBAC"),
        _document("KubeEtcdEncryptionConfig", config={"resources": [{"providers": [box], "resources": ["secrets"]}]}),
        _document("KubeServiceAccountConfig", issuer=issuer | {"issuerURL": request.endpoint}),
        _document("KubeAPIServerConfig", image=request.image("kube-apiserver")),
        _document("KubeControllerManagerConfig", image=request.image("kube-controller-manager")),
        _document("KubeSchedulerConfig", image=request.image("kube-scheduler"), config={}),
        _document("KubeProxyConfig", image=request.image("kube-proxy"), config={}),
        _document("KubeFlannelCNIConfig", backendType="vxlan", backendPort=4789),
        _document("KubeCoreDNSConfig", enabled=True),
    ]
