"""The lab's simulated platform and the readiness judgement agree about what a whole platform is."""

from typing import Any

import pytest

from cozystack_iac.readiness.expected import ClusterObjects
from cozystack_iac.readiness.verdicts import Progressing, QueryFailed, Ready
from lab.platform import catalogue, objects
from tests.hr import Wait

VALUES = {"authentication": {"oidc": {"enabled": False}}}
TENANT = {"host": "example.com", "ingress": True, "etcd": True, "monitoring": True, "seaweedfs": True}
WRITTEN = [{"type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "generated"}]
INSTALLED = [{"type": "Ready", "status": "True", "reason": "InstallSucceeded", "message": "installed"}]


def finished(obj: dict[str, Any], conditions: list[dict[str, str]]) -> dict[str, Any]:
    metadata = {**obj["metadata"], "generation": 1}
    return {**obj, "metadata": metadata, "status": {"observedGeneration": 1, "conditions": conditions}}


def lab(version: str, variant: str) -> ClusterObjects:
    """Everything the lab's operator and charts write for one release, installed."""
    known = catalogue.load(version)
    emitted = {p.name: p for p in known.emitted(known.choice(variant, VALUES))}
    platform = {"metadata": {"name": "cozystack.cozystack-platform", "uid": "u"}, "spec": {"variant": variant}}
    packages = {name: {**objects.package(p), "kind": "Package"} for name, p in emitted.items()}
    for obj in packages.values():
        obj["metadata"]["uid"] = "u"
    releases = [objects.platform_release({**packages[next(iter(packages))], **platform}, variant, VALUES, known.traits)]
    for package in emitted.values():
        releases += [
            objects.release(item, packages[package.name], known.traits, suspended=False)
            for item in catalogue.releases(package, emitted)
        ]
    for chart in known.charts:
        values = TENANT if chart.ref == "tenant-root/tenant-root" else None
        releases.append(objects.chart_release(chart, values))
    return ClusterObjects(
        [finished(r, INSTALLED) for r in releases if r["metadata"]["name"] != "gateway"],
        [finished(p, WRITTEN) for p in [platform, *packages.values()]],
        [objects.platform_source(), *(objects.package_source(n, v) for n, v in known.sources().items())],
    )


@pytest.mark.parametrize("version", catalogue.known())
def test_the_labs_whole_platform_is_ready_and_without_any_one_release_it_is_not(version: str) -> None:
    read = lab(version, "isp-full").read("isp-full")
    assert not isinstance(read, QueryFailed)
    releases, expected = read
    wait = Wait(expected)
    wait.at(0, releases)

    assert wait.at(30, releases) == Ready(len(releases))
    for absent in expected.releases:
        fewer = [r for r in releases if r.id != absent]
        assert isinstance(Wait(expected).at(0, fewer), Progressing)
