"""The platform's stages on a cluster in memory: the claim, the operator at work, values read back, OIDC later, the tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from cozystack_iac.kube.client import Kube, Object, Ref
from cozystack_iac.platform import claim, claim_stage, helm_records, hook_stage, labeler, stages, webhooks
from cozystack_iac.platform.claim_stage import ClaimInputs, ClaimOutputs, PlatformClaimProvider
from cozystack_iac.platform.hook_stage import HookInputs, InstallerHookProvider
from cozystack_iac.platform.sign_on import SignOnInputs, SignOnProvider
from cozystack_iac.platform.stages import (
    OperatorInputs,
    OperatorReadyProvider,
    RootTenantPatchProvider,
    TenantInputs,
    TenantOutputs,
)
from cozystack_iac.platform.values_stage import PlatformValuesProvider, ValuesInputs, ValuesOutputs
from cozystack_iac.readiness import blockage
from cozystack_iac.stage import Known, Progress, StageFailed
from lab.memory import MemoryApi, MemoryKube
from lab.platform import crds, rendered
from tests.unit.test_platform_claim import secret

SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cozy-system"}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (claim_stage, "LOOK_EVERY_S", 0.01),
        (claim_stage, "PATIENCE_S", 0.0),
        (hook_stage, "LOOK_EVERY_S", 0.01),
        (stages, "TENANT_EVERY_S", 0.01),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> MemoryApi:
    """A cluster in memory behind every connection."""
    made = MemoryApi()

    async def no_command(*_: object) -> None:
        return None

    @asynccontextmanager
    async def connect(kubeconfig: str, **_: Any) -> AsyncIterator[Kube]:
        yield MemoryKube(made, no_command)

    monkeypatch.setattr(Kube, "connect", connect)
    return made


@pytest.fixture
def kube(api: MemoryApi) -> MemoryKube:
    async def no_command(*_: object) -> None:
        return None

    return MemoryKube(api, no_command, inside=True)


class Said(Progress):
    """Progress that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__("test", write=self.lines.append)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@contextmanager
def fails() -> Iterator[Callable[[], str]]:
    text = ""
    with pytest.raises(StageFailed) as failed:
        yield lambda: text
    text = str(failed.value)


