"""The stage that watches the installer chart's first Job, on a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cozystack_iac.kube.client import Kube, Ref
from cozystack_iac.platform import claim, helm_records, labeler
from cozystack_iac.stages import installer_hook as hook_stage
from cozystack_iac.stages.installer_hook import HookInputs, InstallerHookProvider
from lab.memory import KUBECONFIG, MemoryApi
from tests.helm import secret
from tests.platform_cluster import SPACE, Said, fails

pytestmark = pytest.mark.pace(looks=0.01)


def hook(**parts: Any) -> HookInputs:
    given = {"kubeconfig": KUBECONFIG, "release_namespace": "cozy-system", "version": "1.6.2", "deadline_s": 0.5}
    return HookInputs.model_validate(given | parts)


async def labeler_pod(kube: Kube, reason: str, message: str) -> None:
    labels = {"job-name": labeler.JOB}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "l-1", "namespace": "kube-system", "labels": labels},
    }
    await kube.create(labeler.LABELER_PODS.ref, {**body, "spec": {}})
    state = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}
    await kube.merge_patch(labeler.LABELER_PODS.ref.named("l-1"), {"status": state}, subresource="status")


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "docker.io/alpine/k8s:1.36.2"', "network.registries.mirrors"),
        ("CreateContainerError", "dial tcp 127.0.0.1:7445: connect: connection refused", "extractedprism"),
    ],
)
async def test_a_labeler_that_does_not_start_is_told_with_its_cause_and_the_way_out(
    reason: str, message: str, says: str, api: MemoryApi, kube: Kube
) -> None:
    await labeler_pod(kube, reason, message)
    said = Said()
    with fails() as text:
        await InstallerHookProvider().establish(hook(), said)
    assert f"job cozy-system-labeler: l-1 {reason}" in said.text
    assert reason in text()
    assert says in text()


async def test_helms_own_failure_ends_the_watch_with_what_events_said(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "kube-system"},
        "involvedObject": {"kind": "Job", "name": labeler.JOB},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'pods "cozy-system-labeler-" is forbidden: violates PodSecurity "baseline:latest": hostNetwork',
    }
    await kube.create(Ref("v1", "events", "kube-system"), event)
    running = asyncio.ensure_future(InstallerHookProvider().establish(hook(deadline_s=5), Said()))
    await asyncio.sleep(0.05)
    await kube.create(helm_records.collection("cozy-system"), secret("failed"))
    with fails() as text:
        await running
    assert "Helm gave up installing Cozystack's chart" in text()
    assert "violates PodSecurity" in text()
    assert "exempt kube-system" in text()


async def test_a_failure_of_an_earlier_run_is_not_this_ones(api: MemoryApi, kube: Kube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await kube.create(helm_records.collection("cozy-system"), secret("failed"))
    running = asyncio.ensure_future(InstallerHookProvider().establish(hook(deadline_s=5), Said()))
    await asyncio.sleep(0.05)
    metadata = {"name": "cozystack-operator", "namespace": "cozy-system"}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {}}
    await kube.create(hook_stage.DEPLOYMENT, body)
    assert (await running).seen == "the operator's deployment"
