"""What LINSTOR's answers mean, in every shape they have had; and which of its nodes and pools count as storage."""

import json
from typing import Any

import pytest

from cozystack_iac.settings.nodes import Disk
from cozystack_iac.storage import devices, linstor
from cozystack_iac.storage.linstor import NodeRow, PoolState
from cozystack_iac.talos.machine import ReportedDisk

GIB = 1024**3
KIB = 1024
ERROR = -4611686018406153244


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
LEGACY = {
    "node_name": "n1",
    "stor_pool_name": "data",
    "driver": "ZfsThinDriver",
    "props": [{"key": "StorDriver/StorPoolName", "value": "data/thin"}],
    "free_space": {"free_capacity": 100, "total_capacity": 200},
}


def standings(nodes: str, rows: list[dict[str, object]], **more: Any) -> dict[str, linstor.PoolStanding]:
    found = linstor.pool_standings(nodes.split(), "data", "data", linstor.pool_rows(json.dumps([rows])), **more)
    return {standing.node: standing for standing in found}


# Shapes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([[row("n1"), row("n2"), DISKLESS]], id="list of lists"),
        pytest.param([row("n1"), row("n2")], id="flat list"),
        pytest.param([{"stor_pools": [row("n1"), row("n2")]}], id="legacy wrapper"),
    ],
)
def test_pools_are_read_in_every_shape(answer: object) -> None:
    assert [r.node for r in linstor.pool_rows(json.dumps(answer))] == ["n1", "n2"]


def test_a_legacy_row_says_the_same_as_a_new_one() -> None:
    [old] = linstor.pool_rows(json.dumps([{"stor_pools": [LEGACY]}]))
    assert (old.provider, old.zpool, old.total_kib) == ("ZFS_THIN", "data/thin", 200)


@pytest.mark.parametrize("read", [linstor.pool_rows, linstor.node_rows, linstor.resource_rows, linstor.device_rows])
@pytest.mark.parametrize(
    "answer", ["", "| data | n1 |", '{"error": 1}', '[["x"]]', "null", "[{}]", '[[{"other": 1}]]', '[[{"nodes": 1}]]']
)
def test_an_answer_of_unknown_shape_is_unknown_and_never_empty(read: Any, answer: str) -> None:
    with pytest.raises(linstor.Unreadable):
        read(answer)


@pytest.mark.parametrize("read", [linstor.pool_rows, linstor.node_rows, linstor.resource_rows, linstor.device_rows])
@pytest.mark.parametrize("answer", ["[]", "[[]]"])
def test_an_empty_list_is_no_rows(read: Any, answer: str) -> None:
    assert read(answer) == ()


def test_a_refusal_instead_of_a_list_is_unknown_in_its_own_words() -> None:
    answer = json.dumps([{"ret_code": ERROR, "message": "Connection to controller lost", "cause": "a restart"}])
    with pytest.raises(linstor.Unreadable, match="Connection to controller lost; a restart"):
        linstor.pool_rows(answer)


@pytest.mark.parametrize(
    ("status", "online"), [("ONLINE", True), ("online", True), (2, True), ("OFFLINE", False), (0, False), (9, False)]
)
def test_a_node_is_online_only_when_linstor_says_that_word(status: object, online: bool) -> None:
    [node] = linstor.node_rows(
        json.dumps([{"nodes": [{"name": "n1", "type": "SATELLITE", "connection_status": status}]}])
    )
    assert node.online is online


def test_controllers_are_no_nodes() -> None:
    rows = [{"name": "c", "type": "CONTROLLER"}, {"name": "n1", "type": "SATELLITE", "connection_status": "ONLINE"}]
    assert [node.node for node in linstor.node_rows(json.dumps([rows]))] == ["n1"]


