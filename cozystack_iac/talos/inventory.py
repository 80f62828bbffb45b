"""From the stack file's inventory to what the Talos stages ask for. Pure."""

from __future__ import annotations

from cozystack_iac.settings import Node, Site
from cozystack_iac.talos.departure import Approval
from cozystack_iac.talos.documents import preset
from cozystack_iac.talos.documents.subject import Subject
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.probe import Target
from cozystack_iac.talos.profile import talos_of
from cozystack_iac.talos.verification import Wanted


def targets(site: Site) -> tuple[Target, ...]:
    """What the plan gate looks at, machine by machine."""
    return tuple(_target(site, index, node) for index, node in enumerate(site.nodes))


def machine_refs(site: Site) -> tuple[MachineRef, ...]:
    """How to reach every machine, before and after its configuration."""
    return tuple(_machine_ref(node) for node in site.nodes)


def wanted(site: Site) -> dict[str, Wanted]:
    """What every machine has to run, by name."""
    return {node.name: _wanted(site, node) for node in site.nodes}


def _wanted(site: Site, node: Node) -> Wanted:
    image = node.image or site.installer_image
    modules = preset.modules(Subject.of(site, node))
    return Wanted(
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


def approvals(site: Site) -> dict[str, Approval]:
    """What was decided about machines that are no longer in the inventory, by name."""
    return {
        entry.name: Approval(
            reset=entry.reset.reason if entry.reset is not None and entry.reset.approved else None,
            evacuate=entry.evacuate.reason if entry.evacuate is not None and entry.evacuate.approved else None,
            lost=entry.lost.reason if entry.lost is not None and entry.lost.approved else None,
        )
        for entry in site.removed
    }
