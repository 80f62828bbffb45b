"""The inventory: machines, how to reach them, what they are, and which disks may be written."""

import base64
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cozystack_iac.settings.base import Document, Flag, Model

Role = Literal["controlPlane", "worker"]
Layout = Literal["single", "mirror", "raidz1", "raidz2", "raidz3"]


class Disk(Model):
    """A disk, identified by something that survives a reboot. Kernel names such as `sda` are not accepted."""

    wwid: str | None = None
    """World-wide name as the machine reports it, e.g. `naa.5000c500a1b2c3d4` or `eui.0025385b21404321`."""
    serial: str | None = None
    """Serial number as the machine reports it."""
    by_id: str | None = None
    """Link in `/dev/disk/by-id/`, with or without that path. A whole disk; on existing clusters also a partition."""
    selector: str | None = None
    """Talos disk selector (CEL), e.g. `disk.transport == "nvme"`. Must match exactly one disk; checked live."""

    @property
    def identities(self) -> tuple[tuple[str, str], ...]:
        """The given identities as (`wwid`|`serial`|`byId`|`selector`, value)."""
        pairs = (("wwid", self.wwid), ("serial", self.serial), ("byId", self.by_id), ("selector", self.selector))
        return tuple((kind, value) for kind, value in pairs if value)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {value}" for kind, value in self.identities) or "no disk"


class Vip(Model):
    """An additional VIP of this node, besides the cluster's own."""

    address: str = ""
    """The address, without a prefix length. (required)"""
    link: str | None = None
    """Link of the VIP. Default: the node's `link`."""


class Reset(Model):
    """Approval to wipe a machine that already has a configuration."""

    approved: Flag = False
    """True: the machine may be reset. Its data is lost."""
    reason: str = ""
    """Reason, for the record. (required with approved)"""


def _fingerprint(value: object) -> object:
    try:
        digest = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ValueError("a fingerprint is 32 bytes in base64, as shown on the machine's console")
    return value


class Lost(Model):
    """Declaration that a machine is gone for good, by a person who has checked."""

    approved: Flag = False
    """True: its etcd member and its Node may be removed. Never set this for a machine that is only unreachable."""
    reason: str = ""
    """Reason, for the record. (required with approved)"""


class Evacuation(Model):
    """Approval to let LINSTOR move a machine's replicas to other nodes, which copies every replica once."""

    approved: Flag = False
    """True: LINSTOR may evacuate the machine before it leaves."""
    reason: str = ""
    """Reason, for the record. (required with approved)"""


class Removed(Model):
    """What may be done with a machine that is no longer among the nodes. Without an entry it keeps what is on its disks."""

    name: str = ""
    """Name that the machine had in `nodes`. (required)"""
    reset: Reset | None = None
    """Approval to wipe its configuration and system disk after it has left. Data disks are kept."""
    evacuate: Evacuation | None = None
    """Approval to move its LINSTOR replicas to other nodes first. Without it, a machine with replicas does not leave."""
    lost: Lost | None = None
    """Declaration that it is dead and cannot leave by itself."""


class Node(Model):
    """One machine."""

    name: str = ""
    """Host name and Kubernetes node name: a lowercase DNS label. (required)"""
    role: Role = "worker"
    """Role of the machine. (required)"""
    address: str = ""
    """Address at which this workstation reaches the machine once it is configured. (required)"""
    fingerprint: Annotated[str, BeforeValidator(_fingerprint)] | None = None
    """Certificate fingerprint expected in maintenance mode: base64 of SHA-256, as shown on the console. Default: any."""
    maintenance_address: str | None = None
    """Its address before it is configured, if different (a DHCP lease). Default: `address`."""
    internal_address: str | None = None
    """Address of its own interface, used between nodes. Default: `address`."""
    public_address: str | None = None
    """Public address that the provider maps to it (1:1 NAT); not on an interface of the machine."""
    addresses: tuple[str, ...] = ()
    """Static addresses with prefix length for `link`, e.g. `10.0.0.11/24`. Default: DHCP."""
    gateway: str | None = None
    """Default gateway of `link`; only with `addresses`."""
    link: str | None = None
    """Link with the node's address, e.g. `ens5`. Required on control plane nodes with a VIP, which is set on this link."""
    install_disk: Disk | None = None
    """Disk that Talos is installed on. Required on the Talos variant."""
    data_disks: tuple[Disk, ...] = ()
    """Disks for the ZFS pool; without any, the node stores no data."""
    layout: Layout | None = None
    """ZFS layout of this node's data disks. Default: `storage.layout`."""
    vips: tuple[Vip, ...] = ()
    """Additional VIPs of this node."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Kubernetes node labels."""
    zone: str | None = None
    """Failure domain; sets the label `topology.kubernetes.io/zone`."""
    image: str | None = None
    """Installer image for this machine only. Default: `talos.image`."""
    extra_sans: tuple[str, ...] = ()
    """Additional names and addresses (SANs) for this machine's certificates."""
    kernel_modules: tuple[str, ...] = ()
    """Additional kernel modules on this machine."""
    sysctls: dict[str, str] = Field(default_factory=dict)
    """Additional sysctls on this machine; they override the cluster's."""
    patches: tuple[Document, ...] = ()
    """Machine configuration patches, merged last, on this machine only."""
    reset: Reset | None = None
    """Approval to wipe the machine if it already has a configuration."""

    @property
    def internal(self) -> str:
        """The address other nodes use."""
        return self.internal_address or self.address

    @property
    def maintenance(self) -> str:
        """The address to use before the machine has a configuration."""
        return self.maintenance_address or self.address

    @property
    def is_control_plane(self) -> bool:
        """Whether the machine runs etcd and the API server."""
        return self.role == "controlPlane"
