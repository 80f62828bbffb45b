"""A wait for a part of the platform: its own result, its own failure, or the reason why it cannot come to an end."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from cozystack_iac.kube.client import Conflict, Kube, Ref
from cozystack_iac.readiness.blockage import unless_stuck
from cozystack_iac.waiting import StageFailed
from lab.memory import MemoryApi, Server
from lab.platform import catalogue, crds, objects

pytestmark = pytest.mark.pace(looks=0.002)

NEEDED, ROOT, OTHER = "cozy-linstor/linstor", "cozy-cert-manager/cert-manager", "cozy-reloader/reloader"
PACKAGES, SOURCES = Ref("cozystack.io/v1alpha1", "packages"), Ref("cozystack.io/v1alpha1", "packagesources")
CRDS = Ref("apiextensions.k8s.io/v1", "customresourcedefinitions")


async def cluster(*gave_up: str, api: MemoryApi | None = None) -> Kube:
    """A platform of a few releases, one of which needs another; those in `gave_up` are stalled."""
    kube = Server(api or MemoryApi()).kube()
    for name in (*crds.OPERATOR, *crds.FLUX):
        await kube.create(CRDS, crds.definition(name, catalogue.load("1.6.2").traits))
    await kube.create(SOURCES, objects.platform_source())
    await kube.create(PACKAGES, objects.new("Package", catalogue.PLATFORM_PACKAGE, spec={"variant": "default"}))
    await release(kube, catalogue.PLATFORM_RELEASE, (), stalled=False)
    for ref, needs in ((ROOT, ()), (NEEDED, (ROOT,)), (OTHER, ())):
        name = ref.split("/")[1]
        package = catalogue.Package(f"cozystack.{name}", "default", "system", (), (component(ref),))
        await kube.create(SOURCES, objects.package_source(package.name, [package]))
        await kube.create(PACKAGES, objects.package(package))
        await release(kube, ref, needs, stalled=ref in gave_up)
    return kube


def component(ref: str) -> catalogue.Component:
    namespace, name = ref.split("/")
    return catalogue.Component(name, name, namespace)


async def release(kube: Kube, ref: str, needs: tuple[str, ...], *, stalled: bool) -> None:
    namespace, name = ref.split("/")
    with suppress(Conflict):
        await kube.create(Ref("v1", "namespaces"), objects.new("Namespace", namespace))
    where = Ref("helm.toolkit.fluxcd.io/v2", "helmreleases", namespace)
    depends_on = [dict(zip(("namespace", "name"), need.split("/"), strict=True)) for need in needs]
    spec = {"interval": "5m", "dependsOn": depends_on}
    await kube.create(where, objects.new("HelmRelease", name, namespace, spec=spec))
    said = objects.condition("Ready", "False", "InstallFailed", "Helm install failed: context deadline exceeded", 1)
    given_up = objects.condition("Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)", 1)
    status = {"observedGeneration": 1, "conditions": [said, given_up] if stalled else []}
    await kube.merge_patch(where.named(name), {"status": status}, subresource="status")


async def forever() -> str:
    await asyncio.sleep(3600)
    return "never"


async def test_a_wait_that_ends_is_not_disturbed() -> None:
    async def soon() -> str:
        await asyncio.sleep(0.05)
        return "there"

    assert await unless_stuck(soon(), await cluster(), [NEEDED]) == "there"


async def test_its_own_failure_stays_its_own() -> None:
    async def broken() -> str:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await unless_stuck(broken(), await cluster(), [NEEDED])


async def test_what_it_waits_for_cannot_come_any_more() -> None:
    with pytest.raises(StageFailed) as failed:
        await asyncio.wait_for(unless_stuck(forever(), await cluster(ROOT), [NEEDED]), 10)
    told = str(failed.value)
    assert f"{ROOT} is given up by Flux" in told
    assert NEEDED in told


async def test_what_others_cannot_get_is_no_reason_to_stop() -> None:
    kube = await cluster(OTHER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(unless_stuck(forever(), kube, [NEEDED]), 0.25)


async def test_an_outage_is_no_reason_to_stop() -> None:
    api = MemoryApi()
    kube = await cluster(ROOT, api=api)
    api.go_away(True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(unless_stuck(forever(), kube, [NEEDED]), 0.25)
