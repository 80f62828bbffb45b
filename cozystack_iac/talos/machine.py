"""A Talos machine as facts: what it says about its stage, disks, links, services and etcd. Pure; parsed from its resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from cozystack_iac import go_yaml

T = TypeVar("T")
Interface = IPv4Interface | IPv6Interface


class Stage(StrEnum):
    """Stages as MachineStatuses spells them; a spelling that a later Talos adds reads as UNKNOWN."""

    UNKNOWN = "unknown"
    BOOTING = "booting"
    INSTALLING = "installing"
    MAINTENANCE = "maintenance"
    RUNNING = "running"
    REBOOTING = "rebooting"
    SHUTTING_DOWN = "shutting down"
    RESETTING = "resetting"
    UPGRADING = "upgrading"

    @property
    def transient(self) -> bool:
        """Whether the machine is on its way somewhere and will soon answer differently."""
        return self in _TRANSIENT


_TRANSIENT = frozenset({Stage.INSTALLING, Stage.REBOOTING, Stage.SHUTTING_DOWN, Stage.RESETTING, Stage.UPGRADING})


@dataclass(frozen=True, slots=True)
class Status:
    """Stage and readiness. `unmet` are (condition, reason) pairs."""

    stage: Stage
    ready: bool = False
    unmet: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.unmet)
        return f"{self.stage.value}{', ready' if self.ready else ''}{f' ({reasons})' if reasons else ''}"


@dataclass(frozen=True, slots=True)
class ReportedDisk:
    """A block device. `name` is the kernel's (sda), `symlinks` full paths; empty texts mean that the device has none."""

    name: str
    path: str
    size_bytes: int = 0
    model: str = ""
    serial: str = ""
    wwid: str = ""
    uuid: str = ""
    transport: str = ""
    bus_path: str = ""
    rotational: bool = False
    readonly: bool = False
    cdrom: bool = False
    symlinks: tuple[str, ...] = ()

    @property
    def physical(self) -> bool:
        """A disk somebody could install on or store on: no loop, device-mapper, zvol or CD device."""
        return not self.cdrom and self.bus_path != "/virtual"

    @property
    def identity(self) -> str:
        """The best name that survives a reboot, for messages."""
        if self.wwid or self.serial:
            return f"wwid {self.wwid}" if self.wwid else f"serial {self.serial}"
        return self.path

    def __str__(self) -> str:
        return f"{self.path} ({size(self.size_bytes)}{f', {self.model}' if self.model else ''}, {self.identity})"


@dataclass(frozen=True, slots=True)
class Volume:
    """What was found on a disk or partition. `content` is the detected format (gpt, xfs, zfs, lvm2-pv, …), may be empty."""

    name: str
    path: str
    kind: str = ""
    parent: str = ""
    content: str = ""
    label: str = ""
    partition_label: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface. `kind` is empty for plain ones, else vlan, bond, bridge, …"""

    name: str
    up: bool = False
    kind: str = ""
    type: str = ""
    mac: str = ""
    permanent_mac: str = ""
    bus_path: str = ""
    alt_names: tuple[str, ...] = ()

    @property
    def physical(self) -> bool:
        """Hardware of this machine: its own address identifies the machine."""
        return self.type == "ether" and not self.kind and bool(self.bus_path)


@dataclass(frozen=True, slots=True)
class Address:
    """An address on a link."""

    interface: Interface
    link: str


@dataclass(frozen=True, slots=True)
class Extension:
    """A system extension of the running image."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module; loaded when `state` is Live."""

    name: str
    state: str = "Live"


@dataclass(frozen=True, slots=True)
class Service:
    """A Talos service. `healthy` is None when its health is unknown; `last` is the newest event's text."""

    name: str
    state: str
    healthy: bool | None = None
    last: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """An etcd member. One that has not started yet has no hostname."""

    id: int
    hostname: str
    peer_urls: tuple[str, ...] = ()
    client_urls: tuple[str, ...] = ()
    learner: bool = False

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses it advertises to its peers."""
        return frozenset(host for url in self.peer_urls if (host := urlsplit(url).hostname))

    @property
    def votes(self) -> bool:
        """Started, and no learner any more."""
        return bool(self.hostname) and not self.learner

    def __str__(self) -> str:
        where = ", ".join(sorted(self.addresses)) or "no address"
        return f"{self.hostname or 'not started'} ({where}{', learner' if self.learner else ''})"


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """etcd as one machine sees itself. `leader` 0: it knows none."""

    member_id: int
    leader: int
    learner: bool = False
    version: str = ""
    errors: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Votes, knows a leader and reports no error or alarm."""
        return bool(self.leader) and not self.learner and not self.errors


class ApplyMode(StrEnum):
    """How a configuration takes effect. From Talos 1.14 on AUTO never reboots and REBOOT is refused on a running node."""

    REBOOT = "REBOOT"
    AUTO = "AUTO"
    NO_REBOOT = "NO_REBOOT"
    STAGED = "STAGED"
    TRY = "TRY"


