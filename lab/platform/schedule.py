"""helm-controller's decisions: who may act, when, with what outcome. Pure: time comes in, steps come out.

Five actions at a time per controller, dependencies looked at every 30 s and never watched, waits polled every 5 s, retries
after 30 s (or the uninstall loop of 1.3). `Schedule` knows nothing of the API server: `flux.py` feeds it what it sees and
carries out the steps it returns. Times are real-life seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from zlib import crc32

from lab.platform.helmstatus import Chart, HelmStatus
from lab.platform.timing import (
    BACKOFF_S,
    DEPENDENCY_RECHECK_S,
    INTERVAL_S,
    RETRY_S,
    SHARD_SLOTS,
    SLOTS,
    STATUS_POLL_S,
    TIMEOUT_S,
    UNINSTALL_S,
    Behaviour,
)

_DOING = {"install": "installing", "upgrade": "upgrading"}


_NO_CHART = Chart("", "", "")
MAIN_POOL = "main"


class Phase(StrEnum):
    CHECKING = "checking"  # dependencies are looked at again at `at`
    QUEUED = "queued"  # may act, waits for a slot
    RUNNING = "running"
    APPLYING = "applying"  # the action went well; its effects are being made
    READY = "ready"
    RETRYING = "retrying"
    REMEDIATING = "remediating"
    STALLED = "stalled"
    SUSPENDED = "suspended"
    DELETING = "deleting"
    GONE = "gone"


class Failing(StrEnum):
    """What a release does about a failed action."""

    RETRY = "retry"  # strategy RetryOnFailure
    REMEDIATE = "remediate"  # remediation.retries: -1
    GIVE_UP = "give up"  # neither: one failure stalls it


@dataclass(frozen=True)
class View:
    """What the controller reads from a HelmRelease object. `fingerprint` is its spec without `suspend`."""

    ref: str
    generation: int
    fingerprint: str
    depends_on: tuple[str, ...] = ()
    suspended: bool = False
    deleting: bool = False
    requested_at: str = ""
    reset: bool = False  # resetAt or forceAt carry the same value as requestedAt
    failing: Failing = Failing.RETRY
    timeout_s: float = TIMEOUT_S
    interval_s: float = INTERVAL_S
    pool: str = MAIN_POOL  # releases labelled for another shard have a controller, and slots, of their own
    chart: Chart = _NO_CHART


@dataclass(frozen=True)
class Step:
    """Something happened to a release; `status` is what its object must say now.

    what: checked | installing | upgrading | applied | ready | failed | stalled | suspended | uninstalled.
    After `applied` the caller makes the release's effects and then calls `Schedule.settle`.
    """

    ref: str
    what: str
    status: HelmStatus


@dataclass
class _Entry:
    view: View
    behaviour: Behaviour
    phase: Phase = Phase.CHECKING
    at: float | None = None
    status: HelmStatus = field(default_factory=HelmStatus)
    applied: str = ""  # fingerprint of the last successful action
    action: str = "install"
    action_fingerprint: str = ""
    attempts: int = 0
    started: float = 0.0
    first_start: float | None = None
    queued: float = 0.0
    backoff_s: float = BACKOFF_S[0]


Gate = Callable[[str], str | None]


class Schedule:
    """All releases of a cluster. `gate(ref)` says what a finished action still waits for, None when nothing.

    Such a wait fails after the release's own timeout, but not before `patience_s`.
    """

    def __init__(
        self,
        behaviour: Callable[[str], Behaviour],
        gate: Gate = lambda _: None,
        *,
        kstatus: bool = True,
        patience_s: float = 0.0,
    ) -> None:
        self._behaviour = behaviour
        self._gate = gate
        self._kstatus = kstatus
        self._patience_s = patience_s
        self._entries: dict[str, _Entry] = {}

    # What the caller tells ------------------------------------------------------------------------------------------

    def observe(self, view: View, now: float) -> None:
        """The object was created or changed."""
        entry = self._entries.get(view.ref)
        if entry is None:
            behaviour = self._behaviour(view.ref)
            self._entries[view.ref] = _Entry(view, behaviour, at=now)
            return
        before, entry.view = entry.view, view
        if view.deleting and entry.phase not in (Phase.DELETING, Phase.GONE):
            nothing_to_do = view.suspended or entry.status.revision == 0
            entry.phase, entry.at = Phase.DELETING, now + (0 if nothing_to_do else UNINSTALL_S)
        elif entry.phase in (Phase.RUNNING, Phase.APPLYING, Phase.REMEDIATING, Phase.DELETING):
            return  # looked at again when the action is over
        elif view.generation != before.generation or self._asked(entry, before):
            entry.phase, entry.at = Phase.CHECKING, now

    def _asked(self, entry: _Entry, before: View) -> bool:
        """A person asks for a look now; a release that has given up needs to be told to start afresh, too."""
        return entry.view.requested_at != before.requested_at and (entry.phase != Phase.STALLED or entry.view.reset)

    def forget(self, ref: str) -> None:
        """The object is gone."""
        self._entries.pop(ref, None)

    def behave(self, ref: str, behaviour: Behaviour) -> None:
        """From now on the release behaves differently; one that is ready fails its next action only."""
        entry = self._entries.get(ref)
        if entry is not None:
            entry.behaviour, entry.attempts = behaviour, 0

    def settle(self, ref: str, now: float) -> Step | None:
        """The effects of an `applied` action exist: the release is ready and its slot free."""
        entry = self._entries.get(ref)
        if entry is None or entry.phase != Phase.APPLYING:
            return None
        status = entry.status.succeeded(entry.action, entry.view.chart, entry.view.generation)
        entry.status = status.acknowledged(entry.view.requested_at)
        entry.applied, entry.attempts, entry.backoff_s = entry.action_fingerprint, 0, BACKOFF_S[0]
        changed_meanwhile = entry.view.fingerprint != entry.applied or entry.view.suspended
        entry.phase, entry.at = Phase.READY, now if changed_meanwhile else now + entry.view.interval_s
        return Step(ref, "ready", entry.status)

    # What the caller asks -------------------------------------------------------------------------------------------

    def phase(self, ref: str) -> Phase | None:
        entry = self._entries.get(ref)
        return entry.phase if entry else None

    def view(self, ref: str) -> View | None:
        entry = self._entries.get(ref)
        return entry.view if entry else None

    def ready(self, ref: str) -> bool:
        """Ready as a dependant sees it: condition true and generation observed."""
        entry = self._entries.get(ref)
        return entry is not None and entry.status.ready and entry.status.observed_generation == entry.view.generation

    def attempted(self, ref: str) -> bool:
        entry = self._entries.get(ref)
        return entry is not None and entry.first_start is not None

    def next_at(self) -> float | None:
        return min((e.at for e in self._entries.values() if e.at is not None), default=None)

    def advance(self, now: float) -> list[Step]:
        """Everything that has become due, in order of time."""
        steps: list[Step] = []
        due = [(e.at, ref) for ref, e in self._entries.items() if e.at is not None and e.at <= now]
        for _, ref in sorted(due):
            steps += self._turn(self._entries[ref], now)
        steps += self._start(now)
        return steps

    # Decisions ------------------------------------------------------------------------------------------------------

    def _turn(self, entry: _Entry, now: float) -> list[Step]:
        turns = {
            Phase.CHECKING: self._check,
            Phase.RETRYING: self._check,
            Phase.READY: self._check,
            Phase.RUNNING: self._poll,
            Phase.REMEDIATING: self._remediated,
            Phase.DELETING: self._uninstalled,
        }
        entry.at = None
        turn = turns.get(entry.phase)
        return turn(entry, now) if turn else []

    def _check(self, entry: _Entry, now: float) -> list[Step]:
        """Suspended? Dependencies ready? Anything to do?"""
        view, before = entry.view, entry.status
        if view.suspended:
            entry.phase, entry.status = Phase.SUSPENDED, before.suspended(view.generation)
            return self._said(entry, before, "suspended")
        missing = self._missing(view)
        if missing:
            first = not before.conditions
            entry.phase, entry.status = Phase.CHECKING, before.blocked("DependencyNotReady", missing)
            entry.at = now + (self._spread(view.ref) if first else DEPENDENCY_RECHECK_S)
            return self._said(entry, before, "checked")
        if entry.behaviour.blocked:
            entry.phase, entry.at = Phase.CHECKING, now + DEPENDENCY_RECHECK_S
            entry.status = before.blocked(entry.behaviour.blocked, entry.behaviour.error)
            return self._said(entry, before, "checked")
        if entry.applied and entry.applied == view.fingerprint and before.failures == 0:
            entry.phase, entry.at = Phase.READY, now + view.interval_s
            entry.status = before.in_sync(view.generation).acknowledged(view.requested_at)
            return self._said(entry, before, "ready")
        entry.phase, entry.queued = Phase.QUEUED, now
        entry.status = before.fulfilling()
        return []

    def _missing(self, view: View) -> str | None:
        for dependency in view.depends_on:
            if dependency not in self._entries:
                name = dependency.split("/")[1]
                return (
                    f"unable to get '{dependency}' dependency: helmreleases.helm.toolkit.fluxcd.io \"{name}\" not found"
                )
            if not self.ready(dependency):
                return f"dependency '{dependency}' is not ready"
        return None

    def _start(self, now: float) -> list[Step]:
        """Fill free slots in the order of queueing."""
        steps = []
        busy: dict[str, int] = {}
        for entry in self._entries.values():
            if entry.phase in (Phase.RUNNING, Phase.APPLYING, Phase.REMEDIATING):
                busy[entry.view.pool] = busy.get(entry.view.pool, 0) + 1
        waiting = [e for e in self._entries.values() if e.phase == Phase.QUEUED]
        for entry in sorted(waiting, key=lambda e: (e.queued, e.view.ref)):
            pool = entry.view.pool
            if busy.get(pool, 0) >= (SLOTS if pool == MAIN_POOL else SHARD_SLOTS):
                continue
            busy[pool] = busy.get(pool, 0) + 1
            steps.append(self._begin(entry, now))
        return steps

    def _begin(self, entry: _Entry, now: float) -> Step:
        entry.action = "upgrade" if entry.status.revision else "install"
        entry.phase, entry.started, entry.action_fingerprint = Phase.RUNNING, now, entry.view.fingerprint
        if entry.first_start is None:
            entry.first_start = now
        entry.attempts += 1
        entry.status = entry.status.running(entry.action, entry.view.timeout_s)
        entry.at = now + self._action_s(entry)
        return Step(entry.view.ref, _DOING[entry.action], entry.status)

    def _action_s(self, entry: _Entry) -> float:
        plan = entry.behaviour
        if self._lacks_kind(entry) or (plan.rendered and entry.attempts <= plan.fails):
            return 1.0  # the manifest is refused at once
        if plan.ready_after_s is not None and entry.first_start is not None:
            left = entry.first_start + plan.ready_after_s - entry.started
            return min(max(left, STATUS_POLL_S), entry.view.timeout_s)
        length = plan.action_s if entry.action == "install" else min(plan.action_s, 30.0)
        return min(length, entry.view.timeout_s)

    def _lacks_kind(self, entry: _Entry) -> bool:
        provider = entry.behaviour.provider
        return bool(provider) and provider in self._entries and not self.ready(provider)

    def _poll(self, entry: _Entry, now: float) -> list[Step]:
        """The action's time is over, or a wait is polled."""
        plan = entry.behaviour
        if self._lacks_kind(entry):
            return [self._fail(entry, _no_matches(plan.lacks), now, stored=False)]
        if plan.exhausts or entry.attempts <= plan.fails:
            error = plan.error or self._stuck(entry, "InProgress", f"Deployment/{entry.view.ref}")
            return [self._fail(entry, error, now, stored=not plan.rendered)]
        waits_for = self._gate(entry.view.ref)
        late = plan.ready_after_s is not None and now < (entry.first_start or 0.0) + plan.ready_after_s - 1e-6
        if not late and waits_for is None:
            entry.phase = Phase.APPLYING
            return [Step(entry.view.ref, "applied", entry.status)]
        # What others still have to do may take wall time of its own, which no clock scales.
        limit_s = entry.view.timeout_s if late else max(entry.view.timeout_s, self._patience_s)
        if now - entry.started >= limit_s - 1e-6:
            error = self._stuck(entry, "InProgress", waits_for or f"Deployment/{entry.view.ref}")
            return [self._fail(entry, error, now, stored=True)]
        entry.at = min(now + STATUS_POLL_S, entry.started + limit_s)
        return []

    def _stuck(self, entry: _Entry, state: str, what: str) -> str:
        """1.5+ names what it waited for; the legacy wait does not."""
        return f"timeout waiting for: [{what} status: '{state}']" if self._kstatus else "context deadline exceeded"

    def _fail(self, entry: _Entry, error: str, now: float, *, stored: bool) -> Step:
        view, chart = entry.view, entry.view.chart
        failing = Failing.GIVE_UP if entry.behaviour.exhausts else view.failing
        if failing == Failing.GIVE_UP:
            entry.phase, entry.at = Phase.STALLED, None
            entry.status = entry.status.stalled(entry.action, chart, error, view.generation)
            return Step(view.ref, "stalled", entry.status)
        if failing == Failing.REMEDIATE:
            entry.phase, entry.at = Phase.REMEDIATING, now + UNINSTALL_S
            entry.status = entry.status.uninstalling(entry.action, chart, error)
            return Step(view.ref, "failed", entry.status)
        entry.phase, entry.at = Phase.RETRYING, now + RETRY_S
        entry.status = entry.status.failed(entry.action, chart, error, view.generation, RETRY_S, stored=stored)
        return Step(view.ref, "failed", entry.status)

    def _remediated(self, entry: _Entry, now: float) -> list[Step]:
        entry.phase, entry.at = Phase.RETRYING, now + entry.backoff_s
        entry.backoff_s = min(entry.backoff_s * 2, BACKOFF_S[1])
        entry.status = entry.status.remediated(entry.view.chart)
        return [Step(entry.view.ref, "checked", entry.status)]

    def _uninstalled(self, entry: _Entry, now: float) -> list[Step]:
        del now
        entry.phase = Phase.GONE
        return [Step(entry.view.ref, "uninstalled", entry.status)]

    def _said(self, entry: _Entry, before: HelmStatus, what: str) -> list[Step]:
        return [Step(entry.view.ref, what, entry.status)] if entry.status != before else []

    def _spread(self, ref: str) -> float:
        """Objects are not all written in the same moment; a fixed spread per name keeps runs repeatable."""
        return 1.0 + crc32(ref.encode()) % int(DEPENDENCY_RECHECK_S)


def _no_matches(kind: str) -> str:
    return (
        'unable to build kubernetes objects from release manifest: resource mapping not found for name: "" '
        f'namespace: "" from "": no matches for kind "{kind}" ensure CRDs are installed first'
    )
