"""The disk ledger: whose identity counts, what a person is told, and what is asked again."""

from __future__ import annotations

import pytest

from cozystack_iac.findings import Severity, Verdict, table
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.stages import disk_ledger as ledger_stages
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.disk_ledger import DiskLedgerProvider, LedgerInputs, LedgerOutputs, fresh
from cozystack_iac.storage import ledger
from cozystack_iac.storage.ledger import EntryStanding, LedgerEntry
from cozystack_iac.talos.machine import ReportedDisk
from cozystack_iac.waiting import Progress, StageFailed
from tests.sites import changed, found, good, judged

SILENT = Progress("DiskLedger", write=lambda _: None)
SDB = ReportedDisk(
    "sdb",
    "/dev/sdb",
    size_bytes=200 * 1024**3,
    model="ST4000NM0023",
    serial="Z1Z0A1B2",
    wwid="naa.5000c500a1b2c3d4",
    symlinks=("/dev/disk/by-id/wwn-0x5000c500a1b2c3d4", "/dev/disk/by-path/pci-0000:00:1f.2-ata-2"),
)
SDC = ReportedDisk("sdc", "/dev/sdc", size_bytes=100 * 1024**3, serial="C1")


def entry(wanted: Disk, approved: list[str], disks: list[ReportedDisk] | None = None) -> LedgerEntry:
    [one] = ledger.entries("w1", "cozystack:nodes[3]", [wanted], approved, [SDB, SDC] if disks is None else disks)
    return one


# Which identity approves a disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "approval",
    ["Z1Z0A1B2", "naa.5000c500a1b2c3d4", "wwn-0x5000c500a1b2c3d4", "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"],
)
@pytest.mark.parametrize(
    "wanted",
    [Disk(serial="Z1Z0A1B2"), Disk(wwid="naa.5000c500a1b2c3d4"), Disk(by_id="wwn-0x5000c500a1b2c3d4")],
    ids=str,
)
def test_any_identity_of_a_disk_approves_it(wanted: Disk, approval: str) -> None:
    seen = entry(wanted, ["other", approval])
    assert (seen.standing, seen.disk, seen.approval) == (EntryStanding.APPROVED, SDB, approval)


@pytest.mark.parametrize(
    "approved",
    [[], ["C1"], ["z1z0a1b2"], ["Z1Z0A1B2 "], ["Z1Z0A1B"], ["sdb"], ["/dev/sdb"], ["pci-0000:00:1f.2-ata-2"], [""]],
    ids=str,
)
def test_anything_but_an_identity_letter_by_letter_does_not(approved: list[str]) -> None:
    assert entry(Disk(serial="Z1Z0A1B2"), approved).standing is EntryStanding.UNAPPROVED


def test_a_disk_that_was_exchanged_is_not_the_approved_one() -> None:
    other = ReportedDisk("sdb", "/dev/sdb", serial="Z1Z0A1B2", wwid="naa.5000c500ffffffff")
    assert entry(Disk(serial="Z1Z0A1B2"), ["naa.5000c500a1b2c3d4"], [other]).standing is EntryStanding.UNAPPROVED
    assert entry(Disk(wwid="naa.5000c500a1b2c3d4"), ["naa.5000c500a1b2c3d4"], [other]).standing is EntryStanding.NOT_ONE


def test_a_disk_that_two_disks_could_be_is_none() -> None:
    twin = ReportedDisk("sdd", "/dev/sdd", serial="Z1Z0A1B2")
    seen = entry(Disk(serial="Z1Z0A1B2"), ["Z1Z0A1B2"], [SDB, twin])
    assert seen.standing is EntryStanding.NOT_ONE
    assert "/dev/sdb" in seen.detail
    assert "/dev/sdd" in seen.detail


def test_where_nobody_can_be_asked_an_approved_disk_is_not_verified_yet() -> None:
    [one] = ledger.entries("w1", "cozystack:nodes[3]", [Disk(serial="C1")], ["C1"], None)
    [finding] = ledger.judge_entries([one], {})
    assert one.standing is EntryStanding.UNVERIFIED
    assert finding.severity is Severity.NOTE
    assert "is not verified yet" in finding.problem
    assert "reads it on the node before it writes" in finding.fix
    assert not ledger.kept(one).verified


def test_a_machine_that_does_not_answer_has_no_approved_disk() -> None:
    seen = ledger.unread("w1", "cozystack:nodes[3]", [Disk(serial="C1")], "connection refused")
    assert Verdict.of(ledger.judge_entries(seen, {"w1": ["C1"]})).blocking


# What a person is told ----------------------------------------------------------------------------------------------


def test_the_finding_prints_the_lines_to_add_beside_what_is_approved_already() -> None:
    open_ = [entry(Disk(serial="Z1Z0A1B2"), ["0815"]), entry(Disk(serial="C1"), [])]
    text = table(Verdict.of(ledger.judge_entries(open_, {"w1": ["0815"]})))
    assert "approvedDisks:\n             " in text
    assert '  w1: ["0815", Z1Z0A1B2, C1]' in text
    assert "/dev/sdb 200 GiB ST4000NM0023 (naa.5000c500a1b2c3d4, Z1Z0A1B2, wwn-0x5000c500a1b2c3d4)" in text


