"""Which keys and document kinds a Talos minor knows. Data only; anything else is refused while decoding.

Written from what is known of Talos and held against the recorded configs and refusals; keys that appear in none of them
may be missing or too many.

A schema is a mapping of known keys; `ANY` accepts whatever is below. A list is checked item by item.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any] | None

ANY: Final = None


def _keys(*names: str, **nested: Schema) -> dict[str, Schema]:
    return {**dict.fromkeys(names, ANY), **nested}


_CA = _keys("crt", "key")
_ROUTES = _keys("network", "gateway", "source", "metric", "mtu")
_DHCP = _keys("routeMetric", "ipv4", "ipv6", "duidv6")
_VIP = _keys("ip", "equinixMetal", "hcloud")
_VOLUME_MOUNTS = _keys("hostPath", "mountPath", "readonly", "name")
_COMPONENT = _keys("image", "extraArgs", "env", "resources", extraVolumes=_VOLUME_MOUNTS)

_INTERFACE = _keys(
    "interface", "addresses", "cidr", "bond", "bridgePort", "mtu", "dhcp", "ignore", "dummy", "wireguard",
    bridge=_keys("interfaces", "stp", "vlan"),
    deviceSelector=_keys("busPath", "hardwareAddr", "permanentAddr", "pciID", "driver", "physical"),
    routes=_ROUTES, dhcpOptions=_DHCP, vip=_VIP,
    vlans=_keys("addresses", "cidr", "dhcp", "vlanId", "mtu", routes=_ROUTES, vip=_VIP, dhcpOptions=_DHCP),
)  # fmt: skip

_MACHINE = _keys(
    "type", "token", "certSANs", "pods", "env", "sysctls", "sysfs", "registries", "systemDiskEncryption", "nodeLabels",
    "nodeAnnotations", "nodeTaints", "baseRuntimeSpecOverrides",
    ca=_CA, acceptedCAs=_CA,
    controlPlane=_keys(controllerManager=_keys("disabled"), scheduler=_keys("disabled")),
    kubelet=_keys(
        "image", "clusterDNS", "extraArgs", "extraMounts", "extraConfig", "credentialProviderConfig", "skipNodeRegistration",
        "defaultRuntimeSeccompProfileEnabled", "registerWithFQDN", "disableManifestsDirectory", nodeIP=_keys("validSubnets"),
    ),
    network=_keys(
        "hostname", "nameservers", "searchDomains", "kubespan", "disableSearchDomain",
        interfaces=_INTERFACE, extraHostEntries=_keys("ip", "aliases"),
    ),
    disks=_keys("device", partitions=_keys("size", "mountpoint")),
    install=_keys(
        "disk", "extraKernelArgs", "image", "wipe", "legacyBIOSSupport",
        diskSelector=_keys("size", "name", "model", "serial", "modalias", "uuid", "wwid", "type", "busPath"),
        extensions=_keys("image"),
    ),
    files=_keys("content", "permissions", "path", "op"),
    time=_keys("disabled", "servers", "bootTimeout"),
    features=_keys(
        "rbac", "stableHostname", "apidCheckExtKeyUsage", "diskQuotaSupport", "nodeAddressSortAlgorithm",
        kubernetesTalosAPIAccess=_keys("enabled", "allowedRoles", "allowedKubernetesNamespaces"),
        kubePrism=_keys("enabled", "port"),
        hostDNS=_keys("enabled", "forwardKubeDNSToHost", "resolveMemberNames"),
        imageCache=_keys("localEnabled"),
    ),
    udev=_keys("rules"),
    logging=_keys(destinations=_keys("endpoint", "format", "extraTags")),
    kernel=_keys(modules=_keys("name", "parameters")),
    seccompProfiles=_keys("name", "value"),
)  # fmt: skip

_CLUSTER = _keys(
    "id", "secret", "clusterName", "token", "aescbcEncryptionSecret", "secretboxEncryptionSecret", "extraManifests",
    "extraManifestHeaders", "allowSchedulingOnMasters", "allowSchedulingOnControlPlanes",
    controlPlane=_keys("endpoint", "localAPIServerPort"),
    network=_keys("dnsDomain", "podSubnets", "serviceSubnets", cni=_keys("name", "urls", "flannel")),
    ca=_CA, acceptedCAs=_CA, aggregatorCA=_CA, serviceAccount=_keys("key"),
    apiServer=_COMPONENT | _keys(
        "certSANs", "disablePodSecurityPolicy", "auditPolicy", "authorizationConfig",
        admissionControl=_keys("name", "configuration"),
    ),
    controllerManager=_COMPONENT, scheduler=_COMPONENT | _keys("config"), proxy=_COMPONENT | _keys("disabled", "mode"),
    discovery=_keys("enabled", registries=_keys(kubernetes=_keys("disabled"), service=_keys("disabled", "endpoint"))),
    etcd=_keys("image", "extraArgs", "subnet", "advertisedSubnets", "listenSubnets", ca=_CA),
    coreDNS=_keys("disabled", "image"),
    externalCloudProvider=_keys("enabled", "manifests"),
    inlineManifests=_keys("name", "contents"),
    adminKubeconfig=_keys("certLifetime"),
)  # fmt: skip

_LINK = _keys(
    "name", "up", "mtu", "multicast", addresses=_keys("address", "routePriority"),
    routes=_keys("destination", "gateway", "source", "metric", "mtu", "table"),
)  # fmt: skip
_PROVISIONING = _keys("minSize", "maxSize", "grow", diskSelector=_keys("match"))

# (first minor, kind, keys besides apiVersion and kind). ANY: known to exist, its keys are not checked here.
_KINDS: tuple[tuple[int, str, Schema], ...] = (
    (10, "EthernetConfig", _keys("name", "features", "rings", "channels", "wakeOnLAN")),
    (10, "ExtensionServiceConfig", _keys("name", "configFiles", "environment")),
    (10, "EventSinkConfig", _keys("endpoint")),
    (10, "KmsgLogConfig", _keys("name", "url")),
    (10, "NetworkDefaultActionConfig", _keys("ingress")),
    (10, "NetworkRuleConfig", ANY),
    (10, "KubeSpanEndpointsConfig", ANY),
    (10, "PCIDriverRebindConfig", ANY),
    (10, "SideroLinkConfig", ANY),
    (10, "TrustedRootsConfig", _keys("name", "certificates")),
    (10, "UserVolumeConfig", _keys("name", "volumeType", "filesystem", "encryption", "mount", provisioning=_PROVISIONING)),
    (10, "VolumeConfig", _keys("name", "encryption", "mount", provisioning=_PROVISIONING)),
    (10, "WatchdogTimerConfig", _keys("device", "timeout")),
    (11, "ExistingVolumeConfig", ANY),
    (11, "RawVolumeConfig", _keys("name", "encryption", provisioning=_PROVISIONING)),
    (11, "SwapVolumeConfig", _keys("name", "encryption", provisioning=_PROVISIONING)),
    (11, "ZswapConfig", _keys("maxPoolPercent", "shrinkerEnabled")),
    (12, "BondConfig", ANY),
    (12, "BridgeConfig", ANY),
    (12, "DHCPv4Config", ANY),
    (12, "DHCPv6Config", ANY),
    (12, "DummyLinkConfig", ANY),
    (12, "HCloudVIPConfig", ANY),
    (12, "HostnameConfig", _keys("auto", "hostname")),
    (12, "Layer2VIPConfig", _keys("name", "link")),
    (12, "LinkAliasConfig", _keys("name", "selector")),
    (12, "LinkConfig", _LINK),
    (12, "OOMConfig", ANY),
    (12, "RegistryAuthConfig", ANY),
    (12, "RegistryMirrorConfig", _keys("name", "skipFallback", endpoints=_keys("url", "overridePath"))),
    (12, "RegistryTLSConfig", ANY),
    (12, "ResolverConfig", _keys("hostDNS", nameservers=ANY, searchDomains=_keys("domains", "disableDefault"))),
    (12, "StaticHostConfig", _keys("name", "hostnames")),
    (12, "TimeSyncConfig", ANY),
    (12, "VLANConfig", _LINK | _keys("vlanID", "vlanMode", "parent")),
    (12, "WireguardConfig", ANY),
    (13, "BlackholeRouteConfig", ANY),
    (13, "EnvironmentConfig", ANY),
    (13, "ExternalVolumeConfig", ANY),
    (13, "ImageVerificationConfig", ANY),
    (13, "KubeSpanConfig", ANY),
    (13, "RoutingRuleConfig", ANY),
    (13, "TCPProbeConfig", ANY),
    (13, "VRFConfig", ANY),
    *((14, kind, ANY) for kind in (
        "BGPInstanceConfig", "CRICustomizationConfig", "DiscoveryIdentityConfig", "DiscoveryServiceConfig", "EtcFileConfig",
        "FilesystemTrimConfig", "HTTPProbeConfig", "KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig",
        "KubeAdmissionControlConfig", "KubeAggregatorCAConfig", "KubeAuditPolicyConfig", "KubeAuthenticationConfig",
        "KubeAuthorizerConfig", "KubeClusterConfig", "KubeControllerManagerConfig", "KubeCoreDNSConfig",
        "KubeEtcdEncryptionConfig", "KubeFlannelCNIConfig", "KubeNetworkConfig", "KubeNodeConfig", "KubePrismConfig",
        "KubeProxyConfig", "KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeletConfig", "LVMLogicalVolumeConfig",
        "LVMPhysicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig", "SecurityProfileConfig", "SysctlConfig",
        "UdevRulesConfig", "UnattendedInstallConfig", "VethConfig",
    )),
)  # fmt: skip


def main_schema(minor: int) -> Schema:
    """The v1alpha1 document as that minor knows it."""
    install = _MACHINE["install"] or {}
    if minor >= 12:
        install = {**install, "grubUseUKICmdline": ANY}
    return _keys("version", "debug", "persist", machine={**_MACHINE, "install": install}, cluster=_CLUSTER)


def kinds(minor: int) -> dict[str, Schema]:
    """Document kinds of a minor with their schema."""
    return {
        kind: ANY if schema is ANY else {**schema, "apiVersion": ANY, "kind": ANY}
        for since, kind, schema in _KINDS
        if since <= minor
    }


def unknown(value: Any, schema: Schema) -> Any:
    """What of `value` the schema does not know, in the same shape; None when it knows everything."""
    if schema is ANY or value is None:
        return None
    if isinstance(value, list):
        found = [extra for extra in (unknown(item, schema) for item in value) if extra is not None]
        return found or None
    if not isinstance(value, dict):
        return None
    extras = {}
    for key, item in value.items():
        if key not in schema:
            extras[key] = item
        elif (extra := unknown(item, schema[key])) is not None:
            extras[key] = extra
    return extras or None
