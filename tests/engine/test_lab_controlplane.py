"""The real control plane of the lab: KWOK's stages, the adopted CA, and what is left when its supervisor is killed."""

import asyncio
import base64
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from rich.console import Console

from cozystack_iac.kube.client import Kube, Object, Ref, Refused
from lab import launch, pki, toolchain
from lab.children import Children
from lab.cluster import ClusterSimulator
from lab.controlplane import BINARIES, ControlPlane
from lab.machines.config import decode
from lab.scenario import Delays, Effect, Scenario
from lab.state import StateDir
from lab.supervisor import LabFailed
from lab.world import EtcdPhase, MachineState, Member, Stage, World
from tests.addresses import prefix

pytestmark = pytest.mark.engine
together = pytest.mark.asyncio(loop_scope="module")  # the tests of one control plane share its event loop


PREFIX = prefix()
PODS = Ref("v1", "pods", "default")
NODES = Ref("v1", "nodes")
TOLERATES_ALL = [{"operator": "Exists"}]
CONFIG = """
version: v1alpha1
machine: {type: controlplane, kubelet: {image: "ghcr.io/siderolabs/kubelet:v1.36.3"}, network: {hostname: HOST}}
cluster: {controlPlane: {endpoint: "https://PREFIX.0.10:6443"}, allowSchedulingOnControlPlanes: true}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    state = tmp_path_factory.mktemp("lab")
    (state / "logs").mkdir()
    tools = toolchain.ensure(state, only=BINARIES)
    deaths: list[str] = []
    children = Children(state / "logs", on_death=lambda child, code: deaths.append(child.name))
    plane = ControlPlane(state, children, {name: tools.path(name) for name in BINARIES})
    try:
        await plane.start()
        yield plane
    finally:
        await plane.stop()
    assert deaths == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with Kube.connect(control_plane.kubeconfig.read_text()) as kube:
        yield kube


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(control_plane: ControlPlane, kube: Kube) -> AsyncIterator[World]:
    """Two machines that have just been bootstrapped; the cluster simulator does the rest."""
    delays = Delays(api_open=1, node_register=1, node_ready=1)
    scenario = Scenario.fleet(2, PREFIX, vip=f"{PREFIX}.0.10", delays=delays)
    world = World(scenario)
    authority = pki.new_authority("kubernetes")
    for number, machine in enumerate(world.machines.values()):
        _come_up(machine, number)
        world.cluster.members[machine.name] = Member(number, machine.name, machine.hostname, machine.address)
    world.cluster.ca_crt, world.cluster.ca_key = authority.crt, authority.key
    world.cluster.endpoint, world.cluster.vips = f"https://{PREFIX}.0.10:6443", (f"{PREFIX}.0.10",)
    namespace = Ref("v1", "namespaces", name="default")
    await kube.merge_patch(namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}})
    async with ClusterSimulator(world, control_plane) as simulator:
        running = asyncio.create_task(simulator.run())
        world.log.record("cluster", "bootstrapped")
        registered = asyncio.create_task(world.log.happened("node n2", "registered", 30))
        await asyncio.wait({running, registered}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.result()
        await registered
        yield world
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _come_up(machine: MachineState, number: int) -> None:
    machine.config = decode(CONFIG.replace("PREFIX", PREFIX).replace("HOST", f"n{number + 1}"), machine.minor)
    machine.stage, machine.door, machine.services_up = Stage.RUNNING, "secure", True
    machine.etcd = EtcdPhase.RUNNING


def pod(name: str, **spec: Any) -> Object:
    container = {"name": "main", "image": "registry.invalid/image:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 15) -> None:
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.1)


async def phase(kube: Kube, name: str) -> str:
    return str((await kube.get(PODS.named(name)))["status"]["phase"])


async def ready(kube: Kube, node: str) -> Object:
    conditions = (await kube.get(NODES.named(node)))["status"]["conditions"]
    return next(dict(each) for each in conditions if each["type"] == "Ready")


# In this order: the nodes get their network half-way -------------------------------------------------------------


@together
async def test_bootstrap_opens_the_api_before_the_first_node_registers(world: World) -> None:
    lines = [event.line for event in world.log.events]
    assert lines[:4] == ["cluster bootstrapped", "cluster api open", "node n1 registered", "node n2 registered"]
    assert world.log.find("cluster", "api open")[0].data["addresses"] == [f"{PREFIX}.0.{n}" for n in (10, 11, 12)]


@together
async def test_the_clusters_own_administrator_gets_in_through_the_vip(world: World) -> None:
    authority = pki.Pair(world.cluster.ca_crt, world.cluster.ca_key)
    admin = pki.issue_client(authority, "admin", ["system:masters"])
    async with Kube.connect(kubeconfig(world.cluster.endpoint, authority.crt, admin)) as kube:
        assert {node["metadata"]["name"] for node in await kube.objects(NODES)} == {"n1", "n2"}


@together
async def test_a_stranger_is_refused(world: World) -> None:
    stranger = pki.issue_client(pki.new_authority("kubernetes"), "admin", ["system:masters"])
    async with Kube.connect(kubeconfig(world.cluster.endpoint, world.cluster.ca_crt, stranger)) as kube:
        with pytest.raises(Refused) as refusal:
            await kube.objects(NODES)
    assert refusal.value.status == 401


def kubeconfig(server: str, authority: str, client: pki.Pair) -> str:
    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate-data": encoded(client.crt),
                        "client-key-data": encoded(client.key),
                    },
                }
            ],
        }
    )


@together
async def test_a_node_without_network_is_not_ready_for_the_real_reason(world: World, kube: Kube) -> None:
    condition = await ready(kube, "n1")
    taints = (await kube.get(NODES.named("n1")))["spec"]["taints"]

    assert (condition["status"], condition["reason"]) == ("False", "KubeletNotReady")
    assert "cni plugin not initialized" in condition["message"]
    assert {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"} in taints


@together
async def test_before_the_network_only_host_network_pods_run(world: World, kube: Kube) -> None:
    await until(lambda: _has_service_account(kube))
    await kube.create(PODS, pod("plain"))
    await kube.create(PODS, pod("tolerant", tolerations=TOLERATES_ALL))
    await kube.create(PODS, pod("host", tolerations=TOLERATES_ALL, hostNetwork=True))

    async def host_runs() -> bool:
        return await phase(kube, "host") == "Running"

    async def tolerant_waits() -> bool:
        status = (await kube.get(PODS.named("tolerant")))["status"]
        states = [each["state"].get("waiting") or {} for each in status.get("containerStatuses") or []]
        return [state.get("reason") for state in states] == ["ContainerCreating"]

    await until(host_runs)
    await until(tolerant_waits)
    plain = await kube.get(PODS.named("plain"))
    assert plain["spec"].get("nodeName") is None
    assert plain["status"]["phase"] == "Pending"
    assert (await kube.get(PODS.named("host")))["status"]["hostIP"].startswith(PREFIX)


async def _has_service_account(kube: Kube) -> bool:
    return await kube.find(Ref("v1", "serviceaccounts", "default", "default")) is not None


@together
async def test_jobs_on_the_host_network_complete(world: World, kube: Kube) -> None:
    jobs = Ref("batch/v1", "jobs", "default", "hook")
    template = pod("")["spec"] | {"hostNetwork": True, "tolerations": TOLERATES_ALL, "restartPolicy": "Never"}
    await kube.create(
        jobs,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "hook"},
            "spec": {"template": {"spec": template}},
        },
    )

    async def complete() -> bool:
        return bool((await kube.get(jobs)).get("status", {}).get("succeeded") == 1)

    await until(complete)


@together
async def test_pods_of_the_storage_bootstrap_are_left_alone(world: World, kube: Kube) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cozy-storage-bootstrap", "labels": labels}}
    await kube.create(Ref("v1", "namespaces"), space)
    pods = Ref("v1", "pods", "cozy-storage-bootstrap")

    async def service_account() -> bool:
        return await kube.find(Ref("v1", "serviceaccounts", "cozy-storage-bootstrap", "default")) is not None

    await until(service_account)
    await kube.create(pods, pod("zfs", nodeName="n1", hostNetwork=True, tolerations=TOLERATES_ALL))
    await asyncio.sleep(1)

    assert (await kube.get(pods.named("zfs")))["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@together
async def test_the_baseline_of_talos_is_enforced(world: World, kube: Kube) -> None:
    await kube.create(
        Ref("v1", "namespaces"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict"}}
    )
    with pytest.raises(Refused, match=r"violates PodSecurity \"baseline:latest\""):
        await kube.create(Ref("v1", "pods", "strict"), pod("host", hostNetwork=True))


@together
async def test_exec_runs_the_labs_own_tools(world: World, kube: Kube, control_plane: ControlPlane) -> None:
    tool = control_plane.state / "bin" / "linstor"
    tool.write_text('#!/bin/sh\necho "asked $*"\nexit "$1"\n')
    tool.chmod(0o755)

    fine = await kube.exec("default", "host", "main", ["linstor", "0"])
    failed = await kube.exec("default", "host", "main", ["linstor", "3"])

    assert (fine.stdout, fine.ok) == ("asked 0\n", True)
    assert not failed.ok


@together
async def test_an_api_that_is_away_comes_back(world: World) -> None:
    endpoint = (f"{PREFIX}.0.10", 6443)
    world.faults.perform(Effect.model_validate({"api_server": "away", "for": "30s"}))
    await world.log.happened("cluster", "api away", 5)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*endpoint)

    await world.log.happened("cluster", "api back", 5)

    _, writer = await asyncio.open_connection(*endpoint)
    writer.close()


@together
async def test_with_the_network_nodes_turn_ready_and_everything_runs(world: World, kube: Kube) -> None:
    for node in ("n1", "n2"):
        await kube.merge_patch(NODES.named(node), {"metadata": {"annotations": {"lab.cozystack-iac/cni": "ready"}}})
    await world.log.happened("node n1", "ready", 10)
    await world.log.happened("node n2", "ready", 10)

    async def all_run() -> bool:
        return {await phase(kube, name) for name in ("plain", "tolerant", "host")} == {"Running"}

    await until(all_run)
    nodes = await kube.objects(NODES)
    assert [node["spec"].get("taints") for node in nodes] == [None, None]
    assert {node["spec"]["podCIDR"] for node in nodes} == {"10.244.0.0/24", "10.244.1.0/24"}
    assert (await kube.get(PODS.named("plain")))["status"]["podIP"].startswith("10.244.")


@together
async def test_a_rebooting_machine_takes_its_node_and_its_api_with_it(world: World, kube: Kube) -> None:
    machine = world.machines["m2"]
    machine.stage = Stage.REBOOTING
    world.log.record("machine m2", "rebooting")
    await world.log.happened("node n2", "not ready", 10)
    assert (await ready(kube, "n2"))["message"] == "node is shutting down"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(machine.address, 6443)
    seen = len(world.log.events)

    machine.stage = Stage.RUNNING
    world.log.record("machine m2", "running")

    await world.log.wait_for(lambda event: event.seq > seen and event.line == "node n2 ready", 10)
    _, writer = await asyncio.open_connection(machine.address, 6443)
    writer.close()


@together
async def test_pods_can_be_deleted(world: World, kube: Kube) -> None:
    await kube.delete(PODS.named("plain"))

    async def is_gone() -> bool:
        return await kube.find(PODS.named("plain")) is None

    await until(is_gone)


@together
async def test_nothing_but_the_control_plane_listens_off_loopback(control_plane: ControlPlane) -> None:
    pids = {member.process.pid for member in control_plane._children.members}
    found = [each for each in psutil.net_connections("tcp") if each.pid in pids and each.status == psutil.CONN_LISTEN]
    assert found
    assert {getattr(each.laddr, "ip", None) for each in found} == {"127.0.0.1"}


# The whole lab, as a user starts it ------------------------------------------------------------------------------


@pytest.fixture
def scenario() -> Scenario:
    return Scenario.fleet(3, prefix(1))


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "lab")


def test_up_status_down(state: StateDir, scenario: Scenario) -> None:
    console = Console(stderr=True)
    try:
        first = launch.up(state, scenario, console)
        assert first.healthy
        assert first.control_plane_s is not None
        assert first.control_plane_s < 15
        assert launch.up(state, scenario, console).supervisor == first.supervisor
        with pytest.raises(LabFailed, match="a different scenario"):
            launch.up(state, scenario.model_copy(update={"scale": 61.0}), console)
    finally:
        done = launch.down(state)
    assert (done.orderly, done.forced, done.taken) == (True, [], [])
    assert not any(each.identity.alive() for each in first.processes)
    assert state.read() is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")
def test_a_killed_supervisor_leaves_nothing_and_up_starts_afresh(state: StateDir, scenario: Scenario) -> None:
    console = Console(stderr=True)
    try:
        first = launch.up(state, scenario, console)
        psutil.Process(first.supervisor.pid).kill()

        assert all(each.identity.gone_within(5) for each in first.processes)
        assert launch.up(state, scenario, console).supervisor != first.supervisor
    finally:
        assert launch.down(state).was_there


def test_a_process_that_dies_makes_the_lab_red(state: StateDir, scenario: Scenario) -> None:
    try:
        record = launch.up(state, scenario, Console(stderr=True))
        psutil.Process(next(each.pid for each in record.children if each.name == "kwok")).kill()
        deadline = time.monotonic() + 5
        while (after := state.read()) is not None and not after.problems and time.monotonic() < deadline:
            time.sleep(0.05)
        assert after is not None
        assert not after.healthy
        assert "kwok was ended by SIGKILL" in after.problems[0]
    finally:
        launch.down(state)
