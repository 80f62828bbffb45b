"""The zpool script on fake machines: real bytes on sparse disks, sysfs as the kernel lays it out, and a recording `zpool`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cozystack_iac.storage import residue, zfs
from cozystack_iac.storage.zfs import PoolReport, report
from lab.platform.signatures import SIGNATURES, Marks
from lab.platform.signatures import zfs as zfs_label

MIB = 1024**2
SIZE = 8 * MIB
CREATE = "create -o ashift=12 -o failmode=continue -O compression=lz4 -O atime=off -m none data "


class Machine:
    """A machine's root file system as far as the script looks at it, with sparse files for disks and a recording zpool."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "root", root / "bin", root / "calls"
        for folder in ("sys/block", "sys/module/zfs", "dev/disk/by-id", "usr/local/sbin", "proc/1"):
            (self.root / folder).mkdir(parents=True)
        self.bin.mkdir()
        self.shell, self.before = ["/bin/sh"], ""
        self.script(self.bin / "nsenter", 'shift 4; program="$1"; shift; exec "$HOST_ROOT$program" "$@"')
        self.module("2.3.3-1")
        self.zpool("")

    def script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def module(self, version: str) -> None:
        (self.root / "sys/module/zfs/version").write_text(version + "\n")

    def zpool(
        self, pools: str, *, members: str = "/dev/sdb1", health: str = "ONLINE", group: str = "",
        create: str = "exit 0", ashift: str = "12", version: str = "2.3.3-1",
    ) -> None:  # fmt: skip
        """A zpool command that knows `pools` (one a line); creating one makes it known."""
        known = self.root.parent / "pools"
        known.write_text(pools)
        lines = [f"\t{group}\t8M"] if group else []
        lines += [f"\t{member}\t8M" for member in members.split()]
        listing = self.root.parent / "listing"
        listing.write_text("data\t8M\n" + "".join(line + "\n" for line in lines))
        self.script(
            self.root / "usr/local/sbin/zpool",
            f"""echo "$@" >> {self.calls}
case "$*" in
  version) printf 'zfs-{version}\\nzfs-kmod-9.9.9\\n' ;;
  "list -H -o name") cat {known} ;;
  "list -H -o name,health") cat {known} ;;
  "list -H -p -o health,size "*) printf '{health}\\t{SIZE}\\n' ;;
  "list -v -H -L -P "*) cat {listing} ;;
  "get -H -p -o value ashift data") echo {ashift} ;;
  create*) {create.replace("exit 0", f"echo data > {known}; exit 0")} ;;
esac""",
        )

    def disk(
        self, name: str, *, serial: str = "", content: Mapping[int, bytes] | None = None, size: int = SIZE
    ) -> Path:
        folder = self._block(self.root / "sys/block" / name, size)
        (folder / "device").mkdir()
        if serial:
            (folder / "device/serial").write_text(f"  {serial} \n")
        self.write(name, content or {}, size)
        return folder

    def partition(self, disk: str, name: str, label: str = "", content: Mapping[int, bytes] | None = None) -> None:
        folder = self._block(self.root / "sys/block" / disk / name, SIZE // 2)
        (folder / "partition").write_text("1\n")
        (folder / "uevent").write_text(f"DEVNAME={name}\n" + (f"PARTNAME={label}\n" if label else ""))
        self.write(name, content or {}, SIZE // 2)

    def link(self, name: str, target: str) -> None:
        (self.root / "dev/disk/by-id" / name).symlink_to(f"../../{target}")

    def hold(self, folder: str, holder: str, name: str, uuid: str = "") -> None:
        """`holder` (dm-0) with the device-mapper name `name` uses what is in sysfs at `folder`."""
        (self.root / "sys/block" / folder / "holders" / holder).mkdir()
        (self.root / "sys/block" / holder / "dm").mkdir(parents=True, exist_ok=True)
        (self.root / "sys/block" / holder / "dm/name").write_text(name + "\n")
        (self.root / "sys/block" / holder / "dm/uuid").write_text(uuid + "\n")

    def write(self, name: str, content: Mapping[int, bytes], size: int = SIZE) -> None:
        with (self.root / "dev" / name).open("wb") as file:
            file.truncate(size)
            for offset, data in content.items():
                file.seek(offset)
                file.write(data)

    def _block(self, folder: Path, size: int) -> Path:
        (folder / "holders").mkdir(parents=True)
        (folder / "size").write_text(f"{size // 512}\n")
        (folder / "ro").write_text("0\n")
        return folder

    def run(
        self,
        *disks: str,
        layout: str = "single",
        minimum: int = MIB,
        phase: zfs.Phase = "make",
        must_say: bool = True,
    ) -> tuple[int, PoolReport]:
        log = self.root.parent / "termination"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [*self.shell, "-c", self.before + zfs.SCRIPT],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "POOL": "data",
                "LAYOUT": layout,
                "DISKS": "\n".join(disks or ["serial=B1"]),
                "MINIMUM_BYTES": str(minimum),
                "ASHIFT": "12",
                "PHASE": phase,
                "HOST_ROOT": str(self.root),
                "TERMINATION_LOG": str(log),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert log.exists() or not must_say, done.stderr
        message = log.read_bytes() if log.exists() else b""
        assert len(message) <= 4096
        return done.returncode, report("cp1", "data", message.decode())

    @property
    def created(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if call.startswith("create")]


def kinds(found: PoolReport) -> list[str]:
    return [problem.kind for problem in found.problems]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.disk("sda", serial="A1")
    made.disk("sdb", serial="B1")
    return made


# What is made --------------------------------------------------------------------------------------------------------


def test_an_empty_disk_becomes_a_pool(machine: Machine) -> None:
    code, found = machine.run()
    assert code == 0
    assert (found.state, found.health, found.size_bytes, found.devices) == ("created", "ONLINE", SIZE, ("/dev/sdb1",))
    assert (found.layout, found.ashift, found.userland, found.module) == ("single", "12", "2.3.3-1", "2.3.3-1")
    assert machine.created == [CREATE + "/dev/sdb"]


def test_a_second_run_finds_the_pool_and_creates_nothing(machine: Machine) -> None:
    machine.run()
    code, found = machine.run()
    assert (code, found.state) == (0, "present")
    assert len(machine.created) == 1


def test_a_look_writes_nothing(machine: Machine) -> None:
    code, found = machine.run(phase="look")
    assert (code, found.state, found.fit, found.online) == (0, "fit", True, False)
    assert machine.created == []


@pytest.mark.parametrize(
    ("layout", "count"), [("mirror", 2), ("mirror", 3), ("raidz1", 3), ("raidz2", 4), ("raidz3", 5)]
)
def test_every_layout_is_made_with_its_name(machine: Machine, layout: zfs.Layout, count: int) -> None:
    names = [f"sd{letter}" for letter in "cdefg"[:count]]
    for name in names:
        machine.disk(name, serial=name.upper())
    machine.zpool("", members=" ".join(f"/dev/{name}1" for name in names), group=f"{layout}-0")
    code, found = machine.run(*(f"serial={name.upper()}" for name in names), layout=layout)
    assert (code, found.state, found.layout) == (0, "created", layout)
    assert machine.created == [CREATE + " ".join([layout, *(f"/dev/{name}" for name in names)])]


@pytest.mark.parametrize("layout", zfs.ARITY)
def test_the_script_and_the_rules_agree_on_how_many_disks_a_layout_takes(machine: Machine, layout: zfs.Layout) -> None:
    least, _ = zfs.ARITY[layout]
    for count in (least, least + 1 if layout == "single" else least - 1):
        names = [f"sd{letter}" for letter in "cdefg"[:count]]
        for name in names:
            if not (machine.root / "dev" / name).exists():
                machine.disk(name, serial=name.upper())
        _, found = machine.run(*(f"serial={name.upper()}" for name in names), layout=layout, phase="look")
        assert ("layout" in kinds(found)) == bool(zfs.arity(layout, count)), count


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("sdc", "sdc1"), ("vdb", "vdb1"), ("xvdb", "xvdb1"), ("nvme1n1", "nvme1n1p1"), ("mmcblk0", "mmcblk0p1"),
        ("sdaa", "sdaa1"),
    ],
)  # fmt: skip
def test_partitions_are_named_as_the_kernel_names_them(machine: Machine, name: str, partition: str) -> None:
    machine.disk(name, serial="N1")
    machine.zpool("data\n", members=f"/dev/{partition}")
    assert machine.run("serial=N1")[1].state == "present"
    machine.zpool("data\n", members=f"/dev/{name}2" if partition == f"{name}1" else f"/dev/{name}1")
    assert kinds(machine.run("serial=N1")[1]) == ["elsewhere"]


