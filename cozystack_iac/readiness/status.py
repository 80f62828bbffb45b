"""For people who look: the verdict over a platform, its reasons and the readiness matrix, from one look at the cluster."""

from __future__ import annotations

from cozystack_iac.kube.client import Kube
from cozystack_iac.readiness.blockage import judged
from cozystack_iac.readiness.matrix import render
from cozystack_iac.readiness.releases import WaitLimits
from cozystack_iac.readiness.verdicts import Blocker, Judgement, Ready, Since, Unknown, Unready
from cozystack_iac.readiness.view import KINDS, View

# One look knows no durations: nothing has settled, and nothing has used up its limit.
AT_ONCE = WaitLimits(settle_s=0.0)


async def look(kubeconfig: str) -> Judgement:
    """Where everything stands now. An API server that does not answer is Unknown; raises BadKubeconfig."""
    async with Kube.connect(kubeconfig) as kube:
        view = View(kube)
        await view.refresh(KINDS)
        if view.refused is not None:
            return Judgement(Unknown(str(view.refused)), (), Since(view.seen_s()))
        return judged(view, Since(view.seen_s()), AT_ONCE)


def text(judgement: Judgement) -> str:
    """For a terminal: one line, the reasons with their remedies, the matrix."""
    verdict = judgement.verdict
    if isinstance(verdict, Unknown):
        return f"unknown: {verdict.reason}"
    if isinstance(verdict, Ready):
        head = f"ready: all {verdict.count} releases"
    else:
        head = f"{type(verdict).__name__.lower()}: {verdict.ready} of {verdict.total} releases are ready"
    reasons = [_reason(b) for b in verdict.blockers] if isinstance(verdict, Unready) else []
    return "\n\n".join([head, *reasons, render(judgement.standings)])


def exit_code(judgement: Judgement) -> int:
    """0 ready, 1 not ready, 2 unknown."""
    return {Ready: 0, Unknown: 2}.get(type(judgement.verdict), 1)


def _reason(blocker: Blocker) -> str:
    behind = f", {blocker.behind} wait for it" if blocker.behind else ""
    rows = [f"{blocker.subject}: {blocker.words}{behind}"]
    rows += [f"  {blocker.evidence[:300]}"] if blocker.evidence else []
    if blocker.stuck:
        rows += [f"  cause: {blocker.cause}", f"  fix: {blocker.remedy}"]
    return "\n".join(rows)
