"""What running machines are judged by: a table per finding, and the matrix that shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cozystack_iac.findings import Finding, Severity
from cozystack_iac.talos import lvm, matrix
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.machine import Extension, Member, Stage, Status
from cozystack_iac.talos.verification import HEAD, SeenMachine, Unanswered, WantedMachine, rows, verify

VIP = "10.0.0.10"
MODULES = ("openvswitch", "drbd", "zfs", "spl", "vfio_pci", "vfio_iommu_type1")
FILTER = '"r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|", "r|^/dev/loop.*|"'
WANTED = WantedMachine(talos="v1.13.6", image="mirror/talos:v1.13.6", extensions=("drbd", "zfs"), modules=MODULES)


def ref(name: str) -> MachineRef:
    number = int(name[2:])
    address = f"10.0.0.{number + 10}"
    role = "controlPlane" if name.startswith("cp") else "worker"
    return MachineRef.model_validate(
        {"name": name, "role": role, "maintenance": address, "address": address, "internal": address}
    )


def member(name: str, *addresses: str, **more: Any) -> Member:
    own = addresses or (ref(name).internal,)
    return Member(hash(name), name, tuple(f"https://{address}:2380" for address in own), **more)


def conf(patterns: str = FILTER) -> str:
    return f"backup {{\n  backup = 0\n}}\ndevices {{\n   global_filter = [ {patterns} ]\n}}\n"


def good(name: str = "cp1", *planes: str) -> SeenMachine:
    machine = ref(name)
    return SeenMachine(
        machine,
        status=Status(Stage.RUNNING),
        talos="v1.13.6",
        extensions=(Extension("drbd", "9.3.2-v1.13.6"), Extension("zfs"), Extension("modules.dep")),
        modules=frozenset(MODULES) | {"drbd_transport_tcp"},
        drbd="9.3.2",
        lvm_conf=conf(),
        addresses=frozenset({machine.internal, "127.0.0.1", VIP}),
        node_ips=(machine.internal,),
        members=tuple(member(plane) for plane in planes or (name,)) if machine.is_control_plane else None,
    )


def findings(*seen: SeenMachine, **wanted: WantedMachine) -> list[Finding]:
    return verify(seen, {one.machine.name: wanted.get(one.machine.name, WANTED) for one in seen}, [VIP])


def test_a_machine_as_it_should_be_has_no_finding() -> None:
    assert findings(good("cp1"), good("w_1")) == []


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"talos": "v1.13.0"}, "VRF-002", "cp1 runs Talos v1.13.0, but v1.13.6 is pinned"),
        ({"talos": "v1.14.0"}, "VRF-002", "cp1 runs Talos v1.14.0"),
        ({"talos": ""}, "VRF-002", "of unknown version"),
        ({"extensions": (Extension("drbd"),)}, "VRF-004", "cp1 does not have the extension zfs; it has drbd"),
        ({"extensions": ()}, "VRF-004", "cp1 does not have the extension drbd, zfs; it has none"),
        ({"modules": frozenset(MODULES) - {"openvswitch"}}, "VRF-005", "cp1 has not loaded openvswitch"),
        ({"modules": frozenset(MODULES) - {"vfio_iommu_type1"}}, "VRF-005", "cp1 has not loaded vfio_iommu_type1"),
        # The extension is there and the module is not: the list of extensions alone proves nothing.
        (
            {"modules": frozenset(MODULES) - {"drbd"}, "drbd": None},
            "VRF-005",
            "has not loaded drbd, although the extension drbd is installed",
        ),
        ({"drbd": "8.4.11"}, "VRF-006", "cp1 has loaded DRBD 8.4.11"),
        ({"drbd": None}, "VRF-006", "DRBD of unknown version"),
        ({"drbd": "nine"}, "VRF-006", "cp1 has loaded DRBD nine"),
        ({"lvm_conf": ""}, "VRF-007", "would scan /dev/drbd*, /dev/dm*, /dev/zd*, /dev/loop*"),
        ({"lvm_conf": conf('"r|^/dev/drbd.*|"')}, "VRF-007", "would scan /dev/dm*, /dev/zd*, /dev/loop*"),
        (
            {"addresses": frozenset({"10.0.0.99", VIP})},
            "VRF-008",
            "cp1 does not have the address 10.0.0.11; it has 10.0.0.99",
        ),
        ({"node_ips": ("10.0.0.99",)}, "VRF-008", "kubelet on cp1 registers 10.0.0.99 instead of 10.0.0.11"),
        ({"node_ips": (VIP,)}, "VRF-009", f"cp1 uses the VIP {VIP} as its node address"),
        ({"node_ips": ("10.0.0.11", VIP)}, "VRF-009", f"cp1 uses the VIP {VIP} as its node address"),
        ({"members": (member("cp1", "10.0.0.11", VIP),)}, "VRF-009", f"etcd on cp1 advertises the VIP {VIP}"),
        ({"members": (member("cp1"), member("cp9"))}, "VRF-010", "the unknown members cp9 (10.0.0.19)"),
        ({"members": ()}, "VRF-010", "no vote from cp1"),
        ({"members": (member("cp1", learner=True),)}, "VRF-010", "no vote from cp1"),
        ({"status": Status(Stage.BOOTING)}, "VRF-001", "cp1 is booting"),
    ],
)
def test_what_is_wrong_is_named_with_machine_and_way_out(change: dict[str, Any], code: str, says: str) -> None:
    [found] = findings(replace(good(), **change))

    assert (found.code, found.path, found.severity) == (code, "cp1", Severity.ERROR)
    assert says in found.problem
    assert found.fix


def test_the_loop_pattern_is_advised_and_not_demanded() -> None:
    without = conf('"r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|"')
    [found] = findings(replace(good(), lvm_conf=without))

    assert (found.code, found.severity) == ("VRF-007", Severity.WARNING)


@pytest.mark.parametrize(
    "question",
    ["status", "talos", "extensions", "modules", "drbd", "lvm_conf", "addresses", "node_ips", "members"],
)
def test_an_answer_that_could_not_be_had_fails(question: str) -> None:
    change: dict[str, Any] = {question: Unanswered("no answer within the deadline")}
    [found] = findings(replace(good(), **change))

    assert (found.code, found.severity) == ("VRF-001", Severity.ERROR)
    assert "does not report" in found.problem
    assert "no answer within the deadline" in found.problem


def test_a_machine_that_is_away_is_one_finding() -> None:
    away = Unanswered("connection refused")
    [found] = findings(SeenMachine(ref("cp1"), away, away, away, away, away, away, away, away, away))

    assert found.problem == "cp1 (10.0.0.11) does not respond: connection refused"


def test_one_good_machine_does_not_hide_two_bad_ones() -> None:
    planes = ("cp1", "cp2", "cp3")
    bad = [replace(good(name, *planes), modules=frozenset(MODULES) - {"zfs"}) for name in planes[1:]]

    assert [(f.code, f.path) for f in findings(good("cp1", *planes), *bad)] == [("VRF-005", "cp2"), ("VRF-005", "cp3")]


def test_a_plain_image_is_told_to_be_replaced_and_not_to_be_run_again() -> None:
    plain = WantedMachine(
        talos="v1.13.6", image="ghcr.io/siderolabs/installer:v1.13.6", extensions=("zfs",), modules=()
    )
    [found] = findings(replace(good(), extensions=()), cp1=plain)

    assert "pin Cozystack's image" in found.fix


def test_machines_pinned_to_different_versions_are_not_uniform() -> None:
    planes = ("cp1", "cp2", "cp3")
    other = WANTED.model_copy(update={"talos": "v1.13.9"})
    seen = [good("cp1", *planes), good("cp2", *planes), replace(good("cp3", *planes), talos="v1.13.9")]

    [found] = findings(*seen, cp3=other)
    assert (found.code, found.path) == ("VRF-003", "cp3")


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        (conf(), ()),
        (conf('"r|.*|"'), ()),  # stricter is fine
        (conf('"r#^/dev/(drbd|dm-|zd|loop).*#"'), ()),  # another spelling of the same
        (conf('\n"r|^/dev/drbd.*|",\n\t"r|^/dev/dm-.*|", "r|^/dev/zd.*|", "r|^/dev/loop.*|"\n'), ()),
        (conf(f'"a|.*|", {FILTER}'), ("drbd", "dm", "zd", "loop")),  # the first pattern that matches decides
        (conf(f'"a|/dev/dm-0|", {FILTER}'), ("dm",)),
        (conf('"r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|"'), ("loop",)),
        (f"# global_filter = [ {FILTER} ]\n", ("drbd", "dm", "zd", "loop")),  # a comment filters nothing
        ("devices {\n  filter = [ " + FILTER + " ]\n}\n", ("drbd", "dm", "zd", "loop")),  # not the global one
        (conf('"r|^/dev/(|"'), ("drbd", "dm", "zd", "loop")),  # no regular expression
        (conf("drbd"), ("drbd", "dm", "zd", "loop")),
        (f"global_filter = [ {FILTER}", ("drbd", "dm", "zd", "loop")),  # never ends
        (conf() + 'global_filter = [ "a|.*|" ]\n', ("drbd", "dm", "zd", "loop")),  # twice: each has to reject
        ('  global_filter = "r|.*|"\n', ()),
        ("", ("drbd", "dm", "zd", "loop")),
    ],
)
def test_the_filter_is_judged_by_what_it_does(text: str, open_: tuple[str, ...]) -> None:
    assert lvm.let_through(text) == open_


def test_the_matrix_has_a_row_for_every_machine_and_never_calls_an_unknown_one_verified() -> None:
    away = Unanswered("no route")
    silent = SeenMachine(ref("w_3"), away, away, away, away, away, away, away, away)
    bare = replace(good("cp2", "cp1", "cp2"), extensions=(), modules=frozenset(), drbd=None)
    seen = [good("cp1", "cp1", "cp2"), bare, silent]
    wanted = dict.fromkeys(("cp1", "cp2", "w_3"), WANTED)
    table = rows(seen, wanted, verify(seen, wanted, [VIP]))
    text, markdown = matrix.as_text(table, head=HEAD, width=200), matrix.as_markdown(table, head=HEAD)

    assert [(row.node, row.verdict) for row in table] == [
        ("cp1", "verified"),
        ("cp2", "VRF-004, VRF-005"),
        ("w_3", "VRF-001"),
    ]
    assert "| cp1 | control plane | v1.13.6 | all 2 | all 6 | 9.3.2 | complete | 10.0.0.11 | verified |" in markdown
    assert "| w_3 | worker | ? | ? | ? | ? | ? | ? | VRF-001 |" in markdown
    assert "no drbd, zfs" in text


def test_a_machine_that_still_boots_is_not_settled() -> None:
    assert good().settled
    assert not replace(good(), status=Status(Stage.BOOTING)).settled
    assert not replace(good(), talos=Unanswered("not yet")).settled