@dataclass(frozen=True, slots=True)
class Applied:
    """What the machine says it did with a configuration. Up to Talos 1.12 maintenance mode says nothing but warnings.

    `details` may quote the configuration and with it secrets: never print it.
    """

    mode: ApplyMode
    warnings: tuple[str, ...] = ()
    details: str = ""

    def __repr__(self) -> str:
        return f"Applied(mode={self.mode.value}, warnings={len(self.warnings)})"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A resource type: where it lives and how its spec becomes a fact. `raw`: `parse` gets the YAML text itself."""

    namespace: str
    type: str
    parse: Callable[[str, Any], T]
    raw: bool = False


def _text(spec: Mapping[str, Any], key: str) -> str:
    value = spec.get(key)
    return "" if value is None else str(value)


def _texts(spec: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(value) for value in spec.get(key) or ())


def _status(_id: str, spec: Any) -> Status:
    status = spec.get("status") or {}
    unmet = tuple((_text(one, "name"), _text(one, "reason")) for one in status.get("unmetConditions") or ())
    return Status(_stage(_text(spec, "stage")), bool(status.get("ready")), unmet)


def _stage(text: str) -> Stage:
    try:
        return Stage(text)
    except ValueError:
        return Stage.UNKNOWN


def _disk(id_: str, spec: Any) -> ReportedDisk:
    return ReportedDisk(
        name=id_,
        path=_text(spec, "dev_path") or f"/dev/{id_}",
        size_bytes=int(spec.get("size") or 0),
        model=_text(spec, "model"),
        serial=_text(spec, "serial"),
        wwid=_text(spec, "wwid"),
        uuid=_text(spec, "uuid"),
        transport=_text(spec, "transport"),
        bus_path=_text(spec, "bus_path"),
        rotational=bool(spec.get("rotational")),
        readonly=bool(spec.get("readonly")),
        cdrom=bool(spec.get("cdrom")),
        symlinks=_texts(spec, "symlinks"),
    )


def _volume(id_: str, spec: Any) -> Volume:
    return Volume(
        name=id_,
        path=_text(spec, "dev_path"),
        kind=_text(spec, "type"),
        parent=_text(spec, "parent"),
        content=_text(spec, "name"),
        label=_text(spec, "label"),
        partition_label=_text(spec, "partition_label"),
        size_bytes=int(spec.get("size") or 0),
    )


def _link(id_: str, spec: Any) -> Link:
    return Link(
        name=id_,
        up=_text(spec, "operationalState") == "up" or bool(spec.get("linkState")),
        kind=_text(spec, "kind"),
        type=_text(spec, "type"),
        mac=_text(spec, "hardwareAddr"),
        permanent_mac=_text(spec, "permanentAddr"),
        bus_path=_text(spec, "busPath"),
        alt_names=_texts(spec, "altNames"),
    )


def _address(_id: str, spec: Any) -> Address:
    return Address(ip_interface(_text(spec, "address")), _text(spec, "linkName"))


def _extension(id_: str, spec: Any) -> Extension:
    metadata = spec.get("metadata") or {}
    return Extension(_text(metadata, "name") or id_, _text(metadata, "version"))


def _configuration(_id: str, text: str) -> str:
    # The spec is a YAML string that holds the configuration; the configuration itself is a stream of mappings.
    stream = list(go_yaml.load_all(text))
    return stream[0] if len(stream) == 1 and isinstance(stream[0], str) else text


# All readable in maintenance mode, except the configuration: that one takes an admin's certificate.
MACHINE_CONFIG = Kind("config", "MachineConfigs.config.talos.dev", _configuration, raw=True)
STATUS = Kind("runtime", "MachineStatuses.runtime.talos.dev", _status)
VERSION = Kind("runtime", "Versions.runtime.talos.dev", lambda _, spec: _text(spec, "version"))
DISKS = Kind("runtime", "Disks.block.talos.dev", _disk)
SYSTEM_DISK = Kind("runtime", "SystemDisks.block.talos.dev", lambda _, spec: _text(spec, "diskID"))
VOLUMES = Kind("runtime", "DiscoveredVolumes.block.talos.dev", _volume)
LINKS = Kind("network", "LinkStatuses.net.talos.dev", _link)
ADDRESSES = Kind("network", "AddressStatuses.net.talos.dev", _address)
NODE_IPS = Kind("k8s", "NodeIPs.kubernetes.talos.dev", lambda _, spec: _texts(spec, "addresses"))
HOSTNAME = Kind("network", "HostnameStatuses.net.talos.dev", lambda _, spec: _text(spec, "hostname"))
EXTENSIONS = Kind("runtime", "ExtensionStatuses.runtime.talos.dev", _extension)
MODULES = Kind(
    "runtime", "LoadedKernelModules.runtime.talos.dev", lambda id_, spec: Module(id_, _text(spec, "state") or "Live")
)


def is_address(text: str) -> bool:
    """Whether the text is an IP address and not a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def size(size_bytes: int) -> str:
    """`1920383410176` -> `1.7 TiB`, for people."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "B" else f"{value:.1f} {units[0]}"