async def until(wanted: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while True:
            answer = wanted()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


# The claim ------------------------------------------------------------------------------------------------------------


def wanted(**parts: Any) -> ClaimInputs:
    given: dict[str, Any] = {
        "kubeconfig": "k",
        "cluster": "eu1",
        "release_namespace": "cozy-system",
        "brings_namespace": False,
        "version": "1.6.2",
        "oidc": True,
        "legacy": {"root-host": "example.org"},
        "legacy_write": {},
        "deadline_s": 2,
    }
    return ClaimInputs.model_validate(given | parts)


async def space(kube: Kube) -> Object:
    metadata: Object = (await kube.get(claim.NAMESPACE))["metadata"]
    return metadata


async def status(kube: Kube, number: int = 1) -> tuple[str, str]:
    found = await kube.get(Ref("v1", "secrets", "cozy-system", f"sh.helm.release.v1.cozy-installer.v{number}"))
    read = helm_records.revision(found)
    return read.status, read.description


async def test_an_empty_cluster_gets_a_namespace_that_says_whose_it_is(api: MemoryApi, kube: MemoryKube) -> None:
    made = await PlatformClaimProvider().establish(wanted(), Said())
    assert (await space(kube))["annotations"] == {claim.CLUSTER: "eu1", claim.RELEASE: claim.CLAIMED}
    assert made == ClaimOutputs(claimed="eu1", handed_over="")
    assert await PlatformClaimProvider().preflight(wanted(), wanted()) == []


async def test_up_to_1_3_helm_finds_the_namespace_marked_as_its_own(api: MemoryApi, kube: MemoryKube) -> None:
    old = wanted(release_namespace="kube-system", brings_namespace=True, version="1.3.6")
    await PlatformClaimProvider().establish(old, Said())
    made = await space(kube)
    assert made["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    assert made["annotations"]["meta.helm.sh/release-namespace"] == "kube-system"


async def test_a_namespace_that_was_left_behind_stays_as_it_is_until_somebody_decides(
    api: MemoryApi, kube: MemoryKube
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
    pending: str, api: MemoryApi, kube: MemoryKube
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


async def test_whoever_still_works_on_the_release_gets_time_to_finish(
    api: MemoryApi, kube: MemoryKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_stage, "PATIENCE_S", 1e12)
    await PlatformClaimProvider().establish(wanted(), Said())
    await kube.create(helm_records.collection("cozy-system"), secret("pending-install"))
    said = Said()
    running = asyncio.ensure_future(PlatformClaimProvider().establish(wanted(), said))
    await until(lambda: "waiting for whoever works on it" in said.text)
    ref = Ref("v1", "secrets", "cozy-system", "sh.helm.release.v1.cozy-installer.v1")
    await kube.merge_patch(ref, helm_records.restated(await kube.get(ref), "failed", "timed out"))
    await running
    assert await status(kube) == ("failed", "timed out")


async def test_a_release_that_was_finished_but_not_noted_is_handed_over_once(api: MemoryApi, kube: MemoryKube) -> None:
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


async def test_the_old_configmap_tells_cilium_its_way_and_drift_is_seen(api: MemoryApi, kube: MemoryKube) -> None:
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
    api: MemoryApi, kube: MemoryKube
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
    assert "clusterroles/cilium, clusterroles/cilium-operator are there" in finding.problem
    assert "kubectl delete clusterroles cilium cilium-operator" in finding.fix
    assert await PlatformClaimProvider().preflight(wanted(), None) == []  # somebody else's network is none of ours
    await kube.create(
        claim.NAMESPACE, {**SPACE, "metadata": {"name": "cozy-system", "annotations": {claim.CLUSTER: "eu1"}}}
    )
    await kube.create(helm_records.collection("cozy-system"), secret("deployed"))
    assert await PlatformClaimProvider().preflight(bringing, bringing) == []  # by now it is the platform's own


# The operator ---------------------------------------------------------------------------------------------------------


def operator(**parts: Any) -> OperatorInputs:
    return OperatorInputs.model_validate({"kubeconfig": "k", "deadline_s": 0.5, "version": "1.6.2", **parts})


async def crds_of_operator(kube: Kube) -> None:
    for name in crds.OPERATOR:
        await kube.create(stages.CRDS, crds.definition(name, (1, 6)))


SOURCE = {
    "apiVersion": "cozystack.io/v1alpha1",
    "kind": "PackageSource",
    "metadata": {"name": "cozystack.cozystack-platform"},
    "spec": {},
}


def lease(time: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": stages.LEASE, "namespace": "cozy-system"},
        "spec": {"renewTime": time},
    }


async def test_a_package_source_that_appears_proves_the_operator(api: MemoryApi, kube: MemoryKube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    said = Said()
    running = asyncio.ensure_future(OperatorReadyProvider().establish(operator(deadline_s=5), said))
    await until(lambda: "waiting for PackageSource" in said.text)
    await kube.create(stages.PACKAGE_SOURCES, SOURCE)
    assert (await running).package_source == "cozystack.cozystack-platform"


async def test_everything_that_was_there_before_proves_nothing(api: MemoryApi, kube: MemoryKube) -> None:
    """A Deployment is Available without a pod, a CRD and a source outlive their operator."""
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    await kube.create(stages.PACKAGE_SOURCES, SOURCE)
    await kube.create(stages.LEASES, lease("2026-01-01T00:00:00Z"))
    pod = {"metadata": {"name": "op", "namespace": "cozy-system", "labels": {"app": "cozystack-operator"}}}
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "ghcr.io: 429"}}
    body = {**pod, "apiVersion": "v1", "kind": "Pod", "status": {"containerStatuses": [{"state": waiting}]}}
    await kube.create(labeler.OPERATOR_PODS.ref, body)
    await kube.merge_patch(labeler.OPERATOR_PODS.ref.named("op"), {"status": body["status"]}, subresource="status")
    with fails() as text:
        await OperatorReadyProvider().establish(operator(), Said())
    assert "nobody renews lease cozystack-operator.cozystack.io" in text()
    assert "op ImagePullBackOff: ghcr.io: 429" in text()


async def test_a_lease_that_is_renewed_proves_the_operator_and_the_claim_learns_of_it(
    api: MemoryApi, kube: MemoryKube
) -> None:
    await PlatformClaimProvider().establish(wanted(), Said())
    await crds_of_operator(kube)
    await kube.create(stages.PACKAGE_SOURCES, SOURCE)
    await kube.create(stages.LEASES, lease("2026-01-01T00:00:00Z"))
    said = Said()
    given = operator(deadline_s=5)
    running = asyncio.ensure_future(OperatorReadyProvider().establish(given, said))
    await until(lambda: "sign of life" in said.text)
    await asyncio.sleep(0.02)
    await kube.merge_patch(stages.LEASES.named(stages.LEASE), {"spec": {"renewTime": "2026-01-01T00:00:02Z"}})
    await running
    assert (await space(kube))["annotations"][claim.RELEASE] == claim.RECORDED


# The chart's first Job ------------------------------------------------------------------------------------------------


def hook(**parts: Any) -> HookInputs:
    given = {"kubeconfig": "k", "release_namespace": "cozy-system", "version": "1.6.2", "deadline_s": 0.3}
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
    reason: str, message: str, says: str, api: MemoryApi, kube: MemoryKube
) -> None:
    await labeler_pod(kube, reason, message)
    said = Said()
    with fails() as text:
        await InstallerHookProvider().establish(hook(), said)
    assert f"job cozy-system-labeler: l-1 {reason}" in said.text
    assert reason in text()
    assert says in text()


async def test_helms_own_failure_ends_the_watch_with_what_events_said(api: MemoryApi, kube: MemoryKube) -> None:
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
    assert "Helm gave up on the installer" in text()
    assert "violates PodSecurity" in text()
    assert "exempt kube-system" in text()


async def test_a_failure_of_an_earlier_run_is_not_this_ones(api: MemoryApi, kube: MemoryKube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await kube.create(helm_records.collection("cozy-system"), secret("failed"))
    running = asyncio.ensure_future(InstallerHookProvider().establish(hook(deadline_s=5), Said()))
    await asyncio.sleep(0.05)
    metadata = {"name": "cozystack-operator", "namespace": "cozy-system"}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {}}
    await kube.create(hook_stage.DEPLOYMENT, body)
    assert (await running).seen == "the operator's deployment"


# Values that are read back ------------------------------------------------------------------------------------------------


async def render(kube: Kube, **entries: str) -> None:
    body = rendered.secret({key.replace("_", "-"): value for key, value in entries.items()})
    await kube.apply(Ref("v1", "secrets", "cozy-system", "cozystack-values"), body, manager="platform", force=True)


ASKED = {"root-host": "example.org", "expose-services": "api,dashboard"}


def values_inputs(**parts: Any) -> ValuesInputs:
    return ValuesInputs.model_validate({"kubeconfig": "k", "wanted": ASKED, "deadline_s": 0.3, **parts})


async def test_values_count_once_the_platform_uses_all_of_them(api: MemoryApi, kube: MemoryKube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    said = Said()
    running = asyncio.ensure_future(PlatformValuesProvider().establish(values_inputs(deadline_s=5), said))
    await until(lambda: "waiting for the platform to render" in said.text)
    await render(kube, root_host="example.org", expose_services="api")
    await until(lambda: "publishing.exposedServices" in said.text)
    await render(kube, root_host="example.org", expose_services="api,dashboard", kube_root_ca="canary")
    assert (await running).rendered == ASKED


async def test_every_difference_is_named_and_an_old_configmap_is_suspected(api: MemoryApi, kube: MemoryKube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await render(kube, root_host="old.example.org", expose_services="api", password="canary")
    with fails() as text:
        await PlatformValuesProvider().establish(values_inputs(), Said())
    assert "publishing.host             asked for `example.org`, the platform uses `old.example.org`" in text()
    assert "publishing.exposedServices  asked for `api,dashboard`, the platform uses `api`" in text()
    assert "get configmap cozystack" in text()
    assert "canary" not in text()


async def test_a_release_that_will_not_render_them_is_named_before_the_budget_ends(
    api: MemoryApi, kube: MemoryKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blockage, "LOOK_EVERY_S", 0.02)
    await platform_package(api, kube, None)
    for name in crds.FLUX:
        await kube.create(stages.CRDS, crds.definition(name, (1, 6)))
    await kube.create(stages.PACKAGE_SOURCES, SOURCE)
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
    content: str, api: MemoryApi, kube: MemoryKube
) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    body = rendered.secret({})
    body["stringData"] = {"values.yaml": content or "canary"}
    await kube.create(Ref("v1", "secrets", "cozy-system"), body)
    with fails() as text:
        await PlatformValuesProvider().establish(values_inputs(), Said())
    assert "no readable `_cluster`" in text() or "no mapping" in text()
    with pytest.raises(StageFailed, match="could not be read"):
        await PlatformValuesProvider().observe(values_inputs(), ValuesOutputs(rendered=ASKED))


async def test_a_refresh_sees_values_that_became_others(api: MemoryApi, kube: MemoryKube) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    provider, known = PlatformValuesProvider(), ValuesOutputs(rendered=ASKED)
    assert await provider.observe(values_inputs(), known) is None
    await render(kube, root_host="example.org", expose_services="api,dashboard,linstor-gui")
    seen = await provider.observe(values_inputs(), known)
    assert seen is not None
    assert provider.drifted(values_inputs(), seen)
    assert not provider.drifted(values_inputs(), known)


# OIDC as a second step ------------------------------------------------------------------------------------------------


async def platform_package(api: MemoryApi, kube: Kube, oidc: bool | None) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    values: dict[str, Any] = {"publishing": {"host": "example.org"}}
    if oidc is not None:
        values["authentication"] = {"oidc": {"enabled": oidc}}
    body = {
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "Package",
        "metadata": {"name": "cozystack.cozystack-platform"},
        "spec": {"variant": "isp-full", "components": {"platform": {"values": values}}},
    }
    await kube.apply(claim.PACKAGE, body, manager="pulumi")


def sign_on(on: bool = True, **parts: Any) -> SignOnInputs:
    given: dict[str, Any] = {
        "kubeconfig": "k",
        "authentication": {"oidc": {"enabled": on, "keycloakInternalUrl": "http://keycloak"}},
        "wanted": {"oidc-enabled": str(on).lower()},
        "deadline_s": 0.3,
    }
    return SignOnInputs.model_validate(given | parts)


async def test_oidc_is_switched_on_beside_what_others_wrote(api: MemoryApi, kube: MemoryKube) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="true")
    said = Said()
    made = await SignOnProvider().establish(sign_on(), said)
    package = await kube.get(claim.PACKAGE)
    assert claim.authentication_of(package) == {"oidc": {"enabled": True, "keycloakInternalUrl": "http://keycloak"}}
    assert package["spec"]["components"]["platform"]["values"]["publishing"] == {"host": "example.org"}
    assert made.enabled
    assert "switching OIDC on" in said.text
    again = Said()
    await SignOnProvider().establish(sign_on(), again)
    assert (await kube.get(claim.PACKAGE))["metadata"]["generation"] == package["metadata"]["generation"]
    assert "switching" not in again.text


async def test_switched_on_counts_once_the_platform_has_taken_it_over(api: MemoryApi, kube: MemoryKube) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="false")
    with fails() as text:
        await SignOnProvider().establish(sign_on(), Said())
    assert "authentication.oidc.enabled  asked for `true`, the platform uses `false`" in text()


