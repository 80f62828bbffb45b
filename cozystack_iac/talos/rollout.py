"""Bringing configurations onto machines: first ones side by side, later ones without ever endangering etcd's quorum.

Every step reads before it writes, so that a run that was killed anywhere is continued by the next one: a machine that
carries the wanted configuration already is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cozystack_iac.talos import configuration
from cozystack_iac.talos.errors import Answered, NotYet, TalosError
from cozystack_iac.talos.fleet import Fleet, Found, MachineRef, Sight, in_batches, together
from cozystack_iac.talos.gate import Gate
from cozystack_iac.talos.machine import ApplyMode, Stage
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, patience, pause

APPLY_S = 30.0  # a configuration is validated against disks and written before the answer
LOOK_EVERY_S = 0.5  # a machine that comes back has no way to say so
STUBBORN_S = 60.0  # how long a peer may be the wrong one before it will not heal by itself
LEAVES_WITHIN_S = 120.0  # a reboot that was accepted cuts the connection well before that
UP = frozenset((Stage.BOOTING, Stage.RUNNING))  # before bootstrap a control plane stays in `booting`


@dataclass(frozen=True)
class Wish:
    """What one machine shall carry."""

    machine: MachineRef
    configuration: str = field(repr=False)


class Rollout:
    """One rollout over those machines of a fleet that have a configuration in `configurations`; others are left alone.

    `deadline_s` is every machine's own budget, doubled where Talos is installed first. `leaving` are control planes that are no
    longer in the fleet and still vote: while one of them is away, no other may be.
    """

    def __init__(
        self,
        fleet: Fleet,
        configurations: Mapping[str, str],
        *,
        leaving: Sequence[MachineRef] = (),
        deadline_s: float,
        worker_batch: int,
        progress: Progress,
    ) -> None:
        self._fleet = fleet
        self._leaving = tuple(leaving)
        self._wishes = [Wish(m, configurations[m.name]) for m in fleet.machines if m.name in configurations]
        self._deadline_s = deadline_s
        self._worker_batch = worker_batch
        self._progress = progress
        self._given: set[str] = set()
        self._returned: dict[str, bool] = {}

    async def run(self) -> dict[str, str]:
        """Until every machine runs with its configuration; digests by machine. Raises StageFailed."""
        sights = await self._survey()
        by_standing: dict[Found, list[Wish]] = defaultdict(list)
        for wish in self._wishes:
            by_standing[sights[wish.machine.name].found].append(wish)
        if adopted := [w.machine.name for w in by_standing[Found.SAME]]:
            self._progress.say(f"already configured and left unchanged: {_names(adopted)}")
        settling = [w for w in by_standing[Found.SAME] if not _is_up(sights[w.machine.name])]
        await self._begin(by_standing[Found.FRESH], settling)
        await self._change(by_standing[Found.DIFFERENT])
        return {w.machine.name: configuration.digest(w.configuration) for w in self._wishes}

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
                found = await asyncio.gather(*(self._fleet.find(w.machine, w.configuration) for w in open_))
                now = time.monotonic()
                for wish, sight in zip(open_, found, strict=True):
                    sights[wish.machine.name] = sight
                    if sight.found is Found.STRANGE:
                        strangers_since.setdefault(wish.machine.name, now)
                    else:
                        strangers_since.pop(wish.machine.name, None)
                self._refuse(sights, {n for n, since in strangers_since.items() if now - since > patience(STUBBORN_S)})
                if all(_settled(s) for s in sights.values()):
                    return sights
                waiting = [name for name, sight in sights.items() if not _settled(sight)]
                self._progress.say(f"waiting for {self._fleet.summary(waiting)}")
                await pause(LOOK_EVERY_S)

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
                means="no machine was changed; the others are still waiting",
                next_step="correct the address, remove the machine from the inventory, or reset it; then run "
                "`pulumi up` again",
            )

    def _missing(self, sights: Mapping[str, Sight]) -> StageFailed:
        away = {name: sight for name, sight in sights.items() if not _settled(sight)}
        return StageFailed(
            f"{len(away)} of {len(self._wishes)} machines did not respond (timed out after "
            f"{format_seconds(self._deadline_s)}).",
            details={name: sight.text for name, sight in away.items()},
            means="no machine was changed in this run",
            next_step="check their consoles, boot them into maintenance mode, then run `pulumi up` again",
        )

    # The first configuration ----------------------------------------------------------------------------------------

    async def _begin(self, fresh: list[Wish], settling: list[Wish]) -> None:
        """All side by side before there is an etcd; into an etcd that runs, control planes join one after the other."""
        newcomers = [w for w in fresh if w.machine.is_control_plane]
        names = {wish.machine.name for wish in newcomers}
        present = [m for m in self._fleet.control_planes if m.name not in names]
        if not newcomers or not present:
            await together([*fresh, *settling], self._bring_up)
            return
        await together([*settling, *(w for w in fresh if w not in newcomers)], self._bring_up)
        if not await self._gate(present).passes(f"before {newcomers[0].machine.name} joins", self._deadline_s):
            await together(newcomers, self._bring_up)
            return
        for wish in newcomers:
            await self._bring_up(wish)
            present.append(wish.machine)
            await self._gate(present).passes(f"after {wish.machine.name} joined", self._deadline_s)

    def _gate(self, members: Sequence[MachineRef]) -> Gate:
        return Gate(replace(self._fleet, machines=tuple(members)), self._progress, self._leaving)

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

    async def _until_configured(self, wish: Wish, *, may_change: bool = False, until: frozenset[Stage] = UP) -> None:
        """Look, give the configuration at most once, look again until it is in effect.

        An answer that got lost is found out by looking again, never by giving it twice on a guess.
        """
        machine = wish.machine
        stubborn_since: float | None = None
        while True:
            sight = await self._fleet.find(machine, wish.configuration)
            given = machine.name in self._given
            if sight.found is Found.SAME and _is_up(sight, until):
                self._note(machine, str(sight.status))
                return
            if sight.found is Found.FRESH and not given:
                await self._give(wish, self._apply_first)
            elif sight.found is Found.DIFFERENT and may_change and not given:
                await self._give(wish, self._apply_later)
            self._returned[machine.name] = given and sight.found is Found.FRESH
            stubborn = sight.found in (Found.STRANGE, Found.FOREIGN) or (sight.found is Found.DIFFERENT and given)
            stubborn_since = (stubborn_since or time.monotonic()) if stubborn else None
            if stubborn_since is not None and time.monotonic() - stubborn_since > patience(STUBBORN_S):
                raise self._failed(wish, sight.text, "check its console, then run `pulumi up` again")
            self._progress.say(self._fleet.summary())
            await pause(LOOK_EVERY_S)

    async def _give(self, wish: Wish, apply: Callable[[Wish], Awaitable[None]]) -> None:
        machine = wish.machine
        self._note(machine, "is being configured")
        try:
            await apply(wish)
        except NotYet as error:  # it is applying one already, or its API is not complete yet
            self._note(machine, f"reports: {error.text}")
        except Answered as error:
            text = configuration.redacted(error.text, wish.configuration)
            raise self._failed(
                wish, f"rejected its configuration: {text}", "correct the stack file, then run `pulumi up` again"
            ) from None
        except TalosError as error:
            self._note(machine, error.text)
        else:
            self._given.add(machine.name)

    async def _apply_first(self, wish: Wish) -> None:
        async with self._fleet.maintenance(wish.machine) as client:
            # AUTO is the mode that every version from 1.10 on takes in maintenance mode.
            await client.apply(wish.configuration, ApplyMode.AUTO, deadline_s=APPLY_S)

    # Later configurations -------------------------------------------------------------------------------------------

    async def _change(self, wishes: list[Wish]) -> None:
        """Control planes one by one behind the gate, then workers in batches."""
        gate = self._gate(self._fleet.control_planes)
        for wish in (w for w in wishes if w.machine.is_control_plane):
            await gate.passes(f"before {wish.machine.name} is changed", self._deadline_s)
            await self._change_one(wish)
            await gate.passes(f"after {wish.machine.name} was changed", self._deadline_s)
        workers = [w for w in wishes if not w.machine.is_control_plane]
        await in_batches(workers, self._worker_batch, self._change_one)

    async def _change_one(self, wish: Wish) -> None:
        """A machine that was running is waited for until it runs again; one that never was only has to be up."""
        async with budget(self._deadline_s, lambda: self._not_back(wish, self._deadline_s)):
            sight = await self._fleet.find(wish.machine, wish.configuration)
            ran = sight.status is not None and sight.status.stage is Stage.RUNNING
            await self._until_configured(wish, may_change=True, until=frozenset({Stage.RUNNING}) if ran else UP)

    async def _apply_later(self, wish: Wish) -> None:
        """Apply, and see a needed reboot through: up to 1.13 the machine does it by itself, later it has to be told."""
        machine = wish.machine
        async with self._fleet.secure(machine) as client:
            version, before = await client.version(), await client.configuration()
            applied = await client.apply(wish.configuration, ApplyMode.AUTO, deadline_s=APPLY_S)
            self._given.add(machine.name)
            reboots = applied.mode is ApplyMode.REBOOT
            needed = configuration.change_takes_reboot(before, wish.configuration)
            if needed and not configuration.applying_reboots(version):
                self._note(machine, "is rebooting to apply its new configuration")
                await client.reboot()
                reboots = True
            # The reply comes before the reboot; only the lost connection says that what answers next is the new life.
            if reboots and not await client.hangs_up(LEAVES_WITHIN_S):
                raise self._failed(
                    wish, "accepted the reboot request but did not reboot", "reboot it, then run `pulumi up` again"
                )

    # Saying ---------------------------------------------------------------------------------------------------------

    def _note(self, machine: MachineRef, text: str) -> None:
        self._fleet.seen[machine.name] = text
        self._progress.say(self._fleet.summary())

    def _states(self, first: MachineRef) -> dict[str, str]:
        names = [first.name, *(m.name for m in self._fleet.machines if m.name != first.name)][:12]
        left_out = len(self._fleet.machines) - len(names)
        states = {name: self._fleet.seen.get(name, "unchanged") for name in names}
        return {**states, **({"others": f"{left_out} more"} if left_out else {})}

    def _failed(self, wish: Wish, text: str, next_step: str) -> StageFailed:
        self._fleet.seen[wish.machine.name] = text
        return StageFailed(
            f"{wish.machine.name} ({wish.machine.address}) could not be configured.",
            details=self._states(wish.machine),
            means="the other machines keep their configuration; no data was lost",
            next_step=next_step,
        )

    def _not_back(self, wish: Wish, limit_s: float) -> StageFailed:
        machine = wish.machine
        hint = "it is in maintenance mode again, because it booted from its boot medium or Talos was not installed; "
        return StageFailed(
            f"{machine.name} did not come back with its configuration (timed out after {format_seconds(limit_s)}).",
            details=self._states(machine),
            means="the machine is not part of the cluster; the others keep their configuration, and no data was lost",
            next_step=f"{hint if self._returned.get(machine.name) else ''}check its console; when it responds "
            "again, run `pulumi up`: it continues from here",
        )


def _settled(sight: Sight) -> bool:
    return sight.found in (Found.FRESH, Found.SAME, Found.DIFFERENT)


def _is_up(sight: Sight, stages: frozenset[Stage] = UP) -> bool:
    return sight.status is not None and sight.status.stage in stages


def _names(names: list[str], *, most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
