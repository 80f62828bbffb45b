"""The zpool script on fake machines: what it makes, what it takes for made, and that nothing it cannot trust is written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cozystack_iac.storage import zfs
from lab.platform.signatures import SIGNATURES
from tests.zpool_machine import CREATE, SIZE, Machine, kinds

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


def test_tools_from_an_image_do_not_write_for_a_newer_module(machine: Machine) -> None:
    """openzfs/zfs#12403 and #10229: a pool made with 2.2 tools under a 2.4 module; #8592: 512-byte sectors on a 4K NVMe."""
    machine.zpool("", version="2.2.6-1")
    machine.module("2.4.3-1")
    assert kinds(machine.run()[1]) == ["versions"]
    machine.zpool("", version="2.4.3-1", ashift="9")
    assert kinds(machine.run()[1]) == ["ashift"]


# Pools that are there already ----------------------------------------------------------------------------------------


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


# What goes wrong -----------------------------------------------------------------------------------------------------


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


# The text itself -----------------------------------------------------------------------------------------------------


SHELLCHECK = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_the_script_is_clean() -> None:
    done = subprocess.run(
        [str(SHELLCHECK), "-s", "sh", "-"], input=zfs.SCRIPT, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
