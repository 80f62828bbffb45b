"""The checks Talos itself makes on a decoded config. What Talos lets through passes here too: that is the point.

Errors come in the order and wording of the real validator where that is known (v1.13), warnings likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from lab.machines.config import AppliedConfig, Doc, image_tag
from lab.machines.decoding import is_network
from lab.machines.selector import NoSuchDisk, pick
from lab.scenario import DiskSpec
from lab.talos import MINORS

_KUBELET_PROTECTED = ("rotateCertificates", "authentication", "authorization", "port", "cgroupRoot", "staticPodPath")


@dataclass(frozen=True)
class Judgement:
    """`main` are errors of the v1alpha1 document, `other` those of other documents and of conflicts between them."""

    main: tuple[str, ...]
    other: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.main and not self.other

    @property
    def text(self) -> str:
        """All errors as Talos prints them."""
        nested = [f"v1alpha1.Config: {_multi(self.main)}"] if self.main else []
        return _multi([*nested, *self.other])


def _multi(errors: Iterable[str]) -> str:
    items = list(errors)
    head = "1 error occurred:" if len(items) == 1 else f"{len(items)} errors occurred:"
    return head + "\n" + "".join(f"\t* {item}\n" for item in items) + "\n"


def validate(config: AppliedConfig, *, installed: bool) -> Judgement:
    """Mode metal. Configs without a v1alpha1 document are judged by their other documents only."""
    main = (*_install(config, installed), *_cluster(config), *_machine(config)) if config.main is not None else ()
    other = (*_documents(config), *_conflicts(config))
    return Judgement(tuple(main), tuple(other), tuple(_warnings(config)))


def check_runtime(config: AppliedConfig, *, installed: bool, talos: str, disks: Iterable[DiskSpec]) -> Judgement:
    """What only the machine can check: disk selectors and whether Kubernetes fits its Talos version."""
    errors: list[str] = []
    if not installed and (config.install_selector or config.install_expression):
        try:
            pick(config, list(disks))
        except NoSuchDisk as error:
            errors.append(str(error))
    errors += _kubernetes(config, talos)
    return Judgement(tuple(errors), (), ())


def _kubernetes(config: AppliedConfig, talos: str) -> Iterator[str]:
    first = MINORS[int(talos.split(".")[1])].kubernetes
    images = {"kubelet": config.kubelet_image}
    if config.role == "controlplane":
        for name, key, kind in (
            ("kube-apiserver", "apiServer", "KubeAPIServerConfig"),
            ("kube-controller-manager", "controllerManager", "KubeControllerManagerConfig"),
            ("kube-scheduler", "scheduler", "KubeSchedulerConfig"),
        ):
            images[name] = str(config.one(kind).get("image") or config.at("cluster", key, "image") or "")
    for name, image in images.items():
        if not image:
            continue
        version = re.match(r"v?(\d+)\.(\d+)\.(\d+)", image_tag(image))
        if version is None:
            yield (
                f"{name} image is not valid: failed to parse Kubernetes version from image reference "
                f'"{image}": invalid image reference: "{image}"'
            )
            continue
        plain, minor = version[0].lstrip("v"), int(version[2])
        if not first <= minor <= first + 5:
            fit = "old" if minor < first else "new"
            yield (
                f"{name} image is not valid: version of Kubernetes {plain} is too {fit} to be used with "
                f"Talos {talos.lstrip('v')}"
            )


def _install(config: AppliedConfig, installed: bool) -> Iterator[str]:
    install = config.at("machine", "install")
    unattended = bool(config.of_kind("UnattendedInstallConfig")) or config.minor >= 14
    if installed:
        return
    if install is None:
        if not unattended:
            yield 'install instructions are required in "metal" mode'
        return
    selector = config.install_selector
    if not config.install_disk and not selector:
        yield "either install disk or diskSelector should be defined"
    if "name" in selector:
        yield "install disk selector is invalid: selector on name is not supported"
    if install.get("grubUseUKICmdline") and install.get("extraKernelArgs"):
        yield "install.extraKernelArgs and install.grubUseUKICmdline can't be used together"


def _endpoint(config: AppliedConfig) -> Iterator[str]:
    if config.of_kind("KubeClusterConfig"):
        return
    parts = urlsplit(config.endpoint)
    if not parts.netloc.split(":")[0]:
        yield "invalid controlplane endpoint: hostname must not be blank"
        return
    port = re.search(r":(\d+)$", parts.netloc)
    if port is not None and not 1 <= int(port[1]) <= 65535:
        yield "invalid controlplane endpoint: port number must be between 1 and 65535"


def _cluster(config: AppliedConfig) -> Iterator[str]:
    yield from _endpoint(config)
    network: Doc = config.at("cluster", "network") or {}
    domain = str(network.get("dnsDomain") or "")
    if domain and not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?", domain):
        yield f'"{domain}" is not a valid DNS name'
    yield from _cni(network.get("cni") or {})
    names = [str(m.get("name")) for m in config.at("cluster", "inlineManifests") or []]
    yield from (
        f'inline manifest name "{name}" is duplicate' for name in sorted({n for n in names if names.count(n) > 1})
    )
    service = config.at("cluster", "discovery", "registries", "service") or {}
    if config.at("cluster", "discovery", "enabled") and not service.get("disabled") and not config.at("cluster", "id"):
        yield "cluster discovery service requires .cluster.id"
    if config.role == "worker":
        yield from _worker(config)


def _cni(cni: Doc) -> Iterator[str]:
    name, urls = cni.get("name"), cni.get("urls") or []
    if name not in (None, "", "flannel", "custom", "none"):
        yield 'cni name should be one of ["flannel", "custom", "none"]'
    if name in ("flannel", "none") and urls:
        yield f'"urls" field should be empty for "{name}" CNI'
    if name == "custom":
        if not urls:
            yield '"urls" field should not be empty for "custom" CNI'
        yield from ("hostname must not be blank" for url in urls if not urlsplit(str(url)).netloc)


def _worker(config: AppliedConfig) -> Iterator[str]:
    if config.at("cluster", "etcd") is not None:
        yield "etcd config is only allowed on control plane machines"
    if config.at("cluster", "ca", "key"):
        yield "cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)"
    if config.at("machine", "ca", "key"):
        yield "issuing Talos API CA key is not allowed on non-controlplane nodes (.machine.ca)"
    if config.at("cluster", "ca", "key"):
        yield "issuing Kubernetes API CA key is not allowed on non-controlplane nodes (.cluster.ca)"


def _machine(config: AppliedConfig) -> Iterator[str]:
    if config.at("persist") is False:
        yield ".persist should be enabled"
    if not config.accepted_os_cas:
        yield "issuing CA or some accepted CAs are required (.machine.ca, machine.acceptedCAs)"
    if config.role == "controlplane" and not config.os_ca.key:
        yield "issuing CA is required (.machine.ca)"
    for subnet in config.at("machine", "kubelet", "nodeIP", "validSubnets") or []:
        if not is_network(str(subnet).lstrip("!")):
            yield f'kubelet nodeIP subnet is not valid: "{subnet}"'
    for name in config.at("machine", "kubelet", "extraConfig") or {}:
        if name in _KUBELET_PROTECTED:
            yield f'kubelet configuration field "{name}" can\'t be overridden'
    labels = config.at("machine", "nodeLabels") or {}
    bad = [key for key in labels if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?", key)]
    if bad:
        yield "invalid machine node labels: " + _multi(f'name "{key}" is invalid' for key in bad)
    host_dns = config.at("machine", "features", "hostDNS") or {}
    if host_dns.get("forwardKubeDNSToHost") and not host_dns.get("enabled"):
        yield "feature hostDNS.forwardKubeDNSToHost requires hostDNS.enabled to be true (.machine.features.hostDNS)"


def _documents(config: AppliedConfig) -> Iterator[str]:
    for document in config.documents:
        kind = document.get("kind")
        check = _CHECKS.get(str(kind))
        if check is not None:
            title = f"{kind}/{document.get('name', '')}" if kind != "HostnameConfig" else "HostnameConfig"
            yield from (f"{title}: {problem}" for problem in check(document, config.minor))
    yield from _legacy_network(config)


def _hostname(document: Doc, minor: int) -> Iterator[str]:
    name, auto = str(document.get("hostname") or ""), document.get("auto")
    if name and auto not in (None, "off"):
        yield "'auto' and 'hostname' cannot be set at the same time"
    elif not name and not auto:
        yield "either 'auto' or 'hostname' must be set"
    if len(name) > 253:
        yield f"fqdn is too long: {len(name)}"
    elif len(name.encode().split(b".")[0]) > 63:
        yield f'invalid hostname "{name}"'


def _vip(document: Doc, minor: int) -> Iterator[str]:
    name = str(document.get("name") or "")
    if not name:
        yield "name must be specified"
    elif problem := _address_problem(name):
        yield f'name must be a valid IP address: ParseAddr("{name}"): {problem}'
    if name and not document.get("link"):
        yield "link must be specified"


def _address_problem(name: str) -> str | None:
    try:
        ip_address(name)
    except ValueError:
        if "/" in name:
            return f'unexpected character (at "{name[name.index("/") :]}")'
        if re.fullmatch(r"\d+(\.\d+){3}", name):
            return "IPv4 field has value >255"
        return "unable to parse IP"
    return None


def _link(document: Doc, minor: int) -> Iterator[str]:
    for index, route in enumerate(document.get("routes") or []):
        destination = route.get("destination")
        if destination is not None and (not is_network(destination) or str(destination) in ("0.0.0.0/0", "::/0")):
            yield f"route {index} destination must be a valid IP prefix"


def _vlan(document: Doc, minor: int) -> Iterator[str]:
    vlan = document.get("vlanID")
    if not isinstance(vlan, int) or not 1 <= vlan <= 4094:
        yield "vlanID must be specified and between 1 and 4094"
    yield from _link(document, minor)


def _bond(document: Doc, minor: int) -> Iterator[str]:
    if not document.get("links"):
        yield "at least one link must be specified"


def _static_host(document: Doc, minor: int) -> Iterator[str]:
    if _address_problem(str(document.get("name") or "")):
        yield "name must be a valid IP address"


def _mirror(document: Doc, minor: int) -> Iterator[str]:
    for index, endpoint in enumerate(document.get("endpoints") or []):
        scheme = urlsplit(str(endpoint.get("url"))).scheme
        if scheme not in ("http", "https"):
            yield f'endpoints[{index}].url has unsupported scheme: "{scheme}"'


def _volume(document: Doc, minor: int) -> Iterator[str]:
    names = ["STATE", "EPHEMERAL", "IMAGECACHE", *(["ETCD", "CRI", "KUBELET", "LOG"] if minor >= 14 else [])]
    if document.get("name") not in names:
        yield f"only [{' '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}] volumes are supported"
    yield from _sizes(document)


def _user_volume(document: Doc, minor: int) -> Iterator[str]:
    expression = str(((document.get("provisioning") or {}).get("diskSelector") or {}).get("match") or "")
    if not expression:
        yield "disk selector is required"
    for match in re.finditer(r"\bdisk\.(\w+)", expression):
        if match[1] not in _DISK_FIELDS:
            arrow = "." * match.start() + "...." + "^"
            yield (
                f"disk selector is invalid: ERROR: <input>:1:{match.start() + 5}: undefined field '{match[1]}'\n"
                f" | {expression}\n | {arrow}"
            )
    yield from _sizes(document)


_DISK_FIELDS = {
    "size", "io_size", "sector_size", "readonly", "cdrom", "model", "serial", "modalias", "wwid", "uuid", "bus_path",
    "sub_system", "transport", "rotational", "dev_path", "symlinks", "secondary_disks", "pretty_size",
}  # fmt: skip


def _sizes(document: Doc) -> Iterator[str]:
    provisioning = document.get("provisioning") or {}
    low, high = (_bytes(provisioning.get(key)) for key in ("minSize", "maxSize"))
    if low is not None and high is not None and low > high:
        yield "min size is greater than max size"


def _bytes(value: Any) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])?(i?)B?", str(value or ""))
    if match is None:
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** (" KMGT".index(match[2]) if match[2] else 0))


_CHECKS = {
    "HostnameConfig": _hostname,
    "Layer2VIPConfig": _vip,
    "LinkConfig": _link,
    "VLANConfig": _vlan,
    "BondConfig": _bond,
    "StaticHostConfig": _static_host,
    "RegistryMirrorConfig": _mirror,
    "VolumeConfig": _volume,
    "UserVolumeConfig": _user_volume,
}


def _legacy_network(config: AppliedConfig) -> Iterator[str]:
    for interface in config.interfaces:
        name = interface.get("interface")
        if not name and not interface.get("deviceSelector"):
            yield (
                "[networking.os.device.interface], [networking.os.device.deviceSelector]: "
                "required either config section to be set"
            )
        bond = interface.get("bond") or {}
        if bond.get("interfaces") and bond.get("deviceSelectors"):
            yield f'interface "{name}" has both interfaces and selectors set: config sections are mutually exclusive'
        vip = (interface.get("vip") or {}).get("ip")
        if vip is not None and config.role != "controlplane":
            yield "virtual (shared) IP is not allowed on non-controlplane nodes"
        if vip is not None and _address_problem(str(vip)):
            yield f'[networking.os.device.vip] failed to parse "{vip}" as IP address'
        for address in interface.get("addresses") or []:
            if "/" in str(address) and not is_network(address):
                yield f'[networking.os.device.addresses] "{name}": invalid CIDR address: {address}'
        for index, route in enumerate(interface.get("routes") or []):
            gateway = route.get("gateway")
            if gateway and _address_problem(str(gateway)):
                yield f'[networking.os.device.route[{index}].gateway] "{gateway}": invalid network address'


def _conflicts(config: AppliedConfig) -> Iterator[str]:
    if config.of_kind("HostnameConfig"):
        if config.at("machine", "network", "hostname"):
            yield "static hostname is already set in v1alpha1 config"
        if config.at("machine", "features", "stableHostname"):
            yield "stable hostname is already set in v1alpha1 config"
    if config.one("ResolverConfig").get("nameservers") and config.at("machine", "network", "nameservers"):
        yield ".machine.network.nameservers is already set in v1alpha1 config"
    if config.of_kind("UnattendedInstallConfig") and config.at("machine", "install"):
        yield "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)"
    if config.at("cluster", "network"):
        old = "config in v1alpha1 config (.machine.cluster.network)"
        if config.of_kind("KubeNetworkConfig"):
            yield (
                "cluster network config is already set in the v1alpha1 config (.machine.cluster.network). "
                "Please remove it and use only the new KubeNetworkConfig document to avoid conflicts"
            )
        if config.of_kind("KubeFlannelCNIConfig"):
            yield f"cluster network {old} can't be used with KubeFlannelCNIConfig document, please remove it to avoid conflicts"


def _warnings(config: AppliedConfig) -> Iterator[str]:
    kind = config.at("machine", "type")
    if config.main is not None and kind not in ("controlplane", "worker", "init"):
        yield f'use "worker" instead of "{kind or ""}" for machine type'
    if config.at("machine", "install", "extensions"):
        link = (
            "https://www.talos.dev/latest/talos-guides/install/boot-assets/"
            if config.minor <= 11
            else "https://docs.siderolabs.com/talos/latest/platform-specific-installations/boot-assets"
        )
        yield f".machine.install.extensions is deprecated, please see {link}"
    if config.minor >= 14 and config.at("machine", "files"):
        yield ".machine.files is deprecated; use dedicated configuration documents instead"
    for bond in config.of_kind("BondConfig"):
        if bond.get("bondMode") == "802.3ad":
            keys = [key for key in ("miimon", "updelay", "downdelay") if key not in bond]
            yield from (f"{key} was not specified for 802.3ad bond" for key in keys)
