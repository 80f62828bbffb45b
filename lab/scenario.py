"""What a lab run is made of: machines, timings, platform and faults, read from a YAML file.

Pure data. Unknown keys are refused, so a misspelt fault cannot silently not happen. Every address of a scenario is a
loopback address of one /16, which `relocated` exchanges, so that several labs can run side by side.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

LOOPBACK = IPv4Network("127.0.0.0/8")
RESERVED = IPv4Network("127.0.0.0/16")  # the host's own localhost lives here
FOLDER = Path(__file__).parent / "scenarios"
TALOS_PORT = 50000  # apid, in maintenance and afterwards

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?", value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write it like 200GiB")
    return int(float(match[1]) * _UNITS[match[2] or "B"])


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smh])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value.replace(" ", ""):
        raise ValueError(f"{value!r} is not a duration; write it like 8m or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _loopback(value: IPv4Address) -> IPv4Address:
    if value not in LOOPBACK or value in RESERVED:
        raise ValueError(f"{value} must be a loopback address outside {RESERVED}: the lab touches no other network")
    return value


Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0)]
Loopback = Annotated[IPv4Address, Field(), BeforeValidator(lambda v: _loopback(IPv4Address(v)))]
TUNED_EXTENSIONS = ("drbd", "zfs", "intel-ucode", "amd-ucode")  # of Cozystack's image, as far as anybody looks at them
Residue = Literal[
    "lvm2-pv", "zfs", "zfs-data", "drbd", "drbd8", "linux-raid", "linux-raid-1.0", "linux-raid-0.90", "bluestore", "luks",
    "swap", "iso9660", "ext4", "xfs", "btrfs", "ntfs", "vfat", "squashfs", "talosmeta", "gpt", "gpt-backup", "dos", "unknown",
]  # fmt: skip


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class DiskSpec(Model):
    """One block device of a machine. `residue` is what a former life left on it; `pool` names a zpool that lives on it.

    `held`: the name of a device-mapper device that uses it (`vg--old-root`; with `mpath` in front, a path of a multipath
    device). `layout` of its pool is said by any of the pool's disks.
    """

    dev: str = Field(pattern=r"^[a-z][a-z0-9]+$")
    size: Size
    serial: str = ""
    wwid: str = ""
    model: str = ""
    transport: Literal["sata", "nvme", "virtio", "sas", "usb", "mmc", ""] = "sata"
    rotational: bool = False
    readonly: bool = False
    cdrom: bool = False
    system: bool = False
    residue: Residue | None = None
    held: str | None = None
    pool: str | None = None
    layout: Literal["single", "mirror", "raidz1", "raidz2", "raidz3"] = "single"


class ZfsSpec(Model):
    """ZFS on a machine: the command's version and the module's. `ashift`: what pools get whatever was asked for."""

    userland: str = "2.3.3-1"
    module: str = "2.3.3-1"
    ashift: int | None = None


class LinkSpec(Model):
    """One network interface. Addresses are CIDRs; the machine's own address is added to the first link."""

    name: str
    mac: str = Field(default="", pattern=r"^(([0-9a-f]{2}:){5}[0-9a-f]{2})?$")
    mtu: int = 1500
    up: bool = True
    kind: Literal["", "bond", "vlan", "bridge"] = ""
    addresses: tuple[IPv4Interface, ...] = ()


