"""Whether LVM on a machine keeps its hands off what DRBD, ZFS and loop devices hold: reads lvm.conf. Pure.

Judged is what the filter does to a device, not how it is written: another spelling that rejects the same devices is fine,
and a pattern that an earlier one undoes is not.
"""

from __future__ import annotations

import re

# One device of each kind that LVM must never open: a DRBD volume, a mapped device, a ZFS volume, a loop device.
MANDATORY = {"drbd": "/dev/drbd1000", "dm": "/dev/dm-0", "zd": "/dev/zd0"}
ADVISED = {"loop": "/dev/loop0"}  # in Cozystack's preset since talm 0.31

_FILTER = re.compile(r"^\s*global_filter\s*=\s*(\[[^\]]*\]|\"[^\"\n]*\")", re.MULTILINE)
_ANY_FILTER = re.compile(r"^\s*global_filter\s*=", re.MULTILINE)
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


def let_through(conf: str) -> tuple[str, ...]:
    """Kinds of device (`drbd`, `dm`, `zd`, `loop`) that LVM would open by this lvm.conf; empty when the filter is complete.

    Where the filter stands more than once, each has to reject; where it cannot be read, it rejects nothing.
    """
    filters = [_TEXT.findall(text) for text in _FILTER.findall(conf)]
    readable = bool(filters) and len(filters) == len(_ANY_FILTER.findall(conf))
    kinds = {**MANDATORY, **ADVISED}
    if not readable:
        return tuple(kinds)
    return tuple(kind for kind, device in kinds.items() if not all(_rejects(one, device) for one in filters))


def _rejects(patterns: list[str], device: str) -> bool:
    """The first pattern that matches decides; a device that none matches is accepted (lvm.conf(5))."""
    for pattern in patterns:
        action, delimiter = pattern[:1], pattern[1:2]
        if action not in ("a", "r") or len(pattern) < 4 or not pattern.endswith(delimiter):
            return False
        try:
            if re.search(pattern[2:-1], device):
                return action == "r"
        except re.error:
            return False
    return False
