"""The simulated LINSTOR's client against the product's readers: what one prints in any version, the other understands."""

from __future__ import annotations

from typing import Any

import pytest

from cozystack_iac.storage import linstor as product
from lab.platform import linstor_client as client
from lab.platform.linstor_client import Registry, Volume
from lab.platform.zpool import pool_bytes
from lab.scenario import Scenario
from lab.world import World

GIB = 1024**3


def registry(**spec: Any) -> Registry:
    """n1 stores, n2 is online with an empty disk, n3's satellite never comes."""
    machines = [
        {
            "name": f"n{number}",
            "address": f"127.95.0.1{number}",
            "disks": [
                {"dev": "sda", "size": "64GiB", "serial": f"SYS{number}", "system": True},
                {"dev": "sdb", "size": "200GiB", "serial": f"DATA{number}", "wwid": f"naa.500{number}", **more},
            ],
        }
        for number, more in ((1, {"pool": "data"}), (2, {}), (3, {"residue": "ext4"}))
    ]
    platform = {"ingress": "127.95.1.1", "linstor": spec}
    world = World(Scenario.model_validate({"name": "linstor", "machines": machines, "platform": platform}))
    world.machines["n2"].disks["sda"].system = world.machines["n1"].disks["sda"].system = True
    known = Registry(world, {("n1", "data"): "data"}, lambda node: f"10.0.0.{node[1:]}")
    known.nodes, known.online = {"n1", "n2", "n3"}, {"n1", "n2"}
    known.volumes = {
        "pvc-1": Volume("pvc-1", {"n1": "UpToDate"}),
        "pvc-2": Volume("pvc-2", {"n1": "x"}, replicated=False),
    }
    return known


def ask(known: Registry, argv: list[str]) -> str:
    answer = client.listing(known, argv[1:])
    assert answer.code == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("output", ["v1", "flat", "legacy"])
def test_every_list_says_the_same_in_every_version(output: str) -> None:
    known = registry(output=output, without_drbd={"n2": "DRBD is 8.4"})
    nodes = product.node_rows(ask(known, product.LIST_NODES))
    [pool] = product.pool_rows(ask(known, product.LIST_POOLS))
    kept = product.resource_rows(ask(known, product.list_resources("n1")))
    machine = known.world.machines["n1"]
    assert [(row.node, row.online, row.without_drbd) for row in nodes] == [
        ("n1", True, ""),
        ("n2", True, "DRBD is 8.4"),
        ("n3", False, ""),
    ]
    assert (pool.node, pool.provider, pool.zpool, pool.errors) == ("n1", "ZFS", "data", ())
    assert pool.total_kib == pool_bytes(machine, machine.zpools["data"]) // 1024
    assert [(row.name, row.replicated) for row in kept] == [("pvc-1", True), ("pvc-2", False)]
    assert product.resource_rows(ask(known, product.list_resources("n2"))) == ()


def test_a_table_is_nothing_the_product_would_take_for_an_answer() -> None:
    known = registry(output="table")
    for read, argv in ((product.node_rows, product.LIST_NODES), (product.pool_rows, product.LIST_POOLS)):
        with pytest.raises(product.Unreadable):
            read(ask(known, argv))


def test_only_disks_without_any_signature_are_offered() -> None:
    known = registry()
    known.online.add("n3")
    offered = product.device_rows(ask(known, product.LIST_DEVICES))
    assert [(row.node, row.device, row.serial, row.wwn) for row in offered if row.serial.startswith("DATA")] == [
        ("n2", "/dev/sdb", "DATA2", "0x5002")
    ]


def test_a_pool_in_error_has_its_report_and_no_capacity() -> None:
    known = registry(pool_errors={"n1": "zpool 'data' is suspended"})
    [pool] = product.pool_rows(ask(known, product.LIST_POOLS))
    assert (pool.total_kib, pool.errors) == (0, ("zpool 'data' is suspended",))
    assert product.error_texts(ask(known, product.list_errors("n1"))) == ("zpool 'data' is suspended",)
    assert product.error_texts(ask(known, product.list_errors("n2"))) == ()


def test_a_volume_whose_satellite_is_away_has_no_state() -> None:
    known = registry()
    known.online.discard("n1")
    rows = product.resource_rows(ask(known, product.LIST_RESOURCES))
    assert [row.settled for row in rows if row.name == "pvc-1"] == [False]


def test_an_unknown_command_is_no_empty_answer() -> None:
    answer = client.listing(registry(), ["-m", "volume", "list"])
    assert (answer.stdout, answer.code) == ("", 2)


def test_what_changes_something_answers_in_replies() -> None:
    assert product.refusal(client.replies("fine").stdout) == ""
    assert (
        product.refusal(client.replies("Not enough available nodes", failed=True).stdout)
        == "Not enough available nodes"
    )
