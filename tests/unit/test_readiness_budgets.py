"""The readiness judgement: how long a release may fail or be silent, and races that are known to be lost."""

import pytest

from cozystack_iac.readiness.phases import HelmRelease
from cozystack_iac.readiness.releases import WaitLimits
from cozystack_iac.readiness.verdicts import Progressing, Stuck, StuckClass
from tests.hr import Wait, done, expecting, failing, release, running, waiting

# Budgets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "budget_s"),
    [
        ("cozy-cilium/cilium", 600),
        ("cozy-cert-manager/cert-manager", 600),
        ("cozy-linstor/linstor", 900),
        ("cozy-keycloak/keycloak-operator", 1200),
        ("cozy-system/cozystack-api", 600),
        ("tenant-root/info", 1200),
        ("cozy-velero/velero", 600),
    ],
)
def test_each_link_of_the_chain_may_fail_for_as_long_as_it_can_need(name: str, budget_s: float) -> None:
    wait = Wait(expecting(name))
    wait.at(0, [failing(name, error="it broke")])

    assert isinstance(wait.at(budget_s - 1, [failing(name, error="it broke", attempt=2)]), Progressing)
    verdict = wait.at(budget_s, [failing(name, error="it broke", attempt=3)])
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is StuckClass.REPEATING


def test_a_budget_begins_when_the_release_could_go_on() -> None:
    wait, broken = Wait(expecting()), failing("n/b", "n/a", error="it broke")
    wait.at(0, [running("n/a"), broken])
    wait.at(900, [done("n/a"), broken])

    assert isinstance(wait.at(1499, [done("n/a"), broken]), Progressing)
    assert isinstance(wait.at(1500, [done("n/a"), broken]), Stuck)


def test_patience_stretches_every_limit() -> None:
    wait = Wait(expecting("n/a"), WaitLimits(patience=2.0))
    wait.at(0, [failing("n/a")])

    assert isinstance(wait.at(1199, [failing("n/a")]), Progressing)
    assert isinstance(wait.at(1200, [failing("n/a")]), Stuck)


@pytest.mark.parametrize("silent", [release("n/a"), running("n/a"), waiting("n/a", "n/b")])
def test_a_root_that_does_nothing_for_half_an_hour_while_nothing_else_moves_is_stuck(silent: HelmRelease) -> None:
    wait, objects = Wait(expecting("n/a")), [silent, done("n/b")]
    wait.at(0, objects)

    assert isinstance(wait.at(1799, objects), Progressing)
    verdict = wait.at(1800, objects)
    assert isinstance(verdict, Stuck)
    assert verdict.blockers[0].stuck is StuckClass.OVERDUE


def test_failures_that_change_all_the_time_are_stuck_too_once_nothing_else_moves() -> None:
    wait = Wait(expecting("n/a"))
    errors = ["timeout waiting for: Deployment/one", "timeout waiting for: Deployment/two"]
    verdicts = [wait.at(turn * 300.0, [failing("n/a", error=errors[turn % 2])]) for turn in range(7)]

    assert [isinstance(v, Stuck) for v in verdicts] == [False] * 6 + [True]


def test_what_evidence_calls_noise_may_go_on_while_others_still_become_ready() -> None:
    wait = Wait(expecting(), WaitLimits(noise=frozenset({"n/a"})))
    others = [done(f"n/{minute}") for minute in range(40)]
    early = [wait.at(m * 60.0, [failing("n/a"), *others[: m + 1]]) for m in range(40)]

    assert all(isinstance(v, Progressing) for v in early)
    assert isinstance(wait.at(39 * 60.0 + 899, [failing("n/a"), *others]), Progressing)
    assert isinstance(wait.at(39 * 60.0 + 900, [failing("n/a"), *others]), Stuck)


# Known races --------------------------------------------------------------------------------------------------------

UNKNOWN_KIND = 'resource mapping not found for name: "x": no matches for kind "{}" in version "{}"'


@pytest.mark.parametrize(
    ("name", "kind", "version", "provider"),
    [
        (
            "cozy-system/bucket-rd",
            "ApplicationDefinition",
            "cozystack.io/v1alpha1",
            "cozy-system/application-definition-crd",
        ),
        ("cozy-cluster-api/capi-operator", "Certificate", "cert-manager.io/v1", "cozy-cert-manager/cert-manager-crds"),
        ("cozy-kamaji/kamaji", "Issuer", "cert-manager.io/v1", "cozy-cert-manager/cert-manager-crds"),
        (
            "cozy-rabbitmq-operator/rabbitmq-operator",
            "Issuer",
            "cert-manager.io/v1",
            "cozy-cert-manager/cert-manager-crds",
        ),
        (
            "cozy-kubevirt/kubevirt-instancetypes",
            "VirtualMachineClusterPreference",
            "instancetype.kubevirt.io/v1beta1",
            "cozy-kubevirt/kubevirt",
        ),
    ],
)
def test_a_release_that_lost_a_known_race_waits_for_who_brings_the_kind(
    name: str, kind: str, version: str, provider: str
) -> None:
    loser = failing(name, error=UNKNOWN_KIND.format(kind, version))
    wait = Wait(expecting(name, provider))
    wait.at(0, [loser, running(provider)])
    verdict = wait.at(1500, [loser, running(provider)])

    assert isinstance(verdict, Progressing)
    assert [(b.subject, b.dependants) for b in verdict.blockers] == [(provider, (name,))]


def test_a_lost_race_gets_time_for_its_next_attempt_and_then_is_stuck() -> None:
    provider = "cozy-system/application-definition-crd"
    loser = failing("cozy-system/etcd-rd", error=UNKNOWN_KIND.format("ApplicationDefinition", "cozystack.io/v1alpha1"))
    wait = Wait(expecting())
    wait.at(0, [loser, running(provider)])
    wait.at(2000, [loser, done(provider)])

    assert isinstance(wait.at(2000 + 959, [loser, done(provider)]), Progressing)  # 1.3 pauses for up to 15 min
    assert isinstance(wait.at(2000 + 960, [loser, done(provider)]), Stuck)
