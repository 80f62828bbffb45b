"""Single sign-on as a second step, on releases that do not converge when it is on from the start.

The platform is installed without OIDC; once it is ready, this stage writes the `authentication` part of its Package. Nobody else
writes that part there: the Package resource leaves it out, and the field manager keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, Object
from cozystack_iac.kube.outage import outlasting
from cozystack_iac.platform import claim, values
from cozystack_iac.platform.claim import authentication_of
from cozystack_iac.readiness.releases import FAILING_S
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.stages.platform_values import taken_over
from cozystack_iac.waiting import Progress, StageFailed

MANAGER = "cozystack-iac-sign-on"


class SignOnInputs(Properties):
    kubeconfig: str = Field(repr=False)
    authentication: dict[str, Any]  # `authentication` of the platform's values, as it is in the end
    wanted: dict[str, str]  # what the platform then has to render, see `platform.values.expected`
    allowed: list[str] = Field(default_factory=list)  # guardrails that the stack file overrides
    failing_s: float = FAILING_S
    deadline_s: float


class SignOnOutputs(Properties):
    enabled: bool
    authentication: dict[str, Any]  # as the Package says it, as far as it was asked for


class SignOnProvider(StageProvider[SignOnInputs, SignOnOutputs]):
    """The Package says who signs people in, and the platform has taken it over. On once, it is never switched off in passing."""

    inputs = SignOnInputs
    outputs = SignOnOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"authentication", "wanted"})

    async def establish(self, inputs: SignOnInputs, progress: Progress) -> SignOnOutputs:
        on = _is_on(inputs.authentication)
        async with Kube.connect(inputs.kubeconfig) as kube:
            try:
                package = await outlasting(lambda: kube.get(claim.PACKAGE), inputs.deadline_s, progress.say)
                before = authentication_of(package)
                if _is_on(before) and not on and claim.OIDC_001.code not in inputs.allowed:
                    raise _would_switch_off()
                if (on or _is_on(before)) and not _says(before, inputs.authentication):
                    progress.say(f"turning OIDC {'on' if on else 'off'}")
                    part = _part(package, inputs.authentication)
                    apply = partial(kube.apply, claim.PACKAGE, part, manager=MANAGER, force=True)
                    await outlasting(apply, inputs.deadline_s, progress.say)
            except KubeError as error:
                raise _unwritten(on, error) from None
            if on or _is_on(before):
                await taken_over(kube, inputs.wanted, inputs.deadline_s, progress, failing_s=inputs.failing_s)
        return SignOnOutputs(enabled=on, authentication=inputs.authentication)

    async def observe(self, inputs: SignOnInputs, outputs: SignOnOutputs) -> SignOnOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                package = await kube.find(claim.PACKAGE)
        except KubeError as error:
            raise StageFailed(
                "The OIDC setting in the cluster could not be read.",
                details={"answer": str(error)},
                means="it is unknown whether OIDC is still enabled",
                next_step="check that the API server is reachable from here, then run `pulumi refresh` again",
            ) from None
        if package is None:
            return None
        there = authentication_of(package)
        off = not _is_on(there) and not _is_on(inputs.authentication)  # not a word about it is off, too
        said = inputs.authentication if off or _says(there, inputs.authentication) else there
        return SignOnOutputs(enabled=_is_on(there), authentication=said)

    def drifted(self, inputs: SignOnInputs, outputs: SignOnOutputs) -> bool:
        wanted = _is_on(inputs.authentication)
        return outputs.enabled != wanted or (wanted and outputs.authentication != inputs.authentication)

    async def withdraw(self, inputs: SignOnInputs, outputs: SignOnOutputs, progress: Progress) -> None:
        progress.say("the OIDC setting in the cluster is kept")


class SignOn(StageResource[SignOnInputs], provider=SignOnProvider):
    pass


def _is_on(authentication: Mapping[str, Any]) -> bool:
    return (authentication.get("oidc") or {}).get("enabled") is True


def _says(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether everything that is wanted is there; what else is there is not ours to judge."""
    return all(
        _says(there.get(key) or {}, value)
        if isinstance(value, Mapping)
        else values.text(there.get(key)) == values.text(value)
        for key, value in wanted.items()
    )


def _part(package: Object, authentication: Mapping[str, Any]) -> Object:
    """The Package as this field manager knows it: its name, and one part of its values."""
    return {
        "apiVersion": package["apiVersion"],
        "kind": package["kind"],
        "metadata": {"name": package["metadata"]["name"]},
        "spec": {"components": {"platform": {"values": {"authentication": dict(authentication)}}}},
    }


def _would_switch_off() -> StageFailed:
    return StageFailed(
        "OIDC is enabled in the cluster, but the stack file disables it (OIDC-001).",
        means=claim.OIDC_001.why,
        next_step="set access.oidc to true, or override OIDC-001 in the stack file; then run `pulumi up` again",
    )


def _unwritten(on: bool, error: KubeError) -> StageFailed:
    return StageFailed(
        f"OIDC could not be turned {'on' if on else 'off'}.",
        details={"answer": str(error)},
        means="the platform works as before; the way users log in has not changed",
        next_step="check the network path to the API server, then run `pulumi up` again: it continues with this step",
    )
