"""The operator has installed its CRDs and its package source, and it is at work."""

from __future__ import annotations

from pydantic import Field

from cozystack_iac.kube.client import Conflict, Kube, Ref, Unavailable, Unreachable
from cozystack_iac.kube.definitions import DEFINITIONS, established
from cozystack_iac.platform import installer, labeler
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.stages.platform_claim import note
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

PACKAGE_SOURCES = Ref("cozystack.io/v1alpha1", "packagesources")
LEASES = Ref("coordination.k8s.io/v1", "leases", installer.OPERATOR_NAMESPACE)
LEASE = (
    "cozystack-operator.cozystack.io"  # leader election of the operator, 1.3 to 1.6 (cmd/cozystack-operator/main.go)
)
LOOK_EVERY_S = 1.0


class OperatorInputs(Properties):
    kubeconfig: str = Field(repr=False)
    version: str = ""
    handed_over: str = ""  # what the claim gave back to Helm: then the operator proves itself once more
    deadline_s: float


class OperatorOutputs(Properties):
    package_source: str


class OperatorReadyProvider(StageProvider[OperatorInputs, OperatorOutputs]):
    """The operator has installed its CRDs and its package source, and it is at work now.

    Its Deployment being Available proves nothing: up to 1.6 the rollout strategy makes it Available without a pod. Work does: a
    package source that appears while we look, or a leader's lease that is renewed (every two seconds).
    """

    inputs = OperatorInputs
    outputs = OperatorOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"version", "handed_over"})

    async def establish(self, inputs: OperatorInputs, progress: Progress) -> OperatorOutputs:
        missing = ", ".join(installer.PACKAGE_CRDS)
        story = labeler.Story()

        def expired() -> StageFailed:
            return StageFailed(
                f"The Cozystack operator did not start (timed out after {format_seconds(inputs.deadline_s)}).",
                details={"missing": missing, "its pods": story.text},
                means="the chart is installed, but the platform does not progress without its operator",
                next_step="check `kubectl -n cozy-system logs deploy/cozystack-operator`, then run `pulumi up` again",
            )

        def say(text: str) -> None:
            progress.say(f"the operator's pods: {text}")

        async with (
            budget(inputs.deadline_s, expired),
            Kube.connect(inputs.kubeconfig) as kube,
            labeler.told(kube, labeler.OPERATOR_PODS, story, say),
        ):
            async for snapshot in kube.watch(DEFINITIONS):
                there = {n for (_, n), crd in (snapshot.objects or {}).items() if established(crd)}
                missing = ", ".join(name for name in installer.PACKAGE_CRDS if name not in there)
                if not missing:
                    break
                progress.say(f"waiting for the operator to create {missing}")
            missing = f"PackageSource {installer.PLATFORM_PACKAGE}"
            appeared = await _source_appears(kube, progress)
            missing = f"a heartbeat of the operator: lease {LEASE} is not renewed"
            if not appeared:
                await _lease_is_renewed(kube, progress)
            await _noted(kube)
        return OperatorOutputs(package_source=installer.PLATFORM_PACKAGE)


class OperatorReady(StageResource[OperatorInputs], provider=OperatorReadyProvider):
    pass


async def _noted(kube: Kube) -> None:
    """What is only a note for a later run must not fail this one, but it must not be lost in a passing outage either."""
    while True:
        try:
            return await note(kube)
        except (Unavailable, Unreachable, Conflict):
            await pause(LOOK_EVERY_S)


async def _source_appears(kube: Kube, progress: Progress) -> bool:
    """Wait for the platform's package source; whether it came while we looked, which only a living operator can bring about."""
    waited = False
    async for snapshot in kube.watch(PACKAGE_SOURCES):
        if ("", installer.PLATFORM_PACKAGE) in (snapshot.objects or {}):
            break
        waited = True
        progress.say(f"waiting for PackageSource {installer.PLATFORM_PACKAGE}")
    return waited


async def _lease_is_renewed(kube: Kube, progress: Progress) -> None:
    first: object = None
    progress.say("waiting for a heartbeat of the operator")
    async for snapshot in kube.watch(LEASES):
        lease = (snapshot.objects or {}).get((installer.OPERATOR_NAMESPACE, LEASE)) or {}
        renewed = (lease.get("spec") or {}).get("renewTime")
        if first is not None and renewed not in (None, first):
            return
        first = first or renewed