def test_disks_are_found_by_link_by_wwid_and_by_the_page_of_sata(machine: Machine) -> None:
    machine.link("nvme-X", "sdb")
    assert machine.run("byId=nvme-X", phase="look")[0] == 0
    (machine.root / "sys/block/sdb/device/wwid").write_text("t10.ATA     LAB  DISK   B1 \n")
    assert machine.run("wwid=t10.ATA     LAB  DISK   B1", phase="look")[0] == 0
    (machine.root / "sys/block/sdb/device/vpd_pg80").write_bytes(b"\x00\x80\x00\x08  PAGE80")
    assert machine.run("serial=PAGE80", phase="look")[0] == 0


def test_a_partition_is_named_by_its_link_and_taken_as_it_is(machine: Machine) -> None:
    machine.partition("sda", "sda4", "cozystack")
    machine.link("ata-A1-part4", "sda4")
    machine.zpool("", members="/dev/sda4")
    code, found = machine.run("byId=ata-A1-part4")
    assert (code, found.devices) == (0, ("/dev/sda4",))
    assert machine.created == [CREATE + "/dev/sda4"]


def test_parts_of_an_emmc_that_share_its_serial_are_no_disks(machine: Machine) -> None:
    for name in ("mmcblk0", "mmcblk0boot0", "mmcblk0rpmb"):
        machine.disk(name, serial="0x1234")
    assert machine.run("serial=0x1234", phase="look")[1].state == "fit"


