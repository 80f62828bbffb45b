"""The fixed addresses of a scenario: are they free, and who sits on the ones that are not."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

from lab.cluster import API_PORT
from lab.nodes import KUBELET_PORT
from lab.scenario import Scenario


@dataclass(frozen=True)
class Door:
    """An address the lab will listen on, and for what."""

    address: str
    port: int
    purpose: str

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def doors(scenario: Scenario) -> Iterator[Door]:
    """Every fixed address of the scenario. Any machine may become a control plane, so each gets the API's port."""
    for machine in scenario.machines:
        address = str(machine.address)
        yield Door(address, scenario.talos_port, f"Talos API of {machine.name}")
        if machine.lease is not None:
            yield Door(str(machine.lease), scenario.talos_port, f"maintenance service of {machine.name}")
        yield Door(address, API_PORT, f"Kubernetes API on {machine.name}")
        yield Door(address, KUBELET_PORT, f"kubelet of {machine.name}")
    if scenario.vip is not None:
        yield Door(str(scenario.vip), API_PORT, "Kubernetes API on the VIP")
    yield Door(str(scenario.platform.ingress), scenario.platform.https_port, "ingress: dashboard and API")
    for resolver in scenario.platform.resolvers:
        yield Door(str(resolver.address), resolver.port, "resolver")


def problems(wanted: Iterable[Door]) -> list[str]:
    """One line for each address that cannot be listened on: which, why, and by whom it is taken."""
    return [f"{door} ({door.purpose}): {reason}" for door in wanted if (reason := _refusal(door)) is not None]


def _refusal(door: Door) -> str | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((door.address, door.port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"already used by {holder(door)}"
            if error.errno == errno.EADDRNOTAVAIL:
                return (
                    "it is not an address of this machine; on macOS add it with `sudo ifconfig lo0 alias "
                    f"{door.address}`"
                )
            if error.errno == errno.EACCES:
                return "it needs privileges; set a port above 1023 in the scenario"
            return str(error)
    return None


def holder(door: Door) -> str:
    """The process that listens there, as far as this user may know."""
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return "a process that this user may not see"
    for each in sockets:
        if each.status != psutil.CONN_LISTEN or not each.laddr or each.laddr.port != door.port:
            continue
        if each.laddr.ip in (door.address, "0.0.0.0", "::"):
            return _name(each.pid)
    return "a process that this user may not see"


def _name(pid: int | None) -> str:
    if pid is None:
        return "a process that this user may not see"
    try:
        process = psutil.Process(pid)
        return f"pid {pid}, {' '.join(' '.join(process.cmdline()).split())[:100] or process.name()}"
    except psutil.Error:
        return f"pid {pid}"
