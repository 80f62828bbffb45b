"""The expected set of releases, held against the recorded packages of four Cozystack releases."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.readiness.expected import (
    FLOORS,
    ClusterObjects,
    Package,
    PackageSource,
    Reading,
    belongs,
    expected_releases,
)
from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import ReleaseId
from cozystack_iac.readiness.verdicts import Progressing, QueryFailed, Ready, Stuck
from tests.hr import Wait, done, rid
from tests.recorded import RELEASES

WRITTEN = {"type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "generated"}
BLOCKED = {"type": "Ready", "status": "False", "reason": "DependenciesNotReady", "message": "One or more dependencies"}
PLATFORM = "cozystack.cozystack-platform"


def package(name: str, variant: str = "", condition: Mapping[str, str] = WRITTEN, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"variant": variant, **spec},
        "status": {"conditions": [dict(condition)]},
    }


def source(name: str, components: list[dict[str, Any]], variant: str = "default", needs: Any = ()) -> dict[str, Any]:
    other = {"name": "another-variant", "components": [component("never", "cozy-never")]}
    chosen = {"name": variant, "dependsOn": list(needs), "components": components}
    return {"metadata": {"name": name}, "spec": {"variants": [other, chosen]}}


def component(name: str, namespace: str, release: str = "") -> dict[str, Any]:
    return {"name": name, "path": name, "install": {"namespace": namespace, "releaseName": release}}


def platform() -> tuple[dict[str, Any], dict[str, Any]]:
    return package(PLATFORM), source(PLATFORM, [component("platform", "cozy-system", "cozystack-platform")])


def expect(packages: list[Any], sources: list[Any], tenant: Mapping[str, Any] | None = None) -> Expected:
    own_package, own_source = platform()
    return expected_releases(
        map(Package.parse, [own_package, *packages]),
        map(PackageSource.parse, [own_source, *sources]),
        tenant or {},
        "isp-full",
    )


def recorded(vectors: Path, version: str, label: str) -> tuple[dict[str, Any], dict[str, Any]]:
    data = json.loads((vectors / "cozystack" / version / "releases.json").read_text())
    return data, next(c for c in data["configurations"] if c["label"] == label)


def cluster_of(configuration: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    packages = [
        package(p["name"], p["variant"], WRITTEN if p["can_become_ready"] else BLOCKED)
        for p in configuration["packages"]
    ]
    sources = [
        source(
            p["name"],
            [
                component(r["component"], r["namespace"], r["name"])
                for r in configuration["releases"]
                if r["package"] == p["name"]
            ],
            p["variant"],
            p["dependsOn"],
        )
        for p in configuration["packages"]
    ]
    optional = source("cozystack.gpu-operator", [component("gpu-operator", "cozy-gpu-operator")])
    return packages, [*sources, optional]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("variant", ["isp-full", "isp-full-generic"])
@pytest.mark.parametrize("oidc", ["oidc off", "oidc on"])
def test_the_expected_set_is_what_the_release_really_installs(
    vectors: Path, version: str, variant: str, oidc: str
) -> None:
    data, configuration = recorded(vectors, version, f"{variant}, {oidc}")
    expected = expect(*cluster_of(configuration))

    written = {ReleaseId(r["namespace"], r["name"]) for r in configuration["releases"]}
    by_charts = {
        ReleaseId(r["namespace"], r["name"])
        for r in data["chart_generated_releases"]
        if r["condition"] == "always" or "default spec" in r["condition"]
    }
    assert expected.releases.keys() == written | by_charts | {rid("cozy-system/cozystack-platform")}
    assert expected.items == ()
    assert FLOORS[variant] < len(written)


@pytest.mark.parametrize("version", RELEASES)
def test_modules_of_the_root_tenant_are_expected_when_it_asks_for_them(vectors: Path, version: str) -> None:
    data, configuration = recorded(vectors, version, "isp-full, oidc off")
    tenant = {"ingress": True, "etcd": True, "monitoring": True, "seaweedfs": True}
    expected = expect(*cluster_of(configuration), tenant=tenant)

    names = {ReleaseId(r["namespace"], r["name"]) for r in data["chart_generated_releases"]}
    assert names - expected.releases.keys() <= {rid("tenant-root/gateway"), rid("tenant-root/seaweedfs-db")}


@pytest.mark.parametrize("version", RELEASES)
def test_a_hosted_variant_that_can_never_become_ready_names_the_absent_packages(vectors: Path, version: str) -> None:
    _, configuration = recorded(vectors, version, "isp-hosted, oidc off")
    wait = Wait(expect(*cluster_of(configuration)))
    objects = [done("cozy-system/cozystack-platform")]

    assert isinstance(wait.at(0, objects), Progressing)
    verdict = wait.at(300, objects)
    assert isinstance(verdict, Stuck)
    assert {b.words for b in verdict.blockers} == {"not created"}
    assert "Package cozystack.networking" in {b.subject for b in verdict.blockers}
    assert sum(b.behind for b in verdict.blockers) >= 24


def test_a_disabled_component_is_not_expected() -> None:
    parts = [component("one", "cozy-a"), component("two", "cozy-a")]
    chosen = package("p", components={"one": {"enabled": False}, "two": {"values": {"x": 1}}})

    assert set(expect([chosen], [source("p", parts)]).releases) == {
        rid("cozy-a/two"),
        rid("cozy-system/cozystack-platform"),
    }


def test_a_library_without_install_section_is_not_expected() -> None:
    parts = [{"name": "cozy-lib", "path": "library"}, component("app", "cozy-a", "other-name")]

    assert rid("cozy-a/other-name") in expect([package("p")], [source("p", parts)]).releases
    assert len(expect([package("p")], [source("p", parts)]).releases) == 2


def test_packages_that_were_not_chosen_are_not_expected() -> None:
    assert set(expect([], [source("optional", [component("x", "cozy-x")])]).releases) == {
        rid("cozy-system/cozystack-platform")
    }


def test_without_the_platform_package_nothing_can_be_ready() -> None:
    expected = expected_releases([], [], {}, "isp-full")

    assert [i.subject for i in expected.items] == [f"Package {PLATFORM}"]


@pytest.mark.parametrize(
    ("condition", "variant", "reason"),
    [
        ({"type": "Ready", "status": "False", "reason": "VariantNotFound", "message": "m"}, "wrong", "VariantNotFound"),
        ({"type": "Other", "status": "True", "reason": "x", "message": ""}, "", ""),
        ({"type": "Ready", "status": "False", "reason": "DependsOnFailed", "message": "m"}, "", "DependsOnFailed"),
    ],
)
def test_a_package_that_has_not_written_its_releases_keeps_the_platform_from_being_ready(
    condition: Mapping[str, str], variant: str, reason: str
) -> None:
    expected = expect([package("p", variant, condition)], [source("p", [component("x", "cozy-x")])])

    assert [(i.subject, i.reason) for i in expected.items] == [("Package p", reason)]


def test_an_ignored_dependency_is_not_waited_for() -> None:
    blocked = package("p", "", BLOCKED, ignoreDependencies=["gone"])
    expected = expect([blocked], [source("p", [component("x", "cozy-x")], needs=["gone"])])

    assert [i.waits_for for i in expected.items] == [frozenset()]


@pytest.mark.parametrize(
    ("name", "labels", "mine"),
    [
        ("cozy-x/expected", {}, True),
        ("cozy-x/optional", {"cozystack.io/package": "cozystack.gpu-operator"}, True),
        ("tenant-root/seaweedfs-db", {}, True),
        ("tenant-root/postgres-shop", {"apps.cozystack.io/application.kind": "Postgres"}, False),
        ("tenant-team1/ingress", {}, False),
    ],
)
def test_only_the_platforms_own_releases_are_judged(name: str, labels: dict[str, str], mine: bool) -> None:
    key = rid(name)
    obj = {"metadata": {"namespace": key.namespace, "name": key.name, "labels": labels}}

    assert belongs(obj, {rid("cozy-x/expected")}) is mine


@pytest.mark.parametrize("broken", [{"metadata": {}}, {"metadata": {"name": "p"}, "spec": {"variants": [{}]}}, {}])
def test_an_object_that_cannot_be_read_makes_the_whole_answer_unknown(broken: dict[str, Any]) -> None:
    own_package, own_source = platform()

    assert isinstance(ClusterObjects([], [own_package], [own_source, broken]).read("isp-full"), QueryFailed)


def test_the_root_tenants_own_values_decide_about_its_modules() -> None:
    own_package, own_source = platform()
    basics = package("b"), source("b", [component("cozystack-basics", "cozy-system")])
    root = {"metadata": {"namespace": "tenant-root", "name": "tenant-root"}, "spec": {"values": {"ingress": True}}}
    read = ClusterObjects([root], [own_package, basics[0]], [own_source, basics[1]]).read("default")

    assert not isinstance(read, QueryFailed)
    assert {str(r) for r in read[1].releases if r.namespace == "tenant-root"} == {
        "tenant-root/tenant-root",
        "tenant-root/info",
        "tenant-root/ingress",
        "tenant-root/ingress-nginx-system",
    }


# What charts come from -----------------------------------------------------------------------------------------------

NOT_FETCHED = {
    "type": "Ready",
    "status": "False",
    "reason": "SourceFetchFailed",
    "message": "get sources failed: source 'OCIRepository/cozy-system/cozystack-packages' is not ready",
}
NO_REGISTRY = {
    "type": "Ready",
    "status": "False",
    "reason": "OCIArtifactPullFailed",
    "message": 'failed to determine artifact digest: Get "https://registry.example.org/v2/": dial tcp: i/o timeout',
}


def fetching(name: str) -> dict[str, Any]:
    missing = {"type": "Ready", "status": "False", "reason": "ArtifactFailed", "message": "ExternalArtifact not found"}
    meta = {"namespace": name.partition("/")[0], "name": name.partition("/")[2], "generation": 1}
    return {"metadata": meta, "spec": {}, "status": {"observedGeneration": 1, "conditions": [missing]}}


def supplied(state: Mapping[str, str], repositories: list[dict[str, Any]]) -> ClusterObjects:
    """A platform chart and one package; both charts are waited for, and the sources of both say `state`."""
    own_package, own_source = platform()
    sources = [own_source, source("p", [component("x", "cozy-x")])]
    with_state = [{**s, "status": {"conditions": [dict(state)]}} for s in sources]
    releases = [fetching("cozy-system/cozystack-platform"), fetching("cozy-x/x")]
    return ClusterObjects(releases, [own_package, package("p")], with_state, repositories)


def test_charts_that_are_waited_for_lead_to_the_repository_that_cannot_be_pulled() -> None:
    meta = {"namespace": "cozy-system", "name": "cozystack-packages"}
    cluster = supplied(NOT_FETCHED, [{"metadata": meta, "status": {"conditions": [NO_REGISTRY]}}])
    read = cluster.read("default")
    assert not isinstance(read, QueryFailed)
    wait = Wait(read[1])
    wait.at(0, read[0])
    verdict = wait.at(900, read[0])

    assert isinstance(verdict, Stuck)
    assert [(b.subject, b.behind) for b in verdict.blockers] == [("OCIRepository cozy-system/cozystack-packages", 2)]
    assert "i/o timeout" in verdict.blockers[0].evidence
    assert "registry" in verdict.remedy


def test_a_source_that_says_nothing_explains_nothing() -> None:
    read = supplied({"type": "Other", "status": "True"}, []).read("default")
    assert not isinstance(read, QueryFailed)

    assert read[1].sources == {}
    assert {s.subject for s in Wait(read[1]).look(0, read[0]).standings} == {
        "cozy-system/cozystack-platform",
        "cozy-x/x",
    }


def test_a_source_that_is_not_ready_does_not_keep_a_platform_from_being_ready() -> None:
    cluster = supplied(NOT_FETCHED, [])
    ready = [done("cozy-system/cozystack-platform"), done("cozy-x/x")]
    read = cluster.read("default")
    assert not isinstance(read, QueryFailed)
    wait = Wait(read[1])
    wait.at(0, ready)

    assert wait.at(30, ready) == Ready(2)


def test_a_release_is_read_again_only_when_its_object_is_another() -> None:
    reading, obj = Reading(), fetching("cozy-x/x")
    first = reading(obj)
    changed = {**obj, "spec": {"suspend": True}}

    assert reading(obj) is first
    assert reading(changed).suspended is True
    assert reading(obj) == first
