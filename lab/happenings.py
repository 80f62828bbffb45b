"""What happens to a world besides its ordinary life: faults, their triggers and their effects. Pure data."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lab.hardware import DiskSpec, MachineSpec, Residue
from lab.units import Model, Seconds, Size


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
    answers: dict[str, Answer] = Field(default_factory=dict)


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
    answer: dict[str, Answer] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two_shapes(self) -> Self:
        triggered = self.at is not None and self.do is not None and self.on is None and not self.answer
        scripted = self.on is not None and bool(self.answer) and self.at is None and self.do is None
        if not (triggered or scripted):
            raise ValueError("a fault is either {at: event, do: effect} or {on: subject, answer: {Method: answer}}")
        return self
