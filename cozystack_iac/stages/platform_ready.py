"""The readiness stage: every release ready and every pool registered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.readiness import forecast
from cozystack_iac.readiness.blockage import after_evidence
from cozystack_iac.readiness.expected import ClusterObjects, Reading
from cozystack_iac.readiness.phases import HelmRelease
from cozystack_iac.readiness.releases import FAILING_S, WaitLimits, assess
from cozystack_iac.readiness.verdicts import (
    Judgement,
    QueryFailed,
    Ready,
    ReleaseStanding,
    Since,
    Stuck,
    Suspended,
    Unknown,
    Verdict,
)
from cozystack_iac.readiness.view import View, watching
from cozystack_iac.readiness.wording import accounts, essence, line
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.stages.pools_registered import EXEC_EVERY_S, PoolInputs, pool_standings
from cozystack_iac.storage import linstor
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, interval, pause

PLATFORM_RELEASE = "cozy-system/cozystack-platform"  # its creation is when the platform began

GATHER_S = 0.1  # one judgement for a burst of events
TICK_S = 0.5  # limits and settling end without an event
SAY_EVERY_S = 0.3  # changes come by the dozen while many releases install
REPEAT_S = 20.0


class PlatformInputs(Properties):
    kubeconfig: str = Field(repr=False)
    variant: str  # isp-full | isp-full-generic | isp-hosted | default
    nodes: list[str] = Field(
        default_factory=list
    )  # nodes that must have the storage pool; none: the platform has no LINSTOR pools of ours
    pool: str = ""
    zpool: str = ""
    allow_suspended: list[str] = Field(
        default_factory=list
    )  # "namespace/name" of releases that a person keeps suspended
    revision: str = ""  # of what was asked for; a change means the platform moves again and has to be waited for
    first_of_two: bool = (
        False  # the platform is changed and waited for once more: a refresh is the later wait's business
    )
    settle_s: float = 30
    failing_s: float = FAILING_S  # how long the same failure is noise; all other limits keep their proportion to it
    deadline_s: float


class PlatformOutputs(Properties):
    releases: int
    pools: int
    seconds: int
    timings: dict[str, int] = Field(default_factory=dict)
    """Package -> seconds from the platform's creation until it was ready, in that order."""


class PlatformReadyProvider(StageProvider[PlatformInputs, PlatformOutputs]):
    """Every expected release is ready and stays so, and LINSTOR lists every pool."""

    inputs = PlatformInputs
    outputs = PlatformOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"variant", "nodes", "pool", "zpool", "allow_suspended", "revision"})

    async def establish(self, inputs: PlatformInputs, progress: Progress) -> PlatformOutputs:
        last, seen = "no part of the platform has been seen yet", _nothing

        def expired() -> StageFailed:
            return StageFailed(
                f"The platform did not become ready (timed out after {format_seconds(inputs.deadline_s)}).",
                details={"last seen": last, **seen()},
                means="what is ready stays ready; the rest continues in the cluster",
                next_step="run `pulumi up` again to keep waiting, or raise waits.platform if the site is just slow",
            )

        async with (
            budget(inputs.deadline_s, expired),
            Kube.connect(inputs.kubeconfig) as kube,
            watching(kube) as view,
        ):
            wait, saying = _Wait(view, inputs), _Saying(progress)
            seen = wait.accounts
            while True:
                await wait.next(saying.due_s())
                verdict = wait.look()
                if isinstance(verdict, Ready | Stuck | Suspended):
                    await view.refresh()
                    verdict = wait.look()
                if isinstance(verdict, Stuck | Suspended):
                    wait.limits = await after_evidence(kube, verdict, wait.standings, wait.limits)
                    continue
                pools = await _pools_missing(kube, inputs) if isinstance(verdict, Ready) else ""
                if isinstance(verdict, Ready) and not pools:
                    return PlatformOutputs(
                        releases=verdict.count,
                        pools=len(inputs.nodes),
                        seconds=round(progress.elapsed.total_seconds()),
                        timings=wait.timings(),
                    )
                last = pools or line(verdict)
                if saying.worth(pools or essence(verdict)):
                    saying.say(last + wait.left(verdict))
                await pause(EXEC_EVERY_S if pools else 0)

    async def observe(self, inputs: PlatformInputs, outputs: PlatformOutputs) -> PlatformOutputs | None:
        if inputs.first_of_two:
            return outputs
        async with Kube.connect(inputs.kubeconfig) as kube:
            view = View(kube)
            await view.refresh()
            verdict = _Wait(view, inputs).look()
            if isinstance(verdict, Unknown):
                raise StageFailed(
                    "The readiness of the platform cannot be determined.",
                    details={"answer": verdict.reason},
                    means="the state keeps its last values; nothing was changed",
                    next_step="check the network path to the API server, then run the refresh again",
                )
            standings = await pool_standings(kube, _pool_inputs(inputs)) if inputs.nodes else ()
        ready = verdict.count if isinstance(verdict, Ready) else verdict.ready
        pools = sum(s.state is linstor.PoolState.REGISTERED for s in standings)
        return outputs.model_copy(update={"releases": ready, "pools": pools})