async def test_oidc_is_never_switched_off_without_a_decision(api: MemoryApi, kube: MemoryKube) -> None:
    await platform_package(api, kube, True)
    with fails() as text:
        await SignOnProvider().establish(sign_on(on=False), Said())
    assert "OIDC-001" in text()
    assert claim.oidc_is_on(await kube.get(claim.PACKAGE))
    await render(kube, oidc_enabled="false")
    await SignOnProvider().establish(sign_on(on=False, allowed=["OIDC-001"]), Said())
    assert not claim.oidc_is_on(await kube.get(claim.PACKAGE))


async def test_where_oidc_was_never_on_nothing_is_written(api: MemoryApi, kube: MemoryKube) -> None:
    await platform_package(api, kube, None)
    before = await kube.get(claim.PACKAGE)
    made = await SignOnProvider().establish(sign_on(on=False), Said())
    assert await kube.get(claim.PACKAGE) == before
    assert not made.enabled


async def test_a_refresh_sees_oidc_that_was_switched_off_by_hand(api: MemoryApi, kube: MemoryKube) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="true")
    provider = SignOnProvider()
    made = await provider.establish(sign_on(), Said())
    assert await provider.observe(sign_on(), made) == made
    await kube.merge_patch(
        claim.PACKAGE,
        {"spec": {"components": {"platform": {"values": {"authentication": {"oidc": {"enabled": False}}}}}}},
    )
    seen = await provider.observe(sign_on(), made)
    assert seen is not None
    assert provider.drifted(sign_on(), seen)


