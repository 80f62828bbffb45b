"""machine.MachineService: versions, services, files, bootstrap, kubeconfig, reboot, upgrade and reset."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable

from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from grpclib import Status

from cozystack_iac.talos.api import machine_pb2 as api
from cozystack_iac.talos.api.common_pb2 import Data
from lab.machines import etcd, files, kubeconfig, wiping
from lab.machines.call import Call, refuse
from lab.machines.calls.apply import ApplyCalls
from lab.machines.calls.etcd import EtcdCalls
from lab.machines.services import Service, services
from lab.world import MachineState, stable_number

READ_CHUNK = 1024  # bytes per message of Read
_CRI_WAIT_S = 1.0  # real-life seconds Bootstrap waits for CRI
_TIME_WAIT_S = 5.0  # … and then for time sync
WipeMode = api.ResetRequest


class MachineCalls(ApplyCalls, EtcdCalls):
    async def Version(self, call: Call, request: Empty) -> api.VersionResponse:
        state = call.node.state
        sha = f"{stable_number(state.talos) % 16**8:08x}"
        message = api.Version(
            version=api.VersionInfo(tag=state.talos, sha=sha, go_version="go1.26.6", os="linux", arch="amd64"),
            platform=api.PlatformInfo(name="metal", mode="metal"),
        )
        if state.config is not None:
            message.features.rbac = True
        return api.VersionResponse(messages=[message])

    async def ServiceList(self, call: Call, request: Empty) -> api.ServiceListResponse:
        listed = [_service(service) for service in services(call.node.state)]
        return api.ServiceListResponse(messages=[api.ServiceList(services=listed)])

    async def Dmesg(self, call: Call, request: api.DmesgRequest) -> AsyncIterator[Data]:
        for event in call.node.world.log.find(call.node.state.subject):
            yield Data(bytes=f"kern: info: [{event.time:.3f}]: [talos] {event.what}\n".encode())

    async def Read(self, call: Call, request: api.ReadRequest) -> AsyncIterator[Data]:
        try:
            content = files.read(call.node.state, request.path)
        except FileNotFoundError:
            refuse(Status.NOT_FOUND, f"stat {request.path}: no such file or directory")
        except IsADirectoryError:
            refuse(Status.UNKNOWN, "path must be a regular file")
        for start in range(0, len(content), READ_CHUNK):
            yield Data(bytes=content[start : start + READ_CHUNK])

    async def Bootstrap(self, call: Call, request: api.BootstrapRequest) -> api.BootstrapResponse:
        node, state = call.node, call.node.state
        if not await _becomes(call, lambda: state.services_up, _CRI_WAIT_S):
            refuse(Status.FAILED_PRECONDITION, "bootstrap is not available yet")
        if state.role != "controlplane" or state.config is None:
            if state.minor <= 12:
                refuse(Status.FAILED_PRECONDITION, "bootstrap can only be performed on a control plane node")
            refuse(Status.UNIMPLEMENTED, "bootstrap is only available on control plane nodes")
        if state.minor >= 14 and not state.config.has_etcd_ca:
            refuse(Status.INVALID_ARGUMENT, "etcd is not configured, bootstrap is not possible")
        if not await _becomes(call, lambda: state.time_synced, _TIME_WAIT_S):
            refuse(Status.FAILED_PRECONDITION, "time is not in sync yet")
        if state.etcd_data:
            refuse(Status.ALREADY_EXISTS, "etcd data directory is not empty")
        etcd.bootstrap(node, state.config)
        return api.BootstrapResponse(messages=[api.Bootstrap()])

    async def Kubeconfig(self, call: Call, request: Empty) -> AsyncIterator[Data]:
        call.only_on_control_planes("kubeconfig")
        config = call.node.state.config
        if config is None or not config.kubernetes_ca.key:
            refuse(Status.FAILED_PRECONDITION, "k8s API server CA config is not set")
        yield Data(bytes=kubeconfig.archive(kubeconfig.admin(config)))

    async def Reboot(self, call: Call, request: api.RebootRequest) -> api.RebootResponse:
        call.node.reboot()
        return api.RebootResponse(messages=[api.Reboot(actor_id=_actor())])

    async def Shutdown(self, call: Call, request: api.ShutdownRequest) -> api.ShutdownResponse:
        call.node.shutdown()
        return api.ShutdownResponse(messages=[api.Shutdown(actor_id=_actor())])

    async def Upgrade(self, call: Call, request: api.UpgradeRequest) -> api.UpgradeResponse:
        state, image = call.node.state, request.image
        if state.minor >= 13 and not state.installed:
            refuse(Status.FAILED_PRECONDITION, "Talos is not installed")
        if not kubeconfig.TALOS_IMAGE.search(image):
            refuse(Status.UNKNOWN, f'error validating installer image "{image}": failed to pull image: not found')
        call.node.upgrade(image, stage=request.stage)
        return api.UpgradeResponse(messages=[api.Upgrade(ack="Upgrade request received", actor_id=_actor())])

    async def Reset(self, call: Call, request: api.ResetRequest) -> api.ResetResponse:
        partitions = [spec.label for spec in request.system_partitions_to_wipe if spec.wipe]
        _check_reset(call.node.state, request, partitions)
        asked = wiping.Reset(
            graceful=request.graceful,
            reboot=request.reboot,
            system=request.mode != WipeMode.USER_DISKS,
            partitions=tuple(partitions),
            disks=tuple(request.user_disks_to_wipe) if request.mode != WipeMode.SYSTEM_DISK else (),
        )
        wiping.reset(call.node, asked)
        return api.ResetResponse(messages=[api.Reset(actor_id=_actor())])


async def _becomes(call: Call, true: Callable[[], bool], within_s: float) -> bool:
    """Whether it is so now or within so many real-life seconds."""
    clock = call.node.world.clock
    until = clock.now() + within_s
    while not true():
        if clock.now() >= until:
            return False
        await clock.sleep(within_s / 10)
    return True


def _check_reset(state: MachineState, request: api.ResetRequest, partitions: list[str]) -> None:
    if partitions and request.mode == WipeMode.USER_DISKS:
        refuse(
            Status.UNKNOWN,
            "reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter",
        )
    for path in request.user_disks_to_wipe:
        disk = state.disks.get(path.removeprefix("/dev/"))
        if disk is None:
            refuse(Status.UNKNOWN, f"reset user disk failed: device {path} wasn't found")
        if disk.spec.readonly:
            refuse(Status.UNKNOWN, f"reset user disk failed: device {path} is readonly")
        if disk.system:
            refuse(Status.UNKNOWN, f"reset user disk failed: device {path} is the system disk")


def _service(service: Service) -> api.ServiceInfo:
    now = Timestamp(seconds=int(time.time()))
    events = [api.ServiceEvent(state=state, msg=text, ts=now) for state, text in service.events]
    health = api.ServiceHealth(unknown=service.unknown, healthy=service.healthy, last_message=service.message)
    if not service.unknown:
        health.last_change.CopyFrom(now)
    return api.ServiceInfo(id=service.id, state=service.state, events=api.ServiceEvents(events=events), health=health)


def _actor() -> str:
    return str(uuid.uuid4())
