"""When each link of the install ran and for how long, as a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

SHORTEST_S = 1.0  # a picture of half an hour does not show less


def stamp(now: datetime) -> str:
    """`2026-11-30T17:00:00Z`."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Took(BaseModel):
    """One run of a stage: when it started (UTC, `2026-11-30T17:00:00Z`) and its seconds."""

    model_config = ConfigDict(frozen=True)

    started: str
    seconds: float

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(self.started).astimezone(UTC)


def since(links: Mapping[str, Took | None], start: datetime) -> dict[str, Took]:
    """The links that ran since `start`, in the order they started. Stamps are whole seconds, so its own second counts."""
    ran = {name: took for name, took in links.items() if took is not None and took.at >= start.replace(microsecond=0)}
    return dict(sorted(ran.items(), key=lambda item: (item[1].at, item[0])))


def markdown(ran: Mapping[str, Took]) -> str:
    """The timeline as a Gantt chart in Mermaid, which forges and editors draw; empty when nothing ran."""
    if not ran:
        return ""
    lines = ["```mermaid", "gantt", "  dateFormat YYYY-MM-DDTHH:mm:ss", "  axisFormat %H:%M:%S"]
    for name, took in ran.items():
        seconds = max(SHORTEST_S, round(took.seconds))
        lines.append(f"  {name} ({took.seconds:g} s) :{took.at:%Y-%m-%dT%H:%M:%S}, {seconds:g}s")
    return "\n".join([*lines, "```"])
