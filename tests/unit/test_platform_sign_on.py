"""The stage that switches OIDC on as a second step, on a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

from cozystack_iac.kube.client import Kube
from cozystack_iac.platform import claim
from cozystack_iac.stages.sign_on import SignOnInputs, SignOnProvider
from lab.memory import KUBECONFIG, MemoryApi
from tests.platform_cluster import Said, fails, platform_package, render

pytestmark = pytest.mark.pace(looks=0.01, patience=0)


def sign_on(on: bool = True, **parts: Any) -> SignOnInputs:
    given: dict[str, Any] = {
        "kubeconfig": KUBECONFIG,
        "authentication": {"oidc": {"enabled": on, "keycloakInternalUrl": "http://keycloak"}},
        "wanted": {"oidc-enabled": str(on).lower()},
        "deadline_s": 0.5,
    }
    return SignOnInputs.model_validate(given | parts)


async def test_oidc_is_switched_on_beside_what_others_wrote(api: MemoryApi, kube: Kube) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="true")
    said = Said()
    made = await SignOnProvider().establish(sign_on(), said)
    package = await kube.get(claim.PACKAGE)
    assert claim.authentication_of(package) == {"oidc": {"enabled": True, "keycloakInternalUrl": "http://keycloak"}}
    assert package["spec"]["components"]["platform"]["values"]["publishing"] == {"host": "example.org"}
    assert made.enabled
    assert "turning OIDC on" in said.text
    again = Said()
    await SignOnProvider().establish(sign_on(), again)
    assert (await kube.get(claim.PACKAGE))["metadata"]["generation"] == package["metadata"]["generation"]
    assert "switching" not in again.text


async def test_switched_on_counts_once_the_platform_has_taken_it_over(api: MemoryApi, kube: Kube) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="false")
    with fails() as text:
        await SignOnProvider().establish(sign_on(), Said())
    assert "authentication.oidc.enabled  set to `true`, but the platform uses `false`" in text()


async def test_oidc_is_never_switched_off_without_a_decision(api: MemoryApi, kube: Kube) -> None:
    await platform_package(api, kube, True)
    with fails() as text:
        await SignOnProvider().establish(sign_on(on=False), Said())
    assert "OIDC-001" in text()
    assert claim.oidc_is_on(await kube.get(claim.PACKAGE))
    await render(kube, oidc_enabled="false")
    await SignOnProvider().establish(sign_on(on=False, allowed=["OIDC-001"]), Said())
    assert not claim.oidc_is_on(await kube.get(claim.PACKAGE))


async def test_where_oidc_was_never_on_nothing_is_written(api: MemoryApi, kube: Kube) -> None:
    await platform_package(api, kube, None)
    before = await kube.get(claim.PACKAGE)
    made = await SignOnProvider().establish(sign_on(on=False), Said())
    assert await kube.get(claim.PACKAGE) == before
    assert not made.enabled


async def test_a_refresh_sees_oidc_that_was_switched_off_by_hand(api: MemoryApi, kube: Kube) -> None:
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


@pytest.mark.parametrize("call", ["GET packages", "PATCH packages"])
async def test_an_outage_is_outlasted_and_oidc_switched_on_after_it(
    api: MemoryApi, kube: Kube, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform_package(api, kube, None)
    await render(kube, oidc_enabled="true")
    api.refuse(call, 503, "ServiceUnavailable", "apiserver is shutting down", 3)
    said = Said()
    await SignOnProvider().establish(sign_on(), said)
    assert claim.oidc_is_on(await kube.get(claim.PACKAGE))
    assert "waiting for the API server (503 ServiceUnavailable: apiserver is shutting down)" in said.text
