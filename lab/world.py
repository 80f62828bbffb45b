"""The one model all simulators share: machines, cluster, clock, event log and faults. No I/O.

Simulators never call each other: they change the world, record events and wait for events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from lab.clock import Clock
from lab.events import Event, EventLog, Signal
from lab.scenario import Answer, DiskChange, DiskSpec, Effect, MachineChange, MachineSpec, Scenario

if TYPE_CHECKING:
    from lab.machines.config import AppliedConfig


MODULE_EXTENSIONS = {"drbd": "drbd", "drbd_transport_tcp": "drbd", "zfs": "zfs", "spl": "zfs"}
MODULE_NEEDS = {"drbd": ("drbd_transport_tcp",), "zfs": ("spl",)}  # loading the first loads the others


class Stage(StrEnum):
    """Stages as MachineStatuses spells them (`shutting down` has a space)."""

    BOOTING = "booting"
    MAINTENANCE = "maintenance"
    INSTALLING = "installing"
    RUNNING = "running"
    REBOOTING = "rebooting"
    SHUTTING_DOWN = "shutting down"
    RESETTING = "resetting"
    UPGRADING = "upgrading"


class EtcdPhase(StrEnum):
    ABSENT = "absent"  # worker, or not configured
    PREPARING = "preparing"  # waits for Bootstrap or for its turn to join
    STARTING = "starting"
    LEARNER = "learner"
    RUNNING = "running"
    LEFT = "left"


@dataclass
class Disk:
    """A block device as it is now. `residue` is a signature on the whole device; `pool` a zpool that lives on it."""

    spec: DiskSpec
    residue: str | None
    pool: str | None
    system: bool = False

    @property
    def dev(self) -> str:
        return self.spec.dev

    @property
    def path(self) -> str:
        return f"/dev/{self.spec.dev}"

    @property
    def in_use(self) -> bool:
        return self.system or self.pool is not None


@dataclass
class Zpool:
    """A ZFS pool on a machine; `devices` are device names without /dev/."""

    name: str
    layout: str
    devices: tuple[str, ...]
    health: str = "ONLINE"
    guid: int = 0
    ashift: int = 12


@dataclass
class MachineState:
    """One machine as it is now.

    `door` says what listens on the Talos port: the maintenance service, apid with the config's CA, or nothing.
    `changed` fires on every `touch()`; COSI watches live on it.
    """

    spec: MachineSpec
    stage: Stage
    talos: str
    installed: bool
    ntp: bool  # whether a time server can be reached at all
    disks: dict[str, Disk]
    time_synced: bool = False
    powered: bool = True
    door: str | None = None  # "maintenance" | "secure" | None
    config: AppliedConfig | None = None
    staged: AppliedConfig | None = None
    services_up: bool = False
    etcd: EtcdPhase = EtcdPhase.ABSENT
    etcd_data: bool = False
    node_registered: bool = False
    node_ready: bool = False
    extensions: tuple[str, ...] = ()
    images: set[str] = field(default_factory=set)
    next_talos: str | None = None
    next_extensions: tuple[str, ...] = ()  # of the image behind `next_talos`
    zpools: dict[str, Zpool] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)
    generation: int = 0

    @classmethod
    def found(cls, spec: MachineSpec) -> MachineState:
        """A machine as the scenario describes it, before anything happened to it."""
        disks = {d.dev: Disk(d, d.residue, d.pool) for d in spec.disks}
        state = cls(
            spec, Stage.BOOTING, spec.talos, spec.installed, spec.time_synced, disks, extensions=spec.extensions
        )
        state.time_synced = spec.time_synced
        for disk in spec.disks:
            if disk.pool is not None:
                guid = stable_number(spec.name, disk.pool)
                pool = state.zpools.setdefault(disk.pool, Zpool(disk.pool, disk.layout, (), guid=guid))
                state.zpools[disk.pool] = replace(pool, devices=(*pool.devices, disk.dev))
        if spec.installed:
            (next((d for d in disks.values() if d.spec.system), None) or next(iter(disks.values()))).system = True
        return state

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def subject(self) -> str:
        """The name of this machine in the event log."""
        return f"machine {self.spec.name}"

    @property
    def address(self) -> str:
        return str(self.spec.address)

    @property
    def lives_at(self) -> str:
        """Where its Talos port is now: a lease until a config gives it its own address."""
        return str(self.spec.lease or self.spec.address) if self.door == "maintenance" else self.address

    @property
    def own_address(self) -> str:
        """The address on its own interface."""
        return str(self.spec.inside or self.lives_at)

    @property
    def role(self) -> str | None:
        """`controlplane`, `worker`, or None before a config exists."""
        return self.config.role if self.config is not None else None

    @property
    def hostname(self) -> str:
        if self.config is not None and self.config.hostname:
            return self.config.hostname
        return f"talos-{stable_number(self.spec.name, 'hostname') % 0xFFFFF:05x}"

    @property
    def minor(self) -> int:
        """The x of Talos v1.x, of the version that runs now."""
        return int(self.talos.split(".")[1])

    @property
    def system_disk(self) -> Disk | None:
        return next((disk for disk in self.disks.values() if disk.system), None)

    @property
    def loaded_modules(self) -> list[str]:
        """Kernel modules that are loaded: what the config asks for and the image has, with what those need."""
        if self.config is None:
            return []
        loaded: list[str] = []
        for name in self.config.modules:
            extension = MODULE_EXTENSIONS.get(name)
            if name in self.spec.modules and (extension is None or extension in self.extensions):
                loaded += [name, *(m for m in MODULE_NEEDS.get(name, ()) if m in self.spec.modules)]
        return list(dict.fromkeys(loaded))

    def lose_from_pool(self, disk: Disk) -> None:
        """The disk leaves its pool: one with redundancy is degraded, any other is gone with it."""
        pool = self.zpools.pop(disk.pool or "", None)
        if pool is None:
            return
        rest = tuple(dev for dev in pool.devices if dev != disk.dev)
        if rest and pool.layout not in ("", "single", "stripe"):
            self.zpools[pool.name] = replace(pool, health="DEGRADED")
        else:
            for dev in rest:
                self.disks[dev].pool = None

    def touch(self) -> None:
        self.generation += 1
        self.changed.notify()


@dataclass
class Member:
    """One etcd member. `id` is an uint64."""

    id: int
    machine: str
    hostname: str
    address: str
    learner: bool = False
    started: bool = True


@dataclass
class Cluster:
    """The Kubernetes cluster that comes to life with Bootstrap. Certificates and keys are PEM; keep them out of events.

    `names` are the machines that carry this cluster's config. `node_names` maps a machine to its Kubernetes node.
    """

    bootstrapped: bool = False
    name: str = ""
    endpoint: str = ""
    ca_crt: str = ""
    ca_key: str = ""
    cert_sans: tuple[str, ...] = ()
    vips: tuple[str, ...] = ()
    members: dict[str, Member] = field(default_factory=dict)
    node_names: dict[str, str] = field(default_factory=dict)
    leader: str | None = None

    @property
    def healthy_members(self) -> list[Member]:
        return [m for m in self.members.values() if m.started and not m.learner]


class Faults:
    """Scripted answers are used up in order; event-triggered effects happen once and go to the simulator in charge."""

    def __init__(self, scenario: Scenario) -> None:
        self._pending = [fault for fault in scenario.faults if fault.at is not None]
        self._scripts: list[tuple[str, str, Answer, _Count]] = []
        self._handlers: dict[str, Callable[[Effect], None]] = {}
        for fault in scenario.faults:
            if fault.on is not None:
                self.script(fault.on, fault.answer)

    def script(self, subject: str, answers: dict[str, Answer]) -> None:
        self._scripts += [(subject, method, answer, _Count()) for method, answer in answers.items()]

    def answer(self, subject: str, method: str) -> Answer | None:
        """The scripted answer to this call, or None for the real one. Counts the call."""
        for pattern, name, answer, count in self._scripts:
            if name != method or not fnmatchcase(subject, pattern):
                continue
            count.calls += 1
            turn = count.calls - answer.skip
            if turn > 0 and (answer.times is None or turn <= answer.times):
                return answer
        return None

    def handle(self, kind: str, handler: Callable[[Effect], None]) -> None:
        """Register who carries out effects of this kind: `api_server`, `machine`, `release`, `linstor`, `create`, `delete`."""
        self._handlers[kind] = handler

    def due(self, event: Event) -> Iterator[Effect]:
        """Effects triggered by this event; each one only once."""
        due = [f for f in self._pending if f.at is not None and fnmatchcase(event.line, f.at)]
        for fault in due:
            self._pending.remove(fault)
            if fault.do is not None:
                yield fault.do

    def perform(self, effect: Effect) -> list[str]:
        """Hand an effect to its simulators; returns the kinds nobody takes care of."""
        orphans = []
        for kind in effect.kinds:
            handler = self._handlers.get(kind)
            if handler is None:
                orphans.append(kind)
            else:
                handler(effect)
        return orphans


@dataclass
class _Count:
    calls: int = 0


Query = Callable[[Mapping[str, Any]], Awaitable[Any]]  # arguments -> JSON-able answer; ValueError refuses


class World:
    """A scenario come to life. `sink` receives one JSON line per event."""

    def __init__(
        self, scenario: Scenario, sink: Callable[[str], None] | None = None, clock: Clock | None = None
    ) -> None:
        self.scenario = scenario
        self.clock = clock or Clock(scenario.scale)
        self.log = EventLog(self.clock, sink)
        self.machines: dict[str, MachineState] = {m.name: MachineState.found(m) for m in scenario.machines}
        self.cluster = Cluster()
        self.faults = Faults(scenario)
        self.queries: dict[str, Query] = {}  # what the control socket answers, by name
        self.faults.handle("machine", self._machine_effect)
        self.log.on(self._trigger)

    def machine_at(self, address: str) -> MachineState | None:
        return next((m for m in self.machines.values() if m.address == address), None)

    def machine_of_node(self, node: str) -> MachineState | None:
        """The machine behind a Kubernetes node name."""
        return next((m for m in self.machines.values() if m.config is not None and m.hostname == node), None)

    def change(self, change: MachineChange) -> None:
        """Something happens to a machine from outside. Raises KeyError when there is no such machine or disk."""
        machine = self.machines[change.name]
        if change.disk is not None:
            self._change_disk(machine, change.disk)
        if change.add_disk is not None:
            machine.disks[change.add_disk.dev] = Disk(change.add_disk, change.add_disk.residue, change.add_disk.pool)
            self.log.record(machine.subject, "disk added", dev=change.add_disk.dev, serial=change.add_disk.serial)
        if change.talos is not None:
            machine.talos = change.talos
            self.log.record(machine.subject, "talos changed", version=change.talos)
        if change.time_synced is not None:
            machine.ntp = machine.time_synced = change.time_synced
            self.log.record(machine.subject, "time synced" if change.time_synced else "time lost")
        if change.answers:
            self.faults.script(machine.subject, change.answers)
        if change.reset_to is not None:
            self.log.record(machine.subject, "replaced", by=change.reset_to)
        if change.power is not None:
            self.log.record(machine.subject, f"power {change.power}")
        machine.touch()

    def _change_disk(self, machine: MachineState, change: DiskChange) -> None:
        disk = next(
            (
                d
                for d in machine.disks.values()
                if change.dev == d.dev or (change.serial and change.serial == d.spec.serial)
            ),
            None,
        )
        if disk is None:
            raise KeyError(f"{machine.name} has no disk {change.dev or change.serial}")
        if change.gone or change.for_serial is not None:
            machine.lose_from_pool(disk)
        if change.gone:
            del machine.disks[disk.dev]
            self.log.record(machine.subject, "disk gone", dev=disk.dev, serial=disk.spec.serial)
            return
        new = {"serial": change.for_serial, "size": change.size, "wwid": change.wwid}
        disk.spec = disk.spec.model_copy(update={key: value for key, value in new.items() if value is not None})
        if change.for_serial is not None:  # another disk: nothing of the old one's content is on it
            disk.residue, disk.pool = None, None
        if change.residue is not None:
            disk.residue = None if change.residue == "none" else change.residue
        self.log.record(machine.subject, "disk changed", dev=disk.dev, serial=disk.spec.serial, residue=disk.residue)

    def _machine_effect(self, effect: Effect) -> None:
        if effect.machine is not None:
            self.change(effect.machine)

    def _trigger(self, event: Event) -> None:
        for effect in self.faults.due(event):
            orphans = self.faults.perform(effect)
            self.log.record("fault", "fired", trigger=event.line, kinds=list(effect.kinds))
            if orphans:
                self.log.record("fault", "nobody handles it", kinds=orphans)


def stable_number(*parts: str) -> int:
    """A number that is the same in every run."""
    value = 14695981039346656037  # FNV-1a, 64 bit
    for byte in "/".join(parts).encode():
        value = ((value ^ byte) * 1099511628211) % 2**64
    return value