class MachineSpec(Model):
    """One bare machine as it is found. Its role is decided by the config it will get, not here.

    `stage` says who answers on the Talos port: the maintenance service, a Talos that belongs to another cluster
    (`foreign`), some other TLS service (`not-talos`), a host that accepts and stays silent, or nobody (`off`).
    `installed`: booted from a disk image (metal or nocloud raw), so a config is activated without installing.
    `lease`: where DHCP puts the machine before its config gives it `address`. `inside`: the address on its own interface
    where `address` is that of a 1:1 NAT in front of it. `clock_behind`: its clock is wrong, and so are its certificates.
    `thinks`: how long it takes over every answer. `zfs`: versions of the `zpool` command and of the kernel module.
    """

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    address: Loopback
    talos: str = Field(default="v1.13.6", pattern=r"^v1\.(10|11|12|13|14)\.\d+(-[a-z0-9.]+)?$")
    stage: Literal["maintenance", "foreign", "not-talos", "silent", "off"] = "maintenance"
    installed: bool = False
    lease: Loopback | None = None
    inside: IPv4Address | None = None
    clock_behind: Seconds = 0.0
    thinks: Seconds = 0.0
    mac: str = Field(default="", pattern=r"^(([0-9a-f]{2}:){5}[0-9a-f]{2})?$")
    links: tuple[LinkSpec, ...] = ()
    addresses: tuple[IPv4Interface, ...] = ()
    gateway: IPv4Address | None = None
    disks: tuple[DiskSpec, ...] = Field(min_length=1)
    extensions: tuple[str, ...] = TUNED_EXTENSIONS
    modules: tuple[str, ...] = (
        "openvswitch",
        "drbd",
        "drbd_transport_tcp",
        "zfs",
        "spl",
        "vfio_pci",
        "vfio_iommu_type1",
    )
    zfs: ZfsSpec = ZfsSpec()
    memory: Size = 32 * 2**30
    cpus: int = 8
    time_synced: bool = True

    @model_validator(mode="after")
    def _devices_differ(self) -> Self:
        _unique("disk", [disk.dev for disk in self.disks])
        _unique("link", [link.name for link in self.links])
        return self


class Delays(Model):
    """Real-life seconds. Only the sums have a source (budgets of Cozystack's end-to-end suite); the split is ours.

    Sums: config applied to API back 81 s with installation (field: 60..180), bootstrap accepted some 10 s later,
    three etcd members after 120 s (measured 179 on a loaded runner), nodes registered 30 s after that.
    """

    apply: Seconds = 1.0  # a config is read, checked and written
    install: Seconds = 40.0  # the installer writes the image
    shut_down: Seconds = 3.0  # reboot accepted -> port closed
    boot: Seconds = 37.0  # port closed -> API answers again
    activate: Seconds = 15.0  # installed machine: maintenance service gone -> API with the config's CA
    services_up: Seconds = 8.0  # API back -> CRI up: from now on Bootstrap is available
    time_sync: Seconds = 5.0  # API back -> NTP in sync
    etcd_start: Seconds = 20.0  # Bootstrap accepted -> first member healthy
    etcd_join: Seconds = 30.0  # one member joins as a learner (they join one after the other)
    etcd_promote: Seconds = 20.0  # learner -> voter
    api_open: Seconds = 15.0  # first etcd member healthy -> kube-apiserver answers
    node_register: Seconds = 10.0  # kube-apiserver answers -> kubelet has registered, per node
    node_ready: Seconds = 10.0  # CNI works -> node Ready
    image_pull: Seconds = 20.0
    upgrade: Seconds = 60.0
    reset: Seconds = 30.0


class Answer(Model):
    """What a call is answered with instead of the real answer. `code` is a gRPC status name."""

    code: Literal[
        "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED", "HANG",
    ]  # fmt: skip
    message: str = ""
    times: int | None = Field(default=None, ge=1)  # None: every time
    skip: int = Field(default=0, ge=0)  # let the first calls through
    performed: bool = False  # the call takes effect and only its answer is lost


class DiskChange(Model):
    """New facts about one disk, found by device name or serial; only what is named changes."""

    dev: str | None = None
    serial: str | None = None
    for_serial: str | None = None
    size: Size | None = None
    wwid: str | None = None
    residue: Residue | Literal["none"] | None = None
    gone: bool = False

    @model_validator(mode="after")
    def _names_a_disk(self) -> Self:
        if (self.dev is None) == (self.serial is None):
            raise ValueError("name the disk by either dev or serial")
        return self


class MachineChange(Model):
    """Something that happens to a machine from outside: a person, a cable, a power supply."""

    name: str
    power: Literal["on", "off", "cycle"] | None = None
    disk: DiskChange | None = None
    add_disk: DiskSpec | None = None
    talos: str | None = Field(default=None, pattern=MachineSpec.model_fields["talos"].metadata[0].pattern)
    time_synced: bool | None = None
    reset_to: Literal["maintenance", "foreign"] | None = None
    answers: dict[str, Answer] = {}


