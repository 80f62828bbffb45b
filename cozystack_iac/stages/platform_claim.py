"""The claim: look whose platform it is, make the namespace ours, leave Helm's release where Helm can go on from.

Runs before anything of the platform is written. A run that was killed inside Helm leaves a revision that Helm refuses to work
on; every later preview and update looks for it (`stuck`), and the next update clears it before the release is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pulumi.dynamic import DiffResult
from pydantic import Field

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule, block
from cozystack_iac.kube.client import Conflict, Kube, KubeError, NotFound, Object, Ref, Unavailable, Unreachable
from cozystack_iac.platform import claim, helm_records
from cozystack_iac.platform.claim import CLUSTER, RELEASE, SeenInstall, WantedInstall
from cozystack_iac.platform.helm_records import Revision
from cozystack_iac.platform.installer import OPERATOR_NAMESPACE, RELEASE_NAME
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, patience, pause

# A plugin whose engine was killed may still finish what it began. It gets the time that the chart takes at most (upstream's
# end-to-end suite: `helm --wait --timeout 2m`); one that ends later only writes to a revision that is no longer the last.
PATIENCE_S = 120.0
LOOK_EVERY_S = 1.0
CLUSTER_WIDE = (
    Ref("rbac.authorization.k8s.io/v1", "clusterroles"),
    Ref("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    Ref("apiextensions.k8s.io/v1", "customresourcedefinitions"),
)
INTERRUPTED = "interrupted; marked as failed by cozystack-iac"
HANDED_OVER = "handed over to the stack by cozystack-iac"

INS_008 = Rule(
    "INS-008",
    ERROR,
    live=True,
    title="The owner of the platform in the cluster is known",
    why="installing over someone else's platform would break it, so without an answer nothing is installed",
    remedy="make sure that the API server is reachable from here",
)


class ClaimInputs(Properties):
    kubeconfig: str = Field(repr=False)
    cluster: str
    release_namespace: str
    brings_namespace: bool
    brings_network: bool = False  # whether the platform installs a pod network of its own
    version: str
    oidc: bool
    legacy: dict[str, str]  # keys of the old ConfigMap, with what they should say where they exist
    legacy_write: dict[str, str]  # those of them that this stack writes
    allowed: list[str] = Field(default_factory=list)  # guardrails that the stack file overrides
    stuck: str = ""  # filled in by `noticed`: our revision that Helm would refuse to go on from
    checks: Literal["live", "offline"] = "live"
    deadline_s: float


class ClaimOutputs(Properties):
    claimed: str
    handed_over: str  # the last revision that was given back to Helm; empty when none ever had to be


class PlatformClaimProvider(StageProvider[ClaimInputs, ClaimOutputs]):
    """Namespace and Helm release are this stack's to install into, and nobody else's."""

    inputs = ClaimInputs
    outputs = ClaimOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"cluster", "release_namespace", "version", "oidc", "legacy_write"})

    async def preflight(self, new: ClaimInputs, known: ClaimInputs | None) -> list[Finding]:
        if new.checks == "offline":
            skipped = INS_008.at(
                "cluster",
                problem="the cluster was not checked, because checks are offline",
                fix=INS_008.remedy,
                severity=WARNING,
            )
            return [] if known is not None else [skipped]
        before = known is not None and known.oidc
        try:
            async with Kube.connect(new.kubeconfig) as kube:
                return list(claim.objections(_wanted(new), await look(kube, new), oidc_before=before))
        except KubeError as error:
            if known is not None:
                return []  # what this stack claimed stays claimed; the stages that need the cluster will say so
            return [INS_008.at("cluster", problem=str(error), fix=INS_008.remedy)]

    async def noticed(self, new: ClaimInputs, known: ClaimInputs) -> Mapping[str, Any]:
        """Does Helm need help?"""
        return {"stuck": known.stuck if new.checks == "offline" else await _stuck(new, known.stuck)}

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Something that is stuck calls for a run; that nothing is any more does not."""
        found: DiffResult = super().diff(_id, _olds, _news)
        new, old = self._try(ClaimInputs, _news), self._try(ClaimInputs, _olds)
        if isinstance(new, ClaimInputs) and new.stuck and not (isinstance(old, ClaimInputs) and old.stuck == new.stuck):
            found.changes = True
        return found

    async def establish(self, inputs: ClaimInputs, progress: Progress) -> ClaimOutputs:
        return await self._claim(inputs, progress, fresh=True, oidc_before=False)

    async def revise(
        self, inputs: ClaimInputs, known: Known[ClaimInputs, ClaimOutputs], progress: Progress
    ) -> ClaimOutputs:
        before = known.inputs is not None and known.inputs.oidc
        made = await self._claim(inputs, progress, fresh=False, oidc_before=before)
        if not made.handed_over and known.outputs is not None:
            return made.model_copy(update={"handed_over": known.outputs.handed_over})  # an account of the past
        return made

    async def observe(self, inputs: ClaimInputs, outputs: ClaimOutputs) -> ClaimOutputs | None:
        async with Kube.connect(inputs.kubeconfig) as kube:
            seen = SeenInstall(namespace=await kube.find(claim.NAMESPACE))
            legacy = (await kube.find(claim.LEGACY) or {}).get("data") or {}
        lost = [key for key, value in inputs.legacy_write.items() if legacy.get(key) != value]
        claimed = seen.cluster if not lost else f"without {', '.join(lost)}"
        return ClaimOutputs(claimed=claimed, handed_over=outputs.handed_over)

    def drifted(self, inputs: ClaimInputs, outputs: ClaimOutputs) -> bool:
        return outputs.claimed != inputs.cluster

    async def withdraw(self, inputs: ClaimInputs, outputs: ClaimOutputs, progress: Progress) -> None:
        progress.say(f"namespace {OPERATOR_NAMESPACE} is kept; delete it yourself once nothing in it is needed")

    async def _claim(self, inputs: ClaimInputs, progress: Progress, *, fresh: bool, oidc_before: bool) -> ClaimOutputs:
        wanted = _wanted(inputs)
        saw = "no answer yet"

        def expired() -> StageFailed:
            return StageFailed(
                f"The Helm release {wanted.release_namespace}/{RELEASE_NAME} could not be claimed (timed "
                f"out after {format_seconds(inputs.deadline_s)}).",
                details={"last seen": saw},
                means="nothing in the platform was changed",
                next_step="check the network path to the API server, then run `pulumi up` again",
            )

        async def claimed(kube: Kube) -> str:
            nonlocal saw
            seen = await look(kube, inputs)
            _refuse(wanted, seen, oidc_before)
            await _mark(kube, wanted, seen, fresh)
            await _write_legacy(kube, inputs)
            while (found := await _last(kube, wanted)) is not None and _younger(found):
                saw = f"revision {found.number} is {found.status}"
                progress.say(f"waiting for another Helm operation: {saw} since {found.since:%H:%M:%S}")
                await pause(LOOK_EVERY_S)
            return await _give_back(kube, wanted, progress)

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:  # every step of it is safe to repeat
                try:
                    return ClaimOutputs(claimed=inputs.cluster, handed_over=await claimed(kube))
                except (Unreachable, Unavailable, Conflict) as error:
                    saw = f"unexpected answer: {error}"
                    progress.say(f"waiting for the API server ({saw})")
                except KubeError as error:
                    raise _unanswered(error) from None
                await pause(LOOK_EVERY_S)
        raise expired()


