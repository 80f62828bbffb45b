"""LINSTOR's controller answers, and satellites can be configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, Ref, Unavailable, Unreachable
from cozystack_iac.kube.definitions import DEFINITIONS, established
from cozystack_iac.readiness.blockage import unless_stuck
from cozystack_iac.readiness.releases import FAILING_S
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.storage import linstor
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

ENDPOINT_SLICES = Ref("discovery.k8s.io/v1", "endpointslices", linstor.NAMESPACE)
CONFIGURATIONS = "linstorsatelliteconfigurations.piraeus.io"
LOOK_EVERY_S = 0.5


class LinstorReadyInputs(Properties):
    kubeconfig: str = Field(repr=False)
    failing_s: float = FAILING_S  # how long a failure of what LINSTOR needs is noise
    deadline_s: float


class LinstorReadyOutputs(Properties):
    ready: bool


class LinstorReadyProvider(StageProvider[LinstorReadyInputs, LinstorReadyOutputs]):
    """LINSTOR's controller has a ready endpoint, and satellites can be configured.

    The release being Ready says less: the controller comes minutes later.
    """

    inputs = LinstorReadyInputs
    outputs = LinstorReadyOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset()

    async def establish(self, inputs: LinstorReadyInputs, progress: Progress) -> LinstorReadyOutputs:
        last = "the platform has not installed LINSTOR yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"The LINSTOR controller did not become ready (timed out after {format_seconds(inputs.deadline_s)}).",
                details={"last seen": last},
                means="the zpools exist and were not changed; without the controller the platform has no storage",
                next_step=f"check the releases in {linstor.NAMESPACE} and cozy-cert-manager (`kubectl -n "
                f"{linstor.NAMESPACE} get helmreleases,pods,certificates`), then run `pulumi up` again",
            )

        async def ready(kube: Kube) -> LinstorReadyOutputs:
            nonlocal last
            selector = f"kubernetes.io/service-name={linstor.CONTROLLER}"
            async for snapshot in kube.watch(ENDPOINT_SLICES, selector=selector):
                if linstor.ready_endpoint((snapshot.objects or {}).values()):
                    break
                last = (
                    "the service has no ready endpoint"
                    if snapshot.objects
                    else "the service linstor-controller does not exist yet"
                )
                progress.say(f"waiting for {linstor.NAMESPACE}/{linstor.CONTROLLER}: {last}")
            while not established(await _definition(kube)):
                last = f"the controller is ready, but {CONFIGURATIONS} is not established"
                progress.say(f"waiting for {CONFIGURATIONS}")
                await pause(LOOK_EVERY_S)
            return LinstorReadyOutputs(ready=True)

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            return await unless_stuck(ready(kube), kube, linstor.RELEASES, failing_s=inputs.failing_s)


class LinstorReady(StageResource[LinstorReadyInputs], provider=LinstorReadyProvider):
    pass


async def _definition(kube: Kube) -> Mapping[str, Any]:
    try:
        return await kube.find(DEFINITIONS.named(CONFIGURATIONS)) or {}
    except (Unreachable, Unavailable):
        return {}
