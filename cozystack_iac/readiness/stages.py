"""The readiness stage: every release ready and every pool registered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.readiness.releases import (
    Blocker,
    Expected,
    Limits,
    Objects,
    Progressing,
    QueryFailed,
    Ready,
    Since,
    Stuck,
    Unknown,
    Verdict,
    judge,
    track,
)
from cozystack_iac.readiness.view import View, watching
from cozystack_iac.stage import Progress, Properties, StageFailed, StageProvider, StageResource, budget, format_seconds
from cozystack_iac.storage import linstor
from cozystack_iac.storage.linstor_stages import EXEC_EVERY_S, PoolInputs, pool_standings

GATHER_S = 0.1  # one judgement for a burst of events
TICK_S = 0.5  # limits and settling end without an event
SAY_EVERY_S = 2.0  # changes come by the dozen while many releases install
REPEAT_S = 20.0
SHOWN = 5  # blockers in a message; the rest is counted


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
    settle_s: float = 30
    failing_s: float = 600
    deadline_s: float


class PlatformOutputs(Properties):
    releases: int
    pools: int
    seconds: int


class PlatformReadyProvider(StageProvider[PlatformInputs, PlatformOutputs]):
    """Every expected release is ready and stays so, and LINSTOR lists every pool."""

    inputs = PlatformInputs
    outputs = PlatformOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"variant", "nodes", "pool", "zpool", "allow_suspended", "revision"})

    async def establish(self, inputs: PlatformInputs, progress: Progress) -> PlatformOutputs:
        last = "nothing was seen of the platform"

        def expired() -> StageFailed:
            return StageFailed(
                f"The platform did not become ready ({format_seconds(inputs.deadline_s)} budget used up).",
                details={"last seen": last},
                means="what is ready stays ready; the rest goes on in the cluster",
                next_step="run `pulumi up` again to go on waiting, or raise waits.platform if it only is slow",
            )

        async with (
            budget(inputs.deadline_s, expired),
            Kube.connect(inputs.kubeconfig) as kube,
            watching(kube) as view,
        ):
            wait, saying = _Wait(view, inputs), _Saying(progress)
            while True:
                await wait.next()
                verdict = wait.look()
                if isinstance(verdict, Ready | Stuck):
                    await view.refresh()
                    verdict = wait.look()
                if isinstance(verdict, Stuck):
                    raise stuck(verdict)
                pools = await _pools_missing(kube, inputs) if isinstance(verdict, Ready) else ""
                if isinstance(verdict, Ready) and not pools:
                    seconds = round(progress.elapsed.total_seconds())
                    return PlatformOutputs(releases=verdict.count, pools=len(inputs.nodes), seconds=seconds)
                last = pools or line(verdict)
                saying.say(last, pools or _essence(verdict))
                await asyncio.sleep(EXEC_EVERY_S if pools else 0)

    async def observe(self, inputs: PlatformInputs, outputs: PlatformOutputs) -> PlatformOutputs | None:
        async with Kube.connect(inputs.kubeconfig) as kube:
            view = View(kube)
            await view.refresh()
            verdict = _Wait(view, inputs).look()
            if isinstance(verdict, Unknown):
                raise StageFailed(
                    "Whether the platform is ready could not be found out.",
                    details={"answer": verdict.reason},
                    means="the state keeps what it knew; nothing was changed",
                    next_step="check the way to the API server and refresh again",
                )
            standings = await pool_standings(kube, _pool_inputs(inputs)) if inputs.nodes else ()
        ready = verdict.count if isinstance(verdict, Ready) else verdict.ready
        pools = sum(s.state is linstor.PoolState.REGISTERED for s in standings)
        return PlatformOutputs(releases=ready, pools=pools, seconds=outputs.seconds)


class PlatformReady(StageResource, module="cozystack", name="PlatformReady"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(PlatformReadyProvider(), name, inputs, opts)


class _Wait:
    """One wait: the view, the memory between judgements, and when to look again."""

    def __init__(self, view: View, inputs: PlatformInputs) -> None:
        self._view = view
        self._variant = inputs.variant
        allow = frozenset(inputs.allow_suspended)
        # All limits but the settling period keep their proportions when a stack asks for another patience.
        scale = Limits().failing_s / inputs.failing_s
        self._limits = Limits(allow_suspended=allow).scaled(scale, settle_s=inputs.settle_s)
        self._since = Since(started=view.seen_s())

    def look(self) -> Verdict:
        refused = self._view.refused
        if refused is not None:
            raise StageFailed(
                "The API server refuses to show what the platform consists of.",
                details={"answer": str(refused)},
                means="whether the platform is ready stays unknown; it goes on in the cluster",
                next_step="use a kubeconfig that may list helmreleases, packages and packagesources cluster-wide",
            )
        now = self._view.seen_s()
        objects, expected = self._read()
        self._since = track(self._since, objects, expected, now, self._limits)
        return judge(objects, expected, now, self._since, self._limits)

    def _read(self) -> tuple[Objects, Expected | QueryFailed]:
        cluster = self._view.cluster()
        read = cluster if isinstance(cluster, QueryFailed) else cluster.read(self._variant)
        return (read, read) if isinstance(read, QueryFailed) else read

    async def next(self) -> None:
        """Until something changes, or half a second: reactions stay far below a second, bursts are judged once."""
        try:
            async with asyncio.timeout(TICK_S):
                await self._view.changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(GATHER_S)
        self._view.changed.clear()


class _Saying:
    """Says a line when what matters in it changed, but not more often than a person can read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._essence = ""
        self._at = float("-inf")

    def say(self, text: str, essence: str) -> None:
        now = time.monotonic()
        if now - self._at >= (SAY_EVERY_S if essence != self._essence else REPEAT_S):
            self._essence, self._at = essence, now
            self._progress.say(text)


