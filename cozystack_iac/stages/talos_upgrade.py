"""Every machine runs its pinned image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydantic import Field

from cozystack_iac.membership.upgrade import Running, Upgrade, reason
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.verification import WantedMachine
from cozystack_iac.waiting import Progress, StageFailed


class UpgradeInputs(Properties):
    machines: list[MachineRef]
    wanted: dict[str, WantedMachine]  # by machine
    settled: bool  # whether every machine has its configuration; False before a rollout
    client_configuration: dict[str, str] = Field(repr=False)
    deadline_s: float  # of one machine's upgrade


class RunningMachine(Properties):
    talos: str  # "" when it did not say
    lacking: list[str]  # wanted extensions that are not there


class UpgradeOutputs(Properties):
    running: dict[str, RunningMachine]


class TalosUpgradeProvider(StageProvider[UpgradeInputs, UpgradeOutputs]):
    """Every machine runs its pinned image. Does nothing where that is so; else one machine after the other.

    Only Cozystack's image (or a mirror of it) is installed: of others nothing is known, and verification says so.
    """

    inputs = UpgradeInputs
    outputs = UpgradeOutputs
    secret = frozenset({"client_configuration"})
    matters = frozenset({"machines", "wanted"})

    async def establish(self, inputs: UpgradeInputs, progress: Progress) -> UpgradeOutputs:
        return _running(await _upgrade(inputs, progress).run())

    async def observe(self, inputs: UpgradeInputs, outputs: UpgradeOutputs) -> UpgradeOutputs | None:
        """What every machine runs now; one that does not answer keeps its place, and says nothing."""
        upgrade = _upgrade(inputs, Progress("TalosUpgrade"))
        looks = await asyncio.gather(*(upgrade.look(machine) for machine in inputs.machines))
        pairs = [(m, look) for m, look in zip(inputs.machines, looks, strict=True) if m.name in outputs.running]
        if pairs and not any(look.running for _, look in pairs):
            raise silent({machine.name: look.text for machine, look in pairs})
        return _running({machine.name: look.running or Running("") for machine, look in pairs})

    def drifted(self, inputs: UpgradeInputs, outputs: UpgradeOutputs) -> bool:
        seen = {name: Running(one.talos, tuple(one.lacking)) for name, one in outputs.running.items() if one.talos}
        return any(name in inputs.wanted and reason(one, inputs.wanted[name]) for name, one in seen.items())

    async def withdraw(self, inputs: UpgradeInputs, outputs: UpgradeOutputs, progress: Progress) -> None:
        progress.say("the machines keep their current Talos version")


def _upgrade(inputs: UpgradeInputs, progress: Progress) -> Upgrade:
    fleet = Fleet.of(inputs.machines, inputs.client_configuration)
    return Upgrade(fleet, inputs.wanted, deadline_s=inputs.deadline_s, settled=inputs.settled, progress=progress)


def _running(running: Mapping[str, Running]) -> UpgradeOutputs:
    made = {name: RunningMachine(talos=one.talos, lacking=list(one.lacking)) for name, one in running.items()}
    return UpgradeOutputs(running=made)


class TalosUpgrade(StageResource[UpgradeInputs], provider=TalosUpgradeProvider):
    pass


def silent(states: Mapping[str, str]) -> StageFailed:
    return StageFailed(
        "No machine reports its Talos version.",
        details=dict(list(states.items())[:12]),
        means="drift cannot be detected; the state keeps its last values",
        next_step="check the network path to the machines, then run the refresh again",
    )
