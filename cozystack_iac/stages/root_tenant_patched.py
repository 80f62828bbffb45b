"""The root tenant says what the stack file says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Conflict, Kube, KubeError, NotFound, Refused, Unavailable, Unreachable
from cozystack_iac.platform import tenant, webhooks
from cozystack_iac.platform.webhooks import Webhook
from cozystack_iac.readiness.blockage import unless_stuck
from cozystack_iac.readiness.releases import FAILING_S
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, patience, pause

TENANT_EVERY_S = 1.0  # an aggregated API behind a restarting backend: watches on it end all the time

# A webhook that is away is normal while Cilium and Kube-OVN settle, for minutes; longer, and it is the webhook that is broken.
WEBHOOK_S = 300.0


class TenantInputs(Properties):
    kubeconfig: str = Field(repr=False)
    host: str
    ingress: bool
    spec: dict[str, Any]  # everything that is set, host and ingress included
    failing_s: float = FAILING_S  # how long a failure of what the tenant needs is noise
    deadline_s: float


class TenantOutputs(Properties):
    applied: dict[str, Any]


class RootTenantPatchedProvider(StageProvider[TenantInputs, TenantOutputs]):
    """The root tenant says what the stack file says. Runs as soon as the tenant exists, and only changes what differs."""

    inputs = TenantInputs
    outputs = TenantOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"host", "ingress", "spec"})

    async def establish(self, inputs: TenantInputs, progress: Progress) -> TenantOutputs:
        last = "no answer yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"The root tenant could not be patched (timed out after {format_seconds(inputs.deadline_s)}).",
                details={"last seen": last},
                means="without host and ingress nothing is published; the rest of the platform is not affected",
                next_step="check the releases cozystack-api, tenant-rd and cozystack-basics in cozy-system, then "
                "run `pulumi up` again",
            )

        async def patched(kube: Kube) -> TenantOutputs:
            nonlocal last
            patience = _Patience()
            while True:
                try:
                    left = await _patched(kube, inputs.spec, progress)
                    if not left:
                        return TenantOutputs(applied=dict(inputs.spec))
                    last = f"patched, but not applied yet: {', '.join(left)}"
                    patience = _Patience()
                except NotFound as error:
                    last = _not_yet(error)
                except Conflict:
                    last = "someone else changed it at the same time"
                except (Unavailable, Unreachable) as error:
                    last = f"unexpected answer: {error}"
                    webhook = webhooks.blamed(str(error))
                    if patience.is_over(webhook) and webhook is not None:
                        raise _broken(webhook, str(error), await webhooks.account(kube, webhook)) from None
                except Refused as error:
                    if error.status in (400, 422):
                        raise _refused(error) from None
                    last = f"rejected, trying again: {error}"  # as long as the aggregator's own way in is not open
                progress.say(f"waiting for the root tenant ({last})")
                await pause(TENANT_EVERY_S)

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            return await unless_stuck(patched(kube), kube, tenant.RELEASES, failing_s=inputs.failing_s)

    async def observe(self, inputs: TenantInputs, outputs: TenantOutputs) -> TenantOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                found = await kube.find(tenant.ROOT)
        except KubeError as error:
            raise StageFailed(
                "The root tenant could not be read.",
                details={"answer": str(error)},
                means="it is unknown whether it was changed by hand",
                next_step="check that the API server is reachable from here, then run `pulumi refresh` again",
            ) from None
        if found is None:
            return None
        gap = tenant.missing(inputs.spec, found.get("spec") or {})
        return TenantOutputs(applied={**inputs.spec, **{key: (found.get("spec") or {}).get(key) for key in gap}})

    def drifted(self, inputs: TenantInputs, outputs: TenantOutputs) -> bool:
        return outputs.applied != inputs.spec


class RootTenantPatched(StageResource[TenantInputs], provider=RootTenantPatchedProvider):
    pass


async def _patched(kube: Kube, wanted: Mapping[str, Any], progress: Progress) -> list[str]:
    """Bring the tenant's spec to what is wanted, in one patch; the keys that it does not say even then."""
    found = await kube.get(tenant.ROOT)
    gap = tenant.missing(wanted, found.get("spec") or {})
    if gap:
        progress.say(f"patching the root tenant: {', '.join(sorted(gap))}")
        found = await kube.merge_patch(tenant.ROOT, {"spec": gap})
    return sorted(tenant.missing(wanted, found.get("spec") or {}))


class _Patience:
    """How long one and the same webhook has been in the way; any other answer starts it anew."""

    def __init__(self) -> None:
        self._webhook: Webhook | None = None
        self._since = 0.0

    def is_over(self, webhook: Webhook | None) -> bool:
        now = time.monotonic()
        if webhook != self._webhook:
            self._webhook, self._since = webhook, now
        return webhook is not None and now - self._since >= patience(WEBHOOK_S)


def _broken(webhook: Webhook, answer: str, behind: str) -> StageFailed:
    look = f"kubectl -n {webhook.namespace} get pods,endpointslices" if webhook.service else "check what serves it"
    return StageFailed(
        f"The root tenant cannot be patched: webhook {webhook.name} has not responded for {format_seconds(WEBHOOK_S)}.",
        details={"behind it": behind, "answer": answer},
        means="the API server calls this webhook before every such change; short outages are normal while the "
        "network starts, but not for minutes",
        next_step=f"run `{look}`, repair the webhook, then run `pulumi up` again",
    )


def _refused(error: Refused) -> StageFailed:
    return StageFailed(
        "The root tenant rejects the values of the stack file.",
        details={"answer": str(error)},
        means="nothing was changed, and trying again would give the same answer",
        next_step="correct `tenant` or `publishing.host` in the stack file, then run `pulumi up` again",
    )


def _not_yet(error: NotFound) -> str:
    """The aggregated API is registered late: until then its whole group is a 404, which is no answer about the tenant."""
    return "not created yet" if "tenants" in error.message and "root" in error.message else "its API is not served yet"
