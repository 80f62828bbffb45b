"""The stage that claims a cluster for the platform, on a cluster in memory."""

from __future__ import annotations

import asyncio

import pytest

from cozystack_iac.kube.client import Kube, Ref
from cozystack_iac.platform import claim, helm_records
from cozystack_iac.stages import platform_claim as claim_stage
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.platform_claim import ClaimOutputs, PlatformClaimProvider
from cozystack_iac.waiting import StageFailed
from lab.memory import MemoryApi
from tests.helm import secret
from tests.platform_cluster import SPACE, Said, fails, space, until, wanted

pytestmark = pytest.mark.pace(looks=0.01, patience=0)


async def status(kube: Kube, number: int = 1) -> tuple[str, str]:
    found = await kube.get(Ref("v1", "secrets", "cozy-system", f"sh.helm.release.v1.cozy-installer.v{number}"))
    read = helm_records.revision(found)
    return read.status, read.description


async def test_an_empty_cluster_gets_a_namespace_that_says_whose_it_is(api: MemoryApi, kube: Kube) -> None:
    made = await PlatformClaimProvider().establish(wanted(), Said())
    assert (await space(kube))["annotations"] == {claim.CLUSTER: "eu1", claim.RELEASE: claim.CLAIMED}
    assert made == ClaimOutputs(claimed="eu1", handed_over="")
    assert await PlatformClaimProvider().preflight(wanted(), wanted()) == []