def test_error_reports_are_read_newest_first_and_once() -> None:
    reports = [
        {"error_time": 1, "filename": "a", "exception_message": "old"},
        {"error_time": 3, "filename": "b", "exception_message": "new"},
        {"error_time": 2, "filename": "c", "exception_message": "new"},
    ]
    assert linstor.error_texts(json.dumps(reports)) == ("new", "old")


def test_a_command_that_was_refused_says_why_and_one_that_was_not_says_nothing() -> None:
    assert linstor.refusal(json.dumps([{"ret_code": 1, "message": "fine"}])) == ""
    said = json.dumps(
        [{"ret_code": 1, "message": "fine"}, {"ret_code": ERROR, "message": "Not enough available nodes"}]
    )
    assert linstor.refusal(said) == "Not enough available nodes"
    with pytest.raises(linstor.Unreadable):
        linstor.refusal("command not found")


# Pools ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, PoolState.REGISTERED),
        ({"total_capacity": 0}, PoolState.FAULTY),
        ({"total_capacity": None}, PoolState.FAULTY),
        ({"reports": [{"ret_code": ERROR, "message": "no such pool"}]}, PoolState.FAULTY),
        ({"reports": [{"ret_code": 1, "message": "fine"}]}, PoolState.REGISTERED),
        ({"provider_kind": "LVM_THIN"}, PoolState.FOREIGN),
        ({"props": {"StorDriver/StorPoolName": "other"}}, PoolState.FOREIGN),
        ({"props": {}}, PoolState.FOREIGN),
        ({"storage_pool_name": "other"}, PoolState.MISSING),
    ],
)
def test_a_row_counts_only_when_it_is_storage(changes: dict[str, object], state: PoolState) -> None:
    assert standings("n1", [row("n1", **changes)])["n1"].state is state


def test_one_of_two_pools_in_error_is_one_of_two_with_its_report() -> None:
    error = {"reports": [{"ret_code": ERROR, "message": "zpool is suspended"}], "total_capacity": 0}
    found = standings("n1 n2", [row("n1", total_capacity=900 * 1024**2), row("n2", **error)])
    assert str(found["n1"]) == "registered, 900.0 GiB"
    assert str(found["n2"]) == "faulty: zpool is suspended"