# The root tenant ------------------------------------------------------------------------------------------------------

SPEC = {"host": "example.org", "ingress": True, "etcd": True, "monitoring": False}
AWAY = (
    'Internal error occurred: failed calling webhook "validate.apps.example": failed to call webhook: Post '
    '"https://kubevirt-operator.cozy-kubevirt.svc:443/validate?timeout=10s": dial tcp 10.96.1.7:443: connect: '
    "operation not permitted"
)


def tenant_inputs(**parts: Any) -> TenantInputs:
    given = {"kubeconfig": "k", "host": "example.org", "ingress": True, "spec": SPEC, "deadline_s": 1}
    return TenantInputs.model_validate(given | parts)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[httpx.Request]]:
    """An API server that answers patches of the root tenant as told, one answer after the other; the last one for ever."""

    def install(*patches: httpx.Response, spec: dict[str, Any] | None = None) -> list[httpx.Request]:
        seen: list[httpx.Request] = []
        left = list(patches)

        def answer(request: httpx.Request) -> httpx.Response:
            seen.append(request)
            if request.method == "GET":
                if "tenants" in request.url.path:
                    return httpx.Response(200, json={"spec": spec or {}})
                if "cozy-kubevirt" in request.url.path:
                    return httpx.Response(200, json={"items": [], "metadata": {}})
                return httpx.Response(404, json={"reason": "NotFound", "message": "not found"})
            return left.pop(0) if len(left) > 1 else left[0]

        @asynccontextmanager
        async def connect(kubeconfig: str, **_: Any) -> AsyncIterator[Kube]:
            async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.test") as http:
                yield Kube(http)

        monkeypatch.setattr(Kube, "connect", connect)
        return seen

    return install


