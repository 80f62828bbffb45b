"""One API call to a simulated machine: who asks, may they, and which machine answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from grpclib import GRPCError, Status

if TYPE_CHECKING:
    from lab.machines.node import Node

ADMIN, OPERATOR, READER, BACKUP = "os:admin", "os:operator", "os:reader", "os:etcd:backup"
MAINTENANCE_LIMIT = 4 * 2**20  # bytes of a request the maintenance server up to v1.12 takes
LIMIT = 32 * 2**20  # bytes of a request everywhere else

_OPERATORS = frozenset({ADMIN, OPERATOR})
_READERS = frozenset({ADMIN, OPERATOR, READER})
_BACKUPS = _READERS | {BACKUP}

# Roles that may call a method of a running machine; whatever is not listed is for admins.
_ROLES: Mapping[str, frozenset[str]] = {
    "machine.MachineService/Reboot": _OPERATORS,
    "machine.MachineService/Shutdown": _OPERATORS,
    "machine.ImageService/Pull": _OPERATORS,
    **dict.fromkeys(
        (
            "machine.MachineService/EtcdMemberList",
            "machine.MachineService/EtcdStatus",
            "machine.MachineService/EtcdAlarmList",
        ),
        _BACKUPS,
    ),
    "machine.MachineService/EtcdSnapshot": frozenset({ADMIN, OPERATOR, BACKUP}),
    **dict.fromkeys(
        (
            "machine.MachineService/Version",
            "machine.MachineService/ServiceList",
            "machine.MachineService/Dmesg",
            "machine.ImageService/List",
            "cluster.ClusterService/HealthCheck",
            "storage.StorageService/Disks",
            "time.TimeService/Time",
            "time.TimeService/TimeCheck",
            "cosi.resource.State/Get",
            "cosi.resource.State/List",
            "cosi.resource.State/Watch",
        ),
        _READERS,
    ),
}
_SINGLE_TARGET = frozenset(
    {"cosi.resource.State", "machine.LifecycleService", "machine.ImageService", "machine.DebugService"}
)
_NOT_BEFORE_13 = frozenset({"machine.LifecycleService", "machine.ImageService"})
# The small maintenance server up to v1.12: what it has, and what it has only to say that it does not.
_OLD_MAINTENANCE = frozenset({"machine.MachineService", "storage.StorageService", "cosi.resource.State"})
_OLD_STUBS = frozenset({"Version", "Upgrade", "Reset", "MetaWrite", "MetaDelete"})


@dataclass(frozen=True)
class Call:
    """A call as the method sees it. `roles` come from the client certificate; without one it is a reader in maintenance."""

    node: Node
    service: str
    method: str
    roles: frozenset[str]

    @property
    def path(self) -> str:
        return f"{self.service}/{self.method}"

    @property
    def admin(self) -> bool:
        return ADMIN in self.roles

    @property
    def maintenance(self) -> bool:
        return self.node.in_maintenance

    def only_on_control_planes(self, what: str) -> None:
        """Refuse on workers and before a config says what the machine is."""
        if self.node.state.role != "controlplane":
            refuse(Status.UNIMPLEMENTED, f"{what} is only available on control plane nodes")


def refuse(status: Status, message: str) -> NoReturn:
    raise GRPCError(status, message)


def admit(call: Call, size: int) -> None:
    """Raise what the machine answers to a call it does not let through; `size` is the request's in bytes."""
    minor = call.node.state.minor
    old = call.maintenance and minor <= 12
    limit = MAINTENANCE_LIMIT if old else LIMIT
    if size > limit:
        refuse(Status.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {limit})")
    if call.service in _NOT_BEFORE_13 and minor < 13:
        refuse(Status.UNIMPLEMENTED, f"unknown service {call.service}")
    if old:
        _admit_to_old_maintenance(call)
    elif not _may(call):
        refuse(Status.PERMISSION_DENIED, "not authorized")


def _may(call: Call) -> bool:
    if call.maintenance and call.path in (
        "machine.MachineService/ApplyConfiguration",
        "storage.StorageService/BlockDeviceWipe",
    ):
        return True
    return bool(call.roles & _ROLES.get(call.path, frozenset({ADMIN})))


def _admit_to_old_maintenance(call: Call) -> None:
    if call.service not in _OLD_MAINTENANCE:
        refuse(Status.UNIMPLEMENTED, f"unknown service {call.service}")
    if call.service != "machine.MachineService" or call.method == "ApplyConfiguration":
        return
    if call.method in _OLD_STUBS:
        refuse(Status.UNIMPLEMENTED, "API is not implemented in maintenance mode")
    refuse(Status.UNIMPLEMENTED, f"method {call.method} not implemented")


def targets(call: Call, node: list[str], nodes: list[str]) -> list[str] | None:
    """Where the call goes: None for this machine itself, else addresses. `node`/`nodes` are the metadata's values."""
    if call.maintenance or not (node or nodes):
        return None  # node routing is off in maintenance
    if nodes:
        wanted = [part.strip() for value in nodes for part in value.split(",")]
        if call.service in _SINGLE_TARGET:
            if call.node.state.minor <= 12 and call.service == "cosi.resource.State":
                refuse(Status.INVALID_ARGUMENT, "one-2-many proxying is not supported for COSI methods")
            refuse(Status.INVALID_ARGUMENT, f"one-2-many proxying is not supported for method /{call.path}")
    else:
        if len(node) != 1:
            refuse(Status.INVALID_ARGUMENT, "node metadata must be single-valued")
        wanted = node
    foreign = [name for name in wanted if not call.node.is_named(name)]
    if foreign and call.node.state.role == "worker":
        refuse(Status.PERMISSION_DENIED, "no request forwarding")
    return wanted
