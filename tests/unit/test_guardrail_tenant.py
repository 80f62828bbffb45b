"""The guardrail for the root tenant's host and ingress, with values that are known and values that are not."""

from typing import Any

import pytest
from pulumi_policy.proxy import UNKNOWN_BOOLEAN_VALUE, UNKNOWN_OBJECT_VALUE, UNKNOWN_STRING_VALUE

from tests.guardrails import judged

PATCH = "pulumi-python:dynamic/cozystack:RootTenantPatched"
PACKAGE = "kubernetes:cozystack.io/v1alpha1:Package"

PAIRS = [
    ({"host": "example.com", "ingress": True}, 0, 0),
    ({"host": "", "ingress": False}, 0, 0),
    ({}, 0, 0),
    ({"host": "example.com", "ingress": False}, 1, 0),
    ({"host": "example.com"}, 1, 0),
    ({"ingress": True}, 1, 0),
    ({"host": "", "ingress": True}, 1, 0),
    ({"host": UNKNOWN_STRING_VALUE, "ingress": True}, 0, 1),
    ({"host": "example.com", "ingress": UNKNOWN_BOOLEAN_VALUE}, 0, 1),
]


@pytest.mark.parametrize(("spec", "violations", "unverified"), PAIRS)
def test_host_and_ingress_go_together_wherever_they_are_set(
    spec: dict[str, Any], violations: int, unverified: int
) -> None:
    root = {"namespace": "tenant-root", "name": "root"}
    release = {"namespace": "tenant-root", "name": "tenant-root"}
    places = [
        (PATCH, spec),
        ("kubernetes:apps.cozystack.io/v1alpha1:Tenant", {"metadata": root, "spec": spec}),
        ("kubernetes:apps.cozystack.io/v1alpha1:TenantPatch", {"metadata": root, "spec": spec}),
        ("kubernetes:helm.toolkit.fluxcd.io/v2:HelmRelease", {"metadata": release, "spec": {"values": spec}}),
    ]
    said = [[len(s) for s in judged("root-tenant-host-and-ingress", token, props)] for token, props in places]

    assert said == [[violations, unverified]] * len(places)


def test_other_tenants_may_do_as_they_like() -> None:
    props = {"metadata": {"namespace": "tenant-root", "name": "team1"}, "spec": {"host": "team1.example.com"}}

    assert judged("root-tenant-host-and-ingress", "kubernetes:apps.cozystack.io/v1alpha1:Tenant", props) == ([], [])


def test_a_tenant_of_unknown_name_is_not_verified_when_it_would_break_the_rule() -> None:
    props = {"metadata": {"namespace": "tenant-root", "name": UNKNOWN_STRING_VALUE}, "spec": {"host": "h.example.com"}}
    violations, open_ = judged("root-tenant-host-and-ingress", "kubernetes:apps.cozystack.io/v1alpha1:Tenant", props)

    assert (violations, len(open_)) == ([], 1)


@pytest.mark.parametrize(
    ("publishing", "violations", "unverified"),
    [
        ({"host": "example.com", "externalIPs": ["10.0.0.1"]}, 0, 0),
        ({"host": "example.com", "ingressName": "tenant-root"}, 0, 0),
        ({"host": "example.com", "ingressName": ""}, 1, 0),
        ({"externalIPs": ["10.0.0.1"]}, 1, 0),
        ({"host": "example.org", "exposedServices": ["api"]}, 1, 0),
        ({}, 0, 0),
        (None, 0, 0),
        ({"host": UNKNOWN_STRING_VALUE, "exposedServices": ["api"]}, 0, 1),
        (UNKNOWN_OBJECT_VALUE, 0, 1),
    ],
)
def test_the_platform_package_publishes_with_a_host_or_not_at_all(
    publishing: Any, violations: int, unverified: int
) -> None:
    values = {"spec": {"components": {"platform": {"values": {"publishing": publishing}}}}}
    props = {"metadata": {"name": "cozystack.cozystack-platform"}, **values}
    said = judged("root-tenant-host-and-ingress", PACKAGE, props)

    assert [len(s) for s in said] == [violations, unverified]
    assert judged("root-tenant-host-and-ingress", PACKAGE, {"metadata": {"name": "cozystack.other"}, **values}) == (
        [],
        [],
    )
