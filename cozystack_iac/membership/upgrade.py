"""Bringing running machines to the pinned Talos image: one machine at a time, whatever else runs side by side.

Every step reads before it writes: a machine that runs what is wanted is left alone, one that an earlier run sent into its
upgrade is waited for. Control planes come first, each behind the etcd and API gate, so that never two of their members are
away together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cozystack_iac.membership.absences import Absences
from cozystack_iac.releases import Version
from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import Answered, NotYet, PeerFault, TalosError, Unsupported, WrongPeer
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.gate import Gate
from cozystack_iac.talos.machine import Stage, Status
from cozystack_iac.talos.profile import tuned
from cozystack_iac.talos.verification import WantedMachine, lacking
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, interval, pause

LOOK_EVERY_S = 0.5  # a machine that comes back has no way to say so
LIFECYCLE_SINCE = (1, 13)  # LifecycleService; the legacy call is deprecated from there on and goes with 1.18
UP = frozenset((Stage.BOOTING, Stage.RUNNING))


@dataclass(frozen=True)
class Running:
    """What a machine runs: Talos version, and which of the wanted extensions it lacks."""

    talos: str
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class VersionLook:
    """A machine as it was just found. `running` is None while it is away, on its way, or not configured."""

    text: str
    running: Running | None = None
    status: Status | None = None
    fresh: bool = False
    foreign: bool = False


def reason(running: Running, wanted: WantedMachine) -> str | None:
    """Why the machine has to be upgraded; None when it runs what is wanted, or when its image is not Cozystack's."""
    if not tuned(wanted.image):
        return None
    if running.talos != wanted.talos:
        return f"runs {running.talos} instead of {wanted.talos}"
    return f"does not have the extension {', '.join(running.lacking)}" if running.lacking else None


def obstacle(running: Running, wanted: WantedMachine) -> str | None:
    """Why Talos cannot go from here to there in one step; None when it can.

    Talos is upgraded from one minor to the next, and never back: an older one does not know the newer one's documents.
    """
    here, there = Version.parse(running.talos), Version.parse(wanted.talos)
    if here is None or there is None:
        return f"{running.talos or 'its version'} or {wanted.talos} is not a valid version"
    if there.series < here.series:
        return f"Talos cannot be downgraded from {running.talos} to {wanted.talos}"
    if there.series[0] != here.series[0] or there.minor - here.minor > 1:
        return f"going from {running.talos} to {wanted.talos} needs every minor version in between"
    return None


def ordered(machines: Iterable[MachineRef]) -> list[MachineRef]:
    """Control planes first, then workers, each in the order of the inventory."""
    return sorted(machines, key=lambda machine: not machine.is_control_plane)


