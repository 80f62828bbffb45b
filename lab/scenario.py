"""What a lab run is made of: machines, timings, platform and faults, read from a YAML file.

Pure data. Unknown keys are refused, so a misspelt fault cannot silently not happen. Every address of a scenario is a
loopback address of one /16, which `relocated` exchanges, so that several labs can run side by side.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from yaml import YAMLError

from cozystack_iac import go_yaml
from lab.happenings import (
    Answer,
    ApiRefusal,
    ConditionSpec,
    DiskChange,
    Effect,
    Fault,
    MachineChange,
    ObjectName,
    ReleaseChange,
    ReleaseOverride,
)
from lab.hardware import TUNED_EXTENSIONS, DiskSpec, LinkSpec, MachineSpec, Residue, ZfsSpec
from lab.units import Loopback, Model, Seconds, unique

__all__ = [
    "FOLDER",
    "TALOS_PORT",
    "TUNED_EXTENSIONS",
    "Answer",
    "ApiRefusal",
    "ConditionSpec",
    "Delays",
    "DiskChange",
    "DiskSpec",
    "Effect",
    "Expectation",
    "Fault",
    "HostAnswer",
    "InstallExpectation",
    "LinkSpec",
    "LinstorSpec",
    "MachineChange",
    "MachineSpec",
    "ObjectName",
    "PlanExpectation",
    "PlatformSpec",
    "ReleaseChange",
    "ReleaseOverride",
    "Residue",
    "ResolverSpec",
    "Scenario",
    "ScenarioError",
    "VolumeSpec",
    "ZfsSpec",
    "load",
]

FOLDER = Path(__file__).parent / "scenarios"
TALOS_PORT = 50000  # apid, in maintenance and afterwards


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
    names: dict[str, tuple[str, ...] | Literal["nxdomain", "empty", "servfail", "refused", "silent"]] = Field(
        default_factory=dict
    )


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
    without_drbd: dict[str, str] = Field(default_factory=dict)
    pool_errors: dict[str, str] = Field(default_factory=dict)
    registered: dict[str, str] = Field(default_factory=dict)
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
    web: dict[Literal["dashboard", "api", "keycloak", "grafana", "*"], tuple[HostAnswer, ...]] = Field(
        default_factory=dict
    )
    resolvers: tuple[ResolverSpec, ...] = ()
    releases: Literal["from-release"] = "from-release"
    overrides: dict[str, ReleaseOverride] = Field(default_factory=dict)
    linstor: LinstorSpec = LinstorSpec()
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)


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
    stack: dict[str, Any] = Field(
        default_factory=dict
    )  # what the stack file says beyond what follows from the machines; see lab.stack
    meanwhile: tuple[MachineChange, ...] = ()  # what happens between the plan and the install
    expect: Expectation = Expectation()

    @model_validator(mode="after")
    def _machines_differ(self) -> Self:
        unique("machine", [machine.name for machine in self.machines])
        given = [(machine.address, machine.lease) for machine in self.machines]
        unique("address", [str(address) for pair in given for address in pair if address is not None])
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
        raw = go_yaml.load(path.read_text(encoding="utf-8"))
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


def _moved(value: Any, prefix: str) -> Any:
    if isinstance(value, dict):
        return {key: _moved(item, prefix) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, prefix) for item in value]
    if isinstance(value, str):
        return re.sub(r"\b127\.(?!0\.)\d{1,3}\.(\d{1,3}\.\d{1,3})\b", rf"{prefix}.\1", value)
    return value
