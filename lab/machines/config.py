"""What a machine knows from its config, whichever documents of whichever minor say it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass, field
from typing import Any

from lab.machines.decoding import Doc, Undecodable, documents

__all__ = ["AppliedConfig", "Doc", "Keypair", "Undecodable", "decode", "image_tag"]


@dataclass(frozen=True)
class Keypair:
    """A CA as PEM. `key` is empty where only the certificate is handed out (workers)."""

    crt: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class AppliedConfig:
    """The documents of a config and typed views on them. Never print it: it holds every secret of the cluster."""

    documents: tuple[Doc, ...] = field(repr=False)
    text: str = field(repr=False)
    minor: int

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def main(self) -> Doc | None:
        """The v1alpha1 document, or None when the config consists of other documents only."""
        return next((doc for doc in self.documents if "kind" not in doc), None)

    def of_kind(self, kind: str) -> list[Doc]:
        return [doc for doc in self.documents if doc.get("kind") == kind]

    def one(self, kind: str) -> Doc:
        """The only document of a kind, or an empty one."""
        return next(iter(self.of_kind(kind)), {})

    def at(self, *path: str) -> Any:
        """A value of the v1alpha1 document, None where the path ends early."""
        value: Any = self.main
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def role(self) -> str:
        """`controlplane` or `worker`: `init` is a control plane, everything else joins as a worker."""
        return "controlplane" if self.at("machine", "type") in ("controlplane", "init") else "worker"

    @property
    def hostname(self) -> str:
        return str(self.one("HostnameConfig").get("hostname") or self.at("machine", "network", "hostname") or "")

    @property
    def cluster_name(self) -> str:
        return str(self.one("KubeClusterConfig").get("clusterName") or self.at("cluster", "clusterName") or "")

    @property
    def endpoint(self) -> str:
        return str(
            self.one("KubeClusterConfig").get("endpoint") or self.at("cluster", "controlPlane", "endpoint") or ""
        )

    @property
    def os_ca(self) -> Keypair:
        return _keypair(self.at("machine", "ca"))

    @property
    def accepted_os_cas(self) -> tuple[str, ...]:
        """PEM certificates that may sign API clients."""
        more = [_pem(ca.get("crt")) for ca in self.at("machine", "acceptedCAs") or []]
        return tuple(crt for crt in (self.os_ca.crt, *more) if crt)

    @property
    def kubernetes_ca(self) -> Keypair:
        new = self.one("KubeAPIServerCAConfig")
        if new.get("issuingCA"):
            return Keypair(str(new["issuingCA"].get("cert", "")), str(new["issuingCA"].get("key", "")))
        if new.get("acceptedCAs"):  # workers have only the certificate
            return Keypair(str(new["acceptedCAs"][0]))
        return _keypair(self.at("cluster", "ca"))

    @property
    def has_etcd_ca(self) -> bool:
        return bool(self.at("cluster", "etcd", "ca", "crt"))

    @property
    def cert_sans(self) -> tuple[str, ...]:
        return tuple(map(str, self.at("machine", "certSANs") or ()))

    @property
    def api_sans(self) -> tuple[str, ...]:
        new = self.one("KubeAPIServerConfig").get("certSANs") or ()
        return tuple(dict.fromkeys(map(str, (*new, *(self.at("cluster", "apiServer", "certSANs") or ())))))

    @property
    def vips(self) -> tuple[str, ...]:
        found = [str(doc.get("name")) for doc in self.of_kind("Layer2VIPConfig")]
        for interface in self.interfaces:
            found += [str(v["ip"]) for v in [interface.get("vip") or {}] if v.get("ip")]
            found += [str(v["vip"]["ip"]) for v in interface.get("vlans") or [] if (v.get("vip") or {}).get("ip")]
        return tuple(dict.fromkeys(found))

    @property
    def vip_links(self) -> dict[str, str]:
        """VIP -> link that carries it."""
        new = {str(doc.get("name")): str(doc.get("link")) for doc in self.of_kind("Layer2VIPConfig")}
        old = {str((i.get("vip") or {}).get("ip")): str(i.get("interface")) for i in self.interfaces if i.get("vip")}
        return old | new

    @property
    def interfaces(self) -> list[Doc]:
        return list(self.at("machine", "network", "interfaces") or [])

    @property
    def install_disk(self) -> str:
        return str(self.at("machine", "install", "disk") or "")

    @property
    def install_selector(self) -> Doc:
        return dict(self.at("machine", "install", "diskSelector") or {})

    @property
    def install_expression(self) -> str:
        """CEL of the install document of 1.14."""
        provisioning = self.one("UnattendedInstallConfig").get("provisioning") or {}
        return str((provisioning.get("diskSelector") or {}).get("match") or "")

    @property
    def installs(self) -> bool:
        """Whether the config says where to install at all."""
        return bool(self.at("machine", "install") or self.of_kind("UnattendedInstallConfig"))

    @property
    def install_image(self) -> str:
        new = (self.one("UnattendedInstallConfig").get("installer") or {}).get("image")
        return str(new or self.at("machine", "install", "image") or "")

    @property
    def kubelet_image(self) -> str:
        return str(self.one("KubeletConfig").get("image") or self.at("machine", "kubelet", "image") or "")

    @property
    def kubernetes_version(self) -> str:
        """`v1.36.3`, from the kubelet image; empty when it has no tag."""
        return image_tag(self.kubelet_image)

    @property
    def node_labels(self) -> dict[str, str]:
        new = self.one("KubeNodeConfig").get("labels") or {}
        return {str(k): str(v) for k, v in {**(self.at("machine", "nodeLabels") or {}), **new}.items()}

    @property
    def node_annotations(self) -> dict[str, str]:
        new = self.one("KubeNodeConfig").get("annotations") or {}
        return {str(k): str(v) for k, v in {**(self.at("machine", "nodeAnnotations") or {}), **new}.items()}

    @property
    def node_taints(self) -> dict[str, str]:
        """key -> "value:Effect" or "Effect", including the control plane's own taint where it applies."""
        if self.of_kind("KubeNodeConfig"):
            return {str(k): str(v) for k, v in (self.one("KubeNodeConfig").get("taints") or {}).items()}
        taints = {str(k): str(v) for k, v in (self.at("machine", "nodeTaints") or {}).items()}
        if self.role == "controlplane" and not self.schedulable_control_plane:
            taints["node-role.kubernetes.io/control-plane"] = "NoSchedule"
        return taints

    @property
    def schedulable_control_plane(self) -> bool:
        if self.of_kind("KubeNodeConfig"):
            return "node-role.kubernetes.io/control-plane" not in (self.one("KubeNodeConfig").get("taints") or {})
        old = self.at("cluster", "allowSchedulingOnMasters")
        return bool(self.at("cluster", "allowSchedulingOnControlPlanes") or old)

    @property
    def modules(self) -> tuple[str, ...]:
        old = [str(module.get("name")) for module in self.at("machine", "kernel", "modules") or []]
        return tuple(dict.fromkeys([*old, *(str(doc.get("name")) for doc in self.of_kind("KernelModuleConfig"))]))

    @property
    def files(self) -> dict[str, str]:
        """Path -> content of the files the config writes."""
        old = {str(file.get("path")): str(file.get("content", "")) for file in self.at("machine", "files") or []}
        return old | {str(d.get("name")): str(d.get("contents", "")) for d in self.of_kind("EtcFileConfig")}

    @property
    def bad_file(self) -> str | None:
        """A path whose write fails while booting, which keeps CRI from ever coming up: `create` works in /var only."""
        allowed = "/etc/cri/conf.d/20-customization.part"
        for file in self.at("machine", "files") or []:
            path, op = str(file.get("path")), file.get("op")
            if op not in ("create", "append", "overwrite"):
                return path
            if op == "create" and not path.startswith("/var/") and path != allowed:
                return path
        return None

    @property
    def network(self) -> Doc:
        """podSubnets, serviceSubnets, dnsDomain, whichever document they are in."""
        return self.one("KubeNetworkConfig") or dict(self.at("cluster", "network") or {})

    @property
    def discovery(self) -> bool:
        if self.of_kind("DiscoveryServiceConfig"):
            return True
        return bool(self.at("cluster", "discovery", "enabled"))


def decode(text: str, minor: int) -> AppliedConfig:
    """The config in `text` as Talos v1.<minor> reads it. Raises Undecodable."""
    return AppliedConfig(documents(text, minor), text, minor)


def image_tag(reference: str) -> str:
    """The tag of an image reference, empty when it has none."""
    name = reference.split("@")[0].rsplit("/", 1)[-1]
    return name.split(":", 1)[1] if ":" in name else ""


def _pem(value: Any) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _keypair(value: Any) -> Keypair:
    if not isinstance(value, dict):
        return Keypair()
    return Keypair(_pem(value.get("crt")), _pem(value.get("key")))
