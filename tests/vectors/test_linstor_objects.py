"""LINSTOR's objects against recorded ones: conditions the operator writes, and the CRDs of every release."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac.storage import linstor
from tests.recorded import RELEASES

CRD = "linstorsatelliteconfigurations.piraeus.io.yaml"


def test_every_satellite_condition_of_the_recorded_sequences_is_read(vectors: Path) -> None:
    sequences = json.loads((vectors / "cozystack" / "conditions.json").read_text())["sequences"]
    steps = [
        step["conditions"]
        for sequence in (sequences.values() if isinstance(sequences, dict) else sequences)
        if sequence.get("kind") == "LinstorSatellite"
        for step in sequence["steps"]
        if step.get("conditions")
    ]
    assert len(steps) >= 8
    for conditions in steps:
        bad = [c for c in conditions if c["status"] == "False"]
        said = linstor.satellite_evidence({"status": {"conditions": conditions}})
        assert all(f"{c['type']}: {c['message']}" in said for c in bad)
        assert bool(bad) == bool(said)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("devices", [[], ["/dev/disk/by-id/ata-MODEL_S1"]])
def test_every_release_knows_the_configurations_that_are_made(vectors: Path, release: str, devices: list[str]) -> None:
    definition = YAML(typ="safe", pure=True).load((vectors / "cozystack" / "crds" / release / CRD).read_text())
    [version] = [v for v in definition["spec"]["versions"] if v["name"] == "v1" and v["served"]]
    body = linstor.satellite_configuration("n1", "data", "tank", devices)
    assert list(unknown(body["spec"], version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")) == []


def unknown(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Keys the schema does not have, required ones that are missing, and texts that are too short."""
    if isinstance(value, dict) and "properties" in schema:
        yield from (f"{path}.{key} is missing" for key in schema.get("required") or () if key not in value)
        for key, each in value.items():
            if key not in schema["properties"]:
                yield f"{path}.{key} does not exist"
            else:
                yield from unknown(each, schema["properties"][key], f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from unknown(each, schema["items"], f"{path}[]")
    elif isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"{path} is too short"
