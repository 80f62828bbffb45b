"""The stage that reads the platform's values back, on a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cozystack_iac.kube.client import Kube, Ref
from cozystack_iac.kube.definitions import DEFINITIONS
from cozystack_iac.platform import claim
from cozystack_iac.stages.operator_ready import PACKAGE_SOURCES
from cozystack_iac.stages.platform_values import PlatformValuesProvider, ValuesInputs, ValuesOutputs
from cozystack_iac.waiting import StageFailed
from lab.memory import KUBECONFIG, MemoryApi
from lab.platform import catalogue, crds, rendered
from tests.platform_cluster import SOURCE, SPACE, Said, fails, platform_package, render, until

pytestmark = pytest.mark.pace(looks=0.01, patience=0)

ASKED = {"root-host": "example.org", "expose-services": "api,dashboard"}


def values_inputs(**parts: Any) -> ValuesInputs:
    return ValuesInputs.model_validate({"kubeconfig": KUBECONFIG, "wanted": ASKED, "deadline_s": 0.5, **parts})


async def test_values_count_once_the_platform_uses_all_of_them(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    said = Said()
    running = asyncio.ensure_future(PlatformValuesProvider().establish(values_inputs(deadline_s=5), said))
    await until(lambda: "waiting for the platform to render" in said.text)
    await render(kube, root_host="example.org", expose_services="api")
    await until(lambda: "publishing.exposedServices" in said.text)
    await render(kube, root_host="example.org", expose_services="api,dashboard", kube_root_ca="canary")
    assert (await running).rendered == ASKED


async def test_every_difference_is_named_and_an_old_configmap_is_suspected(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await render(kube, root_host="old.example.org", expose_services="api", password="canary")
    with fails() as text:
        await PlatformValuesProvider().establish(values_inputs(), Said())
    assert "publishing.host             set to `example.org`, but the platform uses `old.example.org`" in text()
    assert "publishing.exposedServices  set to `api,dashboard`, but the platform uses `api`" in text()
    assert "get configmap cozystack" in text()
    assert "canary" not in text()


async def test_a_release_that_will_not_render_them_is_named_before_the_budget_ends(
    api: MemoryApi, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform_package(api, kube, None)
    for name in crds.FLUX:
        await kube.create(DEFINITIONS, crds.definition(name, catalogue.load("1.6.2").traits))
    await kube.create(PACKAGE_SOURCES, SOURCE)
    release = {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "metadata": {
            "name": "cozystack-platform",
            "namespace": "cozy-system",
            "labels": {"cozystack.io/package": "cozystack.cozystack-platform"},
        },
        "spec": {},
    }
    releases = Ref("helm.toolkit.fluxcd.io/v2", "helmreleases", "cozy-system")
    await kube.create(releases, release)
    why = {"reason": "RetriesExceeded", "message": "bundles.iaas.enabled can only be true when …"}
    conditions = [{"type": "Ready", "status": "False", **why}, {"type": "Stalled", "status": "True", **why}]
    stalled = {"status": {"observedGeneration": 1, "conditions": conditions}}
    await kube.merge_patch(releases.named("cozystack-platform"), stalled, subresource="status")
    with fails() as text:
        await PlatformValuesProvider().establish(values_inputs(deadline_s=20), Said())
    assert "cozy-system/cozystack-platform" in text()
    assert "bundles.iaas.enabled can only be true" in text()


@pytest.mark.parametrize("content", ["", "_cluster: [", "other: 1", "_cluster: text"])
async def test_values_that_cannot_be_read_are_unknown_and_never_quoted(
    content: str, api: MemoryApi, kube: Kube
) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    body = rendered.secret({})
    body["stringData"] = {"values.yaml": content or "canary"}
    await kube.create(Ref("v1", "secrets", "cozy-system"), body)
    with fails() as text:
        await PlatformValuesProvider().establish(values_inputs(), Said())
    assert "no readable `_cluster`" in text() or "not a mapping" in text()
    with pytest.raises(StageFailed, match="could not be read"):
        await PlatformValuesProvider().observe(values_inputs(), ValuesOutputs(rendered=ASKED))


async def test_a_refresh_sees_values_that_became_others(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    provider, known = PlatformValuesProvider(), ValuesOutputs(rendered=ASKED)
    assert await provider.observe(values_inputs(), known) is None
    await render(kube, root_host="example.org", expose_services="api,dashboard,linstor-gui")
    seen = await provider.observe(values_inputs(), known)
    assert seen is not None
    assert provider.drifted(values_inputs(), seen)
    assert not provider.drifted(values_inputs(), known)
