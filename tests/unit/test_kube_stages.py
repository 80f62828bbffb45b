"""Looking before creating: names that are free, taken by us, taken by others, unanswered; objects that have to be there."""

import httpx
import pytest

from cozystack_iac.kube.stages import Claim, Named, PresentInputs, PresentProvider, UnclaimedInputs, UnclaimedProvider
from cozystack_iac.stage import Progress, StageFailed
from lab.memory import KUBECONFIG
from tests.asked import Answer, ServedBy

OURS = {"app.kubernetes.io/managed-by": "cozystack-iac"}
SILENT = Progress("test", write=lambda _: None)


def missing(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404, json={"reason": "NotFound", "message": "not found"})


def existing(labels: dict[str, str], annotations: dict[str, str] | None = None) -> Answer:
    metadata = {"name": "local", "labels": labels, "annotations": annotations or {}, "creationTimestamp": "2026-01-01"}
    return lambda _: httpx.Response(200, json={"metadata": metadata})


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def claims() -> UnclaimedInputs:
    claim = Claim(api_version="storage.k8s.io/v1", plural="storageclasses", name="local", owner=OURS)
    return UnclaimedInputs(kubeconfig=KUBECONFIG, claims=[claim], next_step="do this", deadline_s=1)


@pytest.mark.parametrize("handler", [missing, existing(OURS)], ids=["free", "ours from a run that was killed"])
async def test_a_name_that_is_free_or_ours_may_be_used(served_by: ServedBy, handler: Answer) -> None:
    served_by(handler)
    assert (await UnclaimedProvider().establish(claims(), SILENT)).free == ["local"]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (existing({}), "managed by nobody we know"),
        (existing({"app.kubernetes.io/managed-by": "argocd"}), "managed by argocd"),
        (
            existing({}, {"meta.helm.sh/release-name": "piraeus", "meta.helm.sh/release-namespace": "storage"}),
            "belongs to Helm release storage/piraeus",
        ),
    ],
)
async def test_a_name_of_somebody_else_is_refused_with_its_owner(
    served_by: ServedBy, handler: Answer, said: str
) -> None:
    served_by(handler)
    with pytest.raises(StageFailed) as failed:
        await UnclaimedProvider().establish(claims(), SILENT)
    assert said in str(failed.value)
    assert "do this" in str(failed.value)


async def test_no_answer_is_not_taken_for_a_free_name(served_by: ServedBy) -> None:
    served_by(away)
    with pytest.raises(StageFailed, match="could not be found out"):
        await UnclaimedProvider().establish(claims(), SILENT)


def wanted() -> PresentInputs:
    named = [Named(api_version="storage.k8s.io/v1", plural="storageclasses", name=n) for n in ("local", "replicated")]
    return PresentInputs(kubeconfig=KUBECONFIG, objects=named, next_step="make them", deadline_s=1)


async def test_objects_that_are_there_are_only_looked_at(served_by: ServedBy) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        return existing({})(request)

    served_by(answer)
    assert (await PresentProvider().establish(wanted(), SILENT)).found == ["local", "replicated"]
    assert set(seen) == {"GET"}


async def test_all_missing_objects_are_named_at_once(served_by: ServedBy) -> None:
    served_by(missing)
    with pytest.raises(StageFailed) as failed:
        await PresentProvider().establish(wanted(), SILENT)
    assert "storageclasses/local" in str(failed.value)
    assert "storageclasses/replicated" in str(failed.value)


async def test_no_answer_is_not_taken_for_presence(served_by: ServedBy) -> None:
    served_by(away)
    with pytest.raises(StageFailed, match="could not be found out"):
        await PresentProvider().establish(wanted(), SILENT)