async def test_up_to_1_3_helm_finds_the_namespace_marked_as_its_own(api: MemoryApi, kube: Kube) -> None:
    old = wanted(release_namespace="kube-system", brings_namespace=True, version="1.3.6")
    await PlatformClaimProvider().establish(old, Said())
    made = await space(kube)
    assert made["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert made["annotations"]["meta.helm.sh/release-namespace"] == "kube-system"


async def test_a_namespace_that_was_left_behind_stays_as_it_is_until_somebody_decides(
    api: MemoryApi, kube: Kube
) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    before = await space(kube)
    assert [f.code for f in await PlatformClaimProvider().preflight(wanted(), None)] == ["INS-003"]
    with pytest.raises(StageFailed, match="INS-003"):
        await PlatformClaimProvider().establish(wanted(), Said())
    assert await space(kube) == before
    await PlatformClaimProvider().establish(wanted(allowed=["INS-003"]), Said())
    assert (await space(kube))["annotations"][claim.CLUSTER] == "eu1"


async def test_an_answer_that_was_not_got_is_not_taken_for_an_empty_cluster(api: MemoryApi) -> None:
    api.go_away(True)
    assert [f.code for f in await PlatformClaimProvider().preflight(wanted(), None)] == ["INS-008"]
    assert await PlatformClaimProvider().preflight(wanted(), wanted()) == []
    with fails() as text:
        await PlatformClaimProvider().establish(wanted(deadline_s=0.1), Said())
    assert "could not be claimed" in text()
    assert "All connection attempts failed" in text()
    running = asyncio.ensure_future(PlatformClaimProvider().establish(wanted(), Said()))
    await asyncio.sleep(0.05)
    api.go_away(False)
    assert (await running).claimed == "eu1"


async def test_offline_the_claim_says_that_it_did_not_look(api: MemoryApi) -> None:
    found = await PlatformClaimProvider().preflight(wanted(checks="offline"), None)
    assert [(f.code, f.severity) for f in found] == [("INS-008", "warning")]


@pytest.mark.parametrize("pending", ["pending-install", "pending-upgrade", "uninstalling"])
async def test_what_a_killed_run_left_pending_is_marked_as_failed_and_shown_in_the_plan(
    pending: str, api: MemoryApi, kube: Kube
) -> None:
    provider, first = PlatformClaimProvider(), wanted()
    await provider.establish(first, Said())
    await kube.create(helm_records.collection("cozy-system"), secret(pending, type="helm"))
    noticed = await provider.noticed(first, first)
    assert noticed == {"stuck": f"cozy-system/cozy-installer 1 {pending}"}
    again = first.model_copy(update=noticed)
    assert provider.diff("", first.model_dump(), again.model_dump()).changes
    said = Said()
    known = Known(first, ClaimOutputs(claimed="eu1", handed_over=""))
    made = await provider.revise(again, known, said)
    assert await status(kube) == ("failed", claim_stage.INTERRUPTED)
    assert f"is {pending}: interrupted" in said.text
    assert made.handed_over == "cozy-system/cozy-installer 1"
    assert await provider.noticed(again, again) == {"stuck": ""}
    assert not provider.diff("", again.model_dump(), first.model_dump()).changes


def test_a_preview_of_what_exists_looks_for_it(api: MemoryApi) -> None:
    space = {"metadata": {"name": "cozy-system", "annotations": {claim.CLUSTER: "eu1"}}}
    api.create(api.target("v1", "namespaces"), space)
    api.create(api.target("v1", "secrets", "cozy-system"), secret("pending-install"))
    given = wanted().model_dump()
    assert PlatformClaimProvider().check(given, given).inputs["stuck"] == "cozy-system/cozy-installer 1 pending-install"
    assert PlatformClaimProvider().check({}, given).inputs["stuck"] == ""


@pytest.mark.pace(looks=0.01, patience=1e9)
async def test_whoever_still_works_on_the_release_gets_time_to_finish(api: MemoryApi, kube: Kube) -> None:
    await PlatformClaimProvider().establish(wanted(), Said())
    await kube.create(helm_records.collection("cozy-system"), secret("pending-install"))
    said = Said()
    running = asyncio.ensure_future(PlatformClaimProvider().establish(wanted(), said))
    await until(lambda: "waiting for another Helm operation" in said.text)
    ref = Ref("v1", "secrets", "cozy-system", "sh.helm.release.v1.cozy-installer.v1")
    await kube.merge_patch(ref, helm_records.restated(await kube.get(ref), "failed", "timed out"))
    await running
    assert await status(kube) == ("failed", "timed out")


async def test_a_release_that_was_finished_but_not_noted_is_handed_over_once(api: MemoryApi, kube: Kube) -> None:
    await PlatformClaimProvider().establish(wanted(), Said())
    await kube.create(helm_records.collection("cozy-system"), secret("deployed"))
    assert await PlatformClaimProvider().noticed(wanted(), wanted()) != {"stuck": ""}
    made = await PlatformClaimProvider().establish(wanted(), Said())
    assert await status(kube) == ("failed", claim_stage.HANDED_OVER)
    assert made.handed_over == "cozy-system/cozy-installer 1"
    await kube.create(helm_records.collection("cozy-system"), secret("deployed", 2))
    await claim_stage.note(kube)
    assert await PlatformClaimProvider().noticed(wanted(), wanted()) == {"stuck": ""}
    later = await PlatformClaimProvider().revise(
        wanted(oidc=False, allowed=["OIDC-001"]), Known(wanted(), made), Said()
    )
    assert later == made  # or Helm would be sent over it again for no reason


async def test_the_old_configmap_tells_cilium_its_way_and_drift_is_seen(api: MemoryApi, kube: Kube) -> None:
    generic = wanted(legacy_write={"api-server-endpoint": "https://127.0.0.1:7445"})
    provider = PlatformClaimProvider()
    made = await provider.establish(generic, Said())
    assert (await kube.get(claim.LEGACY))["data"] == {"api-server-endpoint": "https://127.0.0.1:7445"}
    seen = await provider.observe(generic, made)
    assert seen is not None
    assert not provider.drifted(generic, seen)
    await kube.merge_patch(claim.LEGACY, {"data": {"api-server-endpoint": "https://elsewhere:6443"}})
    seen = await provider.observe(generic, made)
    assert seen is not None
    assert provider.drifted(generic, seen)
    await provider.revise(generic, Known(generic, made), Said())
    assert (await kube.get(claim.LEGACY))["data"] == {"api-server-endpoint": "https://127.0.0.1:7445"}


async def test_what_another_pod_network_left_behind_is_listed_before_anything_is_installed(
    api: MemoryApi, kube: Kube
) -> None:  # cozystack#987
    roles = Ref("rbac.authorization.k8s.io/v1", "clusterroles")
    for name, marks in (
        ("cilium", {}),
        ("cilium-operator", {}),
        ("hubble", {"meta.helm.sh/release-name": "theirs"}),
        ("view", {}),
    ):
        metadata = {"name": name, "annotations": marks}
        await kube.create(roles, {"apiVersion": roles.api_version, "kind": "ClusterRole", "metadata": metadata})
    bringing = wanted(brings_network=True)
    [finding] = await PlatformClaimProvider().preflight(bringing, None)
    assert finding.code == "INS-009"
    assert "clusterroles/cilium, clusterroles/cilium-operator already exist" in finding.problem
    assert "kubectl delete clusterroles cilium cilium-operator" in finding.fix
    assert await PlatformClaimProvider().preflight(wanted(), None) == []  # somebody else's network is none of ours
    await kube.create(
        claim.NAMESPACE, {**SPACE, "metadata": {"name": "cozy-system", "annotations": {claim.CLUSTER: "eu1"}}}
    )
    await kube.create(helm_records.collection("cozy-system"), secret("deployed"))
    assert await PlatformClaimProvider().preflight(bringing, bringing) == []  # by now it is the platform's own