def _nothing() -> dict[str, str]:
    return {}


class PlatformReady(StageResource[PlatformInputs], provider=PlatformReadyProvider):
    pass


class _Wait:
    """One wait: the view, the memory between judgements, and when to look again."""

    def __init__(self, view: View, inputs: PlatformInputs) -> None:
        self._view = view
        self._variant = inputs.variant
        allow = frozenset(inputs.allow_suspended)
        self.limits = WaitLimits(inputs.settle_s, patience=inputs.failing_s / FAILING_S, allow_suspended=allow)
        self._since = Since(started=view.seen_s())
        self._reading = Reading()
        self._releases: Collection[HelmRelease] = ()
        self._writers: dict[str, str] = {}
        self._verdict: Verdict = Unknown("no part of the platform has been seen yet")
        self.standings: tuple[ReleaseStanding, ...] = ()

    def look(self) -> Verdict:
        refused = self._view.refused
        if refused is not None:
            raise StageFailed(
                "The API server does not allow listing the parts of the platform.",
                details={"answer": str(refused)},
                means="the readiness of the platform is unknown; the install continues in the cluster",
                next_step="use a kubeconfig that may list helmreleases, packages and packagesources cluster-wide",
            )
        judgement = self._assess(self._view.cluster())
        self._since, self.standings, self._verdict = judgement.since, judgement.standings, judgement.verdict
        return judgement.verdict

    def _assess(self, cluster: ClusterObjects | QueryFailed) -> Judgement:
        now = self._view.seen_s()
        read = cluster if isinstance(cluster, QueryFailed) else cluster.read(self._variant, self._reading)
        if isinstance(read, QueryFailed):
            return assess(self._since, read, read, now, self.limits)
        self._releases, expected = read
        self._writers = {str(release): writer for release, writer in expected.releases.items()}
        return assess(self._since, self._releases, expected, now, self.limits)

    def left(self, verdict: Verdict) -> str:
        """How long it will still take, for the end of a line."""
        if isinstance(verdict, Ready | Unknown):
            return ""
        pace = forecast.pace(self._releases)
        return f", {forecast.about(forecast.remaining_s(self.standings, pace, self.limits.settle_s))}"

    def timings(self) -> dict[str, int]:
        return forecast.timings(self._releases, self._writers, PLATFORM_RELEASE)

    def accounts(self) -> dict[str, str]:
        """What was seen last, root by root, for a failure message."""
        return accounts(self._verdict, self.standings)

    async def next(self, within_s: float) -> None:
        """Until something changes, or `within_s`: reactions stay far below a second, bursts are judged once."""
        try:
            async with asyncio.timeout(min(within_s, interval(TICK_S))):
                await self._view.changed.wait()
        except TimeoutError:
            return
        await pause(GATHER_S)
        self._view.changed.clear()


class _Saying:
    """Says a line when what matters in it changed, but not more often than a person can read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._essence = self._held_back = ""
        self._at = float("-inf")

    def worth(self, essence: str) -> bool:
        """Whether a line with that essence is to be said now. One that comes too soon is held back, see `due_s`."""
        self._held_back = essence if essence != self._essence else ""
        if time.monotonic() - self._at < (SAY_EVERY_S if self._held_back else REPEAT_S):
            return False
        self._essence, self._held_back = essence, ""
        return True

    def say(self, text: str) -> None:
        self._at = time.monotonic()
        self._progress.say(text)

    def due_s(self) -> float:
        """When to look again because of a line that was held back."""
        return max(0.0, self._at + SAY_EVERY_S - time.monotonic()) if self._held_back else float("inf")


def _pool_inputs(inputs: PlatformInputs) -> PoolInputs:
    return PoolInputs(
        kubeconfig=inputs.kubeconfig,
        nodes=inputs.nodes,
        pool=inputs.pool,
        zpool=inputs.zpool,
        deadline_s=inputs.deadline_s,
    )


async def _pools_missing(kube: Kube, inputs: PlatformInputs) -> str:
    """Empty when LINSTOR lists every pool; otherwise what it says, "unknown" included."""
    if not inputs.nodes:
        return ""
    try:
        standings = await pool_standings(kube, _pool_inputs(inputs))
    except (KubeError, linstor.Unreadable) as error:
        return f"all releases are ready, but pool {inputs.pool} is unknown: {error}"
    if all(s.state is linstor.PoolState.REGISTERED for s in standings):
        return ""
    return f"all releases ready, pool {inputs.pool}: {linstor.pools_summary(standings)}"