def test_a_device_behind_multipath_is_refused_with_its_name(machine: Machine) -> None:
    for path in ("sdc", "sdd"):
        machine.disk(path, serial="LUN7")
        machine.hold(path, "dm-3", "mpatha", "mpath-3600a0b8000")
    _, found = machine.run("serial=LUN7")
    assert kinds(found) == ["ambiguous", "multipath", "multipath"]
    assert "dm-3 (mpatha)" in found.problems[1].evidence
    machine.link("dm-uuid-mpath-3600a0b8000", "dm-3")
    assert kinds(machine.run("byId=dm-uuid-mpath-3600a0b8000")[1]) == ["virtual"]
    assert machine.created == []


@pytest.mark.parametrize("identity", ["serial=NOPE", "wwid=B1", "serial=B", "serial=B1.", "serial=.."])
def test_an_identity_that_matches_no_disk_is_refused(machine: Machine, identity: str) -> None:
    code, found = machine.run(identity)
    assert (code, kinds(found)) == (zfs.REFUSED, ["missing"])
    assert found.problems[0].disk == identity


def test_an_identity_that_matches_two_disks_is_refused(machine: Machine) -> None:
    machine.disk("sdc", serial="B1")
    code, found = machine.run()
    assert (code, kinds(found)) == (zfs.REFUSED, ["ambiguous"])
    assert "sdb sdc" in found.problems[0].evidence


def test_the_same_disk_under_two_names_is_refused(machine: Machine) -> None:
    machine.link("ata-B", "sdb")
    assert "twice" in kinds(machine.run("serial=B1", "byId=ata-B", layout="mirror")[1])


# What a disk may carry ------------------------------------------------------------------------------------------------

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


def test_every_problem_the_script_names_has_a_code_and_a_next_step() -> None:
    named = {kind for kind, _ in CARRIED.values()}
    words = zfs.SCRIPT.replace("problem()", "").split("problem ")[1:]
    named |= {kind for word in words if (kind := word.split()[0]).strip('"$').isidentifier() is False or kind.isalpha()}
    named = {kind for kind in named if kind.replace("-", "").isalpha()}
    assert {"virtual", "missing", "elsewhere", "read-only"} < named
    assert named <= residue.TROUBLES.keys()


