"""Processes of the lab: who is meant, who may be ended, what dies with whom, and what the commands say."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from rich.console import Console

from lab import doors, launch, nodes, pki
from lab.__main__ import NOT_RUNNING, OK, RED, main
from lab.children import Child, Children, free_ports
from lab.front import Front
from lab.identity import Identity
from lab.machines.config import decode
from lab.scenario import Scenario
from lab.state import Busy, ProcessRecord, Record, StateDir, fingerprint
from lab.supervisor import Supervisor
from lab.toolchain import shims
from lab.world import MachineState, World

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
CHECKOUT = Path(__file__).parents[2]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")


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


def reused(identity: Identity) -> Identity:
    """What a record says after its process ended and the pid was given to another one."""
    return Identity(identity.pid, identity.started - 1, identity.boot)


def gone() -> Identity:
    process = subprocess.Popen(SLEEP)
    identity = Identity.of(process.pid)
    assert identity is not None
    process.kill()
    process.wait()
    return identity


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


# Children ------------------------------------------------------------------------------------------------------------


async def test_children_share_a_group_that_is_not_the_supervisors(tmp_path: Path) -> None:
    children = Children(tmp_path, on_death=lambda child, code: None)
    first = await children.start("one", SLEEP, env={})
    second = await children.start("two", SLEEP, env={})

    assert os.getpgid(first.process.pid) == os.getpgid(second.process.pid) == first.process.pid
    assert os.getpgid(0) != first.process.pid
    await children.stop("one", "two")
    assert not first.running
    assert not second.running


async def test_only_a_death_nobody_asked_for_is_reported(tmp_path: Path) -> None:
    deaths: list[tuple[str, int]] = []
    children = Children(tmp_path, on_death=lambda child, code: deaths.append((child.name, code)))
    await children.start("asked", SLEEP, env={})
    victim = await children.start("crashed", [sys.executable, "-c", "print('last words'); raise SystemExit(7)"], env={})
    await victim.process.wait()
    await children.stop("asked")
    await asyncio.sleep(0)

    assert deaths == [("crashed", 7)]
    assert (tmp_path / "crashed.log").read_text() == "last words\n"


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.children.KILL_AFTER_S", 0.2)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    children = Children(tmp_path, on_death=lambda child, code: None)
    child = await children.start("stubborn", [sys.executable, "-c", stubborn], env={})
    await _says(child, "up")

    await children.stop("stubborn")

    assert child.process.returncode == -signal.SIGKILL


async def _says(child: Child, word: str) -> None:
    async with asyncio.timeout(10):
        while word not in child.log.read_text():
            await asyncio.sleep(0.02)


@linux_only
def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from lab.children import Children
async def main():
    children = Children(Path({str(tmp_path)!r}), on_death=lambda child, code: None)
    for name in ("one", "two"):
        child = await children.start(name, {SLEEP!r}, env={{}})
        print(child.process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, start_new_session=True
    )
    assert supervisor.stdout is not None
    children = [Identity.of(int(supervisor.stdout.readline())) for _ in range(2)]
    assert None not in children

    supervisor.kill()
    supervisor.wait()

    assert all(child is not None and child.gone_within(3) for child in children)


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


def test_a_taken_address_is_named_with_its_holder_and_a_free_one_is_not() -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = doors.problems(
            [doors.Door("127.0.0.1", port, "Kubernetes API"), doors.Door("127.0.0.1", free, "kubelet")]
        )

    assert len(found) == 1
    assert found[0].startswith(f"127.0.0.1:{port} (Kubernetes API): taken by pid {os.getpid()}, ")


def test_an_address_the_machine_does_not_have_is_said_to_be_missing() -> None:
    (problem,) = doors.problems([doors.Door("192.0.2.1", 6443, "Kubernetes API")])  # TEST-NET-1, nobody's address
    assert "not an address of this machine" in problem


def test_every_fixed_address_of_a_scenario_is_looked_at() -> None:
    scenario = Scenario.fleet(2, "127.78", vip="127.78.0.10")

    assert {str(door) for door in doors.doors(scenario)} == {
        *(f"127.78.0.{host}:{port}" for host in (11, 12) for port in (50000, 6443, 10250)),
        "127.78.0.10:6443",
        "127.78.200.1:8443",
    }


def test_scenarios_that_mean_the_same_have_the_same_fingerprint() -> None:
    fleet = Scenario.fleet(2, "127.79")

    assert fingerprint(Scenario.model_validate_json(fleet.model_dump_json(by_alias=True))) == fingerprint(fleet)
    assert fingerprint(fleet.relocated("127.80")) != fingerprint(fleet)


def test_the_toolchain_leaves_the_stub_commands_of_a_running_lab(tmp_path: Path) -> None:
    shims.write(tmp_path, {"linstor": "#!/bin/sh\n", "pulumi-resource-talos": "#!/bin/sh\n"}, {}, {})

    shims.forget(tmp_path, {"pulumi-resource-talos", "pulumi-resource-command"})

    assert (tmp_path / "linstor").exists()
    assert not (tmp_path / "pulumi-resource-talos").exists()


# Status and logs -----------------------------------------------------------------------------------------------------


def test_status_of_nothing(state: StateDir) -> None:
    assert main(["status", "--state", str(state.root)]) == NOT_RUNNING


def test_status_is_red_when_the_supervisor_is_gone(state: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    state.write(record(gone()))

    assert main(["status", "--state", str(state.root)]) == RED
    assert "the supervisor is gone" in capsys.readouterr().out


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
    assert "there are: etcd" in capsys.readouterr().err


# Fronts --------------------------------------------------------------------------------------------------------------


async def test_a_front_forwards_and_going_away_cuts_open_connections() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()

    backend = await asyncio.start_server(echo, "127.0.0.1", 0)
    (port,) = free_ports(1)
    async with backend, Front(port, backend.sockets[0].getsockname()[1]) as front:
        await front.keep(["127.81.0.1", "127.81.0.2"])
        reader, writer = await asyncio.open_connection("127.81.0.2", port)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"

        await front.keep(["127.81.0.1"])

        assert await _end(reader) == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.81.0.2", port)
        assert front.addresses == {"127.81.0.1"}


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""


# Certificates --------------------------------------------------------------------------------------------------------


def test_a_client_certificate_carries_user_and_groups() -> None:
    authority = pki.new_authority("ca")
    issued = x509.load_pem_x509_certificate(pki.issue_client(authority, "me", ["system:masters"]).crt.encode())

    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.crt.encode()))
    assert issued.subject.rfc4514_string() == "CN=me,O=system:masters"


def test_a_serving_certificate_names_addresses_as_addresses() -> None:
    issued = pki.issue_serving(pki.new_authority("ca"), "api", ["127.0.0.1", "kubernetes", "127.0.0.1"])
    names = x509.load_pem_x509_certificate(issued.crt.encode()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )

    assert [str(each) for each in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.value.get_values_for_type(x509.DNSName) == ["kubernetes"]


def authority_with_identifier(identifier: bytes) -> pki.Pair:
    """A CA as Go makes it: its subject key identifier is not the SHA-1 of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pki.Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), text.decode())


