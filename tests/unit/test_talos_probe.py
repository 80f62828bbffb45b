"""The plan gate: classes by certificate and status, findings by facts, the matrix, and how all of it is asked at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_interface
from typing import Any

import pytest

from cozystack_iac.findings import Finding
from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos import boot, matrix
from cozystack_iac.talos.disk_selection import Unjudged, matching
from cozystack_iac.talos.errors import NotYet, PeerFault, PortClosed, TalosError, Unreachable, WrongPeer
from cozystack_iac.talos.judgement import judge_machines
from cozystack_iac.talos.machine import Address, Link, ReportedDisk, Stage, Status, Volume
from cozystack_iac.talos.probe import Answer, Evidence, Facts, MachineStanding, Target, ask_all, classify
from cozystack_iac.talos.transport import MAINTENANCE_NAME, Peer
from tests.talos_machine import Answers, Authority, configured, in_maintenance, server_context, serving

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def peer(name: str = "node1", issuer: str = "talos", **changes: Any) -> Peer:
    given: dict[str, Any] = {
        "der": b"",
        "common_name": name,
        "issuer_organization": issuer,
        "fingerprint": "pin",
        "not_before": NOW - timedelta(hours=1),
        "not_after": NOW + timedelta(hours=23),
    }
    return Peer(**(given | changes))


MAINTENANCE = peer(MAINTENANCE_NAME, "")


def wrong(fault: PeerFault) -> WrongPeer:
    return WrongPeer("10.0.0.11", fault)


@pytest.mark.parametrize(
    ("evidence", "standing"),
    [
        (Evidence(MAINTENANCE, status=Status(Stage.MAINTENANCE, True)), MachineStanding.MAINTENANCE),
        (Evidence(MAINTENANCE, error=Unreachable("a", "no answer")), MachineStanding.MAINTENANCE),
        (Evidence(MAINTENANCE, status=Status(Stage.INSTALLING)), MachineStanding.REBOOTING),
        (Evidence(MAINTENANCE, error=NotYet("a", 14, "down")), MachineStanding.REBOOTING),
        (Evidence(MAINTENANCE, error=wrong(PeerFault.FINGERPRINT)), MachineStanding.TLS_PROBLEM),
        (Evidence(peer(), ours=True, status=Status(Stage.RUNNING, True)), MachineStanding.OURS),
        (Evidence(peer(issuer="acme"), ours=True), MachineStanding.OURS),
        (Evidence(peer(), ours=True, status=Status(Stage.REBOOTING)), MachineStanding.REBOOTING),
        (Evidence(peer()), MachineStanding.FOREIGN),
        (Evidence(peer(), error=wrong(PeerFault.FOREIGN_CLUSTER)), MachineStanding.FOREIGN),
        (Evidence(peer(), error=wrong(PeerFault.CLOCK)), MachineStanding.TLS_PROBLEM),
        (Evidence(peer(), error=wrong(PeerFault.NAME)), MachineStanding.TLS_PROBLEM),
        (Evidence(peer(), error=wrong(PeerFault.OUR_CERTIFICATE)), MachineStanding.TLS_PROBLEM),
        (Evidence(peer("www", "acme")), MachineStanding.NOT_TALOS),
        (Evidence(error=wrong(PeerFault.NOT_TLS)), MachineStanding.NOT_TALOS),
        (Evidence(error=PortClosed("a", "refused")), MachineStanding.REFUSED),
        (Evidence(error=Unreachable("a", "no route")), MachineStanding.UNREACHABLE),
        (Evidence(), MachineStanding.UNREACHABLE),
    ],
)
def test_the_class_follows_from_certificate_and_status(evidence: Evidence, standing: MachineStanding) -> None:
    assert classify(evidence) is standing


def disk(name: str, **changes: Any) -> ReportedDisk:
    given: dict[str, Any] = {
        "path": f"/dev/{name}",
        "size_bytes": 100 * 1000**3,
        "serial": name.upper(),
        "bus_path": "/pci0000:00/",
    }
    return ReportedDisk(name, **(given | changes))


def facts(**changes: Any) -> Facts:
    given: dict[str, Any] = {
        "version": "v1.13.6",
        "system_disk": None,
        "disks": (disk("sda"), disk("sdb"), disk("loop0", bus_path="/virtual", serial="")),
        "volumes": (),
        "links": (Link("ens5", up=True, type="ether", permanent_mac="52:54:00:00:00:01", bus_path="0000:00:05.0"),),
        "addresses": (Address(ip_interface("10.0.0.11/24"), "ens5"),),
    }
    return Facts(**(given | changes))


def target(**changes: Any) -> Target:
    given = {
        "name": "cp1",
        "role": "controlPlane",
        "path": "cozystack:nodes[0]",
        "maintenance": "10.0.0.11",
        "address": "10.0.0.11",
        "internal": "10.0.0.11",
        "vip": "10.0.0.10",
        "install_disk": {"serial": "SDA"},
        "data_disks": [{"serial": "SDB"}],
    }
    return Target.model_validate(given | changes)


def answer(found: Facts | None = None, error: TalosError | None = None, **changes: Any) -> Answer:
    given = target(**changes)
    evidence = Evidence(MAINTENANCE, error)
    return Answer(given, given.maintenance, classify(evidence), evidence, None if error else found or facts())


def codes(findings: list[Finding]) -> list[tuple[str, str]]:
    return sorted((f.code, f.severity.value) for f in findings)


def test_a_machine_as_it_should_be_gives_no_finding() -> None:
    assert judge_machines([answer()], "v1.13.6") == []


E, W, N = "error", "warning", "note"


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        (facts(version="v1.12.7"), {}, [("NODE-009", E)]),
        (facts(version="v1.14.0"), {}, [("NODE-009", W)]),
        (facts(version="v1.13.0"), {}, [("NODE-009", N)]),
        (facts(version="?"), {}, [("NODE-010", E)]),
        (facts(addresses=()), {}, [("NODE-015", W)]),
        (facts(), {"link": "eth9"}, [("NODE-013", E)]),
        (facts(links=(Link("ens5", up=False, type="ether"),)), {"link": "ens5"}, [("NODE-013", W)]),
        (facts(links=(Link("ens5", up=True, alt_names=("enp0s5",)),)), {"link": "enp0s5"}, []),
        (facts(), {"vip": "10.9.0.10"}, [("NODE-014", E)]),
        (facts(), {"vip": "10.9.0.10", "static": True}, []),
        (
            facts(addresses=(*facts().addresses, Address(ip_interface("10.0.0.10/32"), "ens5"))),
            {},
            [("NODE-016", E)],
        ),
        (facts(), {"install_disk": {"serial": "NONE"}}, [("DSK-001", E)]),
        (facts(), {"install_disk": {"selector": "disk.size > 1u * GB"}}, [("DSK-002", E)]),
        (facts(), {"install_disk": {"selector": "disk.size in [1u]"}}, [("DSK-003", E)]),
        (facts(), {"data_disks": [{"serial": "NONE"}]}, [("DSK-004", E)]),
        (facts(), {"data_disks": [{"selector": "!disk.rotational"}]}, [("DSK-005", E)]),
        (facts(), {"data_disks": [{"serial": "SDA"}]}, [("DSK-006", E)]),
        (facts(system_disk="sdb"), {"install_disk": None}, [("DSK-006", E)]),
        (facts(system_disk="sdb"), {"data_disks": []}, [("DSK-011", W)]),
        (facts(), {"data_disks": [{"serial": "SDB"}, {"serial": "SDB"}]}, [("DSK-007", E)]),
        (facts(volumes=(Volume("sdb", "/dev/sdb", "disk", content="lvm2-pv"),)), {}, [("RES-001", E)]),
        (facts(volumes=(Volume("sdb", "/dev/sdb", "disk", content="gpt"),)), {}, [("RES-011", E)]),
        (facts(volumes=(Volume("sdb1", "/dev/sdb1", "partition", "sdb", "zfs", "data"),)), {}, [("RES-003", W)]),
        (facts(volumes=(Volume("sdb1", "/dev/sdb1", "partition", "sdb"),)), {}, [("RES-016", E)]),
        (facts(volumes=(Volume("sda1", "/dev/sda1", "partition", "sda", "xfs"),)), {}, []),
        (facts(disks=(disk("sda", size_bytes=4 * 1024**3), disk("sdb"))), {}, [("DSK-009", E)]),
        (facts(disks=(disk("sda", size_bytes=32 * 1024**3), disk("sdb"))), {}, [("DSK-009", W)]),
        (facts(disks=(disk("sda"), disk("sdb", readonly=True))), {}, [("DSK-010", E)]),
    ],
)
def test_what_a_machine_says_is_held_against_the_inventory(
    found: Facts, wanted: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert codes(judge_machines([answer(found, **wanted)], "v1.13.6")) == expected


def test_a_machine_that_did_not_say_everything_is_not_fine() -> None:
    assert codes(judge_machines([answer(error=Unreachable("10.0.0.11", "no answer"))], "v1.13.6")) == [("NODE-010", E)]


def test_a_disk_that_matches_nothing_is_shown_the_disks_there_are() -> None:
    [finding] = judge_machines([answer(install_disk={"wwid": "naa.1"})], "v1.13.6")
    assert "none of its 2 disks" in finding.problem
    assert "/dev/sda (93 GiB, serial SDA)" in finding.fix
    assert finding.path == "cozystack:nodes[0].installDisk"


@pytest.mark.parametrize(
    ("mac", "serials", "expected"),
    [
        ("52:54:00:00:00:01", ("X", "Y"), [("NODE-011", E)]),
        ("52:54:00:00:00:01", ("SDA", "SDB"), [("NODE-011", E)]),
        ("52:54:00:00:00:02", ("SDA", "SDB"), [("NODE-012", W)]),
        ("52:54:00:00:00:02", ("X", "Y"), []),
    ],
)
def test_the_same_machine_listed_twice_is_found(
    mac: str, serials: tuple[str, str], expected: list[tuple[str, str]]
) -> None:
    second = facts(
        disks=(disk("sda", serial=serials[0]), disk("sdb", serial=serials[1])),
        links=(Link("ens5", up=True, type="ether", permanent_mac=mac, bus_path="0000:00:05.0"),),
        addresses=(Address(ip_interface("10.0.0.12/24"), "ens5"),),
    )
    other: dict[str, Any] = {
        "name": "cp2",
        "path": "cozystack:nodes[1]",
        "maintenance": "10.0.0.12",
        "address": "10.0.0.12",
    }
    wanted: dict[str, Any] = {
        "install_disk": {"serial": serials[0]},
        "data_disks": [{"serial": serials[1]}],
        "internal": "10.0.0.12",
    }
    answers = [answer(), answer(second, **other, **wanted)]

    assert codes(judge_machines(answers, "v1.13.6")) == expected


def elsewhere(evidence: Evidence, **changes: Any) -> list[Finding]:
    given = target(**changes)
    return judge_machines([Answer(given, given.maintenance, classify(evidence), evidence)], "v1.13.6")


@pytest.mark.parametrize(
    ("evidence", "wanted", "expected"),
    [
        (Evidence(error=Unreachable("a", "no answer")), {}, [("NODE-001", E)]),
        (Evidence(error=PortClosed("a", "connection refused")), {}, [("NODE-002", E)]),
        (Evidence(error=wrong(PeerFault.NOT_TLS)), {}, [("NODE-003", E)]),
        (Evidence(peer()), {}, [("NODE-004", E)]),
        (Evidence(peer()), {"reset_reason": "was a test"}, [("NODE-005", W)]),
        (Evidence(peer(), error=wrong(PeerFault.CLOCK)), {}, [("NODE-006", E)]),
        (Evidence(MAINTENANCE, status=Status(Stage.REBOOTING)), {}, [("NODE-007", E)]),
        (Evidence(MAINTENANCE, error=wrong(PeerFault.FINGERPRINT)), {}, [("NODE-008", E)]),
        (Evidence(peer(), ours=True, status=Status(Stage.RUNNING)), {}, []),
    ],
)
def test_every_other_standing_has_its_finding(
    evidence: Evidence, wanted: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert codes(elsewhere(evidence, **wanted)) == expected


def test_a_machine_that_only_has_its_future_address_is_told_about_the_present_one() -> None:
    [finding] = elsewhere(Evidence(error=Unreachable("a", "no answer")), static=True)
    assert "maintenanceAddress" in finding.fix


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ({"serial": "SDA"}, ["sda"]),
        ({"serial": "SDA", "wwid": "x"}, []),
        ({"by_id": "ata-A"}, ["sda"]),
        ({"by_id": "/dev/disk/by-id/ata-A"}, ["sda"]),
        ({"selector": 'disk.transport == "nvme" && disk.size >= 1u * TB'}, ["nvme0n1"]),
        ({"selector": "(disk.rotational)"}, ["sda"]),
        ({"selector": 'disk.model.startsWith("SAM")'}, ["nvme0n1"]),
        ({"selector": "disk.transport != 'nvme' && disk.size < 1u*TiB"}, ["sda"]),
        ({}, []),
    ],
)
def test_disks_are_found_by_what_they_are(wanted: dict[str, str], names: list[str]) -> None:
    there = (
        disk("sda", rotational=True, transport="sata", symlinks=("/dev/disk/by-id/ata-A",)),
        disk("nvme0n1", size_bytes=2 * 1000**4, transport="nvme", model="SAMSUNG"),
        disk("loop0", bus_path="/virtual"),
    )
    assert [d.name for d in matching(Disk.model_validate(wanted), there)] == names


@pytest.mark.parametrize(
    "expression", ["", "true", "disk.size", "disk.nothing == 1u", "disk.size > 1u || true", "system_disk"]
)
def test_an_expression_beyond_the_subset_is_never_guessed(expression: str) -> None:
    with pytest.raises(Unjudged):
        matching(Disk(selector=expression or "&&"), (disk("sda"),))


def test_the_matrix_shows_every_machine_and_calls_none_ready_without_knowing() -> None:
    unknown = Answer(
        target(name="w1", role="worker", path="cozystack:nodes[1]"),
        "10.0.0.12",
        MachineStanding.UNREACHABLE,
        Evidence(),
    )
    rows = matrix.rows([answer(), unknown], [])

    assert [row.verdict for row in rows] == ["ready", "not ready"]
    assert rows[0].install_disk == "/dev/sda 93 GiB"
    assert "| cp1 | control plane | 10.0.0.11 | maintenance | v1.13.6 |" in matrix.as_markdown(rows)
    assert "cp1" in (text := matrix.as_text(rows))
    assert "w1" in text


def test_the_matrix_names_the_findings_of_the_machine() -> None:
    answers = [answer(facts(version="v1.12.7"))]
    [row] = matrix.rows(answers, judge_machines(answers, "v1.13.6"))
    assert row.verdict == "NODE-009"


@pytest.mark.parametrize("method", list(boot.Method))
def test_boot_guidance_names_the_pinned_version(method: boot.Method) -> None:
    text = boot.commands(method, "1.6.2", "v1.13.6")
    assert "v1.6.2/" in text or "talos:v1.13.6" in text


def test_boot_to_talos_is_always_given_the_image() -> None:
    assert "-image mirror/talos:x" in boot.commands(
        boot.Method.BOOT_TO_TALOS, "1.6.2", "v1.13.6", image="mirror/talos:x"
    )


SPECS = {
    "MachineStatuses.runtime.talos.dev": {
        "machine": "stage: maintenance\nstatus:\n    ready: true\n    unmetConditions: []\n"
    },
    "Versions.runtime.talos.dev": {"version": "name: Talos\nversion: v1.13.6\n"},
    "Disks.block.talos.dev": {"sda": "dev_path: /dev/sda\nsize: 64000000000\nserial: SDA\nbus_path: /pci0000:00/\n"},
    "LinkStatuses.net.talos.dev": {"ens5": 'type: ether\nhardwareAddr: "52:54:00:12:34:56"\nlinkState: true\n'},
    "AddressStatuses.net.talos.dev": {"ens5/127.0.0.1/8": "address: 127.0.0.1/8\nlinkName: ens5\nscope: host\n"},
}


def at(port: int, address: str = "127.0.0.1", **changes: Any) -> Target:
    given = {
        "maintenance": address,
        "address": address,
        "internal": address,
        "port": port,
        "vip": None,
        "data_disks": [],
    }
    return target(**(given | changes))


async def test_a_machine_in_maintenance_is_asked_for_everything() -> None:
    async with serving(in_maintenance(), Answers(resources=SPECS)) as port:
        [found] = await ask_all([at(port)], deadline_s=5)

    assert found.standing is MachineStanding.MAINTENANCE
    assert found.facts is not None
    assert [d.serial for d in found.facts.disks] == ["SDA"]
    assert judge_machines([found], "v1.13.6") == []


async def test_with_our_certificate_our_machine_is_told_from_anybody_elses() -> None:
    ours = Authority.named()
    async with serving(configured(ours), Answers(resources=SPECS)) as port:
        [known] = await ask_all([at(port)], deadline_s=5, identity=ours.client())
        [unknown] = await ask_all([at(port)], deadline_s=5, identity=Authority.named().client())
        [without] = await ask_all([at(port)], deadline_s=5)

    assert [known.standing, unknown.standing, without.standing] == [
        MachineStanding.OURS,
        MachineStanding.FOREIGN,
        MachineStanding.FOREIGN,
    ]


async def test_a_machine_in_maintenance_with_a_wrong_clock_is_warned_about() -> None:
    context = server_context(Authority.named(None).server(MAINTENANCE_NAME, shift=timedelta(days=-3)))
    async with serving(context, Answers(resources=SPECS)) as port:
        answers = await ask_all([at(port)], deadline_s=5)

    assert codes(judge_machines(answers, "v1.13.6")) == [("NODE-018", W)]


async def test_where_nobody_is_at_the_maintenance_address_the_later_one_is_asked() -> None:
    async with serving(configured(Authority.named())) as port:
        [found] = await ask_all([at(port, maintenance="127.99.0.1")], deadline_s=5)

    assert (found.standing, found.at) == (MachineStanding.FOREIGN, "127.0.0.1")


async def test_one_silent_address_costs_its_own_deadline_and_nobody_elses(silent: Callable[[], int]) -> None:
    async with serving(in_maintenance(), Answers(resources=SPECS)) as port:
        started = time.monotonic()
        found = await ask_all([at(silent()), *(at(port, name=f"n{n}") for n in range(30))], deadline_s=1)
        took_s = time.monotonic() - started

    assert [a.standing for a in found] == [MachineStanding.UNREACHABLE, *[MachineStanding.MAINTENANCE] * 30]
    assert took_s < 3


@pytest.fixture
def silent() -> Any:
    """A port that takes connections and never says a word."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield lambda: listener.getsockname()[1]
