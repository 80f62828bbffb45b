"""A wait for one part of the platform ends when that part cannot come any more, not when its budget does.

LINSTOR and the root tenant come late, and what they need fails early: whoever only looks at them waits for half an hour and
then knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from cozystack_iac import diagnosis
from cozystack_iac.diagnosis import evidence
from cozystack_iac.kube.client import Kube
from cozystack_iac.readiness.expected import PLATFORM
from cozystack_iac.readiness.releases import FAILING_S, WaitLimits, assess
from cozystack_iac.readiness.verdicts import (
    Judgement,
    QueryFailed,
    ReleaseStanding,
    Since,
    Stuck,
    StuckClass,
    Suspended,
)
from cozystack_iac.readiness.view import PACKAGES, View, watching
from cozystack_iac.readiness.wording import failure
from cozystack_iac.waiting import pause

T = TypeVar("T")
LOOK_EVERY_S = 5.0  # what is stuck stays so: nothing is lost by a few seconds, and a look at everything is work


async def unless_stuck(
    work: Coroutine[Any, Any, T], kube: Kube, needs: Sequence[str], *, failing_s: float = FAILING_S
) -> T:
    """The result of `work`, which waits for something that the releases `needs` ("namespace/name") bring.

    Raises the readiness judgement's own failure as soon as one of them, or anything they wait for, is stuck.
    """
    waiting = asyncio.ensure_future(work)
    looking = asyncio.ensure_future(_until_stuck(kube, frozenset(needs), failing_s))
    try:
        done, _ = await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting in done else looking.result()
    finally:
        for task in (waiting, looking):
            task.cancel()
        await asyncio.gather(waiting, looking, return_exceptions=True)


async def after_evidence(
    kube: Kube, verdict: Stuck | Suspended, standings: Sequence[ReleaseStanding], limits: WaitLimits
) -> WaitLimits:
    """Evidence first, then the verdict: raises the failure, explained by what the cluster shows around its roots.

    When that shows that the first of them fails for something that passes (a registry that throttles), and had not been
    known to, the wait goes on: under the limits returned it may fail for as long as noise may.
    """
    seen = await evidence.collect(kube, [b.subject for b in verdict.blockers])
    first, better = verdict.blockers[0], diagnosis.diagnose(seen)
    if better and better.transient and first.stuck is StuckClass.REPEATING and first.subject not in limits.noise:
        return replace(limits, noise=limits.noise | {first.subject})
    if better:
        first = replace(first, cause=better.cause, remedy=better.remedy)
    raise failure(replace(verdict, blockers=(first, *verdict.blockers[1:])), standings, diagnosis.account(seen))


async def _until_stuck(kube: Kube, needs: frozenset[str], failing_s: float) -> NoReturn:
    limits = WaitLimits(0.0, patience=failing_s / FAILING_S)
    async with watching(kube) as view:
        since = Since(started=view.seen_s())
        while True:
            judgement = judged(view, since, limits)
            if _concerned(judgement, needs) is not None:
                await view.refresh()  # a judgement that ends the wait must not rest on what a cut watch showed
                judgement = judged(view, since, limits)
                if (verdict := _concerned(judgement, needs)) is not None:
                    limits = await after_evidence(kube, verdict, judgement.standings, limits)
            since = judgement.since
            await pause(LOOK_EVERY_S)  # limits end without an event, too


def judged(view: View, since: Since, limits: WaitLimits) -> Judgement:
    """What is to be said of what is known now, whatever variant the platform says it is."""
    cluster, now = view.cluster(), view.seen_s()
    package = (view.objects.get(PACKAGES) or {}).get(("", PLATFORM)) or {}
    variant = str((package.get("spec") or {}).get("variant") or "default")
    read = cluster if isinstance(cluster, QueryFailed) else cluster.read(variant)
    releases, expected = (read, read) if isinstance(read, QueryFailed) else read
    return assess(since, releases, expected, now, limits)


def _concerned(judgement: Judgement, needs: frozenset[str]) -> Stuck | None:
    """The verdict, when what is stuck keeps back something of `needs`; only those roots are left in it."""
    if not isinstance(judgement.verdict, Stuck):
        return None
    roots = tuple(b for b in judgement.verdict.blockers if needs & {b.subject, *b.dependants})
    return replace(judgement.verdict, blockers=roots) if roots else None