def test_a_certificate_points_at_its_issuer_by_the_identifier_the_issuer_carries() -> None:
    authority = authority_with_identifier(b"chosen by another tool")
    issued = x509.load_pem_x509_certificate(pki.issue_serving(authority, "api", ["127.0.0.1"]).crt.encode())

    pointer = issued.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert pointer.key_identifier == b"chosen by another tool"


async def test_openssl_accepts_a_server_signed_by_the_ca_of_a_talos_cluster(vectors: Path, tmp_path: Path) -> None:
    """`ssl` is what the product's clients verify with; a chain that only Go accepts would lock them out."""
    text = (vectors / "talos" / "configs" / "v1.13" / "controlplane.yaml").read_text()
    real = decode(text, 13).kubernetes_ca
    issued = pki.issue_serving(pki.Pair(real.crt, real.key), "api", ["127.0.0.1"])
    pair = tmp_path / "pair.pem"
    pair.write_text(issued.crt + issued.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        verifying = ssl.create_default_context(cadata=real.crt)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=verifying)
        assert writer.get_extra_info("peercert")["subjectAltName"] == (("IP Address", "127.0.0.1"),)
        writer.close()


def test_a_key_never_shows_in_a_repr() -> None:
    authority = pki.new_authority("ca")
    assert authority.key not in repr(authority)