class ConditionSpec(Model):
    """One condition, word for word."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


class ReleaseOverride(Model):
    """How one HelmRelease behaves differently from the release data.

    `blocked`: it never begins, because something else than a dependency is missing. `conditions` are what it shows while it
    is blocked or has failed, instead of those that `message` would give.
    """

    ready_after: Seconds | None = None
    fails: int = Field(default=0, ge=0)  # so many attempts fail before one succeeds
    exhausts: bool = False  # every attempt fails until the retries are used up
    suspended: bool = False
    blocked: bool = False
    message: str = ""
    conditions: tuple[ConditionSpec, ...] = ()


class ReleaseChange(ReleaseOverride):
    name: str = Field(pattern=r"^[^/]+/[^/]+$")


class ObjectName(Model):
    """One Kubernetes object."""

    apiVersion: str  # spelled as in every manifest
    kind: str
    name: str
    namespace: str | None = None


class ApiRefusal(Model):
    """The next `times` calls are answered with a refusal. `call` is verb and plural: "PATCH tenants". In memory only."""

    call: str = Field(pattern=r"^(GET|POST|PUT|PATCH|DELETE) [a-z]+$")
    status: int = Field(ge=400, le=599)
    reason: str
    message: str
    times: int = Field(default=1, ge=1)


class Effect(Model):
    """What a fault does. Each kind is carried out by the simulator that owns the subject.

    `create` takes manifests, `status` included; an object whose kind is not served yet comes when it is.
    """

    api_server: Literal["away"] | ApiRefusal | None = None
    machine: MachineChange | None = None
    release: ReleaseChange | None = None
    linstor: Literal["away"] | None = None
    create: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectName, ...] = ()
    for_s: Seconds | None = Field(default=None, alias="for")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if len(self.kinds) == 0:
            raise ValueError(f"name what happens: {', '.join(_EFFECTS)}")
        if self.for_s is not None and self.machine is not None and self.machine.power != "off":
            raise ValueError("of what happens to a machine only `power: off` can last `for` a time")
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in _EFFECTS if getattr(self, kind))


_EFFECTS = ("api_server", "machine", "release", "linstor", "create", "delete")


class Fault(Model):
    """Either `{at: "<subject> <what>", do: …}`, once, or `{on: "<subject>", answer: {<method>: …}}`.

    Triggers are events of the world, never seconds, so that runs are repeatable. `on` may hold `*`.
    """

    at: str | None = None
    do: Effect | None = None
    on: str | None = None
    answer: dict[str, Answer] = {}

    @model_validator(mode="after")
    def _one_of_two_shapes(self) -> Self:
        triggered = self.at is not None and self.do is not None and self.on is None and not self.answer
        scripted = self.on is not None and bool(self.answer) and self.at is None and self.do is None
        if not (triggered or scripted):
            raise ValueError("a fault is either {at: event, do: effect} or {on: subject, answer: {Method: answer}}")
        return self


class HostAnswer(Model):
    """What a public host does instead of its duty, for a time or for ever: an HTTP status, a broken door, a certificate."""

    status: int | None = Field(default=None, ge=200, le=599)
    door: Literal["refused", "down", "silent", "closed"] | None = None  # the first two only for `*`: nobody listens
    certificate: Literal["other-name", "other-authority", "self-signed", "staging", "expired", "placeholder"] | None = (
        None
    )
    for_s: Seconds | None = Field(default=None, alias="for")


class ResolverSpec(Model):
    """A DNS server. `names` maps a name, or `*.name` for all below it, to addresses or to what it says instead."""

    address: Loopback
    port: int = Field(default=5353, ge=1, le=65535)
    names: dict[str, tuple[str, ...] | Literal["nxdomain", "empty", "servfail", "refused", "silent"]] = {}


class VolumeSpec(Model):
    """A volume that is in LINSTOR from the start: the nodes with a replica, and the state of each one's disk."""

    name: str
    on: tuple[str, ...] = Field(min_length=1)
    replicated: bool = True
    state: str = "UpToDate"


