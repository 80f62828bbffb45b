"""The status of a HelmRelease as helm-controller writes it, state by state. Pure.

Reasons, texts and the rules of `observedGeneration` follow helm-controller 1.4 and 1.5; every function returns the status
after one more thing has happened. A status is complete: whoever writes it replaces all conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

FULFILLING = "Fulfilling prerequisites"
_ORDER = ("Reconciling", "Ready", "Released", "Remediated", "Stalled")


@dataclass(frozen=True)
class Condition:
    status: str  # "True" | "False" | "Unknown"
    reason: str
    message: str


@dataclass(frozen=True)
class Chart:
    """What the texts call the release: `namespace/name` of the Helm release and `chart@version`."""

    release: str
    chart: str
    version: str

    def __str__(self) -> str:
        return f"{self.chart}@{self.version}"


@dataclass(frozen=True)
class HelmStatus:
    """`observed_generation` is -1 until the first reconciliation ended; `revision` counts what Helm has stored."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    observed_generation: int = -1
    failures: int = 0
    revision: int = 0
    handled: str = ""  # last reconcile.fluxcd.io/requestedAt that was acted upon

    @property
    def ready(self) -> bool:
        condition = self.conditions.get("Ready")
        return condition is not None and condition.status == "True"

    def fulfilling(self) -> HelmStatus:
        return self._with(Reconciling=Condition("True", "Progressing", FULFILLING))

    def blocked(self, reason: str, message: str) -> HelmStatus:
        """A prerequisite is missing: DependencyNotReady, ArtifactFailed, SourceNotReady, ValuesError."""
        return self.fulfilling()._with(Ready=Condition("False", reason, message))

    def running(self, action: str, timeout_s: float) -> HelmStatus:
        text = f"Running '{action}' action with timeout of {duration(timeout_s)}"
        return self._with(
            Reconciling=Condition("True", "Progressing", text), Ready=Condition("Unknown", "Progressing", text)
        )

    def succeeded(self, action: str, chart: Chart, generation: int) -> HelmStatus:
        revision = self.revision + 1
        text = f"Helm {action} succeeded for release {chart.release}.v{revision} with chart {chart}"
        done = Condition("True", f"{action.capitalize()}Succeeded", text)
        return replace(
            self,
            conditions={"Ready": done, "Released": done},
            observed_generation=generation,
            failures=0,
            revision=revision,
        )

    def failed(
        self, action: str, chart: Chart, error: str, generation: int, retry_s: float, *, stored: bool
    ) -> HelmStatus:
        """RetryOnFailure (1.4+). `stored`: Helm kept the failed revision, so the next attempt is an upgrade."""
        status = self._failure(action, chart, error, generation, stored=stored)
        retry = Condition("True", "ProgressingWithRetry", f"retrying after {duration(retry_s, short=True)}")
        return status._with(Reconciling=retry)

    def uninstalling(self, action: str, chart: Chart, error: str) -> HelmStatus:
        """Remediation (1.3, and releases that charts create): `observedGeneration` does not move in this loop."""
        status = self._failure(action, chart, error, self.observed_generation, stored=False)
        text = "Running 'uninstall' action with timeout of 5m0s"
        return status._with(Reconciling=Condition("True", "Progressing", text))

    def remediated(self, chart: Chart) -> HelmStatus:
        text = f"Helm uninstall remediation for release {chart.release}.v1 with chart {chart} succeeded"
        return self._with(
            Reconciling=Condition("True", "ProgressingWithRetry", text),
            Ready=Condition("False", "UninstallSucceeded", text),
            Remediated=Condition("True", "UninstallSucceeded", text),
        )

    def stalled(self, action: str, chart: Chart, error: str, generation: int) -> HelmStatus:
        """No retries left: nothing happens until the spec changes or a person asks for it."""
        status = self._failure(action, chart, error, generation, stored=True)
        text = f"Failed to {action} after {status.failures} attempt(s)"
        kept = {name: value for name, value in status.conditions.items() if name in ("Ready", "Released")}
        return replace(status, conditions={**kept, "Stalled": Condition("True", "RetriesExceeded", text)})

    def suspended(self, generation: int) -> HelmStatus:
        """A suspended release keeps its conditions; only the generation follows."""
        return replace(self, observed_generation=generation)

    def in_sync(self, generation: int) -> HelmStatus:
        """Looked at, nothing to do: the conditions of the last action stand."""
        released = self.conditions["Released"]
        return replace(self, conditions={"Ready": released, "Released": released}, observed_generation=generation)

    def acknowledged(self, requested_at: str) -> HelmStatus:
        return replace(self, handled=requested_at)

    def _failure(self, action: str, chart: Chart, error: str, generation: int, *, stored: bool) -> HelmStatus:
        text = f"Helm {action} failed for release {chart.release} with chart {chart}: {error}"
        failed = Condition("False", f"{action.capitalize()}Failed", text)
        status = self._with(Ready=failed, Released=failed)
        return replace(
            status,
            observed_generation=generation,
            failures=self.failures + 1,
            revision=self.revision + (1 if stored else 0),
        )

    def _with(self, **conditions: Condition) -> HelmStatus:
        merged = {name: value for name, value in self.conditions.items() if name != "Stalled"} | conditions
        return replace(self, conditions={name: merged[name] for name in _ORDER if name in merged})


def body(status: HelmStatus, generation: int, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The `status` of the object. `previous` is its status before: a condition keeps its time while its status stands."""
    before = {c.get("type"): c for c in previous.get("conditions") or ()}
    conditions = []
    for name, condition in status.conditions.items():
        old = before.get(name) or {}
        since = old.get("lastTransitionTime") if old.get("status") == condition.status else None
        conditions.append(
            {
                "type": name,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": generation,
                "lastTransitionTime": since or now,
            }
        )
    found: dict[str, Any] = {
        "observedGeneration": status.observed_generation,
        "conditions": conditions,
        "failures": status.failures or None,  # null removes the key in a merge patch
    }
    if status.handled:
        found["lastHandledReconcileAt"] = status.handled
    return found


def duration(seconds: float, *, short: bool = False) -> str:
    """Go's way to write a duration: 10m0s; `short` drops the minutes below one."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes == 0:
        return f"{rest}s"
    return f"{minutes}m" if short and rest == 0 else f"{minutes}m{rest}s"
