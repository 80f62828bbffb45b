"""Platform stages: the operator proves that it lives, the root tenant is patched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, NotFound, Ref, Unavailable, Unreachable
from cozystack_iac.platform import installer, tenant
from cozystack_iac.stage import Progress, Properties, StageFailed, StageProvider, StageResource, budget, format_seconds

CRDS = Ref("apiextensions.k8s.io/v1", "customresourcedefinitions")
PACKAGE_SOURCES = Ref("cozystack.io/v1alpha1", "packagesources")
TENANT_EVERY_S = 1.0  # an aggregated API behind a restarting backend: watches on it end all the time


class OperatorInputs(Properties):
    kubeconfig: str = Field(repr=False)
    deadline_s: float


class OperatorOutputs(Properties):
    package_source: str


class OperatorReadyProvider(StageProvider[OperatorInputs, OperatorOutputs]):
    """The operator has installed its CRDs and its package source.

    Its Deployment being Available proves nothing: up to 1.6 the rollout strategy makes it Available without a pod.
    """

    inputs = OperatorInputs
    outputs = OperatorOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset()

    async def establish(self, inputs: OperatorInputs, progress: Progress) -> OperatorOutputs:
        missing = list(installer.PACKAGE_CRDS)

        def expired() -> StageFailed:
            return StageFailed(
                f"Cozystack's operator did not start working ({format_seconds(inputs.deadline_s)} budget used up).",
                details={"missing": ", ".join(missing)},
                means="the chart is installed; nothing of the platform exists yet",
                next_step="kubectl -n cozy-system logs deploy/cozystack-operator; then run `pulumi up` again",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            async for snapshot in kube.watch(CRDS):
                established = {n for (_, n), crd in (snapshot.objects or {}).items() if _established(crd)}
                missing = [name for name in installer.PACKAGE_CRDS if name not in established]
                if not missing:
                    break
                progress.say(f"waiting for the operator to establish {', '.join(missing)}")
            missing = [f"PackageSource {installer.PLATFORM_PACKAGE}"]
            progress.say(f"waiting for {missing[0]}")
            async for snapshot in kube.watch(PACKAGE_SOURCES):
                if ("", installer.PLATFORM_PACKAGE) in (snapshot.objects or {}):
                    return OperatorOutputs(package_source=installer.PLATFORM_PACKAGE)
        raise expired()


class OperatorReady(StageResource, module="cozystack", name="OperatorReady"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(OperatorReadyProvider(), name, inputs, opts)


def _established(crd: Mapping[str, Any]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


class TenantInputs(Properties):
    kubeconfig: str = Field(repr=False)
    host: str
    ingress: bool
    spec: dict[str, Any]  # everything that is set, host and ingress included
    deadline_s: float


class TenantOutputs(Properties):
    applied: dict[str, Any]


class RootTenantPatchProvider(StageProvider[TenantInputs, TenantOutputs]):
    """The root tenant says what the stack file says. Runs as soon as the tenant exists, and only changes what differs."""

    inputs = TenantInputs
    outputs = TenantOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"host", "ingress", "spec"})

    async def establish(self, inputs: TenantInputs, progress: Progress) -> TenantOutputs:
        last = "not asked yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"The root tenant could not be patched ({format_seconds(inputs.deadline_s)} budget used up).",
                details={"last seen": last},
                means="without host and ingress nothing is published; the platform's other parts are not affected",
                next_step="see releases cozystack-api, tenant-rd and cozystack-basics in cozy-system, then run `pulumi up` again",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:
                try:
                    found = await kube.get(tenant.ROOT)
                    gap = tenant.missing(inputs.spec, found.get("spec") or {})
                    if not gap:
                        return TenantOutputs(applied=dict(inputs.spec))
                    progress.say(f"patching the root tenant: {', '.join(sorted(gap))}")
                    patched = await kube.merge_patch(tenant.ROOT, {"spec": gap})
                    left = tenant.missing(inputs.spec, patched.get("spec") or {})
                    if not left:
                        return TenantOutputs(applied=dict(inputs.spec))
                    last = f"patched, but not taken over: {', '.join(sorted(left))}"
                except NotFound as error:
                    last = _not_yet(error)
                except (Unavailable, Unreachable) as error:
                    last = f"no useful answer: {error}"
                progress.say(f"waiting for the root tenant ({last})")
                await asyncio.sleep(TENANT_EVERY_S)

    async def observe(self, inputs: TenantInputs, outputs: TenantOutputs) -> TenantOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                found = await kube.find(tenant.ROOT)
        except KubeError as error:
            raise StageFailed(
                "The root tenant could not be read.",
                details={"answer": str(error)},
                means="whether somebody changed it by hand is unknown",
                next_step="check that the API server can be reached from here, then run `pulumi refresh` again",
            ) from None
        if found is None:
            return None
        spec = found.get("spec") or {}
        return TenantOutputs(applied={key: spec.get(key) for key in inputs.spec})


class RootTenantPatch(StageResource, module="cozystack", name="RootTenantPatch"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(RootTenantPatchProvider(), name, inputs, opts)


def _not_yet(error: NotFound) -> str:
    """The aggregated API is registered late: until then its whole group is a 404, which is no answer about the tenant."""
    return "not created yet" if "tenants" in error.message and "root" in error.message else "its API is not served yet"