@pytest.mark.parametrize(
    ("total_kib", "state"),
    [
        (200 * GIB // KIB, PoolState.REGISTERED),
        (int(200 * GIB * 0.951) // KIB, PoolState.REGISTERED),
        (int(200 * GIB * 1.049) // KIB, PoolState.REGISTERED),
        (int(200 * GIB * 0.94) // KIB, PoolState.MISSIZED),
        (400 * GIB // KIB, PoolState.MISSIZED),
    ],
)
def test_linstors_capacity_is_that_of_the_zpool_within_five_percent(total_kib: int, state: PoolState) -> None:
    found = standings("n1", [row("n1", total_capacity=total_kib)], sizes={"n1": 200 * GIB})
    assert found["n1"].state is state


def test_a_size_that_is_not_known_is_not_compared() -> None:
    assert standings("n1", [row("n1", total_capacity=1)], sizes={})["n1"].state is PoolState.REGISTERED


@pytest.mark.parametrize(
    ("satellite", "state", "words"),
    [
        (NodeRow("n1", "ONLINE"), PoolState.REGISTERED, ""),
        (NodeRow("n1", "ONLINE", layers=frozenset({"DRBD", "STORAGE"})), PoolState.REGISTERED, ""),
        (NodeRow("n1", "OFFLINE"), PoolState.OFFLINE, "OFFLINE"),
        (NodeRow("other", "ONLINE"), PoolState.OFFLINE, "does not know this node"),
        (NodeRow("n1", "ONLINE", flags=frozenset({"EVACUATE"})), PoolState.LEAVING, "flagged EVACUATE"),
        (
            NodeRow("n1", "ONLINE", layers=frozenset({"STORAGE"}), unsupported={"DRBD": "version is 8.4.11"}),
            PoolState.WITHOUT_DRBD,
            "version is 8.4.11",
        ),
        (NodeRow("n1", "ONLINE", layers=frozenset({"STORAGE"})), PoolState.WITHOUT_DRBD, "does not support DRBD"),
    ],
)
def test_a_pool_is_as_good_as_its_node(satellite: NodeRow, state: PoolState, words: str) -> None:
    found = standings("n1", [row("n1")], satellites=[satellite])["n1"]
    assert found.state is state
    assert words in found.detail


def test_what_a_node_cannot_do_is_read_with_linstors_reason() -> None:
    reason = "DRBD version has to be >= 9. Current DRBD version: 8.4.11"
    node = {"name": "n1", "type": "SATELLITE", "connection_status": "ONLINE", "resource_layers": ["STORAGE", "LUKS"]}
    [found] = linstor.node_rows(json.dumps([[node | {"unsupported_layers": {"DRBD": [reason]}}]]))
    assert found.without_drbd == reason


@pytest.mark.parametrize(
    ("satellite", "words"),
    [
        (None, "has no LinstorSatellite"),
        ({}, "has not reconciled its LinstorSatellite yet"),
        ({"status": {"conditions": [{"type": "Available", "status": "True", "message": "satellite online"}]}}, ""),
    ],
)
def test_the_operators_word_is_evidence_only_when_it_complains(satellite: dict[str, Any] | None, words: str) -> None:
    said = linstor.satellite_evidence(satellite)
    assert (said == "") if not words else (words in said)


# Resources -----------------------------------------------------------------------------------------------------------


def resource(name: str, **changes: Any) -> dict[str, Any]:
    layer = {"type": "DRBD", "children": [{"type": "STORAGE"}]}
    volumes = [{"volume_number": 0, "state": {"disk_state": "UpToDate"}}]
    return {"name": name, "node_name": "n1", "layer_object": layer, "volumes": volumes, **changes}


@pytest.mark.parametrize(
    ("changes", "replicated", "settled"),
    [
        ({}, True, True),
        ({"volumes": [{"state": {"disk_state": "Inconsistent"}}]}, True, False),
        ({"volumes": [{"state": {"disk_state": "SyncTarget(43.95%)"}}]}, True, False),
        ({"volumes": [{}]}, True, False),  # its satellite does not say
        ({"flags": ["DISKLESS", "TIE_BREAKER"], "volumes": [{"state": {"disk_state": "Diskless"}}]}, True, True),
        ({"volumes": [{"state": {"disk_state": "Diskless"}}]}, True, False),  # it has lost its disk
        ({"layer_object": {"type": "STORAGE"}, "volumes": [{}]}, False, True),
        ({"layer_object": {"type": "STORAGE"}, "volumes": [{"state": {"disk_state": "Created"}}]}, False, True),
        ({"layer_object": None, "volumes": [{}]}, True, False),  # an old client does not tell the layers
    ],
)
def test_a_resource_is_settled_only_when_nothing_is_copied(
    changes: dict[str, Any], replicated: bool, settled: bool
) -> None:
    [found] = linstor.resource_rows(json.dumps([[resource("pvc-1", **changes)]]))
    assert (found.replicated, found.settled) == (replicated, settled)


# Devices -------------------------------------------------------------------------------------------------------------

LINK = "/dev/disk/by-id/ata-MODEL_S1"
DISK = ReportedDisk(
    "sdb", "/dev/sdb", 200 * GIB, "MODEL", "S1", "naa.5000c500a1b2c3d4", symlinks=(LINK, "/dev/disk/by-path/x")
)


def offered(**changes: Any) -> tuple[linstor.DeviceRow, ...]:
    device = {"device": "/dev/sdb", "serial": "S1", "wwn": "0x5000c500a1b2c3d4"} | changes
    return linstor.device_rows(json.dumps([[{"size": 200 * GIB, "rotational": False, "nodes": {"n1": [device]}}]]))


def test_a_disk_is_given_to_linstor_by_its_link_whatever_identity_the_stack_file_has() -> None:
    for wanted in (Disk(serial="S1"), Disk(wwid="naa.5000c500a1b2c3d4"), Disk(by_id="ata-MODEL_S1")):
        found = devices.on_talos("n1", wanted, [DISK, ReportedDisk("sda", "/dev/sda", serial="OS")])
        assert isinstance(found, devices.Resolved)
        assert found.link == LINK
        assert devices.judge_device(found, offered()) is None


@pytest.mark.parametrize(
    ("wanted", "disks", "code", "words"),
    [
        (Disk(serial="S9"), [DISK], "LIN-004", "now matches no disk of the machine"),
        (Disk(serial="S1"), [DISK, DISK], "LIN-004", "now matches 2 disks"),
        (Disk(selector="disk.size > 1u * x.y"), [DISK], "LIN-004", "cannot be evaluated"),
        (
            Disk(serial="S1"),
            [ReportedDisk("sdb", "/dev/sdb", serial="S1")],
            "LIN-006",
            "has no link in /dev/disk/by-id",
        ),
    ],
)
def test_a_disk_that_is_not_the_one_any_more_is_refused(
    wanted: Disk, disks: list[ReportedDisk], code: str, words: str
) -> None:
    found = devices.on_talos("n1", wanted, disks)
    assert not isinstance(found, devices.Resolved)
    assert found.code == code
    assert words in found.problem or words.replace("cannot be evaluated", "beyond the expressions") in found.problem


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (offered(), None),
        (offered(serial="", wwn=""), None),  # LINSTOR knows the device and nothing else
        ((), "LIN-005"),  # LINSTOR leaves out what carries anything
        (offered(serial="S2"), "LIN-005"),  # another disk is at that place now
        (offered(device="/dev/sdc"), "LIN-005"),
        (offered(wwn="0x5000c500ffffffff"), "LIN-005"),
    ],
)
def test_linstor_itself_has_to_call_the_disk_empty(rows: tuple[linstor.DeviceRow, ...], code: str | None) -> None:
    found = devices.judge_device(devices.Resolved("n1", LINK, "/dev/sdb", "S1", "naa.5000c500a1b2c3d4"), rows)
    assert (found.code if found else None) == code


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (Disk(by_id="ata-MODEL_S1"), None),
        (Disk(by_id="/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"), None),
        (Disk(by_id="dm-name-x", serial="S1"), None),
        (Disk(by_id="dm-name-x"), "LIN-005"),  # nothing says that this is LINSTOR's /dev/sdb
        (Disk(by_id="ata-MODEL_S2"), "LIN-005"),
        (Disk(serial="S1"), "LIN-006"),
    ],
)
def test_without_a_machines_word_link_and_identity_have_to_meet_what_linstor_lists(
    wanted: Disk, code: str | None
) -> None:
    found = devices.as_written("n1", wanted)
    judged = devices.judge_device(found, offered()) if isinstance(found, devices.Resolved) else found
    assert (judged.code if judged else None) == code


# Objects -------------------------------------------------------------------------------------------------------------


def test_a_pool_is_made_of_devices_only_where_they_are_given() -> None:
    on_zpool = linstor.satellite_configuration("n1", "data", "tank")
    on_disk = linstor.satellite_configuration("n1", "data", "tank", [LINK])
    assert on_zpool["spec"]["storagePools"] == [{"name": "data", "zfsPool": {"zPool": "tank"}}]
    assert on_disk["spec"]["storagePools"][0]["source"] == {"hostDevices": [LINK]}
    assert on_disk["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


def test_an_endpoint_without_conditions_is_ready_and_one_without_addresses_is_not() -> None:
    assert linstor.ready_endpoint([{"endpoints": [{"addresses": ["10.0.0.1"]}]}])
    assert not linstor.ready_endpoint([{"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]}])
    assert not linstor.ready_endpoint([{"endpoints": None}])
