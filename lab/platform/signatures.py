"""What former lives of a disk leave on it, as bytes at their real places. Pure; sizes and offsets in bytes.

A script that looks for labels finds these by reading, as it would on a disk from the drawer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from zlib import crc32

Marks = dict[int, bytes]  # offset -> bytes

KIB = 1024
ZFS_LABEL = 256 * KIB
ZFS_STATES = {"active": 0, "exported": 1, "destroyed": 2}


def _lvm(_size: int) -> Marks:
    """A physical volume of volume group `vg-old`: label in the second sector, metadata text behind it."""
    text = b'vg-old {\nid = "Ab12Cd-0000-1111-2222-3333-4444-EfGh56"\nseqno = 3\nformat = "lvm2"\n'
    area = struct.pack("<I16sI3Q", 0, b" LVM2 x[5A%r0N*>", 1, 4096, 1024 * KIB - 4096, 512)
    return {512: b"LABELONE" + struct.pack("<QII", 1, 0, 32) + b"LVM2 001", 4096: area, 4608: text}


def _bluestore(_size: int) -> Marks:
    return {0: b"bluestore block device\n6f0c8d5e-4f5e-4d8e-9d57-000000000001\n"}


def _md12(_size: int) -> Marks:
    return {4096: _md_superblock()}


def _md_superblock() -> bytes:
    """Version-1 superblock: magic, major version, features, padding, set uuid, set name."""
    return struct.pack("<4I16s32s", 0xA92B4EFC, 1, 0, 0, b"\x11" * 16, b"old-host:backup")


def _drbd(magic: int) -> Callable[[int], Marks]:
    # effective size, current uuid, 4 reserved, device uuid, flags, magic: big endian, in the last whole 4 KiB
    return lambda size: {size // 4096 * 4096 - 4096: struct.pack(">7QII", 2048, *range(1, 7), 0, magic)}


def _luks(_size: int) -> Marks:
    return {0: b"LUKS\xba\xbe\x00\x02", 168: b"0a1b2c3d-0000-4000-8000-000000000001"}


def _gpt(size: int) -> Marks:
    return {446: b"\x00\x00\x02\x00\xee", 510: b"\x55\xaa", 512: b"EFI PART\x00\x00\x01\x00", **_gpt_backup(size)}


def _gpt_backup(size: int) -> Marks:
    return {size - 512: b"EFI PART\x00\x00\x01\x00"}


def _boot_sector(fields: Marks) -> Callable[[int], Marks]:
    return lambda _size: {**fields, 510: b"\x55\xaa"}


def _at(fields: Marks) -> Callable[[int], Marks]:
    return lambda _size: fields


def zfs(pool: str, host: str = "old-host", state: str = "exported") -> Callable[[int], Marks]:
    """A member of pool `pool`: two labels at each end, with name, host and state, and their uberblocks."""

    def marks(size: int) -> Marks:
        end = size // ZFS_LABEL * ZFS_LABEL
        pairs: dict[str, str | int] = {
            "version": 5000, "name": pool, "state": ZFS_STATES[state], "txg": 4711,
            "pool_guid": crc32(pool.encode()), "hostid": 0x8425C9D1, "hostname": host,
        }  # fmt: skip
        found: Marks = {}
        for label in (0, ZFS_LABEL, end - 2 * ZFS_LABEL, end - ZFS_LABEL):
            found[label + 16 * KIB] = _nvlist(pairs)
            for slot in range(8):
                found[label + (128 + slot) * KIB] = struct.pack("<QQ", 0x00BAB10C, 5000)
        return found

    return marks


def _nvlist(pairs: Mapping[str, str | int]) -> bytes:
    """Name-value pairs in XDR: encoding 1, little-endian host, version 0, unique names; then each pair with its size."""
    return struct.pack(">4B2I", 1, 1, 0, 0, 0, 1) + b"".join(_pair(*pair) for pair in pairs.items()) + bytes(8)


def _pair(name: str, value: str | int) -> bytes:
    head = _xdr_text(name)
    body = struct.pack(">IIQ", 8, 1, value) if isinstance(value, int) else struct.pack(">II", 9, 1) + _xdr_text(value)
    return struct.pack(">II", 8 + len(head) + len(body), 8 + len(head) + len(body)) + head + body


def _xdr_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


# By the names scenarios use; most are those that Talos gives what it finds.
SIGNATURES: Mapping[str, Callable[[int], Marks]] = {
    "lvm2-pv": _lvm,
    "zfs": zfs("tank"),
    "zfs-data": zfs("data"),  # a pool of the name that stack files use
    "drbd": _drbd(0x8374026D),
    "drbd8": _drbd(0x8374026B),
    "linux-raid": _md12,
    "linux-raid-1.0": lambda size: {(size - 8 * KIB) // 4096 * 4096: _md_superblock()},
    "linux-raid-0.90": lambda size: {size // 65536 * 65536 - 65536: struct.pack("<2I", 0xA92B4EFC, 0)},
    "bluestore": _bluestore,
    "luks": _luks,
    "swap": _at({4086: b"SWAPSPACE2", 1052: b"old-swap"}),
    "iso9660": _at({32769: b"CD001", 32808: b"INSTALLER".ljust(32)}),
    "ext4": _at({1080: b"\x53\xef", 1144: b"home"}),
    "xfs": _at({0: b"XFSB", 108: b"backup"}),
    "btrfs": _at({65600: b"_BHRfS_M", 65835: b"media"}),
    "ntfs": _boot_sector({3: b"NTFS    "}),
    "vfat": _boot_sector({54: b"FAT16   ", 43: b"STICK      "}),
    "squashfs": _at({0: b"hsqs"}),
    "talosmeta": _at({0: b"\x5a\x4b\x3c\x2d"}),
    "gpt": _gpt,
    "gpt-backup": _gpt_backup,
    "dos": _boot_sector({446: b"\x80\x20\x21\x00\x83"}),
    "unknown": _at({65536: b"\x01left by something"}),
}
