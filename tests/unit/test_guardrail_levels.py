"""Which guardrails stop a run, and which only speak."""

from pulumi_policy import EnforcementLevel

from tests.guardrails import BY_NAME


def test_guardrails_are_mandatory_and_companions_advisory() -> None:
    levels = {name: policy.enforcement_level for name, policy in BY_NAME.items()}

    assert {n for n, level in levels.items() if level is EnforcementLevel.ADVISORY} == {
        "no-privileged-workload-unverified",
        "disks-by-identity-unverified",
        "root-tenant-host-and-ingress-unverified",
        "secret-inputs-unverified",
    }
    assert levels["secret-inputs"] is EnforcementLevel.REMEDIATE
