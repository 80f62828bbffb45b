"""The lab's account of each Cozystack release, held against the contract data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.platform import catalogue
from lab.platform.catalogue import Package
from tests.recorded import RELEASES

CONFIGURATIONS = range(8)


def contract(vectors: Path, version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((vectors / "cozystack" / version / "releases.json").read_text())
    return found


def emitted(version: str, configuration: dict[str, Any]) -> dict[str, Package]:
    known = catalogue.load(version)
    extra = {"bundles": {"system": {"enabled": True}}} if "extra_platform_values" in configuration else {}
    values = {"authentication": {"oidc": {"enabled": configuration["oidc"]}}, **extra}
    return {p.name: p for p in known.emitted(known.choice(configuration["platform_variant"], values))}


@pytest.mark.parametrize("index", CONFIGURATIONS)
@pytest.mark.parametrize("version", RELEASES)
def test_every_configuration_has_the_packages_of_the_contract(vectors: Path, version: str, index: int) -> None:
    configuration = contract(vectors, version)["configurations"][index]
    ours = emitted(version, configuration)
    assert {(p.name, p.variant, p.needs) for p in ours.values()} == {
        (p["name"], p["variant"], tuple(p["dependsOn"])) for p in configuration["packages"]
    }
    ready = {p["name"] for p in configuration["packages"] if p["can_become_ready"]}
    assert catalogue.installable(tuple(ours.values())) == ready


@pytest.mark.parametrize("index", CONFIGURATIONS)
@pytest.mark.parametrize("version", RELEASES)
def test_every_configuration_has_the_releases_of_the_contract(vectors: Path, version: str, index: int) -> None:
    configuration = contract(vectors, version)["configurations"][index]
    packages = emitted(version, configuration)
    ours = {r.ref: r for p in packages.values() for r in catalogue.releases(p, packages)}
    theirs = {f"{r['namespace']}/{r['name']}": r for r in configuration["releases"]}
    assert set(ours) == set(theirs)
    assert {k: (r.package.name, r.package.variant, r.component.name, r.artifact) for k, r in ours.items()} == {
        k: (r["package"], r["variant"], r["component"], r["artifact"]) for k, r in theirs.items()
    }
    assert {k: list(r.depends_on) for k, r in ours.items()} == {
        k: [f"{d['namespace']}/{d['name']}" for d in r["dependsOn"]] for k, r in theirs.items()
    }
    assert {k: (r.component.privileged, r.component.uses_pvc) for k, r in ours.items()} == {
        k: (r["privileged"], r["uses_pvc"]) for k, r in theirs.items()
    }
    assert {k: (sorted(r.component.crds), list(r.component.apis)) for k, r in ours.items()} == {
        k: (sorted(r["crds_provided"]), r["aggregated_apis"]) for k, r in theirs.items()
    }


@pytest.mark.parametrize("version", RELEASES)
def test_optional_packages_bring_their_releases(vectors: Path, version: str) -> None:
    known = catalogue.load(version)
    theirs = contract(vectors, version)["optional_packages"]
    named = {k: v for k, v in theirs.items() if k.startswith("cozystack.") and v}
    plain = {p.name for p in known.emitted(known.choice("isp-full", {}))}
    for name, expected in named.items():
        chosen = known.emitted(known.choice("isp-full", {"bundles": {"enabledPackages": [name]}}))
        packages = {p.name: p for p in chosen}
        ours = {
            r.ref: list(r.depends_on) for p in chosen if p.name not in plain for r in catalogue.releases(p, packages)
        }
        assert ours == {
            f"{r['namespace']}/{r['name']}": [f"{d['namespace']}/{d['name']}" for d in r["dependsOn"]] for r in expected
        }
        created = {r["package"] for r in expected if r["created"]}
        assert catalogue.installable(chosen) - plain == created


@pytest.mark.parametrize("version", RELEASES)
def test_chart_generated_releases_match(vectors: Path, version: str) -> None:
    ours = {(c.ref, c.parent, c.artifact, c.interval, c.timeout, c.needs) for c in catalogue.load(version).charts}
    assert ours == {
        (
            f"{c['namespace']}/{c['name']}",
            c["parent"],
            c["artifact"],
            c["interval"],
            c.get("timeout") or "",
            tuple(f"{d['namespace'] or c['namespace']}/{d['name']}" for d in c["dependsOn"]),
        )
        for c in contract(vectors, version)["chart_generated_releases"]
    }


def test_a_disabled_package_is_left_out_and_blocks_its_dependants() -> None:
    known = catalogue.load("1.6.2")
    values = {"bundles": {"disabledPackages": ["cozystack.cert-manager"]}}
    packages = known.emitted(known.choice("isp-full", values))
    assert "cozystack.cert-manager" not in {p.name for p in packages}
    assert "cozystack.linstor" not in catalogue.installable(packages)


def test_proxy_protocol_brings_ouroboros() -> None:
    known = catalogue.load("1.6.2")
    packages = known.emitted(known.choice("isp-full", {"publishing": {"proxyProtocol": True}}))
    assert "cozystack.ouroboros" in {p.name for p in packages}


def test_an_unknown_version_names_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(f"{', '.join(catalogue.known())}, not 1.2.0")):
        catalogue.load("1.2.0")
