"""The kinds the lab serves, held against the real definitions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from lab.platform import catalogue, crds
from tests.recorded import RELEASES

SERVED = 20
READABLE_BYTES = 16_000  # a pure YAML parser takes half a second for each of the larger ones


@pytest.mark.parametrize("version", RELEASES)
def test_scopes_and_versions_are_the_real_ones(vectors: Path, version: str) -> None:
    index = json.loads((vectors / "cozystack" / "crds" / "index.json").read_text())["crds"]
    names = crds.served(tuple(index))
    assert len(names) == SERVED
    for name in names:
        real = index[name][version]
        ours = crds.definition(name, catalogue.load(version).traits)["spec"]
        storage = next(v["name"] for v in ours["versions"] if v["storage"])
        assert ours["scope"] == real["scope"]
        assert {v["name"] for v in ours["versions"]} == {v.split()[0] for v in real["versions"]}
        assert f"{storage} storage" in real["versions"]


def test_names_and_subresources_are_the_real_ones(vectors: Path) -> None:
    compared = 0
    for path in sorted((vectors / "cozystack" / "crds" / "1.6.2").glob("*.yaml")):
        if path.stat().st_size > READABLE_BYTES:
            continue
        real = YAML(typ="safe", pure=True).load(path)["spec"]
        ours = crds.definition(path.stem, catalogue.load("1.6.2").traits)["spec"]
        names = ("kind", "plural", "singular", "listKind")
        assert {n: ours["names"][n] for n in names} == {n: real["names"][n] for n in names}
        assert ours["names"]["shortNames"] == real["names"].get("shortNames", [])
        assert "subresources" in ours["versions"][0] or "subresources" not in real["versions"][0]
        assert ("status" in ours["versions"][0].get("subresources", {})) == (
            "status" in real["versions"][0].get("subresources", {})
        )
        compared += 1
    assert compared >= 14


def test_kinds_nobody_needs_are_not_served() -> None:
    assert crds.served(("kafkas.kafka.strimzi.io", "packages.cozystack.io")) == ("packages.cozystack.io",)