# Versions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("userland", "module", "fits"),
    [
        ("2.3.3-1", "2.3.3-1", True),
        ("2.3.4-1", "2.3.3-1", True),
        ("2.2.2-0ubuntu9.4", "2.2.2-0ubuntu9.4", True),
        ("2.2.7-1", "2.4.3-1", False),
        ("2.3.1-1", "2.3.3-1", False),
        ("2.4.0-1", "2.3.3-1", False),
        ("2.3.3-1", "", False),
        ("", "2.3.3-1", False),
    ],
)
def test_tools_that_do_not_fit_the_module_write_nothing(
    machine: Machine, userland: str, module: str, fits: bool
) -> None:
    machine.zpool("", version=userland)
    machine.module(module)
    code, found = machine.run()
    if fits:
        assert (code, found.state) == (0, "created")
    else:
        assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["versions"], [])
        assert (userland or "of unknown version") in found.problems[0].evidence
        assert (module or "of unknown version") in found.problems[0].evidence


# Pools that are there already ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "group", "ashift", "expected"),
    [
        ("/dev/sdz1", "", "12", ["elsewhere"]),
        ("/dev/sdb1 /dev/sdc1", "", "12", ["elsewhere", "other-layout"]),
        ("/dev/sdb1 /dev/sdc1", "mirror-0", "12", ["elsewhere", "other-layout"]),
        ("/dev/sdb1", "", "9", ["ashift"]),
        ("/dev/sdb1", "", "", ["ashift"]),
        ("/dev/sdb2", "", "12", ["elsewhere"]),
        ("/dev/sdb", "", "12", []),
    ],
)
def test_a_pool_of_that_name_counts_only_on_these_disks_in_this_layout(
    machine: Machine, members: str, group: str, ashift: str, expected: list[str]
) -> None:
    machine.zpool("data\n", members=members, group=group, ashift=ashift)
    code, found = machine.run()
    assert (code, kinds(found)) == (zfs.REFUSED if expected else 0, expected)
    assert machine.created == []


def test_a_label_knows_the_sector_size_better_than_the_property(machine: Machine) -> None:
    machine.zpool("data\n", ashift="12")
    machine.script(machine.root / "usr/local/sbin/zdb", "printf \"    name: 'data'\\n        ashift: 9\\n\"")
    (problem,) = machine.run()[1].problems
    assert (problem.kind, "ashift 9" in problem.evidence) == ("ashift", True)


def test_a_degraded_pool_is_no_success(machine: Machine) -> None:
    machine.zpool("data\n", health="DEGRADED")
    code, found = machine.run()
    assert (code, found.state, found.health, found.online) == (1, "failed", "DEGRADED", False)


def test_a_create_that_fails_midway_says_what_there_is_now(machine: Machine) -> None:
    machine.zpool("", create="echo 'cannot open /dev/sdb: Device or resource busy' >&2; exit 1")
    code, found = machine.run()
    assert (code, found.state) == (1, "failed")
    assert "Device or resource busy; pools are now:" in found.reason


def test_a_disk_swapped_after_the_look_is_not_written(machine: Machine) -> None:
    machine.disk("sdc", serial="C1")
    block = machine.root / "sys/block"
    swap = f"[ -d {block}/sdx ] || {{ mv {block}/sdb {block}/sdx; mv {block}/sdc {block}/sdb; mv {block}/sdx {block}/sdc; }}"
    machine.script(machine.bin / "od", f'{shutil.which("od")} "$@"; {swap} 2>/dev/null')
    code, found = machine.run()
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["changed"], [])


@pytest.mark.parametrize("tool", ["od", "awk", "dd", "tr", "sort", "cat", "grep"])
@pytest.mark.parametrize("how", ["exit 1", "exit 0", "kill -9 $$"])
def test_a_tool_that_breaks_is_never_an_empty_disk(machine: Machine, tool: str, how: str) -> None:
    machine.write("sdb", SIGNATURES["ext4"](SIZE))
    machine.script(machine.bin / tool, how)
    code, found = machine.run(must_say=False)
    assert code != 0
    assert not found.fit
    assert machine.created == []


def test_a_very_long_error_does_not_cost_the_message(machine: Machine) -> None:
    machine.zpool("", create="for n in 1 2 3 4 5 6 7 8 9; do printf '%0900d' 0 >&2; done; exit 1")
    code, found = machine.run()
    assert (code, found.state, found.reason.startswith("zpool create: 000")) == (1, "failed", True)


def test_a_zpool_command_that_fails_is_not_read_as_no_pool(machine: Machine) -> None:
    machine.script(machine.root / "usr/local/sbin/zpool", f'echo "$@" >> {machine.calls}; echo no module >&2; exit 1')
    code, found = machine.run()
    assert (code, found.state) == (1, "failed")
    assert machine.created == []


