"""Reading a machine config as a machine of a given Talos minor does, and what a running machine knows from it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import StringIO
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from lab.machines.documents import kinds, main_schema, unknown

Doc = dict[str, Any]


class Undecodable(Exception):
    """The text is no config for this Talos minor; the message is the one Talos gives, as far as it is known."""


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
        issuing = self.one("KubeAPIServerCAConfig").get("issuingCA")
        if issuing:
            return Keypair(str(issuing.get("cert", "")), str(issuing.get("key", "")))
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
    """The documents of `text` as Talos v1.<minor> reads them. Raises Undecodable."""
    documents: list[Doc] = []
    seen: set[tuple[str, str]] = set()
    for line, part in _split(text):
        document = _load(part, line, minor)
        if document is None:
            continue
        name = (str(document.get("kind", "")), str(document.get("name", "")))
        if name in seen and name[0]:
            joined = "/".join(filter(None, ("v1alpha1", *name)))
            raise Undecodable(f"duplicate document {joined} is not allowed (line {line})")
        if name in seen:
            raise Undecodable("not expected to have duplicate v1alpha1 config documents")
        seen.add(name)
        documents.append(document)
    if not documents:
        raise Undecodable("config not found")
    return AppliedConfig(tuple(documents), text, minor)


def image_tag(reference: str) -> str:
    """The tag of an image reference, empty when it has none."""
    name = reference.split("@")[0].rsplit("/", 1)[-1]
    return name.split(":", 1)[1] if ":" in name else ""


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Documents with the line their content starts on."""
    part: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.rstrip() == "---" or line.startswith("--- "):
            yield start, "".join(part)
            part, start = [], number + 1
        else:
            part.append(line)
    yield start, "".join(part)


def _load(part: str, line: int, minor: int) -> Doc | None:
    try:
        value = YAML(typ="safe", pure=True).load(part)
    except DuplicateKeyError as error:
        raise Undecodable(_duplicate(error, part, line, minor)) from None
    except YAMLError as error:
        raise Undecodable(f"decode error: yaml: {str(error).splitlines()[0]}") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Undecodable(f"decode error: yaml: document on line {line} is not a mapping")
    _known(value, line, minor)
    _typed(value, part, line, minor)
    return value


def _duplicate(error: DuplicateKeyError, part: str, line: int, minor: int) -> str:
    """Talos counts lines from the start of the whole text; only a doubled key says where it was first."""
    mark = error.problem_mark
    again = mark.line if mark is not None else 0
    lines = part.splitlines()
    key = lines[again].split(":")[0] if again < len(lines) else ""
    first = next((n for n, text in enumerate(lines) if text.startswith(f"{key}:")), again)
    problem = f'mapping key "{key.strip()}" already defined at line {line + first}'
    return _construct(f"/v1alpha1/ (line {line})", "", problem, line + again, minor)


def _title(document: Doc, line: int) -> str:
    kind = document.get("kind", "v1alpha1" if "apiVersion" in document else "")
    return f"{document.get('apiVersion', '')}/{kind or 'v1alpha1'}/{document.get('name', '')} (line {line})"


def _known(document: Doc, line: int, minor: int) -> None:
    kind = document.get("kind")
    known = kinds(minor)
    if kind is not None and kind not in known:
        not_registered = f'"{kind}" "{document.get("apiVersion", "")}": not registered'
        where = "" if minor <= 11 else f"error decoding document {_title(document, line)}: "
        raise Undecodable(where + not_registered)
    extra = unknown(document, known[kind] if kind is not None else main_schema(minor))
    if extra is not None:
        where = f"error decoding document {_title(document, line)}"
        raise Undecodable(f"{where}: unknown keys found during decoding:\n{_dump(extra)}")


