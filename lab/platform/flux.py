"""helm-controller against the API server: feeds `Schedule` with what it sees and carries out what it decides."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from cozystack_iac.kube.client import Object
from lab.platform import helmstatus, objects
from lab.platform.context import Platform
from lab.platform.helmstatus import Condition, HelmStatus
from lab.platform.objects import kind_ref
from lab.platform.schedule import MAIN_POOL, Failing, Schedule, Step, View
from lab.platform.timing import INTERVAL_S, TIMEOUT_S
from lab.scenario import Effect

BUSY_HOST_S = 20.0  # wall seconds that the lab's own writes may take before a wait on them may fail
SHORT_LIVED_S = 0.05  # wall seconds; a passing state that is over sooner is not worth a write


class Effects(Protocol):
    """What a release does to the world besides its own status."""

    def gate(self, ref: str) -> str | None: ...
    async def starting(self, ref: str) -> None: ...
    async def applying(self, ref: str) -> None: ...
    async def uninstalled(self, ref: str) -> None: ...


class HelmController:
    """All HelmReleases of the cluster, whatever wrote them."""

    def __init__(self, platform: Platform, effects: Effects) -> None:
        self._platform = platform
        self._effects = effects
        self._wake = asyncio.Event()
        self._store = platform.hub.store(kind_ref("HelmRelease"))
        self._writer = _StatusWriter(platform)
        self.schedule = Schedule(
            platform.behaviour,
            effects.gate,
            kstatus=platform.known.traits.kstatus,
            patience_s=BUSY_HOST_S * platform.world.clock.scale,
        )
        platform.schedule = self.schedule
        platform.world.faults.handle("release", self._fault)

    async def run(self) -> None:
        self._store.on(self._seen)
        clock = self._platform.world.clock
        while True:
            self._wake.clear()
            for step in self.schedule.advance(clock.now()):
                self._carry_out(step)
            at = self.schedule.next_at()
            wait_s = None if at is None else max(clock.wall(at - clock.now()), 0.002)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _seen(self, before: Object | None, after: Object | None) -> None:
        if after is not None:
            self.schedule.observe(view(after), self._platform.world.clock.now())
        elif before is not None:
            self.schedule.forget(_ref(before))
        self._wake.set()

    def _carry_out(self, step: Step) -> None:
        record = self._platform.world.log.record
        match step.what:
            case "installing" | "upgrading":
                record(f"release {step.ref}", step.what)
                self._spawn(self._effects.starting(step.ref))
                self._writer.submit(step, lasting=False)
            case "applied":
                self._spawn(self._apply(step.ref))
            case "failed" | "stalled":
                record(f"release {step.ref}", step.what, error=step.status.conditions["Ready"].message)
                self._writer.submit(self._verbatim(step), lasting=True)
            case "ready":
                record(f"release {step.ref}", "ready")
                self._writer.submit(step, lasting=True)
            case "uninstalled":
                self._spawn(self._uninstall(step.ref))
            case _:
                self._writer.submit(self._verbatim(step), lasting=True)

    def _verbatim(self, step: Step) -> Step:
        """A scenario may say word for word how a release that fails, or is blocked, looks."""
        override = self._platform.override(step.ref)
        missing = step.status.conditions.get("Ready")
        if override is None or not override.conditions or (missing and missing.reason == "DependencyNotReady"):
            return step
        said = {c.type: Condition(c.status, c.reason, c.message) for c in override.conditions}
        return replace(step, status=replace(step.status, conditions=said))

    async def _apply(self, ref: str) -> None:
        await self._effects.applying(ref)
        step = self.schedule.settle(ref, self._platform.world.clock.now())
        if step is not None:
            self._carry_out(step)
        self._wake.set()

    async def _uninstall(self, ref: str) -> None:
        await self._effects.uninstalled(ref)
        namespace, name = ref.split("/")
        self._platform.world.log.record(f"release {ref}", "uninstalled")
        await self._platform.hub.patch(kind_ref("HelmRelease", namespace, name), {"metadata": {"finalizers": None}})

    def _fault(self, effect: Effect) -> None:
        """Something goes wrong with one release from now on, for a while or for good."""
        change = effect.release
        if change is None:
            return
        self._platform.changes[change.name] = change
        self.schedule.behave(change.name, self._platform.behaviour(change.name))
        if change.suspended:
            self._spawn(self._suspend(change.name, True))
        if effect.for_s is not None:
            self._spawn(self._recover(change.name, effect.for_s, change.suspended))

    async def _recover(self, ref: str, after_s: float, suspended: bool) -> None:
        await self._platform.sleep(after_s)
        self._platform.changes.pop(ref, None)
        self.schedule.behave(ref, replace(self._platform.behaviour(ref), fails=0))
        if suspended:
            await self._suspend(ref, False)

    async def _suspend(self, ref: str, suspended: bool) -> None:
        namespace, name = ref.split("/")
        await self._platform.hub.patch(
            kind_ref("HelmRelease", namespace, name), {"spec": {"suspend": suspended or None}}
        )

    def _spawn(self, work: Any) -> None:
        self._platform.hub.spawn(work)


class _StatusWriter:
    """Writes the latest status of each release; states that passed meanwhile are skipped."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._pending: dict[str, HelmStatus] = {}
        self._busy: set[str] = set()

    def submit(self, step: Step, *, lasting: bool) -> None:
        self._pending[step.ref] = step.status
        loop = asyncio.get_running_loop()
        loop.call_later(0 if lasting else SHORT_LIVED_S, self._flush, step.ref)

    def _flush(self, ref: str) -> None:
        if ref in self._pending and ref not in self._busy:
            self._busy.add(ref)
            self._platform.hub.spawn(self._write(ref))

    async def _write(self, ref: str) -> None:
        namespace, name = ref.split("/")
        store = self._platform.hub.store(kind_ref("HelmRelease"))
        try:
            while (status := self._pending.pop(ref, None)) is not None:
                current = store.get(name, namespace)
                if current is None:
                    continue
                generation = max(status.observed_generation, 1)
                previous = current.get("status") or {}
                body = helmstatus.body(status, generation, previous, objects.timestamp())
                await self._platform.hub.status(kind_ref("HelmRelease", namespace, name), body)
        finally:
            self._busy.discard(ref)


