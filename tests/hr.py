"""Builders for readiness tests: HelmReleases in the states that helm-controller really writes."""

from collections.abc import Mapping
from typing import Any

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import Condition, HelmRelease, ReleaseId
from cozystack_iac.readiness.releases import Objects, WaitLimits, assess
from cozystack_iac.readiness.verdicts import Judgement, QueryFailed, Since, Verdict

LIMITS = WaitLimits()
RUNNING = "Running 'install' action with timeout of 10m0s"


def rid(text: str) -> ReleaseId:
    namespace, _, name = text.partition("/")
    return ReleaseId(namespace, name)


def release(name: str, *needs: str, ready: tuple[str, str, str] | None = None, **more: Any) -> HelmRelease:
    """`name`, `needs`: "namespace/name". `ready`: status, reason and message of the Ready condition."""
    conditions: Mapping[str, Condition] = more.pop("conditions", {})
    own = {"Ready": Condition(*ready)} if ready else {}
    return HelmRelease(id=rid(name), depends_on=tuple(map(rid, needs)), conditions={**own, **conditions}, **more)


def done(name: str, *needs: str, **more: Any) -> HelmRelease:
    return release(
        name, *needs, ready=("True", "InstallSucceeded", "Helm install succeeded"), **{"observed": 1, **more}
    )


def running(name: str, *needs: str) -> HelmRelease:
    return release(name, *needs, ready=("Unknown", "Progressing", RUNNING))


def waiting(name: str, *needs: str) -> HelmRelease:
    return release(name, *needs, ready=("False", "DependencyNotReady", f"dependency '{needs[0]}' is not ready"))


def failing(name: str, *needs: str, error: str = "context deadline exceeded", attempt: int = 1) -> HelmRelease:
    verb = ("install", "InstallFailed") if attempt == 1 else ("upgrade", "UpgradeFailed")
    message = f"Helm {verb[0]} failed for release {name} with chart c@0.0.0+{attempt}: {error}"
    failed = Condition("False", verb[1], message)
    return release(name, *needs, ready=("False", verb[1], message), conditions={"Released": failed}, observed=1)


def stalled(name: str, *needs: str) -> HelmRelease:
    why = Condition("True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
    return release(name, *needs, ready=("False", "InstallFailed", "it broke"), conditions={"Stalled": why}, observed=1)


def expecting(*names: str, floor: int = 1) -> Expected:
    return Expected({rid(name): "Package p" for name in names}, floor=floor)


class Wait:
    """Judges as the stage does: remembers between looks."""

    def __init__(self, expected: Expected | QueryFailed, limits: WaitLimits = LIMITS) -> None:
        self.expected, self.limits, self.since = expected, limits, Since(started=0.0)

    def at(self, now: float, objects: Objects) -> Verdict:
        return self.look(now, objects).verdict

    def look(self, now: float, objects: Objects) -> Judgement:
        judgement = assess(self.since, objects, self.expected, now, self.limits)
        self.since = judgement.since
        return judgement


def settled(expected: Expected, *objects: HelmRelease, after: float = 30.0) -> object:
    wait = Wait(expected)
    wait.at(0, objects)
    return wait.at(after, objects)
