"""The shortest possible install of a scenario: every delay of its world, and nothing for the program that installs. Pure.

Times are real-life seconds. The machines' part is arithmetic; from the operator on it is the lab's own rules played through
without a clock: `Schedule` decides what helm-controller does, packages come in their waves, LINSTOR and the aggregated API take
their time, and every step of the install follows in the very moment in which what it waits for is there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rich.table import Table

from cozystack_iac.waiting import format_seconds
from lab.platform import catalogue
from lab.platform.catalogue import PLATFORM_RELEASE, ROOT_TENANT_RELEASE, Package
from lab.platform.effects import NEEDS_VOLUMES, NEEDS_VOLUMES_KSTATUS
from lab.platform.linstor import RELEASE as LINSTOR_RELEASE
from lab.platform.schedule import MAIN_POOL, Failing, Schedule, Step, View
from lab.platform.tenants import API_RELEASE, KIND_RELEASE
from lab.platform.timing import (
    APISERVICE_S,
    ARTIFACT_BUILD_S,
    FLUX_INSTALLED_S,
    LINSTOR_CONTROLLER_S,
    LINSTOR_NODES_S,
    LINSTOR_POOL_S,
    LINSTOR_RELOAD_S,
    OCI_PULL_S,
    OPERATOR_CRDS_S,
    PACKAGE_WAVE_S,
    TENANT_CHILDREN_S,
    behaviour,
)
from lab.scenario import Delays, MachineSpec, Scenario

LONGEST_S = 6 * 3600.0  # a scenario that is not installed by then never will be


@dataclass(frozen=True)
class CriticalPath:
    """When each link of the install can be over at the earliest, in order; the last one is the platform's."""

    links: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return max(self.links.values())


class Endless(ValueError):
    """The scenario never becomes ready, whatever anybody does."""


def critical_path(
    scenario: Scenario, tenant: Mapping[str, Any], values: Mapping[str, Any], *, bare: bool = True
) -> CriticalPath:
    """`tenant`: what the root tenant is asked for; `values`: of the platform package. `bare`: beginning with the machines.

    Raises Endless, and FileNotFoundError for a Cozystack release without data.
    """
    links = dict(_machines(scenario)) if bare else {"nodes registered": 0.0}
    nodes_s = links["nodes registered"]
    stores = any(len(machine.disks) > 1 for machine in scenario.machines)
    links["zpools online"] = nodes_s + (scenario.delays.image_pull if stores else 0.0)
    start = links["zpools online"]
    links["operator ready"] = start + OPERATOR_CRDS_S + FLUX_INSTALLED_S + OCI_PULL_S
    platform = _Platform(scenario, tenant, values, stores)
    return CriticalPath(links | platform.play(links["operator ready"]))


def measured(events: Iterable[tuple[float, str]], started_s: float, ended_s: float) -> dict[str, float]:
    """When each link was over, from (time, "subject what") of a world's events, counted from `started_s`.

    `ended_s`: when the program said that the platform is ready. A link that is not in the events is left out.
    """
    found: dict[str, float] = {}
    for at, line in events:
        if at < started_s:
            continue
        for pattern, link in _ENDS:
            if fnmatchcase(line, pattern):
                found[link] = at - started_s  # the last one counts
    return found | {"platform ready": ended_s - started_s}


def side_by_side(path: CriticalPath, seen: Mapping[str, float]) -> Table:
    """Each link's end at the earliest and as measured, and the ratio of the two."""
    table = Table(title="critical path", title_justify="left")
    for title in ("link", "at the earliest", "measured", "ratio"):
        table.add_column(title, justify="left" if title == "link" else "right")
    for link, at_s in path.links.items():
        found = seen.get(link)
        row = (format_seconds(found), f"{found / at_s:.2f}" if at_s else "") if found is not None else ("not seen", "")
        table.add_row(link, format_seconds(at_s), *row)
    return table


# What ends each link, among the world's events.
_ENDS = (
    ("machine * booting", "machines configured"),
    ("machine * etcd running", "etcd complete"),
    ("node * registered", "nodes registered"),
    ("pod * succeeded", "zpools online"),
    ("operator platform source written", "operator ready"),
    ("tenant root patched", "tenant patched"),
    ("pool * registered", "pools registered"),
)


