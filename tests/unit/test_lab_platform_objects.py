"""Objects between the operator and Flux: what is written is what is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac.readiness.expected import Package as ProductPackage
from cozystack_iac.readiness.expected import PackageSource, expected_releases
from lab.platform import catalogue, flux, helmstatus, installer, objects
from lab.platform.operator import _replacement
from lab.platform.schedule import Failing
from lab.platform.tenants import merge
from tests.recorded import RELEASES

PACKAGE = {
    "apiVersion": "cozystack.io/v1alpha1",
    "kind": "Package",
    "metadata": {"name": "cozystack.linstor", "uid": "u-1", "generation": 1},
    "spec": {"components": {"linstor": {"values": {"a": 1}}}},
}


def linstor(version: str = "1.6.2", **options: Any) -> dict[str, Any]:
    known = catalogue.load(version)
    packages = {p.name: p for p in known.emitted(known.choice("isp-full", {}))}
    items = {r.component.name: r for r in catalogue.releases(packages["cozystack.linstor"], packages)}
    return objects.release(items["linstor"], PACKAGE, known.traits, **{"suspended": False, **options})


def test_a_release_carries_what_the_operator_gives_it() -> None:
    body = linstor()
    assert body["metadata"]["labels"] == {
        "cozystack.io/package": "cozystack.linstor",
        "cozystack.io/privileged": "true",
    }
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert body["spec"]["chartRef"]["name"] == "cozystack-linstor-default-linstor"
    assert body["spec"]["values"] == {"a": 1}
    assert body["spec"]["valuesFrom"] == [{"kind": "Secret", "name": "cozystack-values"}]


@pytest.mark.parametrize(("version", "failing"), [("1.3.6", Failing.REMEDIATE), ("1.4.6", Failing.RETRY)])
def test_the_controller_reads_the_failure_style_of_each_release(version: str, failing: Failing) -> None:
    seen = flux.view(linstor(version))
    assert (seen.failing, seen.timeout_s, seen.interval_s, seen.pool) == (failing, 600.0, 300.0, "main")
    assert "cozy-cilium/cilium" in seen.depends_on


def test_suspending_is_no_change_of_the_spec() -> None:
    assert flux.view(linstor()).fingerprint == flux.view(linstor(suspended=True)).fingerprint
    assert flux.view(linstor(suspended=True)).suspended


def test_the_root_tenant_has_neither_strategy_nor_remediation_and_slots_of_its_own() -> None:
    charts = {c.ref: c for c in catalogue.load("1.6.2").charts}
    root = flux.view(objects.chart_release(charts[catalogue.ROOT_TENANT_RELEASE]))
    assert (root.failing, root.timeout_s, root.interval_s, root.pool) == (Failing.GIVE_UP, 900.0, 60.0, "tenants")
    assert flux.view(objects.chart_release(charts["tenant-root/etcd"])).failing is Failing.REMEDIATE


@pytest.mark.parametrize(
    ("text", "expected"), [("1m30s", 90.0), ("10m0s", 600.0), ("2h", 7200.0), ("500ms", 0.5), ("", 7.0), (None, 7.0)]
)
def test_durations_are_read_as_go_writes_them(text: str | None, expected: float) -> None:
    assert flux.seconds(text, 7.0) == expected


def test_a_condition_keeps_its_time_while_its_status_stands() -> None:
    status = helmstatus.HelmStatus().running("install", 600)
    first = helmstatus.body(status, 1, {}, "t1")
    again = helmstatus.body(status, 1, first, "t2")
    done = helmstatus.body(status.succeeded("install", objects.chart_of(linstor()), 1), 1, again, "t3")
    assert [c["lastTransitionTime"] for c in again["conditions"]] == ["t1", "t1"]
    assert {c["type"]: c["lastTransitionTime"] for c in done["conditions"]} == {"Ready": "t3", "Released": "t3"}


@pytest.mark.parametrize(
    ("old", "new"),
    [({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}}), ({}, {"a": [1]}), ({"a": {"b": 1}}, {"a": "text"})],
)
def test_a_replacing_patch_turns_one_spec_into_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert merge(old, _replacement(old, new)) == new


@pytest.mark.parametrize("version", ["1.3.6", "1.6.2"])
def test_the_product_derives_the_same_releases_from_our_packages(version: str) -> None:
    known = catalogue.load(version)
    packages = {p.name: p for p in known.emitted(known.choice("isp-full", {}))}
    ready = {"conditions": [objects.condition("Ready", "True", "ReconciliationSucceeded", "done")]}
    theirs = expected_releases(
        [ProductPackage.parse({**objects.package(p), "status": ready}) for p in packages.values()],
        [PackageSource.parse(objects.package_source(name, variants)) for name, variants in known.sources().items()],
        {},
        "isp-full",
    )
    ours = {r.ref for p in packages.values() for r in catalogue.releases(p, packages)}
    assert ours <= {str(release) for release in theirs.releases}


def test_a_stamped_chart_is_that_releases_chart(tmp_path: Path) -> None:
    chart = YAML(typ="safe", pure=True).load(installer.stamped("1.3.6", tmp_path / "chart") / "Chart.yaml")
    assert (chart["name"], chart["version"], chart["appVersion"]) == ("cozy-installer", "1.3.6", "1.3.6")


@pytest.mark.parametrize("version", RELEASES)
def test_the_installer_chart_has_the_real_keys(vectors: Path, version: str) -> None:
    data = json.loads((vectors / "cozystack" / version / "installer-values.json").read_text())
    values = YAML(typ="safe", pure=True).load(installer.CHART / "values.yaml")
    real = {k["path"] for k in data["keys"] if not k.get("default_absent") and k["type"] != "object"}
    ours = {f"{a}.{b}" for a, inner in values.items() if isinstance(inner, dict) for b in inner} | {"bareNamespace"}
    assert real <= ours
