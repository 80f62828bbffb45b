"""ZFS, LINSTOR and storage classes: the script on fake machines, answers in every shape, classes by the book."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cozystack_iac.storage import classes, linstor, zfs
from cozystack_iac.storage.zfs import DiskIdentity, PoolPlan, report

MIB = 1024**2
SIZE = 8 * MIB


class Machine:
    """A machine's root file system as far as the script looks at it, with sparse files for disks and a recording zpool."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin, self.calls = root / "root", root / "bin", root / "calls"
        for folder in ("sys/block", "dev/disk/by-id", "usr/local/sbin"):
            (self.root / folder).mkdir(parents=True)
        self.bin.mkdir()
        self.script(self.bin / "nsenter", 'shift 4; exec "$HOST_ROOT$0_ROOT$@"'.replace("$0_ROOT", ""))
        self.zpool("")

    def script(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def zpool(self, pools: str, *, members: str = "/dev/sdb1", health: str = "ONLINE", create: str = "exit 0") -> None:
        """A zpool command that knows `pools`; creating one makes it known."""
        known = self.root.parent / "pools"
        known.write_text(pools)
        self.script(
            self.root / "usr/local/sbin/zpool",
            f"""echo "$@" >> {self.calls}
case "$*" in
  "list -H -o name") cat {known} ;;
  "list -H -p -o health,size "*) printf '{health}\\t{SIZE}\\n' ;;
  "list -v -H -L -P "*) printf 'data\\t8M\\n\\t{members}\\t8M\\n' | sed 's/^\\t//' ;;
  create*) echo data > {known}; {create} ;;
esac""",
        )

    def disk(self, name: str, *, serial: str, content: Mapping[int, bytes] | None = None, size: int = SIZE) -> None:
        block = self.root / "sys/block" / name
        (block / "holders").mkdir(parents=True)
        (block / "device").mkdir()
        (block / "size").write_text(str(size // 512))
        (block / "ro").write_text("0")
        (block / "device/serial").write_text(f"  {serial} \n")
        with (self.root / "dev" / name).open("wb") as file:
            file.truncate(size)
            for offset, data in (content or {}).items():
                file.seek(offset)
                file.write(data)

    def run(self, disks: str = "serial=B1", layout: str = "single", minimum: int = MIB) -> tuple[int, zfs.PoolReport]:
        log = self.root.parent / "termination"
        log.unlink(missing_ok=True)
        done = subprocess.run(
            ["/bin/sh", "-c", zfs.SCRIPT],
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "POOL": "data",
                "LAYOUT": layout,
                "DISKS": disks,
                "MINIMUM_BYTES": str(minimum),
                "ASHIFT": "12",
                "HOST_ROOT": str(self.root),
                "TERMINATION_LOG": str(log),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert log.exists(), done.stderr
        return done.returncode, report("cp1", "data", log.read_text())

    @property
    def created(self) -> list[str]:
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in calls if call.startswith("create")]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.disk("sda", serial="A1")
    made.disk("sdb", serial="B1")
    return made


def test_an_empty_disk_becomes_a_pool(machine: Machine) -> None:
    code, found = machine.run()
    assert code == 0
    assert (found.state, found.health, found.size_bytes, found.devices) == ("created", "ONLINE", SIZE, ("/dev/sdb1",))
    assert machine.created == ["create -o ashift=12 -o failmode=continue -O compression=lz4 -O atime=off data /dev/sdb"]


def test_a_second_run_finds_the_pool_and_creates_nothing(machine: Machine) -> None:
    machine.run()
    code, found = machine.run()
    assert (code, found.state) == (0, "present")
    assert len(machine.created) == 1


def test_mirrors_name_their_layout(machine: Machine) -> None:
    machine.disk("sdc", serial="C1")
    machine.zpool("", members="/dev/sdb1\\n/dev/sdc1")
    machine.run("serial=B1 serial=C1", "mirror")
    assert machine.created[0].endswith("data mirror /dev/sdb /dev/sdc")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({512: b"LABELONE"}, id="lvm"),
        pytest.param({0x1FE: b"\x55\xaa"}, id="mbr"),
        pytest.param({0: b"XFSB"}, id="xfs"),
        pytest.param({256 * 1024: b"zfs"}, id="zfs label at the head"),
        pytest.param({SIZE - 512 * 1024: b"zfs"}, id="zfs label at the tail"),
        pytest.param({SIZE - 512: b"EFI PART"}, id="backup gpt"),
    ],
)
def test_a_disk_that_carries_anything_is_refused_untouched(tmp_path: Path, content: Mapping[int, bytes]) -> None:
    machine = Machine(tmp_path)
    machine.disk("sdb", serial="B1", content=content)
    before = (machine.root / "dev/sdb").read_bytes()
    code, found = machine.run()
    assert (code, found.state) == (zfs.REFUSED, "refused")
    assert "earlier use" in found.reason
    assert machine.created == []
    assert (machine.root / "dev/sdb").read_bytes() == before


def test_a_disk_that_cannot_be_read_is_refused(machine: Machine) -> None:
    (machine.root / "dev/sdb").unlink()
    code, found = machine.run()
    assert code == zfs.REFUSED
    assert "cannot be read" in found.reason


@pytest.mark.parametrize("entry", ["sdb1", "holders/dm-0"])
def test_a_disk_in_use_is_refused(machine: Machine, entry: str) -> None:
    (machine.root / "sys/block/sdb" / entry).mkdir()
    code, found = machine.run()
    assert code == zfs.REFUSED
    assert "in use or partitioned" in found.reason


def test_a_small_or_read_only_disk_is_refused(machine: Machine) -> None:
    assert "at least" in machine.run(minimum=SIZE + 1)[1].reason
    (machine.root / "sys/block/sdb/ro").write_text("1")
    assert "read-only" in machine.run()[1].reason


@pytest.mark.parametrize("identity", ["serial=NOPE", "wwid=B1", "serial=B"])
def test_an_identity_that_matches_no_disk_is_refused(machine: Machine, identity: str) -> None:
    code, found = machine.run(identity)
    assert code == zfs.REFUSED
    assert "matches 0 disks" in found.reason


def test_an_identity_that_matches_two_disks_is_refused(machine: Machine) -> None:
    machine.disk("sdc", serial="B1")
    code, found = machine.run()
    assert code == zfs.REFUSED
    assert "matches 2 disks" in found.reason


def test_disks_are_found_by_link_and_by_wwid(machine: Machine) -> None:
    (machine.root / "dev/disk/by-id/nvme-X").symlink_to("../../sdb")
    assert machine.run("byId=nvme-X")[0] == 0
    machine.zpool("")
    (machine.root / "sys/block/sdb/device/wwid").write_text("naa.5000c500a1b2c3d4\n")
    assert machine.run("wwid=naa.5000c500a1b2c3d4")[0] == 0


def test_the_same_disk_under_two_names_is_refused(machine: Machine) -> None:
    (machine.root / "dev/disk/by-id/ata-B").symlink_to("../../sdb")
    assert "name the same disk" in machine.run("serial=B1 byId=ata-B", "mirror")[1].reason


def test_a_pool_of_that_name_on_other_disks_is_refused(machine: Machine) -> None:
    machine.zpool("data\n", members="/dev/sdz1")
    code, found = machine.run()
    assert code == zfs.REFUSED
    assert "not on serial=B1" in found.reason


@pytest.mark.parametrize("members", ["/dev/sdb", "/dev/sdb1", "/dev/sdbp1"])
def test_partition_suffixes_of_every_kind_are_understood(machine: Machine, members: str) -> None:
    machine.zpool("data\n", members=members)
    assert machine.run()[1].state == "present"


def test_a_degraded_pool_is_no_success(machine: Machine) -> None:
    machine.zpool("data\n", health="DEGRADED")
    code, found = machine.run()
    assert (code, found.state, found.online) == (1, "failed", False)


def test_a_zpool_command_that_fails_is_not_read_as_no_pool(machine: Machine) -> None:
    machine.script(machine.root / "usr/local/sbin/zpool", f'echo "$@" >> {machine.calls}; echo no module >&2; exit 1')
    code, found = machine.run()
    assert (code, found.state) == (1, "failed")
    assert machine.created == []


def test_a_node_without_zfs_is_refused_by_name(machine: Machine) -> None:
    (machine.root / "usr/local/sbin/zpool").unlink()
    code, found = machine.run()
    assert code == zfs.REFUSED
    assert "no zpool command" in found.reason


@pytest.mark.parametrize("message", ["", "Killed", "{", '{"pool": "data"}', '{"pool": "data", "state": "fine"}'])
def test_a_message_that_is_not_ours_is_never_a_success(message: str) -> None:
    assert not report("cp1", "data", message).online


def plan(**changes: object) -> PoolPlan:
    base = {
        "node": "cp1",
        "zpool": "data",
        "layout": "single",
        "disks": (DiskIdentity("serial", "B1"),),
        "minimum_bytes": 1,
    }
    return PoolPlan(**{**base, **changes})  # type: ignore[arg-type]


def test_a_changed_plan_is_another_job() -> None:
    assert plan().job_name == plan().job_name
    assert plan().job_name != plan(disks=(DiskIdentity("serial", "B2"),)).job_name


def test_the_job_refuses_for_good_and_retries_the_rest() -> None:
    spec = zfs.job(plan(), "image")["spec"]
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [zfs.REFUSED]
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["template"]["spec"]["nodeName"] == "cp1"


def row(node: str, **changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "node_name": node,
        "storage_pool_name": "data",
        "provider_kind": "ZFS",
        "props": {"StorDriver/StorPoolName": "data"},
        "free_capacity": 100,
        "total_capacity": 200,
    }
    return {**base, **changes}


DISKLESS = {"node_name": "n1", "storage_pool_name": "DfltDisklessStorPool", "provider_kind": "DISKLESS"}


@pytest.mark.parametrize(
    "answer",
    [
        [[row("n1"), row("n2"), DISKLESS]],
        [row("n1"), row("n2")],
        [{"stor_pools": [row("n1"), row("n2")]}],
    ],
)
def test_linstors_answer_is_read_in_every_shape(answer: object) -> None:
    assert [r.node for r in linstor.pool_rows(json.dumps(answer))] == ["n1", "n2"]


@pytest.mark.parametrize("answer", ["", "Table:\n| data |", '{"error": 1}', '[["x"]]', "null"])
def test_an_answer_of_unknown_shape_is_unknown_not_empty(answer: str) -> None:
    with pytest.raises(linstor.Unreadable):
        linstor.pool_rows(answer)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, linstor.PoolState.REGISTERED),
        ({"total_capacity": 0}, linstor.PoolState.FAULTY),
        ({"total_capacity": None}, linstor.PoolState.FAULTY),
        ({"reports": [{"ret_code": -4611686018406153244, "message": "no such pool"}]}, linstor.PoolState.FAULTY),
        ({"provider_kind": "LVM_THIN"}, linstor.PoolState.FOREIGN),
        ({"props": {"StorDriver/StorPoolName": "other"}}, linstor.PoolState.FOREIGN),
        ({"storage_pool_name": "other"}, linstor.PoolState.MISSING),
    ],
)
def test_a_row_counts_only_when_it_is_storage(changes: dict[str, object], state: linstor.PoolState) -> None:
    rows = linstor.pool_rows(json.dumps([[row("n1", **changes)]]))
    assert linstor.pool_standings(["n1"], "data", "data", rows)[0].state is state


@pytest.mark.parametrize(("nodes", "copies"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_replicas_never_exceed_the_nodes(nodes: int, copies: int) -> None:
    assert classes.replicas(nodes) == copies


def test_exactly_one_class_is_the_default_and_both_names_exist() -> None:
    made = classes.storage_classes("data", 3)
    assert [c["metadata"]["name"] for c in made] == list(classes.NAMES)
    assert classes.defaults(made) == ["local"]
    assert made[1]["parameters"]["linstor.csi.linbit.com/autoPlace"] == "3"


def test_an_endpoint_without_conditions_is_ready_and_one_without_addresses_is_not() -> None:
    assert linstor.ready_endpoint([{"endpoints": [{"addresses": ["10.0.0.1"]}]}])
    assert not linstor.ready_endpoint([{"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]}])
    assert not linstor.ready_endpoint([{"endpoints": None}])
