"""Whatever disks a machine has and whatever LINSTOR lists: it is given the named disk only, and only when empty."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from cozystack_iac.settings.nodes import Disk
from cozystack_iac.storage import devices
from cozystack_iac.storage.linstor import DeviceRow
from cozystack_iac.talos.machine import ReportedDisk
from tests.matrix import examples

FEW = st.sampled_from(["", "A", "B", "C"])  # so that identities collide
WWID = st.sampled_from(["", "naa.5001", "naa.5002"])
PLACES = ("sda", "sdb", "sdc")


@st.composite
def disks(draw: st.DrawFn) -> list[ReportedDisk]:
    return [
        ReportedDisk(
            place,
            f"/dev/{place}",
            1,
            "",
            serial := draw(FEW),
            draw(WWID),
            symlinks=(f"{devices.BY_ID}ata-M_{serial}",) * draw(st.integers(0, 1)),
        )
        for place in draw(st.lists(st.sampled_from(PLACES), unique=True))
    ]


WANTED = st.one_of(
    st.builds(Disk, serial=FEW.filter(bool)),
    st.builds(Disk, wwid=WWID.filter(bool)),
    st.builds(Disk, by_id=FEW.filter(bool).map("ata-M_{}".format)),
    st.builds(Disk, serial=FEW.filter(bool), wwid=WWID.filter(bool)),
    st.builds(Disk, by_id=FEW.filter(bool).map("ata-M_{}".format), serial=FEW.filter(bool)),
)
OFFERED = st.lists(
    st.builds(
        DeviceRow,
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(PLACES).map("/dev/{}".format),
        FEW,
        WWID.map(lambda wwid: wwid.replace("naa.", "0x")),
    )
)


def carries(disk: ReportedDisk, wanted: Disk) -> bool:
    link = f"{devices.BY_ID}{wanted.by_id}"
    return (
        wanted.serial in (None, disk.serial)
        and wanted.wwid in (None, disk.wwid)
        and (wanted.by_id is None or link in disk.symlinks)
    )


@settings(max_examples=examples(300))
@given(there=disks(), wanted=WANTED, offered=OFFERED)
def test_linstor_is_given_only_the_named_disk_and_only_an_empty_one(
    there: list[ReportedDisk], wanted: Disk, offered: list[DeviceRow]
) -> None:
    found = devices.on_talos("n1", wanted, there)
    meant = [disk for disk in there if carries(disk, wanted)]
    if isinstance(found, devices.Resolved):
        [disk] = meant
        assert found.link in disk.symlinks
        assert found.device == disk.path
        if devices.judge_device(found, offered) is None:
            assert any(
                row.node == "n1" and row.device == disk.path and row.serial in ("", disk.serial or row.serial)
                for row in offered
            )
    else:
        assert len(meant) != 1 or not meant[0].symlinks


@settings(max_examples=examples(300))
@given(wanted=WANTED, offered=OFFERED)
def test_without_a_machines_word_only_what_linstor_lists_under_that_identity_passes(
    wanted: Disk, offered: list[DeviceRow]
) -> None:
    found = devices.as_written("n1", wanted)
    if isinstance(found, devices.Resolved) and devices.judge_device(found, offered) is None:
        name = found.link.removeprefix(devices.BY_ID)
        here = [row for row in offered if row.node == "n1"]
        event("passes")
        assert any(row.serial in {wanted.serial, name.rpartition("_")[2]} - {""} for row in here)