def view(obj: Object) -> View:
    """What helm-controller reads from a HelmRelease. Pure."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    annotations = meta.get("annotations") or {}
    requested = str(annotations.get("reconcile.fluxcd.io/requestedAt") or "")
    again = (annotations.get("reconcile.fluxcd.io/resetAt"), annotations.get("reconcile.fluxcd.io/forceAt"))
    install = spec.get("install") or {}
    if (install.get("strategy") or {}).get("name") == "RetryOnFailure":
        failing = Failing.RETRY
    elif (install.get("remediation") or {}).get("retries") == -1:
        failing = Failing.REMEDIATE
    else:
        failing = Failing.GIVE_UP
    namespace = meta["namespace"]
    needs = spec.get("dependsOn") or ()
    return View(
        ref=_ref(obj),
        generation=int(meta.get("generation") or 1),
        fingerprint=json.dumps({k: v for k, v in spec.items() if k != "suspend"}, sort_keys=True),
        depends_on=tuple(f"{need.get('namespace') or namespace}/{need['name']}" for need in needs),
        suspended=spec.get("suspend") is True,
        deleting="deletionTimestamp" in meta,
        requested_at=requested,
        reset=bool(requested) and requested in again,
        failing=failing,
        timeout_s=seconds(install.get("timeout") or spec.get("timeout"), TIMEOUT_S),
        interval_s=seconds(spec.get("interval"), INTERVAL_S),
        pool=str((meta.get("labels") or {}).get("sharding.fluxcd.io/key") or MAIN_POOL),
        chart=objects.chart_of(obj),
    )


def seconds(text: object, default: float) -> float:
    """A Go duration such as 1m30s in seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", str(text or ""))
    factors = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    return sum(float(number) * factors[unit] for number, unit in parts) if parts else default


def _ref(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
