"""The etcd methods of machine.MachineService."""

from __future__ import annotations

from google.protobuf.empty_pb2 import Empty
from grpclib import Status

from cozystack_iac.talos.api import machine_pb2 as api
from lab.machines import etcd
from lab.machines.call import Call, refuse
from lab.world import EtcdPhase, Member

_DB_BYTES = 20 * 2**20
_ETCD = "3.6.13"


class EtcdCalls:
    async def EtcdMemberList(self, call: Call, request: api.EtcdMemberListRequest) -> api.EtcdMemberListResponse:
        call.only_on_control_planes("member list")
        _reachable(call)
        members = [_member(member) for member in call.node.world.cluster.members.values()]
        names = [member.hostname for member in members]
        return api.EtcdMemberListResponse(messages=[api.EtcdMembers(legacy_members=names, members=members)])

    async def EtcdStatus(self, call: Call, request: Empty) -> api.EtcdStatusResponse:
        call.only_on_control_planes("etcd status")
        _reachable(call)
        cluster = call.node.world.cluster
        own = cluster.members[call.node.state.name]
        leader = cluster.members.get(cluster.leader or "")
        status = api.EtcdMemberStatus(
            storage_version="3.6.0", protocol_version=_ETCD, member_id=own.id, leader=leader.id if leader else 0,
            db_size=_DB_BYTES, db_size_in_use=_DB_BYTES // 2, raft_index=call.node.state.generation + 1000, raft_term=3,
            raft_applied_index=call.node.state.generation + 1000, is_learner=own.learner,
            errors=[] if leader else ["etcdserver: no leader"],
        )  # fmt: skip
        return api.EtcdStatusResponse(messages=[api.EtcdStatus(member_status=status)])

    async def EtcdAlarmList(self, call: Call, request: Empty) -> api.EtcdAlarmListResponse:
        call.only_on_control_planes("etcd alarm list")
        _reachable(call)
        return api.EtcdAlarmListResponse(messages=[api.EtcdAlarm()])

    async def EtcdLeaveCluster(self, call: Call, request: api.EtcdLeaveClusterRequest) -> api.EtcdLeaveClusterResponse:
        call.only_on_control_planes("etcd leave")
        _reachable(call)
        etcd.leave(call.node)
        return api.EtcdLeaveClusterResponse(messages=[api.EtcdLeaveCluster()])

    async def EtcdForfeitLeadership(
        self, call: Call, request: api.EtcdForfeitLeadershipRequest
    ) -> api.EtcdForfeitLeadershipResponse:
        call.only_on_control_planes("etcd forfeit leadership")
        _reachable(call)
        cluster, node = call.node.world.cluster, call.node
        if cluster.leader != node.state.name:
            return api.EtcdForfeitLeadershipResponse(messages=[api.EtcdForfeitLeadership()])
        if len(cluster.members) == 1:
            refuse(Status.UNKNOWN, "failed to forfeit leadership: cannot forfeit leadership, only one member")
        successor = etcd.hand_over(node)
        hostname = node.peers[successor].state.hostname if successor is not None else ""
        node.state.touch()
        return api.EtcdForfeitLeadershipResponse(messages=[api.EtcdForfeitLeadership(member=hostname)])

    async def EtcdRemoveMemberByID(
        self, call: Call, request: api.EtcdRemoveMemberByIDRequest
    ) -> api.EtcdRemoveMemberByIDResponse:
        call.only_on_control_planes("etcd remove member")
        _reachable(call)
        if not etcd.remove(call.node, request.member_id):
            refuse(Status.UNKNOWN, f"failed to remove member {request.member_id}: etcdserver: member not found")
        return api.EtcdRemoveMemberByIDResponse(messages=[api.EtcdRemoveMemberByID()])


def _reachable(call: Call) -> None:
    """Text and code without etcd are not in the recorded behaviour; a client must take any refusal as 'unknown'."""
    if call.node.state.etcd not in (EtcdPhase.LEARNER, EtcdPhase.RUNNING):
        refuse(Status.UNKNOWN, "error building etcd client: context deadline exceeded")


def _member(member: Member) -> api.EtcdMember:
    """A member that was added but has not started has no name and no client URLs."""
    peers = [f"https://{member.address}:2380"]
    if not member.started:
        return api.EtcdMember(id=member.id, peer_urls=peers)
    return api.EtcdMember(
        id=member.id, hostname=member.hostname, peer_urls=peers, client_urls=[f"https://{member.address}:2379"],
        is_learner=member.learner,
    )  # fmt: skip
