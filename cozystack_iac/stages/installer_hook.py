"""Beside Helm, which waits in silence: says what the chart's first Job is doing, and why, when it does not get on."""

from __future__ import annotations

import contextlib

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, Ref
from cozystack_iac.platform import helm_records, installer, labeler
from cozystack_iac.platform.helm_records import Revision
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, patience, pause

DEPLOYMENT = Ref("apps/v1", "deployments", installer.OPERATOR_NAMESPACE, "cozystack-operator")
LOOK_EVERY_S = 1.0
# A chart that Helm could not even fetch leaves no trace in the cluster: then there is nothing to watch.
NO_TRACE_S = 60.0


class HookInputs(Properties):
    kubeconfig: str = Field(repr=False)
    release_namespace: str
    version: str
    deadline_s: float


class HookOutputs(Properties):
    seen: str  # what ended the watch


class InstallerHookProvider(StageProvider[HookInputs, HookOutputs]):
    """Helm has come past its hooks: the operator's Deployment is there. Runs at the same time as the release."""

    inputs = HookInputs
    outputs = HookOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset()

    async def establish(self, inputs: HookInputs, progress: Progress) -> HookOutputs:
        story = labeler.Story()
        complaints = ""

        def failed(what: str, helm: str) -> StageFailed:
            known = labeler.explained(story.text, complaints, helm)
            details = {"its pods": story.text, "Helm": helm, "events": complaints}
            return StageFailed(
                what,
                details={label: text for label, text in details.items() if text},
                means=f"{known.means}; nothing of the platform is installed yet",
                next_step=f"{known.next_step}; then run `pulumi up` again",
            )

        def expired() -> StageFailed:
            limit = format_seconds(inputs.deadline_s)
            return failed(f"The installer's first Job did not finish (timed out after {limit}).", "")

        def say(text: str) -> None:
            progress.say(f"job {labeler.JOB}: {text}")

        async with (
            budget(inputs.deadline_s, expired),
            Kube.connect(inputs.kubeconfig) as kube,
            labeler.told(kube, labeler.LABELER_PODS, story, say),
        ):
            before: Revision | None = None
            looked = False
            while True:
                with contextlib.suppress(KubeError):
                    if await kube.find(DEPLOYMENT):
                        return HookOutputs(seen="the operator's deployment")
                    found = await _newest(kube, inputs.release_namespace)
                    complaints = await labeler.complaints(kube) or complaints
                    if not looked:
                        before, looked = found, True
                    if found is not None and found.status == helm_records.FAILED and found != before:
                        raise failed("Helm gave up installing Cozystack's chart.", found.description)
                    if found is None and progress.elapsed.total_seconds() > patience(NO_TRACE_S):
                        return HookOutputs(seen="nothing")
                await pause(LOOK_EVERY_S)


class InstallerHook(StageResource[HookInputs], provider=InstallerHookProvider):
    pass


async def _newest(kube: Kube, namespace: str) -> Revision | None:
    selector = helm_records.selector(installer.RELEASE_NAME)
    return helm_records.last(await kube.objects(helm_records.collection(namespace), selector=selector))
