"""The stage behind `postverify`: asks the cluster until nothing is young any more, and says what is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import Field

from cozystack_iac import report
from cozystack_iac.diagnosis import evidence
from cozystack_iac.findings import ERROR, Finding, Verdict, as_markdown, block
from cozystack_iac.kube.client import Kube, Ref
from cozystack_iac.readiness.postverify import (
    INGRESS_NAMESPACE,
    Patience,
    PlatformStanding,
    SeenPlatform,
    WantedPlatform,
    verify,
)
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

LOOK_EVERY_S = 2.0  # ten lists; what is waited for here takes minutes
SHOWN = 8  # findings in a message, waits in a line

KINDS: Mapping[str, Ref] = {
    "pods": evidence.KINDS["pods"],
    "services": Ref("v1", "services", INGRESS_NAMESPACE),
    "endpoint slices": Ref("discovery.k8s.io/v1", "endpointslices", INGRESS_NAMESPACE),
    "ingress classes": Ref("networking.k8s.io/v1", "ingressclasses"),
    **{
        name: evidence.KINDS[name]
        for name in ("certificates", "certificate requests", "cluster issuers", "orders", "challenges")
    },
}


class PostVerifyInputs(Properties):
    kubeconfig: str = Field(repr=False)
    host: str
    ingress: bool
    addresses: list[str] = Field(default_factory=list)  # of the root ingress
    load_balancer: bool = False
    sign_on: bool = False
    revision: str = ""  # of what was asked for; a change means that everything has moved
    pods_s: float = Patience.pods_s
    certificates_s: float = Patience.certificates_s
    deadline_s: float


class PostVerifyOutputs(Properties):
    pods: int
    certificates: int
    failing: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    seconds: int = 0


class PostVerifyProvider(StageProvider[PostVerifyInputs, PostVerifyOutputs]):
    """Pods run, the root ingress has somebody behind it, certificates are issued, or it is said why not.

    What blocks people fails; the rest is a warning in the outputs.
    """

    inputs = PostVerifyInputs
    outputs = PostVerifyOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"host", "ingress", "addresses", "load_balancer", "sign_on", "revision"})

    async def establish(self, inputs: PostVerifyInputs, progress: Progress) -> PostVerifyOutputs:
        started, standing = time.monotonic(), PlatformStanding((), ("the first answer",), 0, 0)

        def expired() -> StageFailed:
            return _failed(standing.findings, standing.waiting, f"timed out after {format_seconds(inputs.deadline_s)}")

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:
                standing, _ = await look(kube, inputs, waited_s=time.monotonic() - started)
                if not standing.waiting:
                    break
                progress.say(f"waiting for {_counted(standing.waiting)}")
                await pause(LOOK_EVERY_S)
        errors = [f for f in standing.findings if f.severity is ERROR]
        if errors:
            raise _failed(standing.findings, (), f"{len(errors)} problem(s) found")
        for finding in standing.findings:
            progress.say(block(finding))
        if standing.findings:
            report.add("After the install", as_markdown(Verdict.of(standing.findings)))
        return _outputs(standing, round(progress.elapsed.total_seconds()))

    async def observe(self, inputs: PostVerifyInputs, outputs: PostVerifyOutputs) -> PostVerifyOutputs | None:
        async with Kube.connect(inputs.kubeconfig) as kube:
            standing, gaps = await look(kube, inputs, waited_s=0.0)
        if gaps:
            raise StageFailed(
                "The state of the running platform cannot be read.",
                details=gaps,
                means="the state keeps its last values; nothing was changed",
                next_step="check the network path to the API server, then run the refresh again",
            )
        return _outputs(standing, outputs.seconds)

    def drifted(self, inputs: PostVerifyInputs, outputs: PostVerifyOutputs) -> bool:
        return bool(outputs.failing)


class PostVerify(StageResource[PostVerifyInputs], provider=PostVerifyProvider):
    pass


async def look(kube: Kube, inputs: PostVerifyInputs, *, waited_s: float) -> tuple[PlatformStanding, dict[str, str]]:
    """One look at everything, and what could not be seen."""
    answers = evidence.Answers()
    await evidence.ask(kube, KINDS, answers)
    seen = SeenPlatform(
        pods=[p for p in answers.of("pods") if evidence.is_platform(p)],
        services=answers.of("services"),
        slices=answers.of("endpoint slices"),
        ingress_classes=answers.of("ingress classes"),
        issuers=answers.issuers(),
        gaps=answers.gaps,
        away=answers.away,
    )
    wanted = WantedPlatform(inputs.host, inputs.ingress, tuple(inputs.addresses), inputs.load_balancer, inputs.sign_on)
    patience = Patience(inputs.pods_s, inputs.certificates_s)
    return verify(wanted, seen, datetime.now(UTC), waited_s=waited_s, patience=patience), answers.gaps


def _outputs(standing: PlatformStanding, seconds: int) -> PostVerifyOutputs:
    said = [(f.severity, f"{f.code} {f.path}: {f.problem}") for f in standing.findings]
    return PostVerifyOutputs(
        pods=standing.pods,
        certificates=standing.certificates,
        failing=[text for severity, text in said if severity is ERROR],
        warnings=[text for severity, text in said if severity is not ERROR],
        seconds=seconds,
    )


def _counted(texts: tuple[str, ...]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _failed(findings: tuple[Finding, ...], waiting: tuple[str, ...], why: str) -> StageFailed:
    worst = Verdict.of(findings).findings
    details = {f"{f.code} {f.path}": f"{f.problem}\n{f.why}\nfix: {f.fix}" for f in worst[:SHOWN]}
    if len(worst) > SHOWN:
        details["and"] = f"{len(worst) - SHOWN} more"
    if waiting:
        details["waiting for"] = _counted(waiting)
    first = worst[0] if worst else None
    look_at = f"`{first.command}`; " if first is not None and first.command else ""
    return StageFailed(
        f"The platform is installed, but not fully usable ({why}).",
        details=details or {"last seen": "no answer yet"},
        means="every release is ready; the problems listed above remain",
        next_step=f"{look_at}apply the fixes above, then run `pulumi up` again: it continues from here",
    )
