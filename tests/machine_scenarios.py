"""The scenarios of the machines that say what a user must see, on this process' own addresses."""

from __future__ import annotations

from pathlib import Path

from lab import scenario
from lab.scenario import Scenario
from tests.addresses import prefix


def machine_stage(path: Path) -> Scenario | None:
    """The scenario on its own addresses, when it is about the Talos stage."""
    chosen = scenario.load(path)
    return chosen.relocated(prefix()) if "expect" in chosen.model_fields_set else None


PLAYED = {
    path.stem: chosen for path in sorted(scenario.FOLDER.glob("*.yaml")) if (chosen := machine_stage(path)) is not None
}


def seen_once(events: list[str], installed: bool, chosen: Scenario) -> bool:
    """One bootstrap and one configuration per machine where it succeeded; nowhere more than one, whatever happened."""
    applied = [events.count(f"machine {machine.name} config applied") for machine in chosen.machines]
    bootstrapped = events.count("cluster bootstrapped")
    return max(applied) <= 1 and bootstrapped <= 1 and (not installed or (min(applied), bootstrapped) == (1, 1))