class Upgrade:
    """The upgrade of one fleet. `deadline_s` is every machine's own budget.

    `settled`: every machine has its configuration. Otherwise those that do not (yet) carry this cluster's are left to the
    rollout that follows.
    """

    def __init__(
        self, fleet: Fleet, wanted: Mapping[str, WantedMachine], *, deadline_s: float, settled: bool, progress: Progress
    ) -> None:
        self._fleet = fleet
        self._wanted = wanted
        self._deadline_s = deadline_s
        self._settled = settled
        self._progress = progress
        self._gate = Gate(fleet, progress)
        self._absences = Absences(fleet, deadline_s=deadline_s, progress=progress)

    async def run(self) -> dict[str, Running]:
        """Until every machine runs its pinned image; what each runs then, by name. Raises StageFailed."""
        looks = await self._survey()
        running = {name: look.running for name, look in looks.items() if look.running is not None}
        due = [m for m in ordered(self._fleet.machines) if m.name in running and self._due(m, running[m.name])]
        self._refuse_impossible(due, running)
        for machine in due:
            running[machine.name] = await self._upgrade(machine, running[machine.name])
        await self._open_what_was_left(running)
        return running

    async def _open_what_was_left(self, running: Mapping[str, Running]) -> None:
        """A run that was killed behind its last upgrade leaves an emptied node."""
        left = await self._absences.left_behind() if running else []
        for machine in (m for m in self._fleet.machines if m.name in left):
            await self._absences.back(machine)

    def _due(self, machine: MachineRef, running: Running) -> bool:
        return reason(running, self._wanted[machine.name]) is not None

    # Looking --------------------------------------------------------------------------------------------------------

    async def look(self, machine: MachineRef) -> VersionLook:
        """Where the machine stands. Never raises."""
        look = await self._look(machine)
        self._fleet.seen[machine.name] = look.text
        return look

    async def _look(self, machine: MachineRef) -> VersionLook:
        try:
            async with self._fleet.secure(machine) as client:
                status = await client.status()
                if status.stage not in UP:
                    return VersionLook(str(status), status=status)
                version, extensions = await client.version(), await client.extensions()
        except WrongPeer as error:
            fresh = error.fault is PeerFault.MAINTENANCE
            return VersionLook(error.text, fresh=fresh, foreign=error.fault is PeerFault.FOREIGN_CLUSTER)
        except TalosError as error:
            return VersionLook(error.text)
        wanted = self._wanted[machine.name]
        running = Running(version, lacking(extensions, wanted))
        text = reason(running, wanted) or f"runs {version}"
        return VersionLook(text if status.stage is Stage.RUNNING else f"{text} ({status})", running, status)

    async def _survey(self) -> dict[str, VersionLook]:
        """Everybody's standing, waiting for those who are away: an earlier run may have sent them into an upgrade."""
        looks: dict[str, VersionLook] = {}

        def missing() -> StageFailed:
            away = {name: look.text for name, look in looks.items() if look.running is None}
            spent = f"timed out after {format_seconds(self._deadline_s)}"
            return StageFailed(
                f"{len(away)} of {len(looks)} machines do not report their version ({spent}).",
                details=away,
                means="no machine was upgraded in this run",
                next_step="check their consoles, then run `pulumi up` again",
            )

        async with budget(self._deadline_s, missing):
            while True:
                found = await asyncio.gather(*(self.look(machine) for machine in self._fleet.machines))
                looks = {m.name: look for m, look in zip(self._fleet.machines, found, strict=True)}
                open_ = [name for name, look in looks.items() if look.running is None]
                if not self._settled:
                    self._leave_to_rollout(looks)
                    return looks
                if not open_:
                    return looks
                self._progress.say(f"waiting for {self._fleet.summary(open_)}")
                await pause(LOOK_EVERY_S)

    def _leave_to_rollout(self, looks: Mapping[str, VersionLook]) -> None:
        """Machines without our configuration are not part of the cluster yet: the gate must not wait for them."""
        self._fleet.machines = tuple(
            m for m in self._fleet.machines if not (looks[m.name].fresh or looks[m.name].foreign)
        )

    def _refuse_impossible(self, due: Sequence[MachineRef], running: Mapping[str, Running]) -> None:
        obstacles = {m.name: text for m in due if (text := obstacle(running[m.name], self._wanted[m.name]))}
        if obstacles:
            raise StageFailed(
                f"{len(obstacles)} of {len(running)} machines cannot be upgraded in one step.",
                details=obstacles,
                means="no machine was changed",
                next_step="set talos.version to the next minor version after the one they run, and repeat from there",
            )

    # One machine ----------------------------------------------------------------------------------------------------

    async def _upgrade(self, machine: MachineRef, before: Running) -> Running:
        wanted = self._wanted[machine.name]
        self._note(machine, f"is being upgraded to {wanted.image}: it {reason(before, wanted)}")
        exists = True
        if machine.is_control_plane:
            exists = await self._gate.passes(f"before {machine.name} is upgraded", self._deadline_s)
        if exists:
            await self._absences.leave(machine)
        async with budget(self._deadline_s, lambda: self._expired(machine)):
            after = await self._through(machine, wanted)
        if machine.is_control_plane:
            await self._gate.passes(f"after {machine.name} was upgraded", self._deadline_s)
        if exists:
            await self._absences.back(machine)
        self._note(machine, f"runs {after.talos}")
        return after

    async def _through(self, machine: MachineRef, wanted: WantedMachine) -> Running:
        """Look, send the machine into its upgrade, and judge once what it is when it is back."""
        left = False
        up = UP
        while True:
            look = await self.look(machine)
            back = look.status is not None and look.status.stage in up
            if look.running is not None and back:
                if reason(look.running, wanted) is None:
                    return look.running
                if left:
                    raise self._failed(machine, f"came back but {reason(look.running, wanted)}: it rolled back")
                up = frozenset({Stage.RUNNING}) if look.status and look.status.stage is Stage.RUNNING else UP
                left = await self._send(machine, wanted, look.running)
            self._progress.say(self._fleet.summary())
            await pause(LOOK_EVERY_S)

    async def _send(self, machine: MachineRef, wanted: WantedMachine, running: Running) -> bool:
        """One attempt; whether the machine has left for its new life. What is not final is tried again by the caller."""
        version = Version.parse(running.talos)
        try:
            async with self._fleet.secure(machine) as client:
                if version is not None and version.series >= LIFECYCLE_SINCE:
                    await self._by_lifecycle(machine, client, wanted.image)
                else:
                    await client.upgrade(wanted.image, deadline_s=self._deadline_s)
                return await self._leaves(machine, client)
        except NotYet as error:  # another one runs already, of an earlier run or of somebody else
            self._note(machine, f"reports: {error.text}")
        except Answered as error:
            raise self._failed(machine, f"could not be upgraded: {error.text}") from None
        except TalosError as error:  # looking again tells whether it heard us
            self._note(machine, error.text)
        return False

    async def _by_lifecycle(self, machine: MachineRef, client: Machine, image: str) -> None:
        """1.13 and later: pull, write, reboot. Killed between any two of them, all of it can be done again."""
        try:
            self._note(machine, f"is pulling {image}")
            name = await client.pull_image(image, deadline_s=self._deadline_s)
            self._note(machine, f"is writing {name}")
            await client.lifecycle_upgrade(name, deadline_s=self._deadline_s)
        except Unsupported:  # an early 1.13 without the service still takes the legacy call
            await client.upgrade(image, deadline_s=self._deadline_s)
            return
        self._note(machine, "is rebooting into its new image")
        await client.reboot()

    async def _leaves(self, machine: MachineRef, client: Machine) -> bool:
        """Until the connection is lost, as in every reboot; an upgrade that is given up leaves it open, and fails."""
        upgrading = False
        while not await client.hangs_up(interval(LOOK_EVERY_S)):
            try:
                # On a connection of its own: this one must stay the old life's, or its end would never be seen.
                status = await self._fleet.ask(machine, lambda other: other.status())
            except TalosError:
                continue
            if upgrading and status.stage is Stage.RUNNING:
                raise self._failed(machine, "aborted its upgrade; check its dmesg")
            upgrading = upgrading or status.stage is Stage.UPGRADING
            self._note(machine, str(status))
        self._note(machine, "is rebooting")
        return True

    # Saying ---------------------------------------------------------------------------------------------------------

    def _note(self, machine: MachineRef, text: str) -> None:
        self._fleet.seen[machine.name] = text
        self._progress.say(f"{machine.name} {text}")

    def _failed(self, machine: MachineRef, text: str) -> StageFailed:
        self._fleet.seen[machine.name] = text
        names = [machine.name, *(m.name for m in self._fleet.machines if m.name != machine.name)][:12]
        left_out = len(self._fleet.machines) - len(names)
        states = {name: self._fleet.seen.get(name, "not checked") for name in names}
        return StageFailed(
            f"{machine.name} ({machine.address}) was not upgraded.",
            details={**states, **({"others": f"{left_out} more"} if left_out else {})},
            means="the upgrade stopped here; the remaining machines keep their version, and at most this one is down",
            next_step="repair it (check console and dmesg), then run `pulumi up` again: it continues from here",
        )

    def _expired(self, machine: MachineRef) -> StageFailed:
        last = self._fleet.seen.get(machine.name, "no answer")
        return self._failed(machine, f"{last} (timed out after {format_seconds(self._deadline_s)})")
