"""What a person decided about machines that are no longer in the inventory."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from cozystack_iac.settings import Site


class Approval(BaseModel):
    """What a person decided about one machine, with the reasons; None: not approved."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    reset: str | None = None
    evacuate: str | None = None
    lost: str | None = None


def approvals(site: Site) -> dict[str, Approval]:
    """The decisions, by machine."""
    return {
        entry.name: Approval(
            reset=entry.reset.reason if entry.reset is not None and entry.reset.approved else None,
            evacuate=entry.evacuate.reason if entry.evacuate is not None and entry.evacuate.approved else None,
            lost=entry.lost.reason if entry.lost is not None and entry.lost.approved else None,
        )
        for entry in site.removed
    }