@pytest.mark.parametrize(
    ("identity", "written"),
    [
        ("DATA0001", "DATA0001"),
        ("naa.5000c500a1b2c3d4", "naa.5000c500a1b2c3d4"),
        ("0123", '"0123"'),
        ("5e10", '"5e10"'),
        ("off", '"off"'),
        ("True", '"True"'),
        ("nvme-X Y", '"nvme-X Y"'),
        ("a: b", '"a: b"'),
    ],
)
def test_the_line_is_read_back_as_the_same_text(identity: str, written: str) -> None:
    from ruamel.yaml import YAML

    line = ledger.line("w1", [identity])
    assert line == f"w1: [{written}]"
    assert YAML(typ="safe", pure=True).load(line) == {"w1": [identity]}


def test_many_nodes_are_one_finding_that_can_be_read() -> None:
    missing = {f"w{n}": {f"DATA{n:04}": f"serial DATA{n:04}"} for n in range(500)}
    finding = ledger.unapproved(ledger.LED_001, "p", missing, {})
    assert "and disks of 492 more nodes" in finding.problem
    assert len(finding.fix.splitlines()) == 3 + ledger.MOST_NODES


def test_the_table_shows_what_would_be_written() -> None:
    shown = ledger.rows([entry(Disk(serial="Z1Z0A1B2"), ["Z1Z0A1B2"]), entry(Disk(serial="C1"), [])])
    assert shown[0].found == "/dev/sdb 200 GiB ST4000NM0023"
    assert shown[0].identities == "naa.5000c500a1b2c3d4\nZ1Z0A1B2\nwwn-0x5000c500a1b2c3d4"
    assert "\n" not in ledger.rows([entry(Disk(serial="Z1Z0A1B2"), [])], between=", ")[0].identities
    assert shown[0].approval == "approved by Z1Z0A1B2"
    assert shown[1].approval == "NOT APPROVED"


async def test_a_disk_that_changed_since_the_preview_stops_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def looks(given: LedgerInputs, nodes: list[str]) -> list[ledger_stages.NodeLedger]:
        now = [ReportedDisk("sdb", "/dev/sdb", serial="OTHER")]
        return [
            ledger_stages.NodeLedger(n, ledger.entries(n, n, given.disks[n], given.approved[n], now)) for n in nodes
        ]

    monkeypatch.setattr(ledger_stages, "_looks", looks)
    with pytest.raises(StageFailed) as failure:
        await DiskLedgerProvider().establish(inputs(w1=["DATA1"]), SILENT)
    text = str(failure.value)
    assert "The disks found are not the approved disks." in text
    assert "LED-002" in text
    assert "it matches no disk; disks of the machine: /dev/sdb" in text
    assert "nothing was written to any disk" in text


# Offline: what the stack file alone says ----------------------------------------------------------------------------


def test_all_unapproved_disks_are_one_finding_with_all_lines() -> None:
    finding = found(changed(good(), ("storage.approvedDisks", {"cp1": ["DATA0001"]})), "STO-008")
    assert "cp2: [DATA0002]" in finding.fix
    assert "cp3: [DATA0003]" in finding.fix
    assert "cp1" not in finding.problem


def test_an_approval_by_an_identity_of_the_machine_is_left_to_the_machine() -> None:
    by_wwid = ("storage.approvedDisks.cp1", ["naa.5000c500a1b2c3d4"])
    assert not judged(changed(good(), by_wwid)).blocking
    offline = judged(changed(good(), by_wwid, ("checks", "offline")))
    assert {"STO-008", "STO-009"} <= offline.codes


# The stage ----------------------------------------------------------------------------------------------------------


def inputs(**disks: list[str]) -> LedgerInputs:
    return LedgerInputs(
        disks={node: [Disk(serial=serial) for serial in serials] for node, serials in disks.items()},
        places={node: f"cozystack:nodes[{index}]" for index, node in enumerate(disks)},
        approved=disks,
        deadline_s=1,
    )


def test_only_nodes_with_other_disks_are_asked() -> None:
    before = inputs(a=["1"], b=["2"], c=["3"])
    after = inputs(a=["1"], b=["2", "9"], c=["4"], d=["5"])
    assert fresh(after, before.disks) == ["b", "c", "d"]


async def test_a_preview_lists_new_disks_only(capsys: pytest.CaptureFixture[str]) -> None:
    findings = await DiskLedgerProvider().preflight(
        inputs(a=["OLD", "NEW"], b=["STAYS"]), inputs(a=["OLD"], b=["STAYS"])
    )
    shown = capsys.readouterr().out
    assert "NEW" in shown
    assert "OLD" not in shown
    assert "STAYS" not in shown
    assert [finding.code for finding in findings] == ["LED-004"]


async def test_lines_of_disks_that_stay_are_kept_and_those_that_left_go(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = DiskLedgerProvider()
    made = await provider.establish(inputs(a=["1"], b=["2"]), SILENT)
    asked: list[list[str]] = []
    looks = ledger_stages._looks

    async def counted(given: LedgerInputs, nodes: list[str]) -> list[ledger_stages.NodeLedger]:
        asked.append(list(nodes))
        return await looks(given, nodes)

    monkeypatch.setattr(ledger_stages, "_looks", counted)
    after: LedgerOutputs = await provider.revise(
        inputs(b=["2"], c=["3"]), Known(inputs(a=["1"], b=["2"]), made), SILENT
    )
    assert asked == [["c"]]
    assert {node: [disk.wanted for disk in disks] for node, disks in after.ledger.items()} == {
        "b": ["serial 2"],
        "c": ["serial 3"],
    }