def refusal(code: int, message: str) -> httpx.Response:
    return httpx.Response(code, json={"reason": "InternalError", "message": message})


DONE = httpx.Response(200, json={"spec": SPEC})


async def test_a_webhook_that_cannot_be_called_for_a_while_is_asked_again(answers: Any) -> None:  # cozystack#1722
    seen = answers(*[refusal(500, AWAY)] * 4, DONE)
    assert (await RootTenantPatchProvider().establish(tenant_inputs(), Said())).applied == SPEC
    assert sum(request.method == "PATCH" for request in seen) == 5


async def test_a_webhook_that_stays_away_is_blamed_with_what_stands_behind_it(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "WEBHOOK_S", 0.05)
    answers(refusal(500, AWAY))
    with fails() as text:
        await RootTenantPatchProvider().establish(tenant_inputs(deadline_s=5), Said())
    assert "webhook validate.apps.example has not answered" in text()
    assert "Service cozy-kubevirt/kubevirt-operator has no endpoints" in text()
    assert "kubectl -n cozy-kubevirt get pods" in text()


async def test_two_webhooks_in_turn_are_no_stuck_webhook(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "WEBHOOK_S", 0.03)
    other = AWAY.replace("validate.apps", "mutate.apps")
    answers(*[refusal(500, text) for text in (AWAY, other) * 6], DONE)
    assert (await RootTenantPatchProvider().establish(tenant_inputs(), Said())).applied == SPEC