def _typed(document: Doc, part: str, line: int, minor: int) -> None:
    """Values whose Go type refuses them while decoding: URLs, prefixes, addresses, sizes."""
    kind = str(document.get("kind", ""))
    for value, parse in _parsed_values(document, kind):
        problem = parse(str(value))
        if problem:
            offset = next((n for n, text in enumerate(part.splitlines()) if str(value) in text), 0)
            raise Undecodable(_construct(_title(document, line), kind, problem, line + offset, minor))


def _parsed_values(document: Doc, kind: str) -> Iterator[tuple[Any, Any]]:
    if not kind:
        endpoint = ((document.get("cluster") or {}).get("controlPlane") or {}).get("endpoint")
        if endpoint is not None:
            yield endpoint, _bad_url
        size = (((document.get("machine") or {}).get("install") or {}).get("diskSelector") or {}).get("size")
        if size is not None:
            yield size, _bad_size
    if kind in ("LinkConfig", "VLANConfig", "BondConfig", "BridgeConfig", "DummyLinkConfig"):
        for address in document.get("addresses") or []:
            yield address.get("address", ""), _bad_prefix
        for route in document.get("routes") or []:
            if "gateway" in route:
                yield route["gateway"], _bad_address
    if kind == "ResolverConfig":
        for server in document.get("nameservers") or []:
            yield server.get("address", ""), _bad_address
    if kind == "KubeNetworkConfig":
        for subnet in (*(document.get("podSubnets") or []), *(document.get("serviceSubnets") or [])):
            yield subnet, _bad_prefix


def _bad_url(value: str) -> str | None:
    if value and "://" not in value and ":" in value.split("/")[0]:
        return f'parse "{value}": first path segment in URL cannot contain colon'
    host = urlsplit(value).netloc.rpartition("@")[2]
    if not host.startswith("[") and host.count(":") > 1:
        return f'parse "{value}": invalid port "{host[host.index(":") :]}" after host'
    return None


def _bad_size(value: str) -> str | None:
    number = re.sub(r"^\s*(<=|>=|==|<|>)?\s*", "", value)
    if re.fullmatch(r"\d+(\.\d+)?\s*[kKMGTP]?i?B?", number):
        return None
    return f'failed to parse disk size {value}: strconv.ParseFloat: parsing "": invalid syntax'


def _bad_prefix(value: str) -> str | None:
    if "/" not in value:
        return f"netip.ParsePrefix(\"{value}\"): no '/'"
    return (
        None
        if _parses(ip_interface, value)
        else f'netip.ParsePrefix("{value}"): ParseAddr("{value}"): unable to parse IP'
    )


def _bad_address(value: str) -> str | None:
    if _parses(ip_address, value):
        return None
    stranger = next((c for c in value if c not in "0123456789abcdefABCDEF.:"), None)
    if "." in value and stranger is not None:
        return f'ParseAddr("{value}"): unexpected character (at "{value}")'
    return f'ParseAddr("{value}"): unable to parse IP'


def _parses(parse: Any, value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def is_network(value: object) -> bool:
    """Whether the value is a CIDR, host bits allowed."""
    return _parses(lambda v: ip_network(v, strict=False), str(value)) and "/" in str(value)


def _construct(title: str, kind: str, problem: str, line: int, minor: int) -> str:
    go = f"*{_package(kind)}.{kind}V1Alpha1" if kind else "*v1alpha1.Config"
    break_ = " " if minor >= 14 else "\n  "
    where = f"error decoding document {title}: error decoding {kind} to {go}"
    return f"{where}: yaml: construct errors:{break_}line {line}: {problem}"


def _package(kind: str) -> str:
    return "k8s" if kind.startswith("Kube") else "network"


def _dump(value: Any) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None in its class
    yaml.map_indent, yaml.sequence_indent, yaml.sequence_dash_offset = 4, 6, 4
    out = StringIO()
    yaml.dump(value, out)
    return out.getvalue()


def _pem(value: Any) -> str:
    try:
        return base64.b64decode(str(value or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _keypair(value: Any) -> Keypair:
    if not isinstance(value, dict):
        return Keypair()
    return Keypair(_pem(value.get("crt")), _pem(value.get("key")))
