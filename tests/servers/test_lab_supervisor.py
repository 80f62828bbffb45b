"""The lab's supervisor and its record: who is meant, who may be ended, and what the commands say."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from lab import launch
from lab.__main__ import NOT_RUNNING, OK, RED, main
from lab.identity import Identity
from lab.scenario import Scenario
from lab.state import Busy, ProcessRecord, Record, StateDir, fingerprint
from lab.supervisor import Supervisor
from lab.world import World
from tests.sleepers import SLEEP, gone, reused

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "lab")
    state.prepare()
    return state


@pytest.fixture
def sleeper() -> Iterator[Identity]:
    process = subprocess.Popen(SLEEP)
    identity = Identity.of(process.pid)
    assert identity is not None
    yield identity
    process.kill()
    process.wait()


def record(supervisor: Identity, *children: Identity) -> Record:
    return Record(
        scenario="three-nodes",
        fingerprint="f",
        supervisor=ProcessRecord.of("supervisor", supervisor),
        children=[ProcessRecord.of(f"child{n}", child) for n, child in enumerate(children)],
        phase="ready",
    )


# Who is meant --------------------------------------------------------------------------------------------------------


def test_a_pid_that_was_reused_is_not_the_recorded_process(sleeper: Identity) -> None:
    assert not reused(sleeper).alive()
    assert reused(sleeper).signal(signal.SIGKILL) is False
    assert sleeper.alive()


def test_an_unreaped_process_counts_as_gone() -> None:
    process = subprocess.Popen(SLEEP)
    identity = Identity.of(process.pid)
    assert identity is not None
    process.kill()
    assert identity.gone_within(5)
    process.wait()


# Down ----------------------------------------------------------------------------------------------------------------


def test_down_without_a_lab_is_harmless(state: StateDir) -> None:
    assert not launch.down(state).was_there
    assert main(["down", "--state", str(state.root)]) == OK


def test_down_ends_what_a_crash_left(state: StateDir, sleeper: Identity) -> None:
    state.write(record(gone(), sleeper))

    done = launch.down(state)

    assert done.forced == [f"child0 (pid {sleeper.pid})"]
    assert not done.orderly
    assert not sleeper.alive()
    assert not launch.down(state).was_there


def test_down_never_ends_a_process_it_cannot_prove_to_be_its_own(state: StateDir, sleeper: Identity) -> None:
    state.write(record(reused(sleeper), reused(sleeper)))

    assert launch.down(state).forced == []
    assert sleeper.alive()


def test_a_state_directory_has_one_supervisor(state: StateDir) -> None:
    with state.locked(), pytest.raises(Busy), state.locked():
        pytest.fail("two supervisors held the same directory")


def test_an_unreadable_record_is_an_error_and_not_an_absent_lab(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (state.root / "supervisor.json").write_text("{")

    assert main(["status", "--state", str(state.root)]) == RED
    assert "supervisor.json is not a record of a lab" in capsys.readouterr().err


# Up ------------------------------------------------------------------------------------------------------------------


def test_up_refuses_another_scenario_while_one_runs(
    state: StateDir, sleeper: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    state.write(record(sleeper))

    assert main(["up", "--state", str(state.root), "--scenario", "one-node"]) == RED
    assert "python -m lab down" in capsys.readouterr().err
    assert sleeper.alive()


def test_up_leaves_a_lab_with_the_same_scenario_as_it_is(
    state: StateDir, sleeper: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    from lab import scenario

    same = scenario.load(CHECKOUT / "lab" / "scenarios" / "one-node.yaml")
    state.write(record(sleeper).model_copy(update={"fingerprint": fingerprint(same)}))

    assert main(["up", "--state", str(state.root), "--scenario", "one-node"]) == OK
    assert "already running" in capsys.readouterr().out


def test_an_unknown_scenario_is_answered_with_the_known_ones(
    state: StateDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--state", str(state.root), "--scenario", "no-such"]) == RED
    told = capsys.readouterr().err
    assert "one-node, " in told
    assert "three-nodes" in told


def test_scenarios_that_mean_the_same_have_the_same_fingerprint() -> None:
    fleet = Scenario.fleet(2, "127.79")

    assert fingerprint(Scenario.model_validate_json(fleet.model_dump_json(by_alias=True))) == fingerprint(fleet)
    assert fingerprint(fleet.relocated("127.80")) != fingerprint(fleet)


# Status and logs -----------------------------------------------------------------------------------------------------


def test_status_of_nothing(state: StateDir) -> None:
    assert main(["status", "--state", str(state.root)]) == NOT_RUNNING


def test_status_is_red_when_the_supervisor_is_gone(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    state.write(record(gone()))

    assert main(["status", "--state", str(state.root)]) == RED
    assert "the supervisor is not running" in capsys.readouterr().out


def test_status_is_red_when_a_child_crashed(
    state: StateDir, sleeper: Identity, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed = record(sleeper, gone())
    crashed.children[0].exit = "was ended by SIGSEGV"
    state.write(crashed)

    assert main(["status", "--state", str(state.root)]) == RED
    assert "was ended by SIGSEGV" in capsys.readouterr().out


def test_status_is_green_while_everything_lives(state: StateDir, sleeper: Identity) -> None:
    state.write(record(sleeper, sleeper))

    assert main(["status", "--state", str(state.root)]) == OK


async def test_a_machine_simulator_that_crashes_is_a_problem_of_the_record(state: StateDir) -> None:
    world = World(Scenario.fleet(1))
    supervisor = Supervisor(state, world.scenario, {}, Console(quiet=True))
    supervisor.watch(world)

    world.log.record("lab", "machine simulator crashed", task="machine m1", error="KeyError('sda')")

    written = state.read()
    assert written is not None
    assert written.problems == ["the simulator of machine m1 crashed: KeyError('sda')"]
    assert not written.healthy


def test_logs_by_name(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    (state.logs / "etcd.log").write_text("a line\n")

    assert main(["logs", "--state", str(state.root), "etcd"]) == OK
    assert capsys.readouterr().out == "a line\n"
    assert main(["logs", "--state", str(state.root), "kubelet"]) == RED
    assert "available logs: etcd" in capsys.readouterr().err