# Nodes ---------------------------------------------------------------------------------------------------------------

CONFIG = """
version: v1alpha1
machine:
  type: {role}
  kubelet: {{image: "ghcr.io/siderolabs/kubelet:v1.36.3", extraConfig: {{maxPods: 512}}}}
  network: {{hostname: node-a}}
  nodeLabels: {{rack: r1}}
  nodeTaints: {{dedicated: "db:NoExecute"}}
cluster:
  controlPlane: {{endpoint: "https://127.10.0.10:6443"}}
  network: {{podSubnets: [10.32.0.0/16]}}
  allowSchedulingOnControlPlanes: {schedulable}
"""


def node(role: str, schedulable: str = "false", index: int = 2) -> dict[str, dict[str, object]]:
    machine = MachineState.found(Scenario.fleet(1).machines[0])
    machine.config = decode(CONFIG.format(role=role, schedulable=schedulable), machine.minor)
    return nodes.node_object(machine, machine.config, index=index, ready_after_s=0.1, now="2026-11-30T12:00:00Z")


@pytest.mark.parametrize(
    ("role", "schedulable", "taints"),
    [
        ("controlplane", "false", {"dedicated": "NoExecute", "node-role.kubernetes.io/control-plane": "NoSchedule"}),
        ("controlplane", "true", {"dedicated": "NoExecute"}),
        ("worker", "false", {"dedicated": "NoExecute"}),
    ],
)
def test_taints_are_what_the_config_says(role: str, schedulable: str, taints: dict[str, str]) -> None:
    spec = node(role, schedulable)["spec"]["taints"]
    assert isinstance(spec, list)
    assert {each["key"]: each["effect"] for each in spec} == taints


def test_a_control_plane_node_has_its_role_and_the_configured_labels() -> None:
    labels = node("controlplane")["metadata"]["labels"]
    assert isinstance(labels, dict)
    assert labels.items() >= {"node-role.kubernetes.io/control-plane": "", "rack": "r1"}.items()
    assert "node-role.kubernetes.io/control-plane" not in str(node("worker")["metadata"]["labels"])


def test_a_node_registers_not_ready_for_the_real_reason() -> None:
    status = node("worker")["status"]
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    ready = next(each for each in conditions if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
    assert "cni plugin not initialized" in ready["message"]
    assert {each["type"] for each in conditions} == {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"}


def test_a_node_tells_versions_and_size_of_its_machine() -> None:
    status = node("worker")["status"]
    info, capacity = status["nodeInfo"], status["capacity"]
    assert isinstance(info, dict)
    assert isinstance(capacity, dict)
    assert (info["kubeletVersion"], info["osImage"]) == ("v1.36.3", "Talos (v1.13.6)")
    assert (capacity["cpu"], capacity["pods"]) == ("8", "512")


def test_each_node_gets_its_own_pod_range() -> None:
    ranges = [str(node("worker", index=n)["metadata"]["annotations"]) for n in range(3)]
    assert ["10.32.0.0/24" in ranges[0], "10.32.1.0/24" in ranges[1], "10.32.2.0/24" in ranges[2]] == [True] * 3
