"""cluster.ClusterService and time.TimeService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from grpclib import Status

from cozystack_iac.talos.api import cluster_pb2, time_pb2
from lab.machines.call import Call, refuse
from lab.world import EtcdPhase

NTP = "time.cloudflare.com"  # what generated configs use
_POLL_S = 5.0  # real-life seconds between two looks of one check


class ClusterCalls:
    async def HealthCheck(
        self, call: Call, request: cluster_pb2.HealthCheckRequest
    ) -> AsyncIterator[cluster_pb2.HealthCheckProgress]:
        """etcd, then Kubernetes nodes. Up to v1.12 the node check never ends while there is no CNI."""
        call.only_on_control_planes("cluster health check")
        node, world = call.node, call.node.world
        until = world.clock.now() + (request.wait_timeout.seconds or 1200)
        planes = list(request.cluster_info.control_plane_nodes) or [node.state.address]
        nodes = [*planes, *request.cluster_info.worker_nodes]
        yield _say(f"discovered nodes: [{' '.join(f'{chr(34)}{name}{chr(34)}' for name in nodes)}]")
        no_cni = node.state.config is not None and (node.state.config.network.get("cni") or {}).get("name") == "none"
        checks: list[tuple[str, Callable[[], bool], bool]] = [
            ("etcd to be healthy", lambda: all(_etcd_runs(call, name) for name in planes), False),
            ("all k8s nodes to report ready", lambda: _nodes_ready(call, nodes), no_cni and node.state.minor >= 13),
        ]
        for what, done, skipped in checks:
            if skipped:
                yield _say(f"waiting for {what}: SKIP")
                continue
            yield _say(f"waiting for {what}: ...")
            while not done():
                if world.clock.now() >= until:
                    refuse(Status.DEADLINE_EXCEEDED, "context deadline exceeded")
                await world.clock.sleep(_POLL_S)
            yield _say(f"waiting for {what}: OK")


def _etcd_runs(call: Call, name: str) -> bool:
    target = call.node.named(name)
    return target is not None and target.state.etcd is EtcdPhase.RUNNING


def _nodes_ready(call: Call, names: list[str]) -> bool:
    found = [call.node.named(name) for name in names]
    return all(target is not None and target.state.node_ready for target in found)


def _say(message: str) -> cluster_pb2.HealthCheckProgress:
    return cluster_pb2.HealthCheckProgress(message=message)


class TimeCalls:
    async def Time(self, call: Call, request: Empty) -> time_pb2.TimeResponse:
        return _time(call, NTP)

    async def TimeCheck(self, call: Call, request: time_pb2.TimeRequest) -> time_pb2.TimeResponse:
        return _time(call, request.server)


def _time(call: Call, server: str) -> time_pb2.TimeResponse:
    if not call.node.state.ntp:
        refuse(Status.UNKNOWN, f"error querying NTP server {server}: i/o timeout")
    now = Timestamp()
    now.GetCurrentTime()
    return time_pb2.TimeResponse(messages=[time_pb2.Time(server=server, localtime=now, remotetime=now)])
