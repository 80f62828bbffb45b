"""Which kinds of documents a Talos minor knows, and which old keys a document of its own has taken over."""

from __future__ import annotations

from collections.abc import Mapping

_KINDS: Mapping[int, str] = {
    10: "EthernetConfig EventSinkConfig ExtensionServiceConfig KmsgLogConfig NetworkDefaultActionConfig NetworkRuleConfig "
    "PCIDriverRebindConfig SideroLinkConfig TrustedRootsConfig UserVolumeConfig VolumeConfig WatchdogTimerConfig",
    11: "ExistingVolumeConfig RawVolumeConfig SwapVolumeConfig ZswapConfig",
    12: "BondConfig BridgeConfig DHCPv4Config DHCPv6Config DummyLinkConfig HCloudVIPConfig HostnameConfig Layer2VIPConfig "
    "LinkAliasConfig LinkConfig OOMConfig RegistryAuthConfig RegistryMirrorConfig RegistryTLSConfig ResolverConfig "
    "StaticHostConfig TimeSyncConfig VLANConfig WireguardConfig",
    13: "BlackholeRouteConfig EnvironmentConfig ExternalVolumeConfig ImageVerificationConfig KubeSpanConfig "
    "RoutingRuleConfig TCPProbeConfig VRFConfig",
    14: "BGPInstanceConfig CRIBaseRuntimeSpecConfig CRICustomizationConfig DiscoveryIdentityConfig DiscoveryServiceConfig "
    "EtcFileConfig FilesystemTrimConfig HTTPProbeConfig ImageCacheConfig KernelModuleConfig KubeAPIServerCAConfig "
    "KubeAPIServerConfig KubeAdmissionControlConfig KubeAggregatorCAConfig KubeAuditPolicyConfig KubeAuthenticationConfig "
    "KubeAuthorizerConfig KubeClusterConfig KubeControllerManagerConfig KubeCoreDNSConfig KubeCredentialProviderConfig "
    "KubeEtcdEncryptionConfig KubeExternalManifestConfig KubeFlannelCNIConfig KubeInlineManifestConfig KubeNetworkConfig "
    "KubeNodeConfig KubePrismConfig KubeProxyConfig KubeSchedulerConfig KubeServiceAccountConfig KubeStaticPodConfig "
    "KubeTalosAPIAccessConfig KubeletConfig RAIDArrayConfig SecurityProfileConfig SysctlConfig SysfsConfig "
    "UdevRulesConfig UnattendedInstallConfig VethConfig",
}
SINCE: Mapping[str, int] = {kind: minor for minor, kinds in _KINDS.items() for kind in kinds.split()}
"""Talos minor that brought a kind. LVM kinds of 1.14 and whatever comes later are missing: absence proves nothing."""

_EVERYWHERE = (
    "DiscoveryIdentityConfig DiscoveryServiceConfig FilesystemTrimConfig HostnameConfig KubeAPIServerCAConfig "
    "KubeClusterConfig KubeNetworkConfig KubeNodeConfig KubePrismConfig KubeletConfig ResolverConfig "
    "SecurityProfileConfig UnattendedInstallConfig VolumeConfig"
)
_CONTROL_PLANE = (
    "KubeAPIServerConfig KubeAdmissionControlConfig KubeAggregatorCAConfig KubeAuditPolicyConfig KubeAuthenticationConfig "
    "KubeAuthorizerConfig KubeControllerManagerConfig KubeCoreDNSConfig KubeEtcdEncryptionConfig KubeFlannelCNIConfig "
    "KubeProxyConfig KubeSchedulerConfig KubeServiceAccountConfig"
)

MOVED: Mapping[str, tuple[int, str]] = {
    "machine.network.hostname": (12, "HostnameConfig"),
    "machine.install": (14, "UnattendedInstallConfig"),
    "machine.kubelet": (14, "KubeletConfig and KubeNodeConfig"),
    "machine.nodeAnnotations": (14, "KubeNodeConfig"),
    "machine.nodeLabels": (14, "KubeNodeConfig"),
    "machine.nodeTaints": (14, "KubeNodeConfig"),
    "machine.network.nameservers": (14, "ResolverConfig"),
    "cluster.allowSchedulingOnControlPlanes": (14, "KubeNodeConfig"),
    "cluster.apiServer": (14, "KubeAPIServerConfig"),
    "cluster.clusterName": (14, "KubeClusterConfig"),
    "cluster.controlPlane": (14, "KubeClusterConfig"),
    "cluster.controllerManager": (14, "KubeControllerManagerConfig"),
    "cluster.discovery": (14, "DiscoveryServiceConfig"),
    "cluster.network": (14, "KubeNetworkConfig"),
    "cluster.proxy": (14, "KubeProxyConfig"),
    "cluster.scheduler": (14, "KubeSchedulerConfig"),
}
"""Old keys that are refused beside the new document, which the base or we already have, from a minor on."""


def generated(minor: int, *, control_plane: bool) -> frozenset[str]:
    """Kinds that the generated base of a machine surely holds."""
    if minor < 12:
        return frozenset()
    if minor < 14:
        return frozenset({"HostnameConfig"})
    return frozenset(f"{_EVERYWHERE} {_CONTROL_PLANE}".split() if control_plane else _EVERYWHERE.split())
