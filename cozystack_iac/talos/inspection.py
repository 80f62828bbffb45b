"""Asks running machines what verification wants to know. Each question stands alone: one that fails hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import NotAuthorized, NotThere, TalosError, Unsupported
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.machine import Extension
from cozystack_iac.talos.verification import DRBD, SeenMachine, Unanswered

LVM_CONF = "/etc/lvm/lvm.conf"
DRBD_VERSION = f"/sys/module/{DRBD}/version"  # of what is loaded; the extension only says what could be

T = TypeVar("T")


async def inspect(fleet: Fleet) -> tuple[SeenMachine, ...]:
    """Every machine's own answers, all machines at once, in the order of the fleet. Never raises."""
    return tuple(await asyncio.gather(*(_machine(fleet, machine) for machine in fleet.machines)))


async def _machine(fleet: Fleet, machine: MachineRef) -> SeenMachine:
    async with fleet.secure(machine) as client:
        # First the one that dials: when the machine is away, everything is unanswered for the same reason, once.
        status = await _answer(client.status)
        if isinstance(status, Unanswered):
            members = status if machine.is_control_plane else None
            return SeenMachine(machine, status, status, status, status, status, status, status, status, members)
        async with asyncio.TaskGroup() as asked:
            talos = asked.create_task(_answer(client.version))
            extensions = asked.create_task(_answer(client.extensions))
            modules = asked.create_task(_answer(lambda: _loaded(client)))
            drbd = asked.create_task(_answer(lambda: _file(client, DRBD_VERSION)))
            lvm_conf = asked.create_task(_answer(lambda: _file(client, LVM_CONF)))
            addresses = asked.create_task(_answer(lambda: _addresses(client)))
            node_ips = asked.create_task(_answer(client.node_ips))
            members_ = asked.create_task(_answer(client.etcd_members)) if machine.is_control_plane else None
    conf = lvm_conf.result()
    return SeenMachine(
        machine=machine,
        status=status,
        talos=talos.result(),
        extensions=extensions.result(),
        modules=modules.result(),
        drbd=_drbd(drbd.result(), modules.result(), extensions.result()),
        lvm_conf="" if conf is None else conf,
        addresses=addresses.result(),
        node_ips=node_ips.result(),
        members=members_.result() if members_ is not None else None,
    )


def _drbd(
    told: str | Unanswered | None,
    modules: frozenset[str] | Unanswered,
    extensions: tuple[Extension, ...] | Unanswered,
) -> str | Unanswered | None:
    """The version of the loaded DRBD; where the module does not tell, what the extension brought is what was loaded."""
    if told is not None:
        return told if isinstance(told, Unanswered) else told.strip()
    if isinstance(modules, Unanswered) or DRBD not in modules or isinstance(extensions, Unanswered):
        return None
    return next((extension.version for extension in extensions if extension.name == DRBD), None)


async def _answer(question: Callable[[], Awaitable[T]]) -> T | Unanswered:
    try:
        return await question()
    except TalosError as error:
        return Unanswered(error.text)


async def _loaded(client: Machine) -> frozenset[str]:
    """Loaded modules; before Talos 1.11 there is no resource for them, but the kernel's own list."""
    try:
        return frozenset(module.name for module in await client.modules() if module.state == "Live")
    except (Unsupported, NotAuthorized):
        lines = (await client.read("/proc/modules")).decode(errors="replace").splitlines()
        return frozenset(line.split(maxsplit=1)[0] for line in lines if line.strip())


async def _file(client: Machine, path: str) -> str | None:
    """The text of a file; None when it does not exist."""
    try:
        return (await client.read(path)).decode(errors="replace")
    except NotThere:
        return None


async def _addresses(client: Machine) -> frozenset[str]:
    return frozenset(str(address.interface.ip) for address in await client.addresses())