def test_a_node_without_zfs_is_refused_by_name(machine: Machine) -> None:
    (machine.root / "usr/local/sbin/zpool").unlink()
    code, found = machine.run()
    assert (code, kinds(found)) == (zfs.REFUSED, ["no-zfs"])


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


SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_the_script_is_clean() -> None:
    done = subprocess.run(
        [str(SHELLCHECK), "-s", "sh", "-"], input=zfs.SCRIPT, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


# Several identities ---------------------------------------------------------------------------------------------------


def test_a_disk_with_several_identities_has_to_have_all_of_them(machine: Machine) -> None:
    machine.disk("nvme0n1", serial="S970")
    machine.link("nvme-LAB_S970", "nvme0n1")
    machine.zpool("", members="/dev/nvme0n1p1")
    assert machine.run("serial=S970\tbyId=nvme-LAB_S970")[0] == 0
    assert machine.created == [f"{CREATE}/dev/nvme0n1"]


@pytest.mark.parametrize("wanted", ["serial=S970\tbyId=nvme-LAB_S980", "wwid=eui.1\tserial=S970"])
def test_one_identity_that_fits_is_not_enough(machine: Machine, wanted: str) -> None:
    machine.disk("nvme0n1", serial="S970")
    machine.disk("nvme1n1", serial="S980")
    machine.link("nvme-LAB_S980", "nvme1n1")
    code, found = machine.run(wanted)
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["missing"], [])
    assert found.problems[0].disk == wanted.replace("\t", " ")
    assert "all of these identities" in found.problems[0].evidence


def test_a_partition_and_its_disk_are_not_the_same_thing(machine: Machine) -> None:
    machine.disk("nvme0n1", serial="S1")
    machine.partition("nvme0n1", "nvme0n1p3")
    machine.link("ata-LAB_S1-part3", "nvme0n1p3")
    code, found = machine.run("serial=S1\tbyId=ata-LAB_S1-part3")
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["missing"], [])


# Field reports -------------------------------------------------------------------------------------------------------


def test_a_disk_that_got_the_name_of_another_is_not_taken_for_it(machine: Machine) -> None:
    """siderolabs/omni#1090, talos#4766: nvme0n1 was S970 in the plan and is S980 now."""
    machine.disk("nvme0n1", serial="S980")
    code, found = machine.run("serial=S970")
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["missing"], [])
    machine.disk("nvme1n1", serial="S970")
    machine.zpool("", members="/dev/nvme1n1p1")
    assert machine.run("serial=S970")[0] == 0
    assert machine.created == [CREATE + "/dev/nvme1n1"]


def test_three_owners_get_three_next_steps_and_nothing_is_wiped(machine: Machine) -> None:
    """siderolabs/talos#11727 and #5485, omni#211: an LVM member, a pool `data` of another host, NTFS."""
    for name, content in {"sdc": "lvm2-pv", "sdd": "zfs-data", "sde": "ntfs"}.items():
        machine.disk(name, serial=name.upper(), content=SIGNATURES[content](SIZE))
    code, found = machine.run("serial=SDC", "serial=SDD", "serial=SDE", layout="raidz1")
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["lvm", "zfs-own", "filesystem"], [])
    steps = {residue.TROUBLES[problem.kind].rule.remedy for problem in found.problems}
    assert len(steps) == 3


@pytest.mark.parametrize("name", ["loop3", "dm-0"])
def test_what_is_no_disk_is_refused_even_by_its_link(machine: Machine, name: str) -> None:
    """psy0rz/alpinebox#4, warewulf#169: names of loops and mappers are built in yet other ways."""
    machine.disk(name)
    machine.link("lab-thing", name)
    assert kinds(machine.run("byId=lab-thing")[1]) == ["virtual"]


def test_tools_from_an_image_do_not_write_for_a_newer_module(machine: Machine) -> None:
    """openzfs/zfs#12403 and #10229: a pool made with 2.2 tools under a 2.4 module; #8592: 512-byte sectors on a 4K NVMe."""
    machine.zpool("", version="2.2.6-1")
    machine.module("2.4.3-1")
    assert kinds(machine.run()[1]) == ["versions"]
    machine.zpool("", version="2.4.3-1", ashift="9")
    assert kinds(machine.run()[1]) == ["ashift"]