# Machines --------------------------------------------------------------------------------------------------------------


def _machines(scenario: Scenario) -> Iterator[tuple[str, float]]:
    delays = scenario.delays
    up = {machine.name: _up_s(machine, delays) for machine in scenario.machines}
    yield "machines configured", max(up.values())
    planes = [name for name in up if name.startswith("cp")]
    # Bootstrap comes after the rollout, and is refused before the first machine's services run and its time is in sync.
    accepted = max(max(up.values()), up[planes[0]] + max(delays.services_up, delays.time_sync))
    running = {planes[0]: accepted + delays.etcd_start}
    turn = running[planes[0]]
    for name in planes[1:]:  # etcd takes one learner at a time
        turn = max(turn, up[name] + delays.services_up) + delays.etcd_join + delays.etcd_promote
        running[name] = turn
    yield "etcd complete", turn
    free = running[planes[0]] + delays.api_open
    able = {name: running.get(name, up[name] + delays.services_up) for name in up}
    for name in sorted(able, key=lambda each: (max(free, able[each]), list(up).index(each))):
        free = max(free, able[name]) + delays.node_register
    yield "nodes registered", max(free, turn)


def _up_s(machine: MachineSpec, delays: Delays) -> float:
    """From its configuration to its authenticated API."""
    if machine.installed:
        return delays.apply + delays.activate
    return delays.apply + delays.install + delays.shut_down + delays.boot


# Platform --------------------------------------------------------------------------------------------------------------