class LinstorSpec(Model):
    """The simulated LINSTOR. `output`: how its client prints machine output (`table`: it does not know how to).

    `never_online`: nodes whose satellite does not get through to the controller. `without_drbd`: why a node cannot replicate,
    by node. `pool_errors`: what LINSTOR reports about a node's pool, by node. `registered`: pools that are in LINSTOR before
    anybody asks for them, as `node: zpool`. `deaf`: evacuations are accepted and nothing moves. `silent`: the controller's pod
    runs and never gets ready.
    """

    output: Literal["v1", "flat", "legacy", "table"] = "v1"
    never_online: tuple[str, ...] = ()
    without_drbd: dict[str, str] = {}
    pool_errors: dict[str, str] = {}
    registered: dict[str, str] = {}
    volumes: tuple[VolumeSpec, ...] = ()
    deaf: bool = False
    silent: bool = False


class PlatformSpec(Model):
    """The simulated Cozystack. `options` are named, and refused when unknown, by the platform simulator.

    `web` says what the public hosts answer, by label (`dashboard`, `api`, `*` for all), one after the other from the first
    time it is asked; doors that nobody answers, from the moment the ingress would open. Of `resolvers` the first one plays the
    workstation's own, the others are those the stack names.
    """

    variant: Literal["isp-full", "isp-full-generic", "isp-hosted", "default"] = "isp-full"
    oidc: bool = False
    ingress: Loopback = IPv4Address("127.10.1.1")
    https_port: int = Field(default=8443, ge=1, le=65535)
    web: dict[Literal["dashboard", "api", "keycloak", "grafana", "*"], tuple[HostAnswer, ...]] = {}
    resolvers: tuple[ResolverSpec, ...] = ()
    releases: Literal["from-release"] = "from-release"
    overrides: dict[str, ReleaseOverride] = {}
    linstor: LinstorSpec = LinstorSpec()
    options: dict[str, str | int | float | bool] = {}


class PlanExpectation(Model):
    """`findings`: the codes of all warnings and errors. `says`: texts the user must see; `hides`: texts nobody may see."""

    findings: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


class InstallExpectation(Model):
    """`says`: texts the user must see; `once`: texts that stand in the failure exactly once.

    `events`/`never`: "<subject> <what>" that must or must not be in the event log. `until`: an event (with `*`) at which the
    story has told what it has to tell; what comes after it is not played.
    """

    succeeds: bool = True
    until: str | None = None
    says: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


class Expectation(Model):
    """`install` is null where the plan stops the run. `afterwards`: a plan by somebody who lost the state but not the secrets."""

    plan: PlanExpectation = PlanExpectation()
    install: InstallExpectation | None = InstallExpectation()
    afterwards: PlanExpectation | None = None


