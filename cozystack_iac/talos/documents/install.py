"""The installation: which disk, which image. Before 1.14 in `machine.install`, then in a document with an expression."""

from __future__ import annotations

from typing import Any

from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos.documents.subject import Subject, document

BY_ID = "/dev/disk/by-id/"


def expressible(disk: Disk, minor: int) -> bool:
    """Whether `machine.install` can name the disk: up to 1.13 it takes no expressions."""
    return minor >= 14 or bool(disk.wwid or disk.serial or disk.by_id)


def legacy(subject: Subject) -> dict[str, Any]:
    """`machine.install` up to 1.13. A selector wins over the generated `disk`, which goes so that nobody wonders."""
    install: dict[str, Any] = {}
    disk = subject.node.install_disk
    if disk is not None and (disk.wwid or disk.serial):
        selector = {"wwid": disk.wwid, "serial": disk.serial}
        install["disk"] = {"$patch": "delete"}
        install["diskSelector"] = {name: value for name, value in selector.items() if value}
    elif disk is not None and disk.by_id:
        install["disk"] = _by_id(disk.by_id)
    if subject.image:
        install["image"] = subject.image
    return install


def unattended(subject: Subject) -> list[dict[str, Any]]:
    """The document of 1.14 and later."""
    fields: dict[str, Any] = {}
    if subject.image:
        fields["installer"] = {"image": subject.image}
    disk = subject.node.install_disk
    if disk is not None and disk.identities:
        fields["provisioning"] = {"diskSelector": {"match": expression(disk)}}
    return [document("UnattendedInstallConfig", **fields)] if fields else []


def expression(disk: Disk) -> str:
    """The disk as a CEL expression; all given identities have to match."""
    parts = {
        "wwid": 'disk.wwid == "{}"',
        "serial": 'disk.serial == "{}"',
        "byId": '"{}" in disk.symlinks',
    }
    found = []
    for kind, value in disk.identities:
        if kind == "selector":
            found.append(f"({value})" if len(disk.identities) > 1 else value)
        else:
            text = _by_id(value) if kind == "byId" else value
            found.append(parts[kind].format(text.replace("\\", "\\\\").replace('"', '\\"')))
    return " && ".join(found)


def _by_id(name: str) -> str:
    return name if name.startswith("/") else BY_ID + name
