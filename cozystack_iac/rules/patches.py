"""What a user's machine-configuration documents say, as far as the rules need it. Free-form: no shape is assumed."""

from collections.abc import Iterator, Mapping
from typing import Any

_LINK_KINDS = frozenset(
    {
        "LinkConfig",
        "VLANConfig",
        "BondConfig",
        "BridgeConfig",
        "DummyLinkConfig",
        "WireguardConfig",
        "VRFConfig",
        "LinkAliasConfig",
    }
)

# First Talos minor that knows a document. Older machines refuse it; kinds that are not listed are older, or not known to us.
KIND_SINCE: Mapping[str, int] = {
    "RawVolumeConfig": 11,
    "SwapVolumeConfig": 11,
    "ZswapConfig": 11,
    "ExistingVolumeConfig": 11,
    "HostnameConfig": 12,
    "LinkConfig": 12,
    "VLANConfig": 12,
    "BondConfig": 12,
    "BridgeConfig": 12,
    "DummyLinkConfig": 12,
    "WireguardConfig": 12,
    "Layer2VIPConfig": 12,
    "HCloudVIPConfig": 12,
    "DHCPv4Config": 12,
    "DHCPv6Config": 12,
    "ResolverConfig": 12,
    "StaticHostConfig": 12,
    "TimeSyncConfig": 12,
    "LinkAliasConfig": 12,
    "OOMConfig": 12,
    "RegistryMirrorConfig": 12,
    "RegistryAuthConfig": 12,
    "RegistryTLSConfig": 12,
    "VRFConfig": 13,
    "RoutingRuleConfig": 13,
    "BlackholeRouteConfig": 13,
    "TCPProbeConfig": 13,
    "KubeSpanConfig": 13,
    "EnvironmentConfig": 13,
    "ImageVerificationConfig": 13,
    "ExternalVolumeConfig": 13,
    "SysctlConfig": 14,
    "KernelModuleConfig": 14,
    "EtcFileConfig": 14,
    "CRICustomizationConfig": 14,
    "UdevRulesConfig": 14,
    "UnattendedInstallConfig": 14,
    "RAIDArrayConfig": 14,
    "BGPInstanceConfig": 14,
    "VethConfig": 14,
    "HTTPProbeConfig": 14,
    "DiscoveryServiceConfig": 14,
}


def inside(document: object, *keys: str) -> Any:
    """The value below `keys`, or None when the way there is not made of mappings."""
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def items(value: object) -> list[Any]:
    """The value when it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def kind(document: Mapping[str, Any]) -> str:
    """Kind of a multi-document piece; empty for the classic single document."""
    value = document.get("kind")
    return value if isinstance(value, str) else ""


def links(documents: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """Names of the links the documents describe, in either form."""
    for document in documents:
        name = document.get("name")
        if kind(document) in _LINK_KINDS and isinstance(name, str):
            yield name
        for interface in items(inside(document, "machine", "network", "interfaces")):
            named = inside(interface, "interface")
            if isinstance(named, str):
                yield named
            for vlan in items(inside(interface, "vlans")):
                if isinstance(named, str) and isinstance(inside(vlan, "vlanId"), int):
                    yield f"{named}.{inside(vlan, 'vlanId')}"


def modules(document: Mapping[str, Any]) -> Iterator[str]:
    """Names of the kernel modules a document asks for."""
    for module in items(inside(document, "machine", "kernel", "modules")):
        name = inside(module, "name")
        if isinstance(name, str):
            yield name


def files(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and operation of the files a document writes."""
    for file in items(inside(document, "machine", "files")):
        path, operation = inside(file, "path"), inside(file, "op")
        if isinstance(path, str):
            yield path, operation if isinstance(operation, str) else "create"


def virtual_addresses(document: Mapping[str, Any]) -> Iterator[str]:
    """Virtual addresses a document claims, in either form."""
    if kind(document) in {"Layer2VIPConfig", "HCloudVIPConfig"} and isinstance(document.get("name"), str):
        yield document["name"]
    for interface in items(inside(document, "machine", "network", "interfaces")):
        for holder in (interface, *items(inside(interface, "vlans"))):
            address = inside(holder, "vip", "ip")
            if isinstance(address, str):
                yield address