class Scenario(Model):
    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
    scale: float = Field(default=60.0, gt=0)  # real-life seconds per second
    cozystack: str = "1.6.2"
    vip: Loopback | None = None
    talos_port: int = Field(default=TALOS_PORT, ge=1, le=65535)
    machines: tuple[MachineSpec, ...] = Field(min_length=1)
    platform: PlatformSpec = PlatformSpec()
    delays: Delays = Delays()
    faults: tuple[Fault, ...] = ()
    objects: tuple[
        dict[str, Any], ...
    ] = ()  # Kubernetes objects, `status` included, that are there before the platform
    stack: dict[str, Any] = {}  # what the stack file says beyond what follows from the machines; see lab.stack
    meanwhile: tuple[MachineChange, ...] = ()  # what happens between the plan and the install
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _machines_differ(self) -> Self:
        _unique("machine", [machine.name for machine in self.machines])
        given = [(machine.address, machine.lease) for machine in self.machines]
        _unique("address", [str(address) for pair in given for address in pair if address is not None])
        if self.vip is not None and self.vip in {machine.address for machine in self.machines}:
            raise ValueError(f"vip {self.vip} is also the address of a machine")
        nets = {".".join(str(address).split(".")[:2]) for address in self._addresses()}
        if len(nets) > 1:
            raise ValueError(
                f"all addresses must lie in one /16 to be relocatable, these do not: {', '.join(sorted(nets))}"
            )
        return self

    def _addresses(self) -> list[IPv4Address]:
        vip = [self.vip] if self.vip is not None else []
        leases = [machine.lease for machine in self.machines if machine.lease is not None]
        return [machine.address for machine in self.machines] + leases + vip + [self.platform.ingress]

    def machine(self, name: str) -> MachineSpec:
        return next(machine for machine in self.machines if machine.name == name)

    def relocated(self, prefix: str) -> Scenario:
        """The same scenario with every loopback address moved to another /16, given as its first two octets: "127.20"."""
        if not re.fullmatch(r"127\.(?!0$)\d{1,3}", prefix):
            raise ValueError(f"{prefix!r} is not a loopback /16; write it like 127.20")
        return Scenario.model_validate(_moved(self.model_dump(mode="json", by_alias=True), prefix))

    @classmethod
    def fleet(cls, count: int, prefix: str = "127.30", **overrides: Any) -> Scenario:
        """`count` identical empty machines, for benchmarks: m1, m2, … at <prefix>.0.11, .0.12, …"""
        machines = [
            {
                "name": f"m{n + 1}",
                "address": f"{prefix}.{(n + 10) // 250}.{(n + 10) % 250 + 1}",
                "disks": [
                    {"dev": "sda", "size": "64GiB", "serial": f"SYS{n + 1:05}"},
                    {"dev": "sdb", "size": "200GiB", "serial": f"DATA{n + 1:05}"},
                ],
            }
            for n in range(count)
        ]
        platform = {"ingress": f"{prefix}.200.1"}
        return cls.model_validate({"name": "fleet", "machines": machines, "platform": platform, **overrides})


class ScenarioError(Exception):
    """The scenario file cannot be used; the text lists every problem with its place."""


def load(path: Path) -> Scenario:
    """Read a scenario file. Raises ScenarioError with all problems at once.

    `like: NAME` takes over everything but the expectations from the scenario NAME of the lab; mappings are merged key by
    key, everything else (lists too) is replaced. `talos: VERSION` is what all machines run.
    """
    try:
        return Scenario.model_validate(_raw(path))
    except ValidationError as error:
        places = [e["loc"] for e in error.errors()]
        own = [e for e in error.errors() if not any(p != e["loc"] and p[: len(e["loc"])] == e["loc"] for p in places)]
        lines = [f"  {'.'.join(map(str, e['loc'])) or '(whole file)'}: {e['msg']}" for e in own]
        raise ScenarioError("\n".join([f"{path} is not a scenario:", *lines])) from None


def _raw(path: Path) -> Any:
    try:
        raw = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ScenarioError(f"{path} cannot be read: {error}") from None
    if not isinstance(raw, dict):
        return raw
    if "like" in raw:
        model = _raw(FOLDER / f"{raw.pop('like')}.yaml")
        raw = _merged({key: value for key, value in model.items() if key != "expect"}, raw)
    if "talos" in raw:
        version = raw.pop("talos")
        raw["machines"] = [{**machine, "talos": version} for machine in raw.get("machines") or ()]
    return raw


def _merged(model: Any, changes: Any) -> Any:
    if not isinstance(model, dict) or not isinstance(changes, dict):
        return changes
    return {**model, **{key: _merged(model.get(key), value) for key, value in changes.items()}}


def _unique(what: str, names: list[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"{what} given more than once: {', '.join(doubled)}")


def _moved(value: Any, prefix: str) -> Any:
    if isinstance(value, dict):
        return {key: _moved(item, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, prefix) for item in value]
    if isinstance(value, str):
        return re.sub(r"\b127\.(?!0\.)\d{1,3}\.(\d{1,3}\.\d{1,3})\b", rf"{prefix}.\1", value)
    return value