class PlatformClaim(StageResource[ClaimInputs], provider=PlatformClaimProvider):
    pass


async def look(kube: Kube, inputs: ClaimInputs) -> SeenInstall:
    """Everything that can stand in the way of the installer, and nothing else. Raises KubeError."""
    objects = {ref: found for ref in claim.CHART_OBJECTS if (found := await kube.find(ref)) is not None}
    namespace = await kube.find(claim.NAMESPACE)
    owners = claim.owners({**objects, **({claim.NAMESPACE: namespace} if namespace else {})})
    releases = {(inputs.release_namespace, RELEASE_NAME), *owners}
    newest = [await _newest(kube, *release) for release in sorted(releases)]
    ours = any(one is not None and one.release == f"{inputs.release_namespace}/{RELEASE_NAME}" for one in newest)
    return SeenInstall(
        namespace=namespace,
        objects=objects,
        revisions=tuple(one for one in newest if one is not None),
        legacy=await kube.find(claim.LEGACY),
        package=await kube.find(claim.PACKAGE),
        leftovers=() if ours or not inputs.brings_network else await _leftovers(kube),
    )


async def _leftovers(kube: Kube) -> tuple[Ref, ...]:
    found: list[Ref] = []
    for kind in CLUSTER_WIDE:
        there = [each for each in await kube.objects(kind) if claim.is_left_of_a_network(each, kind.plural)]
        found += [kind.named(str(each["metadata"]["name"])) for each in there]
    return tuple(found)


async def note(kube: Kube) -> None:
    """The operator works, so Helm's release is in the stack's state."""
    await kube.merge_patch(claim.NAMESPACE, {"metadata": {"annotations": {RELEASE: claim.RECORDED}}})


async def _stuck(inputs: ClaimInputs, before: str) -> str:
    wanted = _wanted(inputs)
    try:
        async with Kube.connect(inputs.kubeconfig) as kube:
            seen = await look(kube, inputs)
    except KubeError:
        return before
    found = claim.stuck(wanted, seen)
    return f"{found.release} {found.number} {found.status}" if found else ""


