"""The lab's account of what the platform chart makes of its values, and of what cannot start because of them."""

from __future__ import annotations

from typing import Any

import pytest

from lab.platform import catalogue
from lab.platform.catalogue import Traits
from lab.platform.rendered import cilium_hangs, cluster, dashboard_hangs, secret

INSIDE = {"authentication": {"oidc": {"keycloakInternalUrl": "http://keycloak-http"}}}


def traits(version: str) -> Traits:
    return catalogue.load(version).traits


@pytest.mark.parametrize(
    ("version", "values", "oidc", "ingress", "hangs"),
    [
        ("1.3.6", {}, True, False, True),
        ("1.4.6", {}, True, False, True),
        ("1.5.4", {}, True, False, True),
        ("1.6.2", {}, True, False, False),
        ("1.5.4", INSIDE, True, False, False),
        ("1.5.4", {}, True, True, False),
        ("1.3.6", {}, False, False, False),
        ("1.4.6", {}, False, True, True),
        ("1.5.4", {}, False, False, False),
    ],
    ids=[
        "1.3 with OIDC waits for the ingress",
        "1.4 with OIDC waits for the ingress",
        "1.5 with OIDC waits for the ingress",
        "1.6 asks Keycloak inside",
        "an internal URL helps",
        "OIDC after the ingress is no problem",
        "1.3 without OIDC starts",
        "1.4 without OIDC never starts",
        "1.5 without OIDC starts",
    ],
)
def test_when_the_dashboard_cannot_start(
    version: str, values: dict[str, Any], oidc: bool, ingress: bool, hangs: bool
) -> None:
    assert dashboard_hangs(traits(version), values, oidc=oidc, ingress=ingress) is hangs


@pytest.mark.parametrize(
    ("variant", "endpoint", "legacy", "hangs"),
    [
        ("isp-full-generic", "https://api.example.org:443", "", True),
        ("isp-full-generic", "", "", True),
        ("isp-full-generic", "https://127.0.0.1:7445", "", False),
        ("isp-full-generic", "https://api.example.org:443", "https://127.0.0.1:7445", False),
        ("isp-full", "https://api.example.org:443", "", False),
    ],
)
def test_cilium_needs_a_way_to_the_api_that_needs_no_pod_network(
    variant: str, endpoint: str, legacy: str, hangs: bool
) -> None:
    values = {"publishing": {"apiServerEndpoint": endpoint}}
    assert cilium_hangs(variant, values, {"api-server-endpoint": legacy} if legacy else {}) is hangs


def test_values_are_texts_and_the_old_configmap_wins() -> None:
    values = {"publishing": {"host": "example.org", "externalIPs": ["10.0.0.1", "10.0.0.2"], "proxyProtocol": True}}
    made = cluster(traits("1.6.2"), "isp-full", values, {"root-host": "old.example.org"})
    assert made["root-host"] == "old.example.org"
    assert made["expose-external-ips"] == "10.0.0.1,10.0.0.2"
    assert (made["proxy-protocol"], made["cpu-allocation-ratio"]) == ("true", "10")
    assert "proxy-protocol" not in cluster(traits("1.3.6"), "isp-full", values, {})
    assert 'root-host: "old.example.org"' in secret(made)["stringData"]["values.yaml"]
