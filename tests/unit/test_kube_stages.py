"""Looking before creating: names that are free, taken by us, taken by others, unanswered; objects that have to be there."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from cozystack_iac.kube.client import Kube
from cozystack_iac.kube.stages import Claim, Named, PresentInputs, PresentProvider, UnclaimedInputs, UnclaimedProvider
from cozystack_iac.stage import Progress, StageFailed

Handler = Callable[[httpx.Request], httpx.Response]
OURS = {"app.kubernetes.io/managed-by": "cozystack-iac"}
SILENT = Progress("test", write=lambda _: None)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], None]:
    """Put an API server of a test's own behind every connection."""

    def install(handler: Handler) -> None:
        @asynccontextmanager
        async def connect(kubeconfig: str, **_: Any) -> AsyncIterator[Kube]:
            async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="https://api.test") as http:
                yield Kube(http)

        monkeypatch.setattr(Kube, "connect", connect)

    return install


def missing(request: httpx.Request) -> httpx.Response:
    return httpx.Response(404, json={"reason": "NotFound", "message": "not found"})


def existing(labels: dict[str, str], annotations: dict[str, str] | None = None) -> Handler:
    metadata = {"name": "local", "labels": labels, "annotations": annotations or {}, "creationTimestamp": "2026-01-01"}
    return lambda _: httpx.Response(200, json={"metadata": metadata})


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused")


def claims() -> UnclaimedInputs:
    claim = Claim(api_version="storage.k8s.io/v1", plural="storageclasses", name="local", owner=OURS)
    return UnclaimedInputs(kubeconfig="k", claims=[claim], next_step="do this", deadline_s=1)


@pytest.mark.parametrize("handler", [missing, existing(OURS)], ids=["free", "ours from a run that was killed"])
async def test_a_name_that_is_free_or_ours_may_be_used(api: Callable[[Handler], None], handler: Handler) -> None:
    api(handler)
    assert (await UnclaimedProvider().establish(claims(), SILENT)).free == ["local"]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (existing({}), "managed by an unknown tool"),
        (existing({"app.kubernetes.io/managed-by": "argocd"}), "managed by argocd"),
        (
            existing({}, {"meta.helm.sh/release-name": "piraeus", "meta.helm.sh/release-namespace": "storage"}),
            "belongs to Helm release storage/piraeus",
        ),
    ],
)
async def test_a_name_of_somebody_else_is_refused_with_its_owner(
    api: Callable[[Handler], None], handler: Handler, said: str
) -> None:
    api(handler)
    with pytest.raises(StageFailed) as failed:
        await UnclaimedProvider().establish(claims(), SILENT)
    assert said in str(failed.value)
    assert "do this" in str(failed.value)


async def test_no_answer_is_not_taken_for_a_free_name(api: Callable[[Handler], None]) -> None:
    api(away)
    with pytest.raises(StageFailed, match="cannot be determined"):
        await UnclaimedProvider().establish(claims(), SILENT)


def wanted() -> PresentInputs:
    named = [Named(api_version="storage.k8s.io/v1", plural="storageclasses", name=n) for n in ("local", "replicated")]
    return PresentInputs(kubeconfig="k", objects=named, next_step="make them", deadline_s=1)


async def test_objects_that_are_there_are_only_looked_at(api: Callable[[Handler], None]) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        return existing({})(request)

    api(answer)
    assert (await PresentProvider().establish(wanted(), SILENT)).found == ["local", "replicated"]
    assert set(seen) == {"GET"}


async def test_all_missing_objects_are_named_at_once(api: Callable[[Handler], None]) -> None:
    api(missing)
    with pytest.raises(StageFailed) as failed:
        await PresentProvider().establish(wanted(), SILENT)
    assert "storageclasses/local" in str(failed.value)
    assert "storageclasses/replicated" in str(failed.value)


async def test_no_answer_is_not_taken_for_presence(api: Callable[[Handler], None]) -> None:
    api(away)
    with pytest.raises(StageFailed, match="cannot be determined"):
        await PresentProvider().establish(wanted(), SILENT)
