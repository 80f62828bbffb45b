"""From the stack file's inventory to what the Talos stages ask for. Pure."""

from __future__ import annotations

from cozystack_iac.settings import Node, Site
from cozystack_iac.talos.documents import preset
from cozystack_iac.talos.documents.subject import Subject
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.probe import Target
from cozystack_iac.talos.profile import talos_of
from cozystack_iac.talos.verification import WantedMachine


def targets(site: Site) -> tuple[Target, ...]:
    """What the plan gate looks at, machine by machine."""
    return tuple(_target(site, index, node) for index, node in enumerate(site.nodes))


def machine_refs(site: Site) -> tuple[MachineRef, ...]:
    """How to reach every machine, before and after its configuration."""
    return tuple(_machine_ref(node) for node in site.nodes)


def storing_machines(site: Site) -> tuple[MachineRef, ...]:
    """Storage nodes that can be asked about their disks: those with an API of their own."""
    names = {node.name for node in site.storage_nodes}
    return () if site.existing else tuple(ref for ref in machine_refs(site) if ref.name in names)


def wanted(site: Site) -> dict[str, WantedMachine]:
    """What every machine has to run, by name."""
    return {node.name: _wanted(site, node) for node in site.nodes}


def _wanted(site: Site, node: Node) -> WantedMachine:
    image = node.image or site.installer_image
    modules = preset.modules(Subject.of(site, node))
    return WantedMachine(
        talos=talos_of(image) or site.talos_version,
        image=image,
        extensions=site.talos.extensions,
        modules=tuple(str(module["name"]) for module in modules),
    )


def _target(site: Site, index: int, node: Node) -> Target:
    return Target(
        name=node.name,
        role=node.role,
        path=site.where("nodes", index),
        maintenance=node.maintenance,
        address=node.address,
        internal=node.internal,
        static=bool(node.addresses),
        link=node.link,
        vip=site.talos.vip if node.is_control_plane else None,
        install_disk=node.install_disk,
        data_disks=node.data_disks,
        reset_reason=_reset_reason(node),
        fingerprint=node.fingerprint,
    )


def _machine_ref(node: Node) -> MachineRef:
    return MachineRef(
        name=node.name,
        role=node.role,
        maintenance=node.maintenance,
        address=node.address,
        internal=node.internal,
        reset_reason=_reset_reason(node),
        fingerprint=node.fingerprint,
    )


def _reset_reason(node: Node) -> str | None:
    return node.reset.reason if node.reset is not None and node.reset.approved else None
