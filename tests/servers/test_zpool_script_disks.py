"""Which disk the zpool script takes for which: names, links and identities on fake machines."""

import pytest

from cozystack_iac.storage import zfs
from tests.zpool_machine import CREATE, Machine, kinds

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


@pytest.mark.parametrize("name", ["loop3", "dm-0"])
def test_what_is_no_disk_is_refused_even_by_its_link(machine: Machine, name: str) -> None:
    """psy0rz/alpinebox#4, warewulf#169: names of loops and mappers are built in yet other ways."""
    machine.disk(name)
    machine.link("lab-thing", name)
    assert kinds(machine.run("byId=lab-thing")[1]) == ["virtual"]


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


def test_a_disk_that_got_the_name_of_another_is_not_taken_for_it(machine: Machine) -> None:
    """siderolabs/omni#1090, talos#4766: nvme0n1 was S970 in the plan and is S980 now."""
    machine.disk("nvme0n1", serial="S980")
    code, found = machine.run("serial=S970")
    assert (code, kinds(found), machine.created) == (zfs.REFUSED, ["missing"], [])
    machine.disk("nvme1n1", serial="S970")
    machine.zpool("", members="/dev/nvme1n1p1")
    assert machine.run("serial=S970")[0] == 0
    assert machine.created == [CREATE + "/dev/nvme1n1"]


# Several identities --------------------------------------------------------------------------------------------------


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
