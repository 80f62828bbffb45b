"""The inventory: machines, how to reach them, what they are, and which disks may be written."""

import base64
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cozystack_iac.settings.base import Document, Flag, Model

Role = Literal["controlPlane", "worker"]
Layout = Literal["single", "mirror", "raidz1", "raidz2", "raidz3"]


class Disk(Model):
    """One disk by an identity that survives a reboot. Kernel names (`sda`) are not identities and do not exist here."""

    wwid: str | None = None
    """World-wide name as the machine reports it, e.g. `naa.5000c500a1b2c3d4` or `eui.0025385b21404321`."""
    serial: str | None = None
    """Serial number as the machine reports it."""
    by_id: str | None = None
    """A link below `/dev/disk/by-id/`, with or without that folder. A whole disk; on existing clusters also a partition."""
    selector: str | None = None
    """A Talos disk expression (CEL), e.g. `disk.transport == "nvme"`. Has to match exactly one disk; checked live."""

    @property
    def identities(self) -> tuple[tuple[str, str], ...]:
        """The given identities as (`wwid`|`serial`|`byId`|`selector`, value)."""
        pairs = (("wwid", self.wwid), ("serial", self.serial), ("byId", self.by_id), ("selector", self.selector))
        return tuple((kind, value) for kind, value in pairs if value)

    def __str__(self) -> str:
        return ", ".join(f"{kind} {value}" for kind, value in self.identities) or "no disk"


class Vip(Model):
    """A further virtual address this node may carry, beside the cluster's own."""

    address: str = ""
    """The address, without a prefix length. (required)"""
    link: str | None = None
    """The link that carries it. Default: the node's `link`."""


class Reset(Model):
    """Approval to wipe a machine that already carries a configuration."""

    approved: Flag = False
    """True: the machine may be reset. Its data is lost."""
    reason: str = ""
    """Why, for whoever reads the history. (required with approved)"""


def _fingerprint(value: object) -> object:
    try:
        digest = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ValueError("a fingerprint is the base64 text of 32 bytes that the machine's console shows")
    return value


class Lost(Model):
    """Statement that a machine is gone for good, made by somebody who went and looked."""

    approved: Flag = False
    """True: its etcd member and its Node may be removed without asking it. Never for a machine that only cannot be reached."""
    reason: str = ""
    """Why, for whoever reads the history. (required with approved)"""


class Evacuation(Model):
    """Approval to have LINSTOR move what a machine stores to other nodes, which copies every replica once."""

    approved: Flag = False
    """True: LINSTOR may be told to empty the machine before it leaves."""
    reason: str = ""
    """Why, for whoever reads the history. (required with approved)"""


class Removed(Model):
    """What may be done with a machine that is no longer among the nodes. Without an entry it keeps what is on its disks."""

    name: str = ""
    """The name it had among the nodes. (required)"""
    reset: Reset | None = None
    """Approval to wipe its configuration and system disk once it has left. Its data disks stay."""
    evacuate: Evacuation | None = None
    """Approval to move its LINSTOR replicas away first. Without it a machine that still stores something does not leave."""
    lost: Lost | None = None
    """Statement that it is dead and cannot leave by itself."""


class Node(Model):
    """One machine."""

    name: str = ""
    """Host name and Kubernetes node name: a lower-case DNS label. (required)"""
    role: Role = "worker"
    """What the machine is. (required)"""
    address: str = ""
    """How this workstation reaches the machine once it is configured. (required)"""
    fingerprint: Annotated[str, BeforeValidator(_fingerprint)] | None = None
    """Key the machine has to show in maintenance mode: base64 of SHA-256, as its console prints it. Default: any."""
    maintenance_address: str | None = None
    """Where it answers before it is configured, if elsewhere (a DHCP lease). Default: `address`."""
    internal_address: str | None = None
    """The address on its own interface, used between nodes. Default: `address`."""
    public_address: str | None = None
    """A public address mapped 1:1 onto it by the provider; on no interface of the machine."""
    addresses: tuple[str, ...] = ()
    """Static addresses with prefix length for `link`, e.g. `10.0.0.11/24`. Default: DHCP."""
    gateway: str | None = None
    """Default gateway of `link`; only with `addresses`."""
    link: str | None = None
    """The link with the node's address, e.g. `ens5`. Required on control planes when there is a VIP: it carries it."""
    install_disk: Disk | None = None
    """Where Talos is installed. Required on the Talos variant."""
    data_disks: tuple[Disk, ...] = ()
    """Disks for the ZFS pool; none means that the node stores nothing."""
    layout: Layout | None = None
    """How this node's data disks are combined. Default: `storage.layout`."""
    vips: tuple[Vip, ...] = ()
    """Further virtual addresses this node may carry."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Kubernetes node labels."""
    zone: str | None = None
    """Failure domain, becomes the label `topology.kubernetes.io/zone`."""
    image: str | None = None
    """Installer image for this machine only. Default: `talos.image`."""
    extra_sans: tuple[str, ...] = ()
    """Further names and addresses for this machine's certificates."""
    kernel_modules: tuple[str, ...] = ()
    """Further kernel modules on this machine."""
    sysctls: dict[str, str] = Field(default_factory=dict)
    """Further sysctls on this machine; they win over the cluster's."""
    patches: tuple[Document, ...] = ()
    """Machine-configuration documents merged last, on this machine only."""
    reset: Reset | None = None
    """Approval to wipe the machine when it already carries a configuration."""

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