@dataclass
class _Platform:
    """The platform's part, event by event. `_due`: what happens when, in order."""

    scenario: Scenario
    tenant: Mapping[str, Any]
    values: Mapping[str, Any]
    stores: bool
    _due: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _ready: dict[str, float] = field(default_factory=dict)  # release -> when
    _open: set[str] = field(default_factory=set)  # releases that exist
    _busy: set[str] = field(default_factory=set)  # releases whose objects are still being written
    _packages: dict[str, Package] = field(default_factory=dict)
    _written: set[str] = field(default_factory=set)
    _children: dict[str, list[str]] = field(default_factory=dict)
    _volumes_s: float | None = None
    _api_s: float | None = None
    _patched_s: float | None = None

    def __post_init__(self) -> None:
        self._known = catalogue.load(self.scenario.cozystack)
        self._kstatus = self._known.traits.kstatus
        self._choice = self._known.choice(self.scenario.platform.variant, self.values)
        self._schedule = Schedule(self._behaviour, self._gate, kstatus=self._kstatus)

    def play(self, start_s: float) -> dict[str, float]:
        self._create(PLATFORM_RELEASE, (), start_s)
        now = start_s
        while not self._complete():
            times = [at for at in (self._schedule.next_at(), self._due[0][0] if self._due else None) if at is not None]
            if not times or min(times) > start_s + LONGEST_S:
                raise Endless(f"not ready: {', '.join(sorted(self._open - self._ready.keys()))}")
            now = max(now, min(times))
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2](now)
            while steps := self._schedule.advance(now):  # a freed slot is filled in the same moment
                for step in steps:
                    self._follow(step, now)
            self._patch(now)
        pools = {"pools registered": self._volumes_s} if self._volumes_s is not None else {}
        return {"tenant patched": self._patched_s or now, **pools, "platform ready": now}

    def _complete(self) -> bool:
        everything = self._packages and self._written == self._packages.keys() and self._open == self._ready.keys()
        return bool(everything) and self._patched_s is not None and (self._volumes_s is not None or not self.stores)

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), what))

    # What releases do -------------------------------------------------------------------------------------------------

    def _follow(self, step: Step, now: float) -> None:
        match step.what:
            case "installing" | "upgrading":
                self._ready.pop(step.ref, None)
                self._begin(step.ref, now)
            case "applied":
                settled = self._schedule.settle(step.ref, now)
                if settled is not None:
                    self._follow(settled, now)
            case "ready":
                if step.ref not in self._ready:
                    self._ready[step.ref] = now
                    self._ended(step.ref, now)

    def _begin(self, ref: str, now: float) -> None:
        if ref == PLATFORM_RELEASE and not self._packages:
            self._busy.add(ref)
            self._at(now + OCI_PULL_S + ARTIFACT_BUILD_S, self._emit)
        wanted = self.tenant if ref == ROOT_TENANT_RELEASE and self._patched_s is not None else {}
        children = [c for c in self._known.charts if c.parent == ref and (not c.when or wanted.get(c.when) is True)]
        self._children[ref] = [child.ref for child in children]
        if children:
            self._busy.add(ref)

            def render(at: float) -> None:
                self._busy.discard(ref)
                for child in children:
                    self._create(child.ref, child.needs, at)

            self._at(now + TENANT_CHILDREN_S, render)

    def _ended(self, ref: str, now: float) -> None:
        if ref == LINSTOR_RELEASE and self.stores and self._volumes_s is None:
            delay = LINSTOR_CONTROLLER_S + LINSTOR_RELOAD_S + LINSTOR_NODES_S + LINSTOR_POOL_S
            self._at(now + delay, self._pools)
        if ref == API_RELEASE and self._api_s is None:
            self._at(now + APISERVICE_S, self._available)

    def _pools(self, now: float) -> None:
        self._volumes_s = now

    def _available(self, now: float) -> None:
        self._api_s = now

    def _patch(self, now: float) -> None:
        """The root tenant is patched in the moment in which its API shows it."""
        there = self._api_s is not None and KIND_RELEASE in self._ready and ROOT_TENANT_RELEASE in self._open
        if there and self._patched_s is None:
            self._patched_s = now
            before = self._schedule.view(ROOT_TENANT_RELEASE)
            if before is not None and any(self.tenant.values()):
                self._ready.pop(ROOT_TENANT_RELEASE, None)
                self._schedule.observe(self._view(ROOT_TENANT_RELEASE, before.depends_on, 2), now)

    # Packages ---------------------------------------------------------------------------------------------------------

    def _emit(self, now: float) -> None:
        self._busy.discard(PLATFORM_RELEASE)
        self._packages = {package.name: package for package in self._known.emitted(self._choice)}
        self._wave(now)

    def _wave(self, now: float) -> None:
        """Packages whose needs are met write their releases; the next level follows a little later."""
        able = [p for n, p in self._packages.items() if n not in self._written and set(p.needs) <= self._written]
        for package in able:
            for item in catalogue.releases(package, self._packages):
                self._create(item.ref, item.depends_on, now)
        self._written |= {package.name for package in able}
        if able and self._written != self._packages.keys():
            self._at(now + float(self.scenario.platform.options.get("package_wave", PACKAGE_WAVE_S)), self._wave)

    def _create(self, ref: str, needs: tuple[str, ...], now: float) -> None:
        if ref not in self._open:
            self._open.add(ref)
            self._schedule.observe(self._view(ref, needs), now)

    def _view(self, ref: str, needs: tuple[str, ...], generation: int = 1) -> View:
        failing = Failing.RETRY if self._known.traits.retries else Failing.REMEDIATE
        pool = "tenants" if ref.startswith("tenant-root/") else MAIN_POOL
        return View(ref, generation, str(generation), needs, failing=failing, pool=pool)

    # Waits ------------------------------------------------------------------------------------------------------------

    def _gate(self, ref: str) -> str | None:
        if ref in self._busy:
            return ref
        if self._kstatus:
            if ref == PLATFORM_RELEASE and (not self._packages or self._written != self._packages.keys()):
                return "packages"
            if any(not self._schedule.ready(child) for child in self._children.get(ref, ())):
                return "children"
        needs = NEEDS_VOLUMES_KSTATUS if self._kstatus else NEEDS_VOLUMES
        return "volumes" if ref in needs and self._volumes_s is None else None

    def _behaviour(self, ref: str) -> Any:
        usual = behaviour(ref, self._known)
        override = self.scenario.platform.overrides.get(ref)
        return usual.overruled(override) if override else usual
