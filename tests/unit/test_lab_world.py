"""The shared model: time, events, faults, changes from outside, and the control socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.clock import Clock
from lab.control import ControlError, ControlServer, ask, handler
from lab.events import EventLog
from lab.scenario import Effect, MachineChange, Scenario
from lab.world import World


def world(lines: list[str] | None = None, **changes: Any) -> World:
    machine = {
        "name": "cp1",
        "address": "127.40.0.11",
        "disks": [
            {"dev": "sda", "size": "64GiB", "serial": "SYS1"},
            {"dev": "sdb", "size": "200GiB", "serial": "DATA1", "pool": "old"},
        ],
    }
    body = {"name": "test", "scale": 1000, "machines": [machine], "platform": {"ingress": "127.40.1.1"}}
    return World(Scenario.model_validate(body | changes), sink=lines.append if lines is not None else None)


def test_the_clock_runs_at_the_scenarios_scale() -> None:
    wall = iter([100.0, 101.5])
    clock = Clock(60, monotonic=lambda: next(wall))

    assert clock.now() == 90.0
    assert clock.wall(30.0) == 0.5


def test_events_are_numbered_and_reach_the_sink_as_json_lines() -> None:
    lines: list[str] = []
    log = world(lines).log

    log.record("machine cp1", "running", role="worker")
    log.record("cluster", "bootstrapped")

    assert [(json.loads(line)["seq"], json.loads(line)["what"]) for line in lines] == [
        (1, "running"),
        (2, "bootstrapped"),
    ]
    assert [event.line for event in log.since(1)] == ["cluster bootstrapped"]


async def test_waiting_finds_events_of_the_past_and_of_the_future() -> None:
    log = EventLog(Clock(1))
    log.record("a", "one")
    waiting = asyncio.create_task(log.happened("b", "two", timeout_s=5))
    await asyncio.sleep(0)

    log.record("b", "two")

    assert (await waiting).seq == 2
    assert (await log.happened("a", "one")).seq == 1


async def test_waiting_for_what_never_happens_ends_at_its_deadline() -> None:
    with pytest.raises(TimeoutError):
        await EventLog(Clock(1)).happened("a", "b", timeout_s=0.01)


def test_a_triggered_fault_happens_once_and_to_whoever_is_in_charge() -> None:
    lab = world(faults=[{"at": "cluster bootstrapped", "do": {"api_server": "away", "for": "40s"}}])
    seen: list[Effect] = []
    lab.faults.handle("api_server", seen.append)

    lab.log.record("cluster", "bootstrapped")
    lab.log.record("cluster", "bootstrapped")

    assert [effect.for_s for effect in seen] == [40.0]
    assert len(lab.log.find("fault", "fired")) == 1


def test_a_fault_that_nobody_carries_out_is_on_record() -> None:
    lab = world(faults=[{"at": "cluster *", "do": {"linstor": "away"}}])

    lab.log.record("cluster", "bootstrapped")

    assert lab.log.find("fault", "nobody handles it")[0].data == {"kinds": ["linstor"]}


def test_a_scripted_answer_is_used_up() -> None:
    answers = {"Reboot": {"code": "UNAVAILABLE", "skip": 1, "times": 2}}
    faults = world(faults=[{"on": "machine *", "answer": answers}]).faults

    given = [faults.answer("machine cp1", "Reboot") is not None for _ in range(4)]

    assert given == [False, True, True, False]
    assert faults.answer("machine cp1", "Version") is None


def test_an_exchanged_disk_carries_nothing_of_the_old_one() -> None:
    lab = world()

    lab.change(MachineChange.model_validate({"name": "cp1", "disk": {"serial": "DATA1", "for_serial": "NEW1"}}))

    disk = lab.machines["cp1"].disks["sdb"]
    assert (disk.spec.serial, disk.pool, disk.residue) == ("NEW1", None, None)
    assert lab.machines["cp1"].zpools == {}


def test_a_machine_starts_with_the_pools_its_disks_carry() -> None:
    pools = world().machines["cp1"].zpools

    assert pools["old"].devices == ("sdb",)


async def test_the_control_socket_answers_tools_and_tests(tmp_path: Path) -> None:
    lab = world()

    async def zpool(arguments: Mapping[str, Any]) -> list[str]:
        return sorted(lab.machines[arguments["machine"]].zpools)

    handler(lab, "zpool", zpool)
    socket = tmp_path / "control.sock"
    change = {"name": "cp1", "disk": {"dev": "sda", "residue": "lvm2-pv"}}
    async with ControlServer(lab, socket):
        state = await asyncio.to_thread(ask, socket, "state")
        changed = await asyncio.to_thread(ask, socket, "mutate", machine=change)
        events = await asyncio.to_thread(ask, socket, "events", since=0)
        pools = await asyncio.to_thread(ask, socket, "zpool", machine="cp1")

    assert state["machines"][0]["disks"][0]["residue"] is None
    assert changed["disks"][0]["residue"] == "lvm2-pv"
    assert [event["what"] for event in events] == ["disk changed"]
    assert pools == ["old"]
    assert not socket.exists()


@pytest.mark.parametrize(
    ("question", "arguments", "says"),
    [
        ("nonsense", {}, "unknown question 'nonsense'; known: events, mutate, state"),
        ("mutate", {"machine": {"name": "cp9", "power": "off"}}, "no machine 'cp9'"),
        ("mutate", {"machine": {"name": "cp1", "disk": {"dev": "sdz", "gone": True}}}, "cp1 has no disk sdz"),
        ("mutate", {"machine": {"name": "cp1", "powr": "off"}}, "Extra inputs"),
        ("events", {"since": "yesterday"}, "since is the number of an event"),
    ],
)
async def test_the_control_socket_says_why_it_refuses(
    tmp_path: Path, question: str, arguments: dict[str, Any], says: str
) -> None:
    socket = tmp_path / "control.sock"
    async with ControlServer(world(), socket):
        with pytest.raises(ControlError, match=says):
            await asyncio.to_thread(ask, socket, question, **arguments)


def test_no_lab_behind_the_socket_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="does not respond"):
        ask(tmp_path / "control.sock", "state")
