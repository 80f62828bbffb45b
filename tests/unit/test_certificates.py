"""What a plan says before a client certificate ends."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from cozystack_iac import certificates
from cozystack_iac.stages.kubeconfig_file import FileInputs, KubeconfigFileProvider
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutInputs
from cozystack_iac.yaml_text import emit
from lab.machines import pki

CERTIFICATE = pki.client_certificate(pki.new_ca("talos"), "os:admin").crt  # holds for a year
ENDS = certificates.ends(CERTIFICATE) or datetime.min.replace(tzinfo=UTC)
B64 = base64.b64encode(CERTIFICATE.encode()).decode()


@pytest.mark.parametrize(
    ("before", "codes"),
    [
        (timedelta(days=300), []),
        (timedelta(days=61), []),
        (timedelta(days=59), ["CRT-020"]),
        (timedelta(days=1), ["CRT-020"]),
        (timedelta(0), ["CRT-021"]),
        (timedelta(days=-100), ["CRT-021"]),
    ],
)
@pytest.mark.parametrize("given", [CERTIFICATE, B64, CERTIFICATE.encode()])
def test_a_certificate_is_judged_by_what_is_left_of_it(given: str | bytes, before: timedelta, codes: list[str]) -> None:
    found = list(certificates.judge_expiry("the certificate", given, "somewhere", ENDS - before))
    assert [f.code for f in found] == codes


def test_the_warning_says_when_it_ends_and_when_it_can_be_renewed() -> None:
    [finding] = certificates.judge_expiry(
        "the certificate", CERTIFICATE, "somewhere", ENDS - timedelta(days=40, hours=1)
    )
    assert finding.problem == f"the certificate expires on {ENDS:%Y-%m-%d}, in 40 days"
    assert f"between {ENDS - timedelta(days=30):%Y-%m-%d}" in finding.fix


@pytest.mark.parametrize("given", [None, "", "nonsense", b"\xff", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_what_is_no_certificate_says_nothing(given: str | bytes | None) -> None:
    assert list(certificates.judge_expiry("it", given, "somewhere", ENDS)) == []


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year counts as soon."""
    monkeypatch.setattr(certificates, "WARNED_BEFORE", timedelta(days=400))


async def test_the_plan_warns_of_the_machines_certificate(soon: None) -> None:
    new = RolloutInputs(machines=[], client_configuration={"clientCertificate": B64}, deadline_s=1)
    assert [f.code for f in await MachineConfigRolloutProvider().preflight(new, None)] == ["CRT-020"]


async def test_the_plan_warns_of_the_kubeconfigs_certificate(soon: None) -> None:
    parts = {"client-certificate-data": B64, "client-key-data": base64.b64encode(b"key").decode()}
    text = emit(
        [
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.10:6443"}}],
                "users": [{"name": "c", "user": parts}],
            }
        ]
    )
    found = await KubeconfigFileProvider().preflight(FileInputs(kubeconfig=text, path="/nonexistent/config"), None)
    assert [f.code for f in found] == ["CRT-020"]
