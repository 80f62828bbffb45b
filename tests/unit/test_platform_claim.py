"""Whose platform is it: the judgement over what is in the cluster, and Helm's records as they are read and restated."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from cozystack_iac.findings import Finding, Rule
from cozystack_iac.kube.client import Object
from cozystack_iac.platform import claim, helm_records
from cozystack_iac.platform.claim import (
    CHART_OBJECTS,
    CLUSTER,
    NAMESPACE,
    RELEASE,
    SeenInstall,
    WantedInstall,
    objections,
    stuck,
)
from cozystack_iac.platform.helm_records import Revision
from tests.helm import secret

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
WANTED = WantedInstall(
    cluster="eu1",
    release_namespace="cozy-system",
    brings_namespace=False,
    version="1.6.2",
    oidc=True,
    legacy={"root-host": "example.org"},
)
OLD = replace(WANTED, release_namespace="kube-system", brings_namespace=True, version="1.3.6")


def namespace(cluster: str = "", state: str = "", helm: str = "") -> Object:
    marks = {CLUSTER: cluster} if cluster else {}
    marks |= {RELEASE: state} if state else {}
    return {"metadata": {"name": "cozy-system", "creationTimestamp": "2026-01-01", "annotations": marks | owner(helm)}}


def owner(release: str) -> dict[str, str]:
    where, _, name = release.partition("/")
    return {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": where} if release else {}


def objects(helm: str) -> dict[Any, Object]:
    return {ref: {"metadata": {"name": ref.name, "annotations": owner(helm)}} for ref in CHART_OBJECTS}


def revision(status: str, number: int = 1, name: str = "cozy-installer", where: str = "cozy-system") -> Revision:
    return Revision(name, where, number, status, f"sh.helm.release.v1.{name}.v{number}", NOW, version="1.6.2")


def codes(wanted: WantedInstall, seen: SeenInstall, **given: Any) -> list[str]:
    return [finding.code for finding in objections(wanted, seen, **given)]


def one(wanted: WantedInstall, seen: SeenInstall) -> Finding:
    [finding] = objections(wanted, seen)
    return finding


OURS = "cozy-system/cozy-installer"


@pytest.mark.parametrize(
    "seen",
    [
        SeenInstall(),
        SeenInstall(namespace("eu1")),
        SeenInstall(namespace("eu1"), objects(OURS), (revision("deployed"),)),
        SeenInstall(namespace("eu1"), objects(OURS), (revision("failed", 3),)),
        SeenInstall(namespace("eu1", helm="kube-system/cozy-installer"), objects(OURS), (revision("deployed"),)),
        SeenInstall(namespace("eu1"), legacy={"data": {"root-host": "example.org", "expose-services": "api"}}),
    ],
    ids=["nothing", "our namespace", "our release", "our failed release", "came from 1.3", "an old key that agrees"],
)
def test_what_is_ours_or_nobodys_is_installed_into(seen: SeenInstall) -> None:
    assert codes(WANTED, seen) == []


@pytest.mark.parametrize(
    ("seen", "code", "says"),
    [
        (
            SeenInstall(namespace(), objects("cozy-system/cozystack"), (revision("deployed", 4, "cozystack"),)),
            "INS-001",
            "belong to Helm release cozy-system/cozystack (revision 4 deployed since 2026-11-30",
        ),
        (
            SeenInstall(namespace("eu1"), objects("tools/installer")),
            "INS-001",
            "tools/installer, which Helm has no record of",
        ),
        (SeenInstall(namespace(), objects(OURS), (revision("deployed"),)), "INS-002", "was not created by this stack"),
        (SeenInstall(namespace("us7"), objects(OURS), (revision("deployed"),)), "INS-002", "stack of cluster `us7`"),
        (SeenInstall(namespace()), "INS-003", "has existed since 2026-01-01, and has no owner"),
        (
            SeenInstall(namespace(helm="kube-system/cozy-installer")),
            "INS-003",
            "left over from Helm release kube-system/cozy-installer",
        ),
        (
            SeenInstall(namespace("eu1"), legacy={"data": {"root-host": "old.example.org"}}),
            "INS-005",
            "`root-host` is `old.example.org` there, but `example.org` in the stack file",
        ),
    ],
    ids=["other release", "no record", "by hand", "other stack", "leftover", "leftover of 1.3", "old ConfigMap"],
)
def test_what_is_somebody_elses_is_refused_with_its_owner_and_a_way_out(
    seen: SeenInstall, code: str, says: str
) -> None:
    finding = one(WANTED, seen)
    assert finding.code == code
    assert says in finding.problem
    assert finding.fix


def test_a_foreign_release_comes_with_the_exact_commands_to_hand_it_over() -> None:
    fix = one(WANTED, SeenInstall(namespace("eu1"), objects("cozy-system/cozystack"))).fix
    assert (
        "kubectl annotate --overwrite deployments cozystack-operator -n cozy-system "
        "meta.helm.sh/release-name=cozy-installer meta.helm.sh/release-namespace=cozy-system" in fix
    )
    assert "kubectl annotate --overwrite clusterrolebindings cozystack meta.helm.sh" in fix
    assert "kubectl -n cozy-system delete secret -l owner=helm,name=cozystack" in fix


def test_objects_without_an_owner_are_all_named_with_their_commands() -> None:
    found = list(objections(WANTED, SeenInstall(namespace(), objects(""))))
    assert [f.code for f in found] == ["INS-004"] * len(CHART_OBJECTS)
    assert "app.kubernetes.io/managed-by=Helm" in found[0].fix


def test_up_to_1_3_the_namespace_itself_has_to_be_helms() -> None:
    seen = SeenInstall(namespace("eu1", helm="cozy-system/cozystack"))
    assert codes(OLD, seen) == ["INS-001"]
    assert codes(WANTED, seen) == []


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (SeenInstall(namespace()), "INS-003"),
        (SeenInstall(namespace(), objects(OURS), (revision("deployed"),)), "INS-002"),
        (SeenInstall(namespace(), objects("")), "INS-004"),
    ],
)
def test_a_decision_in_the_stack_file_lets_it_be_taken_over(seen: SeenInstall, code: str) -> None:
    assert set(codes(WANTED, seen)) == {code}
    assert codes(replace(WANTED, allowed={code}), seen) == []


@pytest.mark.parametrize("code", ["INS-001", "INS-005"])
def test_what_would_not_work_anyway_cannot_be_allowed(code: str) -> None:
    seen = SeenInstall(namespace("eu1"), objects("a/b"), legacy={"data": {"root-host": "x"}})
    assert code in codes(replace(WANTED, allowed={code}), seen)


def test_what_may_be_allowed_is_what_the_rules_say() -> None:
    rules = [value for value in vars(claim).values() if isinstance(value, Rule)]
    assert {rule.code for rule in rules if rule.overridable} == claim.OVERRIDABLE
    assert all(rule.live for rule in rules)


def test_a_key_that_this_stack_wrote_may_change_with_it() -> None:
    written = replace(WANTED, legacy={"api-server-endpoint": "https://127.0.0.1:7445"}, written={"api-server-endpoint"})
    data = {"data": {"api-server-endpoint": "https://10.0.0.1:6443"}}
    assert codes(written, SeenInstall(namespace("eu1"), legacy=data)) == ["INS-005"]
    assert (
        codes(written, SeenInstall(namespace("eu1"), legacy={**data, "metadata": {"annotations": {CLUSTER: "eu1"}}}))
        == []
    )


def package(oidc: bool) -> Object:
    values = {"authentication": {"oidc": {"enabled": oidc}}}
    return {"metadata": {"labels": claim.PACKAGE_MARKS}, "spec": {"components": {"platform": {"values": values}}}}


@pytest.mark.parametrize(
    ("in_cluster", "before", "wanted", "found"),
    [
        (True, False, False, ["OIDC-001"]),
        (False, True, False, ["OIDC-001"]),
        (False, False, False, []),
        (True, True, True, []),
        (False, False, True, []),
    ],
    ids=["on in the cluster", "on in the state", "never on", "stays on", "will be on"],
)
def test_oidc_is_not_switched_off_in_passing(in_cluster: bool, before: bool, wanted: bool, found: list[str]) -> None:
    asked = replace(WANTED, oidc=wanted)
    seen = SeenInstall(namespace("eu1"), package=package(in_cluster))
    assert codes(asked, seen, oidc_before=before) == found
    assert codes(replace(asked, allowed={"OIDC-001"}), seen, oidc_before=before) == []


def test_an_older_release_than_the_installed_one_is_refused() -> None:
    seen = SeenInstall(namespace("eu1"), objects(OURS), (revision("deployed"),))
    assert codes(replace(WANTED, version="1.6.1"), seen) == ["INS-007"]
    assert codes(replace(WANTED, version="1.6.3"), seen) == []


@pytest.mark.parametrize(
    ("status", "state", "is_stuck"),
    [
        ("pending-install", claim.RECORDED, True),
        ("pending-upgrade", claim.RECORDED, True),
        ("pending-rollback", claim.CLAIMED, True),
        ("uninstalling", claim.RECORDED, True),
        ("deployed", claim.CLAIMED, True),
        ("deployed", claim.RECORDED, False),
        ("failed", claim.CLAIMED, False),
        ("superseded", claim.RECORDED, False),
    ],
)
def test_what_helm_would_refuse_to_go_on_from_is_stuck(status: str, state: str, is_stuck: bool) -> None:
    seen = SeenInstall(namespace("eu1", state), objects(OURS), (revision(status, 2),))
    assert (stuck(WANTED, seen) is not None) is is_stuck


def test_a_pending_release_of_somebody_else_is_never_touched() -> None:
    assert stuck(WANTED, SeenInstall(namespace("us7"), revisions=(revision("pending-install"),))) is None
    assert (
        stuck(WANTED, SeenInstall(namespace("eu1"), revisions=(revision("pending-install", name="cozystack"),))) is None
    )


def test_an_interrupted_operation_is_announced_in_the_plan() -> None:
    finding = one(
        WANTED, SeenInstall(namespace("eu1", claim.RECORDED), objects(OURS), (revision("pending-upgrade", 3),))
    )
    assert (finding.code, finding.severity) == ("INS-006", "note")
    assert "revision 3 has been pending-upgrade since 2026-11-30" in finding.problem


# Helm's records -------------------------------------------------------------------------------------------------------


def test_a_revision_says_what_people_want_to_know() -> None:
    found = helm_records.revision(secret("pending-install", createdAt=str(int(NOW.timestamp()))))
    assert (found.release, found.number, found.status, found.chart) == (
        OURS,
        1,
        "pending-install",
        "cozy-installer 1.6.2",
    )
    assert found.since == NOW
    assert found.description == "Initial install underway"


def test_revisions_are_compared_as_numbers() -> None:
    last = helm_records.last([secret("superseded", 9), secret("deployed", 10)])
    assert last is not None
    assert last.number == 10
    assert helm_records.last([]) is None


def test_a_restated_revision_keeps_all_but_its_status() -> None:
    before = secret("pending-upgrade", 4)
    patch = helm_records.restated(before, "failed", "interrupted")
    after = {**before, "data": patch["data"]}
    after["metadata"] = {
        **before["metadata"],
        "labels": {**before["metadata"]["labels"], **patch["metadata"]["labels"]},
    }
    found = helm_records.revision(after)
    assert (found.status, found.description, found.chart, found.number) == (
        "failed",
        "interrupted",
        "cozy-installer 1.6.2",
        4,
    )
    content = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(patch["data"]["release"]))))
    assert content["config"] == {"cozystackOperator": {"variant": "talos"}}
    assert patch["metadata"]["resourceVersion"] == "7"  # whoever finishes meanwhile wins


@pytest.mark.parametrize("data", [{}, {"release": "!"}, {"release": base64.b64encode(b"x").decode()}])
def test_a_record_that_cannot_be_read_is_known_by_its_labels_and_left_alone(data: dict[str, str]) -> None:
    broken = {**secret("pending-install"), "data": data}
    found = helm_records.revision(broken)
    assert (found.status, found.description) == ("pending-install", "")
    with pytest.raises(ValueError, match="no readable Helm release"):
        helm_records.restated(broken, "failed", "")


def test_the_namespace_is_not_among_the_charts_objects_of_newer_releases() -> None:
    assert NAMESPACE not in CHART_OBJECTS
