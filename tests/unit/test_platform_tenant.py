"""The stage that patches the root tenant, and the webhooks that may keep it from doing so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cozystack_iac.kube.client import Kube
from cozystack_iac.platform import webhooks
from cozystack_iac.stages.root_tenant_patched import RootTenantPatchedProvider, TenantInputs, TenantOutputs
from lab.memory import KUBECONFIG, Server
from tests.asked import ServedBy
from tests.platform_cluster import Said, fails

pytestmark = pytest.mark.pace(looks=0.01, patience=2e-4)

SPEC = {"host": "example.org", "ingress": True, "etcd": True, "monitoring": False}
AWAY = (
    'Internal error occurred: failed calling webhook "validate.apps.example": failed to call webhook: Post '
    '"https://kubevirt-operator.cozy-kubevirt.svc:443/validate?timeout=10s": dial tcp 10.96.1.7:443: connect: '
    "operation not permitted"
)


def tenant_inputs(**parts: Any) -> TenantInputs:
    given = {"kubeconfig": KUBECONFIG, "host": "example.org", "ingress": True, "spec": SPEC, "deadline_s": 1}
    return TenantInputs.model_validate(given | parts)


@pytest.fixture
def answers(served_by: ServedBy) -> Callable[..., list[httpx.Request]]:
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

        served_by(answer)
        return seen

    return install


def refusal(code: int, message: str) -> httpx.Response:
    return httpx.Response(code, json={"reason": "InternalError", "message": message})


DONE = httpx.Response(200, json={"spec": SPEC})


async def test_a_webhook_that_cannot_be_called_for_a_while_is_asked_again(answers: Any) -> None:  # cozystack#1722
    seen = answers(*[refusal(500, AWAY)] * 4, DONE)
    assert (await RootTenantPatchedProvider().establish(tenant_inputs(), Said())).applied == SPEC
    assert sum(request.method == "PATCH" for request in seen) == 5


async def test_a_webhook_that_stays_away_is_blamed_with_what_stands_behind_it(
    answers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(refusal(500, AWAY))
    with fails() as text:
        await RootTenantPatchedProvider().establish(tenant_inputs(deadline_s=5), Said())
    assert "webhook validate.apps.example has not responded" in text()
    assert "Service cozy-kubevirt/kubevirt-operator has no endpoints" in text()
    assert "kubectl -n cozy-kubevirt get pods" in text()


async def test_two_webhooks_in_turn_are_no_stuck_webhook(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = AWAY.replace("validate.apps", "mutate.apps")
    answers(*[refusal(500, text) for text in (AWAY, other) * 6], DONE)
    assert (await RootTenantPatchedProvider().establish(tenant_inputs(), Said())).applied == SPEC


async def test_a_spec_that_the_tenant_refuses_is_not_asked_for_again(answers: Any) -> None:
    seen = answers(httpx.Response(422, json={"reason": "Invalid", "message": "spec.host: not a domain"}))
    with fails() as text:
        await RootTenantPatchedProvider().establish(tenant_inputs(), Said())
    assert "spec.host: not a domain" in text()
    assert sum(request.method == "PATCH" for request in seen) == 1


async def test_host_and_ingress_go_in_one_patch(answers: Any) -> None:
    seen = answers(DONE)
    await RootTenantPatchedProvider().establish(tenant_inputs(), Said())
    [patch] = [request for request in seen if request.method == "PATCH"]
    assert b'"host": "example.org"' in patch.content or b'"host":"example.org"' in patch.content
    assert b'"ingress"' in patch.content


async def test_a_tenant_that_somebody_changed_by_hand_calls_for_another_run(answers: Any) -> None:
    answers(DONE, spec={**SPEC, "ingress": False})
    provider = RootTenantPatchedProvider()
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
    assert webhooks.endpoints(webhook, slices) == "Service a/b has the endpoints 10.0.0.1, 10.0.0.2 (not ready)"


async def test_a_question_about_endpoints_without_an_answer_is_unknown(server: Server, kube: Kube) -> None:
    assert "does not exist" in await webhooks.account(kube, webhooks.Webhook("w", "default", "gone"))
    server.api.go_away(True)
    assert (await webhooks.account(server.kube(), webhooks.Webhook("w", "default", "gone"))).startswith("unknown")
