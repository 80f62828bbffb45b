"""The answers of the readiness judgement: one state per subject, one verdict for the platform. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from cozystack_iac.readiness.phases import Item, is_release


class State(StrEnum):
    """What one subject's phase amounts to, time taken into account."""

    READY = "ready"
    PROGRESSING = "progressing"
    STALE = "stale"
    SUSPENDED = "suspended"
    STUCK = "stuck"
    UNKNOWN = "unknown"


class StuckClass(Enum):
    """Why something will not get on by itself."""

    GIVEN_UP = "Flux does not retry it"
    REJECTED = "it refers to something that does not exist"
    REPEATING = "it keeps failing in the same way"
    OVERDUE = "it has exceeded its time limit, and nothing else is progressing"
    MISSING = "nothing creates it"
    DELETING = "its deletion does not finish"
    CIRCLE = "it depends on itself"


@dataclass(frozen=True)
class ReleaseStanding:
    """One row of the readiness matrix. `item`: where it stands and why; `root`: what holds it up, empty for roots."""

    item: Item
    state: State
    package: str  # subject of the package or release that writes it; its own for a package
    for_s: float  # how long unchanged
    free_s: float = 0.0  # how long it has waited for nothing but itself
    stuck: StuckClass | None = None
    root: str = ""

    @property
    def subject(self) -> str:
        return self.item.subject


@dataclass(frozen=True)
class Blocker:
    """A root of what is not ready: nothing else has to happen before it can go on."""

    subject: str
    words: str
    reason: str  # of its condition
    evidence: str  # the condition's message
    for_s: float
    dependants: tuple[str, ...]  # everything that waits for it, directly or through others
    cause: str
    remedy: str
    stuck: StuckClass | None = None

    @property
    def behind(self) -> int:
        """Releases that wait for it."""
        return sum(map(is_release, self.dependants))


@dataclass(frozen=True)
class Ready:
    """Every expected release is ready, and stays so."""

    count: int


@dataclass(frozen=True)
class Unready:
    """Not ready, and known why. `blockers`: the roots, the one with most behind it first."""

    ready: int
    total: int
    blockers: tuple[Blocker, ...] = ()

    @property
    def reason(self) -> str:
        return f"{self.blockers[0].subject} is {self.blockers[0].words}"

    @property
    def remedy(self) -> str:
        return self.blockers[0].remedy


@dataclass(frozen=True)
class Progressing(Unready):
    """It goes on by itself. No blockers: all are ready and only have to stay so, as `note` says."""

    note: str = ""


@dataclass(frozen=True)
class Stale(Unready):
    """Ready for what was asked before; Flux has not taken in the last change of the blockers."""


@dataclass(frozen=True)
class Suspended(Unready):
    """Nothing can go on but what somebody has suspended."""


@dataclass(frozen=True)
class Stuck(Unready):
    """At least one root will not go on by itself; the blockers are all of these."""


@dataclass(frozen=True)
class Unknown:
    """The question is open: the cluster, or a part of it, could not be read."""

    reason: str
    ready: int = 0
    total: int = 0


Verdict = Ready | Progressing | Stale | Suspended | Stuck | Unknown


@dataclass(frozen=True)
class QueryFailed:
    """The cluster could not be asked, or not all of it."""

    reason: str


@dataclass(frozen=True)
class Held:
    """Something that is so, unchanged, since a moment."""

    what: str
    since: float


@dataclass(frozen=True)
class Since:
    """Memory between judgements. Only this run counts: an old failure may have been repaired.

    `ready`: since when the same set has been whole; `held`: what each subject is, unchanged; `free`: since when it has been
    a root.
    """

    started: float
    ready: float | None = None
    progress: float | None = None
    count: int = 0
    names: frozenset[str] = frozenset()
    held: Mapping[str, Held] | None = None
    free: Mapping[str, float] | None = None

    def quiet_s(self, now: float) -> float:
        """How long no further release has become ready."""
        return now - (self.started if self.progress is None else self.progress)

    def held_s(self, subject: str, now: float) -> float:
        held = (self.held or {}).get(subject)
        return now - held.since if held else 0.0

    def free_s(self, subject: str, now: float) -> float:
        return now - (self.free or {}).get(subject, now)


@dataclass(frozen=True)
class Judgement:
    """One look: the verdict, where every subject stands, and what to remember for the next look."""

    verdict: Verdict
    standings: tuple[ReleaseStanding, ...]
    since: Since