def _refuse(wanted: WantedInstall, seen: SeenInstall, oidc_before: bool) -> None:
    findings = [f for f in claim.objections(wanted, seen, oidc_before=oidc_before) if f.severity is ERROR]
    if findings:
        raise StageFailed(
            f"The platform cannot be installed as configured: {', '.join(sorted({f.code for f in findings}))}.",
            details={str(n): block(finding) for n, finding in enumerate(findings, 1)},
            means="nothing was changed",
            next_step="apply the fix of each finding, then run `pulumi up` again",
        )


async def _mark(kube: Kube, wanted: WantedInstall, seen: SeenInstall, fresh: bool) -> None:
    """Namespace and unowned objects get their marks; whoever objected has been heard before."""
    helm = wanted.helm_marks
    helms_label = {"app.kubernetes.io/managed-by": helm.pop("app.kubernetes.io/managed-by")}
    state = {RELEASE: claim.CLAIMED} if fresh or not seen.cluster else {}
    marks: Object = {"annotations": {CLUSTER: wanted.cluster, **state, **(helm if wanted.brings_namespace else {})}}
    if wanted.brings_namespace:
        marks["labels"] = helms_label
    if seen.namespace is None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR_NAMESPACE, **marks}}
        await kube.create(claim.NAMESPACE, body)
    else:
        await kube.merge_patch(claim.NAMESPACE, {"metadata": marks})
    for ref in seen.unmarked:
        await kube.merge_patch(ref, {"metadata": {"labels": helms_label, "annotations": helm}})


async def _write_legacy(kube: Kube, inputs: ClaimInputs) -> None:
    if not inputs.legacy_write:
        return
    metadata = {
        "name": claim.LEGACY.name,
        "namespace": claim.LEGACY.namespace,
        "annotations": {CLUSTER: inputs.cluster},
    }
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": inputs.legacy_write}
    # Whoever else says otherwise has been heard (INS-005); a value of ours that was changed by hand is put right.
    await kube.apply(claim.LEGACY, body, force=True)


async def _give_back(kube: Kube, wanted: WantedInstall, progress: Progress) -> str:
    """Restate our revision so that Helm goes on from it; the revision, empty when nothing had to be done."""
    secrets = await _revisions(kube, wanted.release_namespace, RELEASE_NAME)
    last = helm_records.last(secrets)
    namespace = await kube.find(claim.NAMESPACE)
    stuck = claim.stuck(wanted, SeenInstall(namespace=namespace, revisions=(last,) if last else ()))
    if stuck is None:
        return ""
    why = INTERRUPTED if stuck.under_way else HANDED_OVER
    [secret] = [each for each in secrets if each["metadata"]["name"] == stuck.secret]
    progress.say(f"revision {stuck.number} of {stuck.release} is {stuck.status}: {why}")
    try:
        await kube.merge_patch(stuck.ref, helm_records.restated(secret, helm_records.FAILED, why))
    except (Conflict, ValueError) as error:
        raise StageFailed(
            f"Helm revision {stuck.number} of {stuck.release} could not be cleared.",
            details={"status": stuck.status, "answer": str(error)},
            means="either someone is working on the release right now, or its record is broken; nothing was changed",
            next_step=f"check `helm -n {stuck.namespace} history {stuck.name}`, then run `pulumi up` again",
        ) from None
    return f"{stuck.release} {stuck.number}"


def _younger(found: Revision) -> bool:
    return found.under_way and datetime.now(UTC) - found.since < timedelta(seconds=patience(PATIENCE_S))


async def _last(kube: Kube, wanted: WantedInstall) -> Revision | None:
    return await _newest(kube, wanted.release_namespace, RELEASE_NAME)


async def _newest(kube: Kube, namespace: str, name: str) -> Revision | None:
    return helm_records.last(await _revisions(kube, namespace, name))


async def _revisions(kube: Kube, namespace: str, name: str) -> list[Object]:
    try:
        return await kube.objects(helm_records.collection(namespace), selector=helm_records.selector(name))
    except NotFound:
        return []


def _wanted(inputs: ClaimInputs) -> WantedInstall:
    return WantedInstall(
        cluster=inputs.cluster,
        release_namespace=inputs.release_namespace,
        brings_namespace=inputs.brings_namespace,
        version=inputs.version,
        oidc=inputs.oidc,
        legacy=inputs.legacy,
        written=frozenset(inputs.legacy_write),
        allowed=frozenset(inputs.allowed),
    )


def _unanswered(error: KubeError) -> StageFailed:
    return StageFailed(
        "The owner of the platform in the cluster cannot be determined.",
        details={"answer": str(error)},
        means="nothing in the platform was changed, because this could damage someone else's installation",
        next_step="check that the API server is reachable from here, then run `pulumi up` again",
    )