async def test_a_spec_that_the_tenant_refuses_is_not_asked_for_again(answers: Any) -> None:
    seen = answers(httpx.Response(422, json={"reason": "Invalid", "message": "spec.host: not a domain"}))
    with fails() as text:
        await RootTenantPatchProvider().establish(tenant_inputs(), Said())
    assert "spec.host: not a domain" in text()
    assert sum(request.method == "PATCH" for request in seen) == 1


async def test_host_and_ingress_go_in_one_patch(answers: Any) -> None:
    seen = answers(DONE)
    await RootTenantPatchProvider().establish(tenant_inputs(), Said())
    [patch] = [request for request in seen if request.method == "PATCH"]
    assert b'"host": "example.org"' in patch.content or b'"host":"example.org"' in patch.content
    assert b'"ingress"' in patch.content


async def test_a_tenant_that_somebody_changed_by_hand_calls_for_another_run(answers: Any) -> None:
    answers(DONE, spec={**SPEC, "ingress": False})
    provider = RootTenantPatchProvider()
    seen = await provider.observe(tenant_inputs(), TenantOutputs(applied=SPEC))
    assert seen is not None
    assert provider.drifted(tenant_inputs(), seen)


@pytest.mark.parametrize(
    ("message", "service"),
    [
        (AWAY, "cozy-kubevirt/kubevirt-operator"),
        ('failed calling webhook "x": failed to call webhook: Post "https://10.0.0.1/x": EOF', "an address outside"),
        ("the server is currently unable to handle the request", None),
        ("", None),
    ],
)
def test_the_webhook_is_read_out_of_the_complaint(message: str, service: str | None) -> None:
    found = webhooks.blamed(message)
    assert (found is None) is (service is None)
    assert found is None or found.whose.startswith(str(service))


def test_endpoints_are_told_one_by_one() -> None:
    webhook = webhooks.Webhook("w", "a", "b")
    slices: list[dict[str, Any]] = [
        {"endpoints": [{"addresses": ["10.0.0.2"], "conditions": {"ready": False}}, {"addresses": ["10.0.0.1"]}]},
        {"endpoints": None},
    ]
    assert webhooks.endpoints(webhook, slices) == "Service a/b has endpoints 10.0.0.1, 10.0.0.2 (not ready)"


async def test_a_question_about_endpoints_without_an_answer_is_unknown(api: MemoryApi, kube: MemoryKube) -> None:
    assert "does not exist" in await webhooks.account(kube, webhooks.Webhook("w", "default", "gone"))
    outside = MemoryKube(api, lambda *_: asyncio.sleep(0))
    api.go_away(True)
    assert (await webhooks.account(outside, webhooks.Webhook("w", "default", "gone"))).startswith("unknown")
