"""Bringing configurations onto machines: first ones side by side, later ones without ever endangering etcd's quorum.

Every step reads before it writes, so that a run that was killed anywhere is continued by the next one: a machine that
carries the wanted configuration already is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cozystack_iac.stage import Progress, StageFailed, budget, format_seconds
from cozystack_iac.talos import configuration
from cozystack_iac.talos.errors import Answered, NotYet, PeerFault, TalosError, WrongPeer
from cozystack_iac.talos.fleet import Fleet, Found, MachineRef, Sight, absent, in_batches, together
from cozystack_iac.talos.gate import Gate
from cozystack_iac.talos.machine import ApplyMode, Stage

LOOK_EVERY_S = 0.5  # a machine that comes back has no way to say so
STUBBORN_S = 60.0  # how long a peer may be the wrong one before it will not heal by itself
LEAVES_WITHIN_S = 120.0  # a reboot that was accepted cuts the connection well before that
UP = frozenset((Stage.BOOTING, Stage.RUNNING))  # before bootstrap a control plane stays in `booting`


@dataclass(frozen=True)
class Wish:
    """What one machine shall carry."""

    machine: MachineRef
    configuration: str
    digest: str


class Rollout:
    """One rollout over a fleet. `deadline_s` is every machine's own budget, doubled where Talos is installed first."""

    def __init__(
        self,
        fleet: Fleet,
        configurations: Mapping[str, str],
        *,
        deadline_s: float,
        worker_batch: int,
        progress: Progress,
    ) -> None:
        self._fleet = fleet
        self._wishes = [
            Wish(m, configurations[m.name], configuration.digest(configurations[m.name])) for m in fleet.machines
        ]
        self._deadline_s = deadline_s
        self._worker_batch = worker_batch
        self._progress = progress
        self._gate = Gate(fleet, progress)
        self._applied: set[str] = set()

    async def run(self) -> dict[str, str]:
        """Until every machine runs with its configuration; digests by machine. Raises StageFailed."""
        sights = await self._survey()
        fresh = [w for w in self._wishes if sights[w.machine.name].found is Found.FRESH]
        settling = [w for w in self._wishes if sights[w.machine.name].found is Found.SAME]
        older = [w for w in self._wishes if sights[w.machine.name].found is Found.DIFFERENT]
        if adopted := [w.machine.name for w in settling]:
            self._progress.say(f"configured already, left alone: {_names(adopted)}")
        await together([*fresh, *settling], self._bring_up)
        await self._change(older)
        return {w.machine.name: w.digest for w in self._wishes}

    # Looking --------------------------------------------------------------------------------------------------------

    async def _survey(self) -> dict[str, Sight]:
        """Everybody's standing, waiting for those who are away (an earlier run may have sent them to reboot)."""
        sights: dict[str, Sight] = {}
        strangers_since: dict[str, float] = {}

        async with budget(self._deadline_s, lambda: self._missing(sights)):
            while True:
                open_ = [
                    w for w in self._wishes if w.machine.name not in sights or not _settled(sights[w.machine.name])
                ]
                found = await asyncio.gather(*(self._fleet.find(w.machine, w.digest) for w in open_))
                now = time.monotonic()
                for wish, sight in zip(open_, found, strict=True):
                    sights[wish.machine.name] = sight
                    if sight.found is Found.STRANGE:
                        strangers_since.setdefault(wish.machine.name, now)
                    else:
                        strangers_since.pop(wish.machine.name, None)
                self._refuse(sights, {n for n, since in strangers_since.items() if now - since > STUBBORN_S})
                if all(_settled(s) for s in sights.values()):
                    return sights
                waiting = [name for name, sight in sights.items() if not _settled(sight)]
                self._progress.say(f"waiting for {self._fleet.summary(waiting)}")
                await asyncio.sleep(LOOK_EVERY_S)

    def _refuse(self, sights: Mapping[str, Sight], stubborn: set[str]) -> None:
        """Nothing is applied anywhere while one machine of the inventory belongs to somebody else."""
        machines = {w.machine.name: w.machine for w in self._wishes}
        foreign = {
            name: sight
            for name, sight in sights.items()
            if name in stubborn or (sight.found is Found.FOREIGN and machines[name].reset_reason is None)
        }
        if foreign:
            raise StageFailed(
                f"{len(foreign)} of {len(sights)} machines cannot be configured by this stack.",
                details={name: f"{machines[name].address}: {sight.text}" for name, sight in foreign.items()},
                means="no machine was touched; the others are waiting unchanged",
                next_step="correct the addresses, take the machine out of the inventory, or reset it; then run `pulumi up` again",
            )

    def _missing(self, sights: Mapping[str, Sight]) -> StageFailed:
        away = {name: sight for name, sight in sights.items() if not _settled(sight)}
        return StageFailed(
            f"{len(away)} of {len(self._wishes)} machines did not turn up ({format_seconds(self._deadline_s)} budget used up).",
            details={name: sight.text for name, sight in away.items()},
            means="no machine was touched in this run",
            next_step="look at their consoles; boot them into maintenance mode; then run `pulumi up` again",
        )

    # The first configuration ----------------------------------------------------------------------------------------

    async def _bring_up(self, wish: Wish) -> None:
        """From maintenance mode (or from wherever an earlier run left it) to the authenticated API."""
        installs = await self._installs(wish.machine)
        limit_s = self._deadline_s * (2 if installs else 1)
        async with budget(limit_s, lambda: self._not_back(wish, limit_s)):
            await self._until_configured(wish)

    async def _installs(self, machine: MachineRef) -> bool:
        """Whether the machine will be installed first. A machine that does not say gets the longer budget."""
        try:
            async with self._fleet.maintenance(machine) as client:
                return await client.system_disk() is None
        except TalosError:
            return True

    async def _until_configured(self, wish: Wish) -> None:
        machine, stubborn_since = wish.machine, None
        while True:
            sight = await self._fleet.find(machine, wish.digest)
            if sight.found is Found.SAME and sight.status is not None and sight.status.stage in UP:
                self._note(machine, sight.status.stage.value)
                return
            if sight.found is Found.FRESH and machine.name not in self._applied:
                await self._apply_first(wish)
            stubborn = sight.found in (Found.STRANGE, Found.FOREIGN, Found.DIFFERENT)
            stubborn_since = (stubborn_since or time.monotonic()) if stubborn else None
            if stubborn_since is not None and time.monotonic() - stubborn_since > STUBBORN_S:
                raise self._failed(
                    wish, sight.text, "look at its console; correct what is said above and run `pulumi up` again"
                )
            self._progress.say(self._fleet.summary())
            await asyncio.sleep(LOOK_EVERY_S)

    async def _apply_first(self, wish: Wish) -> None:
        """Hand the configuration over, once per run. An answer that got lost is found out by looking again."""
        machine = wish.machine
        self._note(machine, "is given its configuration")
        try:
            async with self._fleet.maintenance(machine) as client:
                # AUTO is the one mode that every version from 1.10 on takes in maintenance mode.
                await client.apply(wish.configuration, ApplyMode.AUTO, deadline_s=30)
        except NotYet as error:
            self._note(machine, f"says: {error.text}")  # it is applying one already, or the API is not complete yet
            return
        except Answered as error:
            raise self._rejected(wish, error) from None
        except TalosError as error:
            if not absent(error) and not isinstance(error, WrongPeer):
                raise
            self._note(machine, error.text)
            return
        self._applied.add(machine.name)

    # Later configurations -------------------------------------------------------------------------------------------

    async def _change(self, wishes: list[Wish]) -> None:
        """Control planes one by one behind the gate, then workers in batches."""
        for wish in (w for w in wishes if w.machine.is_control_plane):
            await self._gate.passes(f"before {wish.machine.name} is changed", self._deadline_s)
            await self._change_one(wish)
            await self._gate.passes(f"after {wish.machine.name} was changed", self._deadline_s)
        workers = [w for w in wishes if not w.machine.is_control_plane]
        await in_batches(workers, self._worker_batch, self._change_one)

    async def _change_one(self, wish: Wish) -> None:
        async with budget(self._deadline_s, lambda: self._not_back(wish, self._deadline_s)):
            try:
                await self._apply_later(wish)
            except Answered as error:
                raise self._rejected(wish, error) from None
            await self._until_configured(wish)

    async def _apply_later(self, wish: Wish) -> None:
        """Apply, and see a needed reboot through: up to 1.13 the machine does it by itself, later it has to be told."""
        machine = wish.machine
        self._note(machine, "is given its new configuration")
        async with self._fleet.secure(machine) as client:
            version, before = await client.version(), await client.configuration()
            applied = await client.apply(wish.configuration, ApplyMode.AUTO, deadline_s=30)
            reboots = applied.mode is ApplyMode.REBOOT
            if not reboots and not configuration.applying_reboots(version):
                reasons = configuration.reboot_reasons(before, wish.configuration)
                if reasons:
                    self._note(machine, f"reboots for {', '.join(reasons)}")
                    await client.reboot()
                    reboots = True
            # The reply comes before the reboot; only the lost connection says that what answers next is the new life.
            if reboots and not await client.hangs_up(LEAVES_WITHIN_S):
                raise self._failed(
                    wish, "accepted a reboot and did not go", "reboot it from its console, then run `pulumi up` again"
                )

    # Saying ---------------------------------------------------------------------------------------------------------

    def _note(self, machine: MachineRef, text: str) -> None:
        self._fleet.seen[machine.name] = text
        self._progress.say(self._fleet.summary())

    def _states(self, first: MachineRef) -> dict[str, str]:
        names = [first.name, *(m.name for m in self._fleet.machines if m.name != first.name)][:12]
        left_out = len(self._fleet.machines) - len(names)
        states = {name: self._fleet.seen.get(name, "not touched") for name in names}
        return {**states, **({"others": f"{left_out} more"} if left_out else {})}

    def _rejected(self, wish: Wish, error: Answered) -> StageFailed:
        text = configuration.redacted(error.text, wish.configuration)
        return self._failed(
            wish, f"refused its configuration: {text}", "correct the stack file and run `pulumi up` again"
        )

    def _failed(self, wish: Wish, text: str, next_step: str) -> StageFailed:
        self._fleet.seen[wish.machine.name] = text
        return StageFailed(
            f"{wish.machine.name} ({wish.machine.address}) could not be configured.",
            details=self._states(wish.machine),
            means="the other machines keep what they have; nothing was lost",
            next_step=next_step,
        )

    def _not_back(self, wish: Wish, limit_s: float) -> StageFailed:
        machine = wish.machine
        again = self._fleet.seen.get(machine.name) == str(
            Stage.MAINTENANCE
        ) or PeerFault.MAINTENANCE.value in self._fleet.seen.get(machine.name, "")
        hint = (
            "it is in maintenance mode again: it booted from the installation medium, or Talos was not installed; "
            if again
            else ""
        )
        return StageFailed(
            f"{machine.name} did not come back after its configuration was applied ({format_seconds(limit_s)} budget used up).",
            details=self._states(machine),
            means="the machine is not part of the cluster; the others keep what they have, nothing was lost",
            next_step=f"{hint}look at its console; when it answers again run `pulumi up`: it continues from here",
        )


def _settled(sight: Sight) -> bool:
    return sight.found in (Found.FRESH, Found.SAME, Found.DIFFERENT)


def _names(names: list[str], *, most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
