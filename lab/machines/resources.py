"""What a machine tells about itself through COSI: pure functions from the world to resources.

Specs are YAML like those of a real server; `proto_spec` is left out (clients read the YAML). Owners, ids and key names
follow what a v1.13 server sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from lab.machines.emit import emit
from lab.machines.selector import symlinks
from lab.machines.services import services
from lab.scenario import LinkSpec
from lab.talos import MINORS
from lab.world import Disk, EtcdPhase, MachineState, Stage, World

NAMESPACES = frozenset(
    {
        "runtime",
        "config",
        "network",
        "network-config",
        "cluster",
        "k8s",
        "controlplane",
        "etcd",
        "secrets",
        "cri",
        "files",
        "hardware",
        "perf",
        "kubespan",
        "time",
    }
)
SENSITIVE = frozenset(
    {
        "MachineConfigs.config.talos.dev",
        "LinkSpecs.net.talos.dev",
        "OperatorSpecs.net.talos.dev",
        "VolumeConfigs.block.talos.dev",
        "KubeletConfigs.kubernetes.talos.dev",
        "RegistriesConfigs.cri.talos.dev",
    }
)


@dataclass(frozen=True)
class Resource:
    id: str
    yaml: str


@dataclass(frozen=True)
class Kind:
    """A resource type: where it lives, who owns it, since which minor it exists and how it is made."""

    namespace: str
    type: str
    owner: str
    make: Callable[[World, MachineState], Iterator[tuple[str, Any]]]
    since: int = 10

    def resources(self, world: World, machine: MachineState) -> list[Resource]:
        """In id order, as a server lists them."""
        made = (
            Resource(name, spec if isinstance(spec, str) else emit(spec)) for name, spec in self.make(world, machine)
        )
        return sorted(made, key=lambda resource: resource.id)


def is_sensitive(type_: str) -> bool:
    """Readable by admins only."""
    return type_ in SENSITIVE or type_.endswith(".secrets.talos.dev")


def _disks(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    for disk in machine.disks.values():
        spec = disk.spec
        sector = 2048 if spec.cdrom else 512
        links = symlinks(spec)
        yield disk.dev, _present(
            dev_path=disk.path, size=spec.size, pretty_size=_pretty(spec.size), io_size=sector, sector_size=sector,
            readonly=spec.readonly, cdrom=spec.cdrom, model=spec.model or None, serial=spec.serial or None,
            wwid=spec.wwid or None, bus_path=_bus_path(machine, disk), sub_system="/sys/class/block",
            transport=spec.transport or None, rotational=spec.rotational or None, symlinks=links or None,
        )  # fmt: skip


def _system_disk(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    disk = machine.system_disk
    if disk is not None:
        yield "system-disk", {"diskID": disk.dev, "devPath": disk.path}


# What Talos calls what it finds on a device. What is not here it does not recognise: the volume has no name then.
_KNOWN = ("lvm2-pv", "zfs", "luks", "swap", "iso9660", "xfs", "vfat", "squashfs", "talosmeta", "gpt", "bluestore")
_DISCOVERED = dict(zip(_KNOWN, _KNOWN, strict=True)) | {"zfs-data": "zfs", "ext4": "extfs"}


def _volumes(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    for disk in machine.disks.values():
        partitions = list(_partitions(machine, disk))
        name = "gpt" if partitions else _DISCOVERED.get(disk.residue or "", "")
        yield disk.dev, _volume(machine, disk, disk.dev, "disk", disk.spec.size, name)
        for index, (label, size, format_, fs_label) in enumerate(partitions, start=1):
            dev = f"{disk.dev}p{index}" if disk.dev[-1].isdigit() else f"{disk.dev}{index}"
            spec = _volume(machine, disk, dev, "partition", size, format_)
            spec |= _present(label=fs_label or None, partition_label=label, partition_index=index)
            yield dev, spec


def _partitions(machine: MachineState, disk: Disk) -> Iterator[tuple[str, int, str, str]]:
    """(partition label, size, format, file-system label) of every partition."""
    if disk.system:
        formatted = machine.config is not None
        yield "EFI", 2203058176, "vfat", "EFI"
        yield "META", 1048576, "talosmeta", ""
        yield "STATE", 104857600, "xfs" if formatted else "", "STATE" if formatted else ""
        yield (
            "EPHEMERAL",
            max(disk.spec.size - 2400000000, 1048576),
            "xfs" if formatted else "",
            "EPHEMERAL" if formatted else "",
        )
    elif disk.pool is not None:
        yield f"zfs-{disk.pool}", disk.spec.size - 9437184, "zfs", disk.pool
        yield "", 8388608, "", ""


def _volume(machine: MachineState, disk: Disk, dev: str, type_: str, size: int, name: str) -> dict[str, Any]:
    parent = disk.dev if type_ == "partition" else None
    path = f"/sys/devices{_bus_path(machine, disk)}block/{disk.dev}" + (f"/{dev}" if parent else "")
    return _present(
        dev_path=f"/dev/{dev}", type=type_, device_path=path, parent=parent, parent_dev_path=disk.path if parent else None,
        offset=0 if parent is None else 1048576, size=size, pretty_size=_pretty(size), sector_size=512, io_size=512, name=name,
    )  # fmt: skip


def _machine_status(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    unmet = []
    if machine.config is not None and machine.stage in (Stage.BOOTING, Stage.RUNNING):
        waiting = [f"{s.id} {s.trouble}" for s in services(machine) if s.trouble]
        if waiting:
            unmet.append({"name": "services", "reason": ", ".join(waiting)})
        if not machine.time_synced:
            unmet.append({"name": "time", "reason": "time is not in sync"})
        if not machine.node_ready:
            status = "is not ready" if machine.node_registered else "status is not available yet"
            unmet.append({"name": "nodeReady", "reason": f'node "{machine.hostname}" {status}'})
    ready = machine.stage in (Stage.RUNNING, Stage.MAINTENANCE) and not unmet
    yield "machine", {"stage": str(machine.stage), "status": {"ready": ready, "unmetConditions": unmet}}


def _machine_type(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    yield "machine-type", f"{machine.role or 'unknown'}\n"


def _machine_config(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    if machine.config is not None:
        yield "v1alpha1", machine.config.text
        if machine.minor >= 12:
            yield "persistent", (machine.staged or machine.config).text


def _extensions(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    for index, name in enumerate(machine.extensions):
        yield (
            str(index),
            _extension(f"{index}.sqsh", name, _extension_version(name, machine.talos), f"Provides {name}."),
        )
    if machine.extensions:
        kernel = MINORS[machine.minor].kernel
        yield (
            "modules.dep",
            _extension("modules.dep.sqsh", "modules.dep", f"{kernel}-talos", "Modules of all extensions."),
        )


def _extension(image: str, name: str, version: str, description: str) -> dict[str, Any]:
    compatible = {"talos": {"version": ">= v1.5.0"}}
    about = {"name": name, "version": version, "author": "Sidero Labs", "description": description}
    return {"image": image, "metadata": about | {"compatibility": compatible}}


def _extension_version(name: str, talos: str) -> str:
    upstream = upstream_version(name, talos)
    return f"{upstream}-{talos}" if upstream else "20260512"


def upstream_version(name: str, talos: str) -> str:
    """Version of a module that an extension brings, as its authors count; empty for all others."""
    old = int(talos.split(".")[1]) <= 12
    return {"drbd": "9.2.16" if old else "9.3.2", "zfs": "2.4.1" if old else "2.4.3"}.get(name, "")


def _modules(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    loaded = machine.loaded_modules
    for name in loaded:
        needs = [d for d in MODULE_USERS.get(name, ()) if d in loaded]
        yield name, _present(
            size=MODULE_SIZES.get(name, 20480), referenceCount=len(needs), dependencies=needs or None, state="Live",
            address="0x0000000000000000",
        )  # fmt: skip


MODULE_SIZES = {"drbd": 790528, "drbd_transport_tcp": 40960, "zfs": 6705152, "spl": 159744, "openvswitch": 200704}
MODULE_USERS = {"drbd": ("drbd_transport_tcp",), "spl": ("zfs",)}


def _versions(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    yield "version", {"name": "Talos", "version": machine.talos}


def links(machine: MachineState) -> list[LinkSpec]:
    """Physical links; a machine without any in its scenario has one, eth0."""
    return list(machine.spec.links) or [LinkSpec(name="eth0")]


def mac(machine: MachineState, index: int, link: LinkSpec) -> str:
    """The scenario's address, or one made of the machine's, distinct per link."""
    if link.mac or (index == 0 and machine.spec.mac):
        return link.mac or machine.spec.mac
    octets = [int(o) for o in machine.address.split(".")]
    return f"52:54:{index:02x}:" + ":".join(f"{octet:02x}" for octet in octets[1:])


def _link_statuses(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    yield "lo", _present(
        index=1, type="loopback", linkIndex=0, flags="UP,LOOPBACK,RUNNING,LOWER_UP", hardwareAddr="00:00:00:00:00:00",
        permanentAddr="", broadcastAddr="00:00:00:00:00:00", mtu=65536, queueDisc="noqueue", operationalState="unknown",
        kind="", slaveKind="", linkState=True, port="TwistedPair", duplex="Half",
    )  # fmt: skip
    for index, link in enumerate(links(machine)):
        address = mac(machine, index, link)
        physical = link.kind == ""
        yield link.name, _present(
            index=8 + index, type="ether", linkIndex=0,
            flags="UP,BROADCAST,RUNNING,MULTICAST,LOWER_UP" if link.up else "BROADCAST,MULTICAST",
            hardwareAddr=address, permanentAddr=address if physical else "", broadcastAddr="ff:ff:ff:ff:ff:ff", mtu=link.mtu,
            queueDisc="pfifo_fast", operationalState="up" if link.up else "down", kind=link.kind, slaveKind="",
            busPath=f"0000:00:{5 + index:02x}.0" if physical else None, driver="virtio_net" if physical else None,
            linkState=link.up, speedMbit=10000, port="Other", duplex="Full",
        )  # fmt: skip


def _addresses_of(world: World, machine: MachineState) -> Iterator[tuple[str, IPv4Interface, int]]:
    """(link, address, priority); a VIP is a /32 on the machine that holds it."""
    yield "lo", IPv4Interface("127.0.0.1/8"), 0
    first = links(machine)[0].name
    own = [IPv4Interface(f"{machine.own_address}/24"), *machine.spec.addresses]
    yield from ((first, address, 1024) for address in own)
    for link in links(machine):
        yield from ((link.name, address, 1024) for address in link.addresses)
    if machine.config is not None and world.cluster.leader == machine.name:
        for vip, link_name in machine.config.vip_links.items():
            if re.fullmatch(r"[\d.]+", vip):
                yield link_name, IPv4Interface(f"{vip}/32"), 0


def _address_statuses(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    indexes = {"lo": 1} | {link.name: 8 + n for n, link in enumerate(links(machine))}
    for link, address, priority in _addresses_of(world, machine):
        yield f"{link}/{address}", {
            "address": str(address), "linkIndex": indexes.get(link, 0), "linkName": link, "family": "inet4",
            "scope": "host" if link == "lo" else "global", "flags": "permanent", "priority": priority,
        }  # fmt: skip


def _routes(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    first = links(machine)[0].name
    net = IPv4Interface(f"{machine.own_address}/24").network
    gateway = str(machine.spec.gateway or net.network_address + 1)
    for dst, via, priority in (("", gateway, 1024), (str(net), "", 0)):
        yield f"inet4/{via}/{dst}/{priority}", {
            "family": "inet4", "dst": dst, "src": "", "gateway": via, "outLinkIndex": 8, "outLinkName": first, "table": "main",
            "priority": priority, "scope": "global" if via else "link", "type": "unicast", "flags": "",
            "protocol": "static" if via else "kernel",
        }  # fmt: skip


def _hostname(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    host, _, domain = machine.hostname.partition(".")
    yield "hostname", {"hostname": host, "domainname": domain}


def _node_addresses(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    found = [address for link, address, _ in _addresses_of(world, machine) if link != "lo"]
    lasting = [a for a in found if a.network.prefixlen < 32]
    for name, addresses in (("default", lasting[:1]), ("current", found), ("routed", found), ("accumulative", found)):
        yield name, {"addresses": [str(a) for a in addresses]}


def _members(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    if machine.config is None or not machine.config.discovery:
        return
    for other in world.machines.values():
        if other.config is None or other.door != "secure" or other.config.os_ca.crt != machine.config.os_ca.crt:
            continue
        yield other.hostname, _present(
            nodeId=f"{other.name}-identity", addresses=[other.address], hostname=other.hostname, machineType=other.role,
            operatingSystem=f"Talos ({other.talos})", controlPlane={"port": 6443} if other.role == "controlplane" else None,
        )  # fmt: skip


def _nodename(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    if machine.config is not None:
        yield "nodename", {"nodename": machine.hostname, "hostnameVersion": "1", "skipNodeRegistration": False}


def _node_ips(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    if machine.config is not None and machine.services_up:
        yield "kubelet", {"addresses": [machine.own_address]}


def _services(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    for service in services(machine):
        yield (
            service.id,
            {"running": service.state == "Running", "healthy": service.healthy, "unknown": service.unknown},
        )


def _etcd_member(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    member = world.cluster.members.get(machine.name)
    if member is not None and machine.etcd in (EtcdPhase.LEARNER, EtcdPhase.RUNNING):
        yield "local", {"memberID": f"{member.id:016x}"}


def _nothing(world: World, machine: MachineState) -> Iterator[tuple[str, Any]]:
    return iter(())


KINDS: Mapping[str, Kind] = {
    kind.type: kind
    for kind in (
        Kind("runtime", "Disks.block.talos.dev", "block.DisksController", _disks),
        Kind("runtime", "SystemDisks.block.talos.dev", "block.SystemDiskController", _system_disk),
        Kind("runtime", "DiscoveredVolumes.block.talos.dev", "block.DiscoveryController", _volumes),
        Kind("runtime", "MachineStatuses.runtime.talos.dev", "runtime.MachineStatusController", _machine_status),
        Kind("config", "MachineTypes.config.talos.dev", "config.MachineTypeController", _machine_type),
        Kind("config", "MachineConfigs.config.talos.dev", "config.AcquireController", _machine_config),
        Kind("runtime", "ExtensionStatuses.runtime.talos.dev", "runtime.ExtensionStatusController", _extensions),
        Kind(
            "runtime",
            "LoadedKernelModules.runtime.talos.dev",
            "runtime.LoadedKernelModuleController",
            _modules,
            since=11,
        ),
        Kind("runtime", "Versions.runtime.talos.dev", "runtime.VersionController", _versions),
        Kind("network", "LinkStatuses.net.talos.dev", "network.LinkStatusController", _link_statuses),
        Kind("network", "AddressStatuses.net.talos.dev", "network.AddressStatusController", _address_statuses),
        Kind("network", "RouteStatuses.net.talos.dev", "network.RouteStatusController", _routes),
        Kind("network", "HostnameStatuses.net.talos.dev", "network.HostnameSpecController", _hostname),
        Kind("network", "NodeAddresses.net.talos.dev", "network.NodeAddressController", _node_addresses),
        Kind("cluster", "Members.cluster.talos.dev", "cluster.MemberController", _members),
        Kind("k8s", "Nodenames.kubernetes.talos.dev", "k8s.NodenameController", _nodename),
        Kind("k8s", "NodeIPs.kubernetes.talos.dev", "k8s.NodeIPController", _node_ips),
        Kind("runtime", "Services.v1alpha1.talos.dev", "v1alpha1.ServiceController", _services),
        Kind("etcd", "EtcdMembers.etcd.talos.dev", "etcd.MemberController", _etcd_member),
        Kind("runtime", "Diagnostics.runtime.talos.dev", "runtime.DiagnosticsController", _nothing),
    )
}


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _pretty(size: int) -> str:
    """Two significant digits, powers of 1000, as Talos prints sizes."""
    number, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 1000 or unit == "PB":
            break
        number /= 1000
    return f"{number:.1f} {unit}" if number < 10 and unit != "B" else f"{number:.0f} {unit}"


def _bus_path(machine: MachineState, disk: Disk) -> str:
    position = list(machine.disks).index(disk.dev)
    if disk.spec.transport == "nvme":
        return f"/pci0000:00/0000:00:1d.0/0000:{3 + position:02x}:00.0/nvme"
    if disk.spec.transport == "virtio":
        return f"/pci0000:00/0000:00:{7 + position:02x}.0/virtio{position}/"
    return f"/pci0000:00/0000:00:1f.2/ata{position + 1}/host{position}/target{position}:0:0/{position}:0:0:0/"
