"""The platform has taken over what its package asks for: the values it renders are read back and compared."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.platform import values
from cozystack_iac.readiness.blockage import unless_stuck
from cozystack_iac.readiness.releases import FAILING_S
from cozystack_iac.releases import RENDERED_KEYS
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds


class ValuesInputs(Properties):
    kubeconfig: str = Field(repr=False)
    wanted: dict[str, str]  # key of `_cluster` -> text, see `platform.values.expected`
    failing_s: float = FAILING_S
    deadline_s: float


class ValuesOutputs(Properties):
    rendered: dict[str, str]


class PlatformValuesProvider(StageProvider[ValuesInputs, ValuesOutputs]):
    """The Secret that all parts of the platform read says what was asked for."""

    inputs = ValuesInputs
    outputs = ValuesOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"wanted"})

    async def establish(self, inputs: ValuesInputs, progress: Progress) -> ValuesOutputs:
        async with Kube.connect(inputs.kubeconfig) as kube:
            limit, failing = inputs.deadline_s, inputs.failing_s
            seen = await taken_over(kube, inputs.wanted, limit, progress, failing_s=failing)
            return ValuesOutputs(rendered=seen)

    async def observe(self, inputs: ValuesInputs, outputs: ValuesOutputs) -> ValuesOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                secret = await kube.find(values.SECRET)
                return None if secret is None else ValuesOutputs(rendered=_of(inputs.wanted, values.rendered(secret)))
        except (KubeError, values.Unreadable) as error:
            raise StageFailed(
                "The platform's effective values could not be read.",
                details={"answer": str(error)},
                means="it is unknown whether they match the stack file",
                next_step="check that the API server is reachable from here, then run `pulumi refresh` again",
            ) from None

    def drifted(self, inputs: ValuesInputs, outputs: ValuesOutputs) -> bool:
        return outputs.rendered != inputs.wanted


class PlatformValues(StageResource[ValuesInputs], provider=PlatformValuesProvider):
    pass


async def taken_over(
    kube: Kube, wanted: Mapping[str, str], deadline_s: float, progress: Progress, *, failing_s: float = FAILING_S
) -> dict[str, str]:
    """Wait until the platform renders `wanted`; those values as they are rendered.

    Raises StageFailed with every difference, or with what is wrong with the release that renders them.
    """
    left = values.differences(wanted, {})
    saw = "not rendered yet"

    def expired() -> StageFailed:
        return StageFailed(
            f"The platform does not use the values of the stack file (timed out after {format_seconds(deadline_s)}).",
            details={"last seen": saw, **{RENDERED_KEYS[d.key][0]: str(d) for d in left if d.seen is not None}},
            means="these settings have no effect; the platform continues with its current values",
            next_step=f"{values.hint(left)}; then run `pulumi up` again",
        )

    async def rendered() -> dict[str, str]:
        nonlocal left, saw
        async for snapshot in kube.watch(values.SECRETS, selector=values.WATCHED):
            secret = (snapshot.objects or {}).get((values.SECRET.namespace or "", values.SECRET.name or ""))
            if secret is None:
                progress.say("waiting for the platform to render its values")
                continue
            try:
                seen = values.rendered(secret)
            except values.Unreadable as error:
                saw = str(error)
                progress.say(saw)
                continue
            left = values.differences(wanted, seen)
            if not left:
                return _of(wanted, seen)
            saw = f"{len(left)} of {len(wanted)} values differ"
            progress.say(f"waiting for the platform to apply {', '.join(RENDERED_KEYS[d.key][0] for d in left)}")
        raise expired()

    async with budget(deadline_s, expired):
        return await unless_stuck(rendered(), kube, values.RELEASES, failing_s=failing_s)


def _of(wanted: Mapping[str, str], seen: Mapping[str, str]) -> dict[str, str]:
    return {key: seen[key] for key in wanted if key in seen}
