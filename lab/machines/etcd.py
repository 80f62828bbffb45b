"""etcd as seen through the machines: the first member, learners that join one after the other, leaving, leadership."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from lab.machines import pki
from lab.machines.config import AppliedConfig
from lab.world import EtcdPhase, MachineState, Member, World, stable_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lab.machines.node import Node


def bootstrap(node: Node, config: AppliedConfig) -> None:
    """The first etcd member of a new cluster. Doing it on a second machine makes a second cluster: the log says so."""
    state, world = node.state, node.world
    state.etcd_data, state.etcd = True, EtcdPhase.STARTING
    state.touch()
    others = (peer.state for name, peer in node.peers.items() if name != state.name)
    if world.cluster.bootstrapped and any(other.etcd_data for other in others):
        world.log.record("cluster", "bootstrapped again", by=state.name)
        return
    _fill(world, config)
    node.say("bootstrap")
    world.log.record("cluster", "bootstrapped", by=state.name, endpoint=world.cluster.endpoint, name=world.cluster.name)
    node.order(lambda: _first_member(node))


def _fill(world: World, config: AppliedConfig) -> None:
    """What the control plane simulator needs to act as this cluster."""
    cluster, planes = world.cluster, [c for c in _configs(world, config) if c.role == "controlplane"]
    cluster.bootstrapped, cluster.leader = True, None
    cluster.members.clear()
    cluster.name, cluster.endpoint = config.cluster_name, config.endpoint
    cluster.ca_crt, cluster.ca_key = config.kubernetes_ca.crt, pki.plain(config.kubernetes_ca.key)
    cluster.cert_sans = tuple(dict.fromkeys(san for c in planes for san in c.api_sans))
    cluster.vips = tuple(dict.fromkeys(vip for c in planes for vip in c.vips))


def _configs(world: World, config: AppliedConfig) -> Iterable[AppliedConfig]:
    return [
        m.config for m in world.machines.values() if m.config is not None and m.config.os_ca.crt == config.os_ca.crt
    ]


async def _first_member(node: Node) -> None:
    await node.world.clock.sleep(node.world.scenario.delays.etcd_start)
    _join(node, learner=False)
    _promote(node)


async def joining(world: World, nodes: dict[str, Node]) -> None:
    """Let prepared control planes join, one at a time and in the scenario's order, until cancelled.

    Serial because etcd allows one learner at a time; that is why three members take minutes on real machines.
    """
    delays = world.scenario.delays
    await world.log.happened("cluster", "bootstrapped")
    while True:
        seen = len(world.log.events)
        node = next((n for n in nodes.values() if _may_join(n)), None)
        if node is None:
            # Services that come up are no event, so a few seconds of the machines' lives are enough to look again.
            with suppress(TimeoutError):
                async with asyncio.timeout(world.clock.wall(5.0)):
                    await world.log.wait_for(lambda event, seen=seen: event.seq > seen)  # type: ignore[misc]
            continue
        await world.clock.sleep(delays.etcd_join)
        if _may_join(node):
            _join(node, learner=True)
            await world.clock.sleep(delays.etcd_promote)
        if node.state.etcd is EtcdPhase.LEARNER:
            _promote(node)


def _may_join(node: Node) -> bool:
    state, cluster = node.state, node.world.cluster
    ready = state.services_up and state.etcd is EtcdPhase.PREPARING and not state.etcd_data
    ours = state.config is not None and state.config.kubernetes_ca.crt == cluster.ca_crt
    return ready and ours and _has_quorum(node)


def _has_quorum(node: Node) -> bool:
    """Whether most of those that vote are running: without them nobody is taken in."""
    voters = node.world.cluster.healthy_members
    running = sum(node.peers[member.machine].state.etcd is EtcdPhase.RUNNING for member in voters)
    return bool(voters) and running > len(voters) // 2


def _join(node: Node, *, learner: bool) -> None:
    state = node.state
    member = Member(stable_number("etcd", state.name), state.name, state.hostname, _advertised(state), learner)
    node.world.cluster.members[state.name] = member
    state.etcd, state.etcd_data = EtcdPhase.LEARNER, True
    node.say("etcd joined", learner=learner)
    state.touch()


def _advertised(state: MachineState) -> str:
    """The member's address. Without a subnet that excludes it, a virtual address is taken first (siderolabs/talos#12410)."""
    vips = state.config.vips if state.config is not None else ()
    subnets = state.config.at("cluster", "etcd", "advertisedSubnets") if state.config is not None else None
    excluded = {str(text).removeprefix("!").removesuffix("/32") for text in subnets or () if str(text).startswith("!")}
    return next((vip for vip in vips if vip not in excluded), state.own_address)


def _promote(node: Node) -> None:
    cluster = node.world.cluster
    cluster.members[node.state.name].learner = False
    node.state.etcd = EtcdPhase.RUNNING
    if cluster.leader is None:
        cluster.leader = node.state.name
    node.say("etcd running")
    node.running()


async def restart(node: Node) -> None:
    """A member comes back after a reboot, from its data directory."""
    node.state.etcd = EtcdPhase.STARTING
    node.state.touch()
    await node.world.clock.sleep(node.world.scenario.delays.etcd_start / 2)
    members = node.world.cluster.members
    if not members:  # it was the first member and lost its power before it was up
        _join(node, learner=False)
    if node.state.name in members:
        _promote(node)


def leave(node: Node) -> None:
    """The machine takes itself out of the cluster and forgets its data."""
    if node.world.cluster.members.pop(node.state.name, None) is not None:
        node.say("etcd left")
    hand_over(node)
    node.state.etcd, node.state.etcd_data = EtcdPhase.LEFT, False
    node.state.touch()


def remove(node: Node, member_id: int) -> bool:
    """Take a member out by its id; False when there is none."""
    members = node.world.cluster.members
    name = next((m.machine for m in members.values() if m.id == member_id), None)
    if name is None:
        return False
    members.pop(name)
    other = node.peers[name]
    other.state.etcd = EtcdPhase.LEFT
    hand_over(other)
    other.say("etcd removed")
    other.state.touch()
    return True


def hand_over(node: Node) -> str | None:
    """When this machine leads, another healthy member takes over; nobody does when there is none. The new leader."""
    cluster = node.world.cluster
    if cluster.leader != node.state.name:
        return cluster.leader
    others = [m.machine for m in cluster.healthy_members if m.machine != node.state.name]
    cluster.leader = next((name for name in others if node.peers[name].state.etcd is EtcdPhase.RUNNING), None)
    if cluster.leader is not None:
        node.peers[cluster.leader].state.touch()
    return cluster.leader
