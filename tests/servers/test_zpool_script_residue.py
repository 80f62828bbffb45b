"""What a disk may carry, and that the zpool script recognises it on fake machines and leaves it as it is."""

import shutil
from pathlib import Path

import pytest

from cozystack_iac import residue
from cozystack_iac.storage import zfs
from lab.platform.signatures import SIGNATURES, Marks
from lab.platform.signatures import zfs as zfs_label
from tests.zpool_machine import MIB, SIZE, Machine, kinds

CARRIED = {
    "lvm2-pv": ("lvm", "volume group vg-old"),
    "zfs": ("zfs", "pool tank of host old-host (hostid 8425c9d1), exported (4 of 4 labels)"),
    "zfs-data": ("zfs-own", "pool data"),
    "drbd": ("drbd", "DRBD 9"),
    "drbd8": ("drbd", "DRBD 8"),
    "linux-raid": ("mdraid", "(old-host:backup)"),
    "linux-raid-1.0": ("mdraid", "metadata 1.0"),
    "linux-raid-0.90": ("mdraid", "metadata 0.90"),
    "bluestore": ("ceph", "Ceph OSD"),
    "luks": ("luks", "(0a1b2c3d-0000-4000-8000-000000000001)"),
    "swap": ("swap", "(old-swap)"),
    "iso9660": ("iso9660", "(INSTALLER)"),
    "ext4": ("filesystem", "ext2/3/4 (home)"),
    "xfs": ("filesystem", "XFS (backup)"),
    "btrfs": ("filesystem", "Btrfs (media)"),
    "ntfs": ("filesystem", "NTFS"),
    "vfat": ("filesystem", "FAT16 (STICK)"),
    "squashfs": ("filesystem", "SquashFS"),
    "talosmeta": ("talos", "META"),
    "gpt": ("gpt", "GPT"),
    "gpt-backup": ("gpt-backup", "at the end"),
    "dos": ("mbr", "MBR"),
    "unknown": ("unknown", "from 65536 on: 01 6c 65 66"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_trace_is_recognised_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb", serial="B1", content=SIGNATURES[name](SIZE))
    before = (machine.root / "dev/sdb").read_bytes()
    code, found = machine.run()
    kind, evidence = CARRIED[name]
    assert (code, found.state, kinds(found)) == (zfs.REFUSED, "refused", [kind])
    assert evidence in found.problems[0].evidence
    assert (found.problems[0].disk, found.problems[0].device) == ("serial=B1", "sdb")
    assert machine.created == []
    assert (machine.root / "dev/sdb").read_bytes() == before


@pytest.mark.skipif(shutil.which("busybox") is None, reason="no busybox here: the job's image has its tools")
@pytest.mark.parametrize("name", ["lvm2-pv", "zfs", "drbd", "linux-raid-1.0", "ext4", "gpt", "unknown", None])
def test_busybox_reads_the_same(tmp_path: Path, name: str | None) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb", serial="B1", content=SIGNATURES[name](SIZE) if name else {})
    machine.shell = [
        str(shutil.which("busybox")),
        "sh",
    ]  # it prefers its own tools to those on PATH, but not to functions
    machine.before = 'nsenter() { shift 4; set -- "$HOST_ROOT$1" "$@"; program="$1"; shift 2; "$program" "$@"; }\n'
    code, found = machine.run()
    assert (code, kinds(found)) == ((zfs.REFUSED, [CARRIED[name][0]]) if name else (0, []))
    assert name is None or CARRIED[name][1] in found.problems[0].evidence


@pytest.mark.parametrize("labels", [(0,), (1,), (2,), (3,)])
def test_one_zfs_label_of_four_is_enough(tmp_path: Path, labels: tuple[int, ...]) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb", serial="B1", content=_only_labels(zfs_label("tank")(SIZE), labels))
    (problem,) = machine.run()[1].problems
    assert (problem.kind, "1 of 4 labels" in problem.evidence) == ("zfs", True)


def _only_labels(marks: Marks, labels: tuple[int, ...]) -> Marks:
    starts = (0, 256 * 1024, SIZE - 512 * 1024, SIZE - 256 * 1024)
    return {o: d for o, d in marks.items() if any(0 <= o - starts[n] < 256 * 1024 for n in labels)}


def test_a_cleared_zfs_label_betrays_itself_by_its_uberblocks(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    marks = {offset: data for offset, data in zfs_label("tank")(SIZE).items() if data[:1] != b"\x01"}
    machine.disk("sdb", serial="B1", content=marks)
    (problem,) = machine.run()[1].problems
    assert (problem.kind, problem.evidence) == ("zfs", "ZFS uberblocks without a readable label (4 of 4 labels)")


@pytest.mark.parametrize("offset", [0, 511, MIB - 1, SIZE - MIB, SIZE - 1])
def test_a_single_byte_at_an_edge_is_enough(tmp_path: Path, offset: int) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb", serial="B1", content={offset: b"\x01"})
    assert kinds(machine.run()[1]) == ["unknown"]
    assert machine.created == []


def test_a_disk_that_talos_wiped_is_blank(tmp_path: Path) -> None:
    machine = Machine(tmp_path)  # it clears the first and the last MiB and nothing between
    machine.disk("sdb", serial="B1", content={MIB: b"old", SIZE - MIB - 3: b"old"})
    assert machine.run(phase="look")[1].state == "fit"


def test_all_problems_of_all_disks_are_told_at_once(machine: Machine) -> None:
    machine.write("sdb", SIGNATURES["lvm2-pv"](SIZE) | SIGNATURES["drbd"](SIZE))
    machine.hold("sdb", "dm-0", "vg--old-root", "LVM-abc")
    machine.disk("sdc", serial="C1", content=SIGNATURES["ntfs"](SIZE), size=SIZE // 2)
    machine.module("2.4.0-1")
    _, found = machine.run("serial=B1", "serial=C1", "serial=D1", layout="mirror", minimum=SIZE)
    said = [(problem.device, problem.kind) for problem in found.problems]
    assert said == [
        ("sdb", "device-mapper"), ("sdb", "lvm"), ("sdb", "drbd"), ("sdc", "small"), ("sdc", "filesystem"),
        ("", "missing"), ("", "versions"),
    ]  # fmt: skip
    assert "dm-0 (vg--old-root)" in found.problems[0].evidence


def test_partitions_are_looked_into(machine: Machine) -> None:
    machine.write("sdb", SIGNATURES["gpt"](SIZE))
    machine.partition("sdb", "sdb1", "zfs-1a2b", zfs_label("tank")(SIZE // 2))
    machine.partition("sdb", "sdb2", "EPHEMERAL", SIGNATURES["xfs"](SIZE // 2))
    machine.hold("sdb/sdb2", "dm-1", "luks2-EPHEMERAL", "CRYPT-LUKS2")
    _, found = machine.run()
    said = [(problem.device, problem.kind) for problem in found.problems]
    assert said == [
        ("sdb", "gpt"), ("sdb", "partition"), ("sdb1", "zfs"), ("sdb", "talos"), ("sdb2", "device-mapper"),
        ("sdb2", "filesystem"),
    ]  # fmt: skip


def test_so_many_problems_that_they_do_not_fit_are_counted(machine: Machine) -> None:
    machine.write("sdb", SIGNATURES["gpt"](SIZE))
    for number in range(40):
        machine.partition(
            "sdb", f"sdb{number}", 'a partition with quite a long "name" \\ 1', SIGNATURES["ext4"](SIZE // 2)
        )
    _, found = machine.run()
    assert found.state == "refused"
    assert len(found.problems) + found.omitted == 81
    assert found.omitted > 0


@pytest.mark.parametrize("table", ["proc/1/mounts", "proc/swaps"])
def test_a_disk_in_use_is_refused_with_its_place(machine: Machine, table: str) -> None:
    (machine.root / table).write_text("/dev/sdb /srv/data ext4 rw 0 0\n")
    assert [str(problem) for problem in machine.run()[1].problems] == ["sdb (serial=B1): in use as /srv/data"]


def test_a_disk_that_cannot_be_read_is_refused(machine: Machine) -> None:
    (machine.root / "dev/sdb").unlink()
    code, found = machine.run()
    assert (code, kinds(found)) == (zfs.REFUSED, ["unreadable"])


def test_a_small_or_read_only_disk_is_refused(machine: Machine) -> None:
    (machine.root / "sys/block/sdb/ro").write_text("1")
    assert kinds(machine.run(minimum=SIZE + 1)[1]) == ["small", "read-only"]


def test_three_owners_get_three_next_steps_and_nothing_is_wiped(machine: Machine) -> None:
    """siderolabs/talos#11727 and #5485, omni#211: an LVM member, a pool `data` of another host, NTFS."""
    for name, content in {"sdc": "lvm2-pv", "sdd": "zfs-data", "sde": "ntfs"}.items():
        machine.disk(name, serial=name.upper(), content=SIGNATURES[content](SIZE))
    code, found = machine.run("serial=SDC", "serial=SDD", "serial=SDE", layout="raidz1")
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["lvm", "zfs-own", "filesystem"], [])
    steps = {residue.TROUBLES[problem.kind].rule.remedy for problem in found.problems}
    assert len(steps) == 3


def test_every_problem_the_script_names_has_a_code_and_a_next_step() -> None:
    named = {kind for kind, _ in CARRIED.values()}
    words = zfs.SCRIPT.replace("problem()", "").split("problem ")[1:]
    named |= {kind for word in words if (kind := word.split()[0]).strip('"$').isidentifier() is False or kind.isalpha()}
    named = {kind for kind in named if kind.replace("-", "").isalpha()}
    assert {"virtual", "missing", "elsewhere", "read-only"} < named
    assert named <= residue.TROUBLES.keys()
