"""The plan gate's questions: who answers at every address of the inventory, and what does it say about itself.

Classification is pure and goes by certificate and status, never by a text. Asking is concurrent; an address that does
not answer costs its own deadline and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cozystack_iac.settings.nodes import Disk
from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import NotYet, PeerFault, PortClosed, TalosError, Unreachable, WrongPeer
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import Address, Link, ReportedDisk, Status, Volume
from cozystack_iac.talos.transport import PORT, Limits, Peer

CLOCK_TOLERANCE = timedelta(minutes=2)  # certificates and etcd live with this much


class Target(BaseModel):
    """One machine of the inventory, as far as the plan gate looks at it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    role: Literal["controlPlane", "worker"]
    path: str
    """Where the stack file describes it, for findings: `cozystack:nodes[0]`."""
    maintenance: str
    """The address it answers at before it has a configuration."""
    address: str
    """The address it answers at afterwards."""
    internal: str
    """Its address on its own interface."""
    static: bool = False
    """The configuration will give it its addresses; until then it has others."""
    link: str | None = None
    vip: str | None = None
    """The cluster's virtual address, on control planes."""
    install_disk: Disk | None = None
    data_disks: tuple[Disk, ...] = ()
    reset_reason: str | None = None
    """Why the machine may lose the configuration it carries; None: it may not."""
    fingerprint: str | None = None
    """The key to expect in maintenance mode, as the console shows it."""
    port: int = PORT


class MachineStanding(StrEnum):
    """What was found at an address."""

    MAINTENANCE = "maintenance"
    OURS = "configured by this cluster"
    FOREIGN = "configured by someone else"
    NOT_TALOS = "not Talos"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TLS_PROBLEM = "TLS or clock problem"
    REBOOTING = "rebooting"


@dataclass(frozen=True)
class Evidence:
    """What one visit brought: a certificate, an error, a status. `ours`: mutual TLS with our certificate succeeded."""

    peer: Peer | None = None
    error: TalosError | None = None
    ours: bool = False
    status: Status | None = None


@dataclass(frozen=True)
class Facts:
    """What a machine in maintenance mode says about itself."""

    version: str
    system_disk: str | None
    disks: tuple[ReportedDisk, ...]
    volumes: tuple[Volume, ...]
    links: tuple[Link, ...]
    addresses: tuple[Address, ...]


@dataclass(frozen=True)
class Answer:
    """One machine's answer. `facts` is None unless it is in maintenance mode and said everything that was asked."""

    target: Target
    at: str
    standing: MachineStanding
    evidence: Evidence
    facts: Facts | None = None
    clock_skew: timedelta | None = None

    @property
    def seen(self) -> str:
        """What was seen, for people."""
        error = self.evidence.error
        if self.standing is MachineStanding.FOREIGN and self.evidence.peer is not None:
            return f"a configured Talos machine with the certificate name {self.evidence.peer.common_name or 'unknown'}"
        if error is not None:
            return error.text or "no reason given"
        return str(self.evidence.status) if self.evidence.status is not None else self.standing.value


def classify(evidence: Evidence) -> MachineStanding:
    """The class of what was found. Pure; a question without an answer is never taken for a good one."""
    peer, error = evidence.peer, evidence.error
    if evidence.status is not None and evidence.status.stage.transient:
        return MachineStanding.REBOOTING
    if evidence.ours:
        return MachineStanding.OURS
    if isinstance(error, WrongPeer) and error.fault in _TLS_FAULTS:
        return MachineStanding.TLS_PROBLEM
    if peer is None:
        return _without_certificate(error)
    if peer.in_maintenance:
        return MachineStanding.REBOOTING if isinstance(error, NotYet) else MachineStanding.MAINTENANCE
    return MachineStanding.FOREIGN if peer.from_talos_ca else MachineStanding.NOT_TALOS


_TLS_FAULTS = frozenset({PeerFault.CLOCK, PeerFault.NAME, PeerFault.OUR_CERTIFICATE, PeerFault.FINGERPRINT})


def _without_certificate(error: TalosError | None) -> MachineStanding:
    if isinstance(error, PortClosed):
        return MachineStanding.REFUSED
    return MachineStanding.NOT_TALOS if isinstance(error, WrongPeer) else MachineStanding.UNREACHABLE


async def ask_all(
    targets: Sequence[Target],
    *,
    deadline_s: float,
    identity: Identity | None = None,
    heard: Callable[[Answer], None] | None = None,
) -> tuple[Answer, ...]:
    """Ask every machine at once, each within `deadline_s`; the answers in the order of `targets`. Never raises.

    `heard` gets each answer as it comes.
    """
    limits = Limits.of()
    now = datetime.now(UTC)

    async def one(target: Target) -> Answer:
        answer = await _ask(target, deadline_s, identity, limits, now)
        if heard is not None:
            heard(answer)
        return answer

    return tuple(await asyncio.gather(*map(one, targets)))


async def _ask(target: Target, deadline_s: float, identity: Identity | None, limits: Limits, now: datetime) -> Answer:
    """Where it answers before it is configured; if nobody is there, where it would answer afterwards."""
    first = await _visit(target, target.maintenance, deadline_s, identity, limits, now)
    absent = first.standing in (MachineStanding.UNREACHABLE, MachineStanding.REFUSED)
    if not absent or target.address == target.maintenance:
        return first
    second = await _visit(target, target.address, deadline_s, identity, limits, now)
    return first if second.standing in (MachineStanding.UNREACHABLE, MachineStanding.REFUSED) else second


async def _visit(
    target: Target, address: str, deadline_s: float, identity: Identity | None, limits: Limits, now: datetime
) -> Answer:
    facts: Facts | None = None
    status: Status | None = None
    ours = False
    error: TalosError | None = None
    bare = Machine(address, fingerprint=target.fingerprint, port=target.port, deadline_s=deadline_s, limits=limits)
    try:
        async with _deadline(address, deadline_s):
            async with bare:
                try:
                    await bare.peer()
                    status = await bare.status()
                    facts = await _facts(bare)
                except WrongPeer as wrong:
                    error = wrong
            # Only a machine that proves to be of our cluster is asked for its status with our certificate.
            if identity is not None and isinstance(error, WrongPeer) and bare.met is not None:
                proven = Machine(address, identity=identity, port=target.port, deadline_s=deadline_s, limits=limits)
                async with proven:
                    status = await proven.status()
                ours, error = True, None
    except TalosError as caught:
        error = caught
    peer = bare.met
    evidence = Evidence(peer, error, ours, status)
    skew = peer.skew(now) if peer is not None and peer.in_maintenance else None
    return Answer(
        target, address, classify(evidence), evidence, facts, skew if skew and skew > CLOCK_TOLERANCE else None
    )


async def _facts(machine: Machine) -> Facts:
    # One stream each on the one connection: the answers take one round trip, not six.
    version, system, disks, volumes, links, addresses = await asyncio.gather(
        machine.version(),
        machine.system_disk(),
        machine.disks(),
        machine.volumes(),
        machine.links(),
        machine.addresses(),
    )
    return Facts(version, system, disks, volumes, links, addresses)


@asynccontextmanager
async def _deadline(address: str, deadline_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError:
        raise Unreachable(address, "timed out") from None


def who(answer: Answer) -> str:
    """`cp1 (10.0.0.11)`."""
    return f"{answer.target.name} ({answer.at})"


def listed(texts: Iterable[str], *, most: int = 6) -> str:
    """`a, b and 3 more`; `none` for none."""
    items = list(texts)
    shown = ", ".join(items[:most]) or "none"
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
