"""The machines of one cluster as the stages see them: who is where, and how to talk to each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.configuration import digest
from cozystack_iac.talos.errors import PeerFault, TalosError, WrongPeer
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import Stage, Status
from cozystack_iac.talos.transport import PORT, Limits
from cozystack_iac.waiting import StageFailed, call_limit
from cozystack_iac.yaml_text import BadYaml

CALL_S = 5.0  # one call to a machine that is up; longer means that it is not

T = TypeVar("T")


class MachineRef(BaseModel):
    """One machine of the cluster, as far as the stages need it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    role: Literal["controlPlane", "worker"]
    maintenance: str
    """Where it answers before it has a configuration."""
    address: str
    """Where it answers afterwards."""
    internal: str
    """Its address among the machines: what etcd advertises."""
    reset_reason: str | None = None
    fingerprint: str | None = None
    port: int = PORT

    @property
    def is_control_plane(self) -> bool:
        return self.role == "controlPlane"

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset((self.address, self.internal))


class Found(StrEnum):
    """How a stage finds a machine."""

    FRESH = "in maintenance mode"
    SAME = "configured as requested"
    DIFFERENT = "configured, but with an older configuration"
    FOREIGN = "configured by someone else"
    STRANGE = "not the expected machine"
    AWAY = "does not respond"


@dataclass(frozen=True)
class Sight:
    """A machine as it was just found. `text` says what was seen."""

    found: Found
    text: str
    status: Status | None = None


@dataclass
class Fleet:
    """All machines, one certificate, shared limits. `seen` remembers the last thing said about each machine."""

    machines: tuple[MachineRef, ...]
    identity: Identity
    limits: Limits = field(default_factory=Limits.of)
    seen: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, machines: Iterable[MachineRef], client_configuration: Mapping[str, str]) -> Fleet:
        """Raises StageFailed when the client configuration is unusable or has ended."""
        try:
            identity = Identity.from_client_configuration(client_configuration)
        except ValueError as error:
            raise StageFailed(
                "The cluster's client certificate is not usable.",
                details={"problem": str(error)},
                means="the program cannot talk to any configured machine; nothing was changed",
                next_step="check the machine secrets resource in this stack's state",
            ) from None
        if identity.expires <= datetime.now(UTC):
            raise StageFailed(
                f"The cluster's client certificate expired on {identity.expires:%Y-%m-%d}.",
                means="no configured machine accepts it any more; nothing was changed",
                next_step="run `pulumi refresh`, then `pulumi up`: this renews the certificate from the machine "
                "secrets",
            )
        return cls(tuple(machines), identity)

    @property
    def control_planes(self) -> tuple[MachineRef, ...]:
        return tuple(m for m in self.machines if m.is_control_plane)

    def secure(self, machine: MachineRef) -> Machine:
        """The configured machine, by mutual TLS."""
        return Machine(
            machine.address,
            identity=self.identity,
            port=machine.port,
            deadline_s=call_limit(CALL_S),
            limits=self.limits,
        )

    def maintenance(self, machine: MachineRef) -> Machine:
        """The machine in maintenance mode."""
        return Machine(
            machine.maintenance,
            fingerprint=machine.fingerprint,
            port=machine.port,
            deadline_s=call_limit(CALL_S),
            limits=self.limits,
        )

    async def ask(self, machine: MachineRef, question: Callable[[Machine], Awaitable[T]]) -> T:
        """One question to the configured machine, on a connection of its own. Raises TalosError."""
        async with self.secure(machine) as client:
            return await question(client)

    async def find(self, machine: MachineRef, wanted: str) -> Sight:
        """Where the machine stands. Never raises: what is not known is AWAY or STRANGE."""
        sight = await self._as_ours(machine, wanted)
        if sight.found is Found.AWAY and machine.maintenance != machine.address:
            sight = await self._as_fresh(machine)
        self.seen[machine.name] = sight.text
        return sight

    async def _as_ours(self, machine: MachineRef, wanted: str) -> Sight:
        try:
            async with self.secure(machine) as client:
                status = await client.status()
                if status.stage in (Stage.RESETTING, Stage.SHUTTING_DOWN):
                    return Sight(Found.AWAY, str(status), status)
                present = await client.configuration()
                # Machines keep what they were given byte for byte; reading YAML is for the case that one does not.
                same = present == wanted or digest(present) == digest(wanted)
                return Sight(Found.SAME if same else Found.DIFFERENT, str(status), status)
        except WrongPeer as error:
            if error.fault is PeerFault.MAINTENANCE:
                return await self._as_fresh(machine)
            foreign = error.fault is PeerFault.FOREIGN_CLUSTER
            return Sight(Found.FOREIGN if foreign else Found.STRANGE, error.text)
        except (TalosError, BadYaml) as error:
            return Sight(
                Found.AWAY, error.text if isinstance(error, TalosError) else "its configuration cannot be read"
            )

    async def _as_fresh(self, machine: MachineRef) -> Sight:
        try:
            async with self.maintenance(machine) as client:
                status = await client.status()
        except WrongPeer as error:
            foreign = error.fault is PeerFault.WANTS_CERTIFICATE
            # At its maintenance address a machine that is ours already wants a certificate too: ask where it lives now.
            return Sight(Found.AWAY if foreign else Found.STRANGE, error.text)
        except TalosError as error:
            return Sight(Found.AWAY, error.text)
        if status.stage.transient:
            return Sight(Found.AWAY, str(status), status)
        return Sight(Found.FRESH, str(status), status)

    async def digests(self) -> dict[str, str]:
        """The digest of every machine's configuration as it is now; empty for a machine that does not say."""
        found = await asyncio.gather(*(self._digest(m) for m in self.machines))
        return {machine.name: text for machine, text in zip(self.machines, found, strict=True)}

    async def _digest(self, machine: MachineRef) -> str:
        try:
            return digest(await self.ask(machine, lambda client: client.configuration()))
        except TalosError as error:
            self.seen[machine.name] = error.text
        except BadYaml:
            self.seen[machine.name] = "its configuration cannot be read"
        return ""

    def summary(self, names: Iterable[str] | None = None, *, most: int = 5) -> str:
        """`cp1 installing, cp2 running`; counts where there are many."""
        chosen = [(n, self.seen.get(n, "not checked yet")) for n in (names or [m.name for m in self.machines])]
        if len(chosen) <= most:
            return "; ".join(f"{name} {text}" for name, text in chosen)
        counts: dict[str, int] = {}
        for _, text in chosen:
            counts[text] = counts.get(text, 0) + 1
        return ", ".join(f"{count} {text}" for text, count in sorted(counts.items(), key=lambda item: -item[1])[:most])


async def in_batches(items: Iterable[T], size: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Work on `size` items side by side, batch after batch; the first failure cancels its batch and ends it all."""
    rest = list(items)
    while rest:
        batch, rest = rest[:size], rest[size:]
        await together(batch, work)


async def together(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Work on all items side by side; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(_run(work, item))
    except* StageFailed as failures:
        raise failures.exceptions[0] from None


async def _run(work: Callable[[T], Awaitable[None]], item: T) -> None:
    await work(item)
