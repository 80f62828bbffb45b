"""The guardrails for what opens a cluster, with values that are known and values that are not."""

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from pulumi_policy import ResourceValidationArgs
from pulumi_policy.proxy import UNKNOWN_OBJECT_VALUE, UNKNOWN_STRING_VALUE, unknown_checking_proxy
from pulumi_policy.secret import Secret, secrets_preserving_proxy

from tests.guardrails import BY_NAME, Said, options, run

ROLLOUT = "pulumi-python:dynamic/cozystack:MachineConfigRollout"
PEM = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(("protect", "violations"), [(True, 0), (False, 1)])
def test_machine_secrets_are_protected(protect: bool, violations: int) -> None:
    token, name = "talos:machine/secrets:Secrets", "machine-secrets-protected"
    props = {"talosVersion": UNKNOWN_STRING_VALUE}

    assert len(run(name, token, props, options(protect))) == violations
    assert run(name, "talos:machine/other:Other", props, options(protect)) == []


@pytest.mark.parametrize(
    ("token", "names", "secret_outputs", "violations"),
    [
        (ROLLOUT, ["configurations", "nodes"], ["configurations"], 0),
        (ROLLOUT, ["configurations", "nodes"], [], 1),
        (ROLLOUT, ["configurations", "client_configuration", "talosconfig"], ["configurations"], 2),
        (ROLLOUT, ["kubeconfig_file", "nodes", "deadline_s"], [], 0),
        ("talos:cluster/kubeconfig:Kubeconfig", ["node"], ["kubeconfigRaw"], 0),
        ("talos:cluster/kubeconfig:Kubeconfig", ["node"], [], 1),
        ("kubernetes:core/v1:ConfigMap", ["kubeconfig"], [], 0),
    ],
)
def test_outputs_that_open_a_cluster_are_registered_as_secret(
    token: str, names: list[str], secret_outputs: list[str], violations: int
) -> None:
    props = dict.fromkeys(names, UNKNOWN_STRING_VALUE)

    assert len(run("secret-outputs", token, props, options(secret_outputs=secret_outputs))) == violations


def shown(token: str, props: Mapping[str, Any], urn: str) -> tuple[list[str], list[str]]:
    """The engine's order: it asks for a remediation, showing secrets, and then for validation, hiding them."""
    raw = secrets_preserving_proxy(dict(props))
    changed = BY_NAME["secret-inputs"].remediate(ResourceValidationArgs(token, raw, urn, "x", options(), None))
    assert changed is None

    bare = {k: v.value if isinstance(v, Secret) else v for k, v in props.items()}
    args = ResourceValidationArgs(token, unknown_checking_proxy(bare), urn, "x", options(), None)
    said = (Said(), Said())
    for policy, into in zip(("secret-inputs", "secret-inputs-unverified"), said, strict=True):
        BY_NAME[policy].validate(args, into.report)
    return said


CASES: list[tuple[str, str, dict[str, Any], int, int]] = [
    ("sealed", ROLLOUT, {"configurations": Secret({"cp1": "x"}), "nodes": ["cp1"]}, 0, 0),
    ("plain", ROLLOUT, {"configurations": {"cp1": "x"}}, 1, 0),
    ("every leaf sealed", ROLLOUT, {"configurations": {"cp1": Secret("x"), "cp2": Secret("y")}}, 0, 0),
    ("one leaf plain", ROLLOUT, {"configurations": {"cp1": Secret("x"), "cp2": "y"}}, 1, 0),
    ("unknown", ROLLOUT, {"configurations": UNKNOWN_OBJECT_VALUE}, 0, 1),
    ("sealed unknown", ROLLOUT, {"configurations": Secret(UNKNOWN_OBJECT_VALUE)}, 0, 0),
    ("absent", ROLLOUT, {"kubeconfig": None}, 0, 0),
    ("provider", "pulumi:providers:kubernetes", {"kubeconfig": "apiVersion: v1"}, 1, 0),
    ("sealed provider", "pulumi:providers:kubernetes", {"kubeconfig": Secret("apiVersion: v1")}, 0, 0),
    ("key anywhere", "kubernetes:core/v1:ConfigMap", {"data": {"a": [PEM]}}, 1, 0),
    ("sealed key", "kubernetes:core/v1:ConfigMap", {"data": Secret({"a": PEM})}, 0, 0),
    ("base64 key", "kubernetes:core/v1:ConfigMap", {"data": {"k": base64.b64encode(PEM.encode()).decode()}}, 1, 0),
    ("certificate", "kubernetes:core/v1:ConfigMap", {"data": {"c": "-----BEGIN CERTIFICATE-----\nAA"}}, 0, 0),
    ("engine's own", ROLLOUT, {"__provider": PEM, "nodes": ["cp1"]}, 0, 0),
]


@pytest.mark.parametrize(
    ("token", "props", "violations", "unverified"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_what_opens_a_cluster_is_given_as_a_secret(
    token: str, props: dict[str, Any], violations: int, unverified: int
) -> None:
    said = shown(token, props, f"urn:{violations}{unverified}{sorted(props)}")

    assert [len(s) for s in said] == [violations, unverified]


def test_no_violation_repeats_the_secret() -> None:
    said = shown("kubernetes:core/v1:ConfigMap", {"data": {"key": PEM}}, "urn:quiet")

    assert "AAAA" not in said[0][0]


def test_secrecy_that_nobody_showed_is_not_verified() -> None:
    args = ResourceValidationArgs(
        ROLLOUT, unknown_checking_proxy({"configurations": "x"}), "urn:new", "x", options(), None
    )
    said = Said()
    BY_NAME["secret-inputs-unverified"].validate(args, said.report)

    assert len(said) == 1
    assert "configurations" in said[0]
