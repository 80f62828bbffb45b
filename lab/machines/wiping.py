"""Reset and the wiping of disks: what is gone afterwards, and what the machine comes back as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.machines import etcd
from lab.world import EtcdPhase, Stage

if TYPE_CHECKING:
    from lab.machines.node import Node


@dataclass(frozen=True)
class Reset:
    """What a Reset call asks for. `partitions` are labels on the system disk; without any the whole disk is meant."""

    graceful: bool
    reboot: bool
    system: bool
    partitions: tuple[str, ...]
    disks: tuple[str, ...]


def reset(node: Node, asked: Reset) -> None:
    """Order the reset. A machine whose whole system disk is gone boots only if it did not boot from it."""

    async def step() -> None:
        state = node.state
        state.stage = Stage.RESETTING
        node.say("resetting", partitions=asked.partitions, system=asked.system, disks=asked.disks)
        if asked.graceful:
            etcd.leave(node)
        await node.shut_down()
        await node.world.clock.sleep(node.world.scenario.delays.reset)
        _wipe(node, asked)
        unbootable = asked.system and not asked.partitions and state.spec.installed
        if not asked.reboot or unbootable:
            state.powered = False
            node.say("off", reason="no boot device" if asked.reboot else "reset")
            return
        await node.boot()

    node.order(step)


def _wipe(node: Node, asked: Reset) -> None:
    for path in asked.disks:
        wipe_disk(node, path.removeprefix("/dev/"))
    if "EPHEMERAL" in asked.partitions:
        node.state.etcd_data = False
    if "STATE" in asked.partitions:
        forget_config(node, keep_installed=True)
    if asked.system and not asked.partitions:
        forget_config(node, keep_installed=False)


def wipe_disk(node: Node, dev: str) -> None:
    """Every signature on the disk is gone, and its pool with it."""
    disk = node.state.disks[dev]
    node.state.lose_from_pool(disk)
    disk.residue = disk.pool = None
    node.say("disk wiped", dev=dev, serial=disk.spec.serial)
    node.state.touch()


def forget_config(node: Node, *, keep_installed: bool) -> None:
    """The machine knows nothing any more. Its etcd member stays listed unless it left before, as a dead one does."""
    state = node.state
    state.config = state.staged = None
    state.etcd, state.etcd_data = EtcdPhase.ABSENT, False
    state.node_registered = state.node_ready = node.rebooting = False
    if not keep_installed:
        state.installed = False
        for disk in state.disks.values():
            disk.system = False
