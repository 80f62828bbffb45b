"""Which disk a config installs to: a path, a selector, or (1.14) an expression over disk properties."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from lab.machines.config import AppliedConfig
from lab.scenario import DiskSpec

_ALWAYS = ['disk.transport != ""', "!disk.readonly", "!disk.cdrom"]  # Talos adds these to every selector
_CEL_WRAP = 80  # column from which the CEL printer breaks a line behind the next &&
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: bool(a == b),
    "!=": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


class NoSuchDisk(Exception):
    """No disk fits; the message is the one the machine answers with."""


def pick(config: AppliedConfig, disks: list[DiskSpec]) -> DiskSpec:
    """The disk to install to. Raises NoSuchDisk. The first one in name order wins where several match."""
    usable = [d for d in sorted(disks, key=lambda d: d.dev) if d.transport and not d.readonly and not d.cdrom]
    if config.install_expression:
        matching = [disk for disk in usable if _evaluate(config.install_expression, disk)]
        return _first(matching, config.install_expression)
    if config.install_selector:
        return _first([d for d in usable if _selects(config.install_selector, d)], _expression(config.install_selector))
    path = config.install_disk
    for disk in disks:
        if path in (f"/dev/{disk.dev}", disk.dev, *symlinks(disk)):
            return disk
    raise NoSuchDisk(f'disk "{path}" does not exist')


def symlinks(disk: DiskSpec) -> list[str]:
    """The /dev/disk/by-id names udev gives a disk."""
    model = re.sub(r"\s+", "_", disk.model.strip())
    buses = {"nvme": "nvme", "virtio": "virtio", "sata": "ata", "sas": "scsi", "usb": "usb", "mmc": "mmc"}
    bus = buses.get(disk.transport, "")
    names = []
    if bus and disk.serial:
        names.append(
            f"/dev/disk/by-id/{bus}-" + (f"{model}_{disk.serial}" if model and bus != "virtio" else disk.serial)
        )
    if disk.wwid.startswith("naa."):
        names.append(f"/dev/disk/by-id/wwn-0x{disk.wwid.removeprefix('naa.')}")
    if disk.wwid.startswith("eui."):
        names.append(f"/dev/disk/by-id/nvme-{disk.wwid}")
    return names


def _first(matching: list[DiskSpec], expression: str) -> DiskSpec:
    if not matching:
        raise NoSuchDisk(f"no disks matched the expression: {expression}")
    return matching[0]


def _type(disk: DiskSpec) -> str:
    if disk.transport == "nvme":
        return "nvme"
    return "hdd" if disk.rotational else "ssd"


def _selects(selector: dict[str, Any], disk: DiskSpec) -> bool:
    values = {"model": disk.model, "serial": disk.serial, "wwid": disk.wwid, "type": _type(disk)}
    for key, wanted in selector.items():
        if key == "size":
            operator, size = _size(str(wanted))
            if not _COMPARE[operator](disk.size, size):
                return False
        elif not fnmatchcase(values.get(key, ""), str(wanted)):
            return False
    return True


def _size(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"\s*(<=|>=|==|<|>)?\s*(\d+(?:\.\d+)?)\s*([kKMGTP])?(i?)B?\s*", text)
    if match is None:
        raise NoSuchDisk(f"no disks matched the expression: disk.size {text}")
    power = "KMGTP".index(match[3].upper()) + 1 if match[3] else 0
    return match[1] or "==", int(float(match[2]) * (1024 if match[4] else 1000) ** power)


def _expression(selector: dict[str, Any]) -> str:
    """The expression Talos makes of a selector, for its error message."""
    terms = []
    if "size" in selector:
        operator, size = _size(str(selector["size"]))
        terms.append(f"disk.size {operator} {size}u")
    if "type" in selector:
        kinds = {"nvme": 'disk.transport == "nvme"', "ssd": "!disk.rotational"}
        terms.append(kinds.get(str(selector["type"]), "disk.rotational"))
    terms += [f'glob("{selector[key]}", disk.{key})' for key in ("model", "serial", "wwid") if key in selector]
    lines = [""]
    for term in (*terms, *_ALWAYS):
        if len(lines[-1]) >= _CEL_WRAP:
            lines[-1] += " &&"
            lines.append(term)
        else:
            lines[-1] += f" && {term}" if lines[-1] else term
    return "\n".join(lines)


def _evaluate(expression: str, disk: DiskSpec) -> bool:
    """Conjunctions of comparisons and globs. Anything else is refused rather than guessed."""
    return all(_term(term.strip(), disk, expression) for term in expression.split("&&"))


def _term(term: str, disk: DiskSpec, expression: str) -> bool:
    values: dict[str, Any] = {
        "dev_path": f"/dev/{disk.dev}", "size": disk.size, "serial": disk.serial, "wwid": disk.wwid, "model": disk.model,
        "transport": disk.transport, "rotational": disk.rotational, "readonly": disk.readonly, "cdrom": disk.cdrom,
    }  # fmt: skip
    if match := re.fullmatch(r'glob\(\s*"([^"]*)"\s*,\s*disk\.(\w+)\s*\)', term):
        return fnmatchcase(str(values[match[2]]), match[1])
    if match := re.fullmatch(r'disk\.(\w+)\s*(==|!=|<=|>=|<|>)\s*(?:"([^"]*)"|(\d+)u?)', term):
        wanted: Any = match[3] if match[3] is not None else int(match[4])
        return match[1] in values and _COMPARE[match[2]](values[match[1]], wanted)
    if match := re.fullmatch(r'"([^"]*)"\s+in\s+disk\.symlinks', term):
        return match[1] in symlinks(disk)
    if match := re.fullmatch(r"(!?)disk\.(rotational|readonly|cdrom)", term):
        return bool(values[match[2]]) is not bool(match[1])
    raise NoSuchDisk(f"the lab cannot evaluate the disk expression: {expression}")
