"""The stage that waits for the platform's operator to be at work, on a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cozystack_iac.kube.client import Kube, Object
from cozystack_iac.platform import claim, labeler
from cozystack_iac.stages.operator_ready import LEASE, LEASES, PACKAGE_SOURCES, OperatorInputs, OperatorReadyProvider
from cozystack_iac.stages.platform_claim import PlatformClaimProvider
from lab.memory import KUBECONFIG, MemoryApi
from tests.platform_cluster import SOURCE, SPACE, Said, crds_of_operator, fails, space, until, wanted

pytestmark = pytest.mark.pace(looks=0.01, patience=0)


def operator(**parts: Any) -> OperatorInputs:
    return OperatorInputs.model_validate({"kubeconfig": KUBECONFIG, "deadline_s": 0.5, "version": "1.6.2", **parts})


def lease(time: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": "cozy-system"},
        "spec": {"renewTime": time},
    }


async def test_a_package_source_that_appears_proves_the_operator(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    said = Said()
    running = asyncio.ensure_future(OperatorReadyProvider().establish(operator(deadline_s=5), said))
    await until(lambda: "waiting for PackageSource" in said.text)
    await kube.create(PACKAGE_SOURCES, SOURCE)
    assert (await running).package_source == "cozystack.cozystack-platform"


async def test_everything_that_was_there_before_proves_nothing(api: MemoryApi, kube: Kube) -> None:
    """A Deployment is Available without a pod, a CRD and a source outlive their operator."""
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    await kube.create(PACKAGE_SOURCES, SOURCE)
    await kube.create(LEASES, lease("2026-01-01T00:00:00Z"))
    pod = {"metadata": {"name": "op", "namespace": "cozy-system", "labels": {"app": "cozystack-operator"}}}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "ghcr.io: 429"}}
    body = {**pod, "apiVersion": "v1", "kind": "Pod", "status": {"containerStatuses": [{"state": waiting}]}}
    await kube.create(labeler.OPERATOR_PODS.ref, body)
    await kube.merge_patch(labeler.OPERATOR_PODS.ref.named("op"), {"status": body["status"]}, subresource="status")
    with fails() as text:
        await OperatorReadyProvider().establish(operator(), Said())
    assert "lease cozystack-operator.cozystack.io is not renewed" in text()
    assert "op ImagePullBackOff: ghcr.io: 429" in text()


async def test_a_lease_that_is_renewed_proves_the_operator_and_the_claim_learns_of_it(
    api: MemoryApi, kube: Kube
) -> None:
    await PlatformClaimProvider().establish(wanted(), Said())
    await crds_of_operator(kube)
    await kube.create(PACKAGE_SOURCES, SOURCE)
    await kube.create(LEASES, lease("2026-01-01T00:00:00Z"))
    said = Said()
    given = operator(deadline_s=5)
    running = asyncio.ensure_future(OperatorReadyProvider().establish(given, said))
    await until(lambda: "heartbeat" in said.text)
    await asyncio.sleep(0.02)
    await kube.merge_patch(LEASES.named(LEASE), {"spec": {"renewTime": "2026-01-01T00:00:02Z"}})
    await running
    assert (await space(kube))["annotations"][claim.RELEASE] == claim.RECORDED
