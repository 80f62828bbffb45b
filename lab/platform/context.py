"""What the platform's simulators share: the world, the door to the API server, the release's catalogue and the user's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.platform.catalogue import Catalogue, Choice
from lab.platform.hub import Hub
from lab.platform.schedule import Schedule
from lab.platform.timing import PACKAGE_WAVE_S, Behaviour, behaviour
from lab.scenario import ReleaseOverride
from lab.world import World


@dataclass
class Platform:
    """`choice` and `values` are None and empty until the platform Package exists; `cni_ready` drives the nodes."""

    world: World
    hub: Hub
    known: Catalogue
    state: Path
    schedule: Schedule = field(init=False)
    choice: Choice | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    namespaces: dict[str, bool] = field(default_factory=dict)  # made by the operator -> privileged
    changes: dict[str, ReleaseOverride] = field(default_factory=dict)  # release -> what a fault made of it
    cni_ready: bool = False
    pools: dict[tuple[str, str], str] = field(default_factory=dict)  # (node, LINSTOR pool) -> zpool

    @property
    def host(self) -> str:
        """The public host of the installation (`publishing.host`)."""
        publishing = self.values.get("publishing")
        return (
            str((publishing or {}).get("host") or "example.org") if isinstance(publishing, Mapping) else "example.org"
        )

    @property
    def package_wave_s(self) -> float:
        """Real-life seconds between two levels of package dependencies; option `package_wave`."""
        return float(self.world.scenario.platform.options.get("package_wave", PACKAGE_WAVE_S))

    @property
    def oidc(self) -> bool:
        return self.choice is not None and self.choice.oidc

    def behaviour(self, ref: str) -> Behaviour:
        usual = behaviour(ref, self.known)
        override = self.override(ref)
        return usual.overruled(override) if override else usual

    def override(self, ref: str) -> ReleaseOverride | None:
        return self.changes.get(ref) or self.world.scenario.platform.overrides.get(ref)

    async def sleep(self, real_life_s: float) -> None:
        await self.world.clock.sleep(real_life_s)