def line(verdict: Verdict) -> str:
    """`41 of 89 ready, waiting for cozy-cert-manager/cert-manager (installing, 34 s) and 3 more`."""
    match verdict:
        case Ready(count):
            return f"all {count} releases ready"
        case Unknown(reason):
            return f"unknown: {reason}"
        case Progressing(ready, total, (), note):
            return f"{ready} of {total} ready; {note}"
        case Progressing(ready, total, waiting) | Stuck(ready, total, waiting):
            first, more = waiting[0], f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            return f"{ready} of {total} ready, waiting for {first.subject} ({_state(first)}){more}"


def _state(blocker: Blocker) -> str:
    return f"{blocker.words}, {format_seconds(blocker.for_s)}"


def _essence(verdict: Verdict) -> str:
    if isinstance(verdict, Progressing) and verdict.waiting:
        return f"{verdict.ready} {verdict.waiting[0].subject} {verdict.waiting[0].words}"
    return type(verdict).__name__ if isinstance(verdict, Progressing) else line(verdict)


def stuck(verdict: Stuck) -> StageFailed:
    """The failure a person reads: every root with its evidence, and the way out of the first."""
    shown = verdict.blockers[:SHOWN]
    details = {b.subject: _account(b) for b in shown}
    if len(verdict.blockers) > len(shown):
        details["and"] = f"{len(verdict.blockers) - len(shown)} more"
    return StageFailed(
        f"The platform is stuck, {verdict.ready} of {verdict.total} releases are ready: {verdict.reason}.",
        details=details,
        means="these will not get on by themselves; what is ready stays ready",
        next_step=f"{verdict.remedy}; then run `pulumi up` again: it continues from here",
    )


def _account(blocker: Blocker) -> str:
    behind = f"{blocker.behind} wait for it" if blocker.behind else ""
    rows = [
        ", ".join(part for part in (_state(blocker), behind) if part),
        blocker.evidence[:400],
        f"cause: {blocker.cause}",
        f"remedy: {blocker.remedy}",
    ]
    return "\n".join(row for row in rows if row)


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
        return f"all releases ready, pool {inputs.pool} unknown: {error}"
    if all(s.state is linstor.PoolState.REGISTERED for s in standings):
        return ""
    return f"all releases ready, pool {inputs.pool}: {linstor.pools_summary(standings)}"
