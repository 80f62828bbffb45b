"""One bare machine as it is found: disks, links, modules. Pure data."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface
from typing import Literal, Self

from pydantic import Field, model_validator

from lab.talos import MINORS
from lab.units import Loopback, Model, Seconds, Size, unique

TUNED_EXTENSIONS = ("drbd", "zfs", "intel-ucode", "amd-ucode")  # of Cozystack's image, as far as anybody looks at them
Residue = Literal[
    "lvm2-pv", "zfs", "zfs-data", "drbd", "drbd8", "linux-raid", "linux-raid-1.0", "linux-raid-0.90", "bluestore", "luks",
    "swap", "iso9660", "ext4", "xfs", "btrfs", "ntfs", "vfat", "squashfs", "talosmeta", "gpt", "gpt-backup", "dos", "unknown",
]  # fmt: skip


class DiskSpec(Model):
    """One block device of a machine. `residue` is what a former life left on it; `pool` names a zpool that lives on it.

    `held`: the name of a device-mapper device that uses it (`vg--old-root`; with `mpath` in front, a path of a multipath
    device). `layout` of its pool is said by any of the pool's disks.
    """

    dev: str = Field(pattern=r"^[a-z][a-z0-9]+$")
    size: Size
    serial: str = ""
    wwid: str = ""
    model: str = ""
    transport: Literal["sata", "nvme", "virtio", "sas", "usb", "mmc", ""] = "sata"
    rotational: bool = False
    readonly: bool = False
    cdrom: bool = False
    system: bool = False
    residue: Residue | None = None
    held: str | None = None
    pool: str | None = None
    layout: Literal["single", "mirror", "raidz1", "raidz2", "raidz3"] = "single"


class ZfsSpec(Model):
    """ZFS on a machine: the command's version and the module's. `ashift`: what pools get whatever was asked for."""

    userland: str = "2.3.3-1"
    module: str = "2.3.3-1"
    ashift: int | None = None


class LinkSpec(Model):
    """One network interface. Addresses are CIDRs; the machine's own address is added to the first link."""

    name: str
    mac: str = Field(default="", pattern=r"^(([0-9a-f]{2}:){5}[0-9a-f]{2})?$")
    mtu: int = 1500
    up: bool = True
    kind: Literal["", "bond", "vlan", "bridge"] = ""
    addresses: tuple[IPv4Interface, ...] = ()


class MachineSpec(Model):
    """One bare machine as it is found. Its role is decided by the config it will get, not here.

    `stage` says who answers on the Talos port: the maintenance service, a Talos that belongs to another cluster
    (`foreign`), some other TLS service (`not-talos`), a host that accepts and stays silent, or nobody (`off`).
    `installed`: booted from a disk image (metal or nocloud raw), so a config is activated without installing.
    `lease`: where DHCP puts the machine before its config gives it `address`. `inside`: the address on its own interface
    where `address` is that of a 1:1 NAT in front of it. `clock_behind`: its clock is wrong, and so are its certificates.
    `thinks`: how long it takes over every answer. `zfs`: versions of the `zpool` command and of the kernel module.
    """

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    address: Loopback
    talos: str = Field(default="v1.13.6", pattern=rf"^v1\.({'|'.join(map(str, MINORS))})\.\d+(-[a-z0-9.]+)?$")
    stage: Literal["maintenance", "foreign", "not-talos", "silent", "off"] = "maintenance"
    installed: bool = False
    lease: Loopback | None = None
    inside: IPv4Address | None = None
    clock_behind: Seconds = 0.0
    thinks: Seconds = 0.0
    mac: str = Field(default="", pattern=r"^(([0-9a-f]{2}:){5}[0-9a-f]{2})?$")
    links: tuple[LinkSpec, ...] = ()
    addresses: tuple[IPv4Interface, ...] = ()
    gateway: IPv4Address | None = None
    disks: tuple[DiskSpec, ...] = Field(min_length=1)
    extensions: tuple[str, ...] = TUNED_EXTENSIONS
    modules: tuple[str, ...] = (
        "openvswitch",
        "drbd",
        "drbd_transport_tcp",
        "zfs",
        "spl",
        "vfio_pci",
        "vfio_iommu_type1",
    )
    zfs: ZfsSpec = ZfsSpec()
    memory: Size = 32 * 2**30
    cpus: int = 8
    time_synced: bool = True

    @model_validator(mode="after")
    def _devices_differ(self) -> Self:
        unique("disk", [disk.dev for disk in self.disks])
        unique("link", [link.name for link in self.links])
        return self
