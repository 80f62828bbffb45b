"""What is generated or shipped with the models: examples, schema, documents, declared configuration types, command line."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from cozystack_iac.__main__ import GENERATED, main
from cozystack_iac.findings import table
from cozystack_iac.rules import verdict
from cozystack_iac.settings import Site
from cozystack_iac.settings.base import stack_key
from cozystack_iac.settings.load import from_file
from cozystack_iac.settings.reference import schema
from lab.scenario import Scenario
from tests.sites import changed, codes, good

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "Pulumi.dev.yaml", ROOT / "Pulumi.lab.yaml", *sorted((ROOT / "examples").glob("Pulumi.*.yaml"))]
VALIDATOR = jsonschema.Draft202012Validator(schema())


def document(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_no_finding_above_a_note(path: Path) -> None:
    result = verdict(from_file(path))
    assert codes(result) == [], table(result)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_the_schema(path: Path) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(document(path))] == []


def test_the_lab_stack_is_the_lab_scenario() -> None:
    site = from_file(ROOT / "Pulumi.lab.yaml").site
    scenario = document(ROOT / "lab" / "scenarios" / "three-nodes.yaml")
    assert site is not None
    assert site.talos.vip == scenario["vip"]
    assert site.cluster.cozystack == scenario["cozystack"]
    assert [(node.name, node.address) for node in site.nodes] == [
        (m["name"], m["address"]) for m in scenario["machines"]
    ]
    serials = {m["name"]: [disk["serial"] for disk in m["disks"]] for m in scenario["machines"]}
    named = {
        n.name: [n.install_disk.serial if n.install_disk else "", *(d.serial for d in n.data_disks)] for n in site.nodes
    }
    assert named == serials
    assert Scenario.model_validate(scenario).name == "three-nodes"


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_a_generated_document_is_current(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == GENERATED[name](), f"docs/{name} is out of date: run `python -m cozystack_iac docs`"


def in_stack(raw: dict[str, Any]) -> dict[str, Any]:
    return {"encryptionsalt": "v1:x", "config": {f"cozystack:{key}": value for key, value in raw.items()}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster.varient", "talos"),
        ("cluster.variant", "metal"),
        ("nodes.0.role", "master"),
        ("nodes.0.installDisk", "sda"),
        ("nodes", {"flie": "x"}),
        ("waits.linstor", 5),
        ("storage.minimumSize", "large"),
        ("tenant.ingress", "yes"),
        ("frob", 1),
    ],
)
def test_the_schema_refuses_what_the_models_refuse(path: str, value: object) -> None:
    assert list(VALIDATOR.iter_errors(in_stack(changed(good(), (path, value)))))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nodes", {"file": "sites/prod.nodes.yaml"}),
        ("talos.image", "registry.example.org/talos:v1.13.6"),
        ("talos.image", {"profile": "installer.yaml"}),
        (
            "network.registries",
            {"config": {"r.example.org": {"auth": {"username": "joe", "password": {"secure": "v1:x"}}}}},
        ),
        ("storage.minimumSize", "100GiB"),
        ("allow", [{"guardrail": "STO-012", "reason": "x", "until": "2027-01-31"}]),
        ("lab", {"httpsPort": 8443}),
    ],
)
def test_the_schema_accepts_what_the_models_accept(path: str, value: object) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(in_stack(changed(good(), (path, value))))] == []


def test_the_schema_asks_for_what_has_no_default() -> None:
    missing = {error.message for error in VALIDATOR.iter_errors({"config": {"cozystack:cluster": {}}})}
    assert "'name' is a required property" in missing
    assert "'cozystack:publishing' is a required property" in missing


def test_every_key_is_described() -> None:
    definitions: dict[str, Any] = schema()["$defs"]
    undescribed = [
        f"{name}.{key}"
        for name, definition in definitions.items()
        for key, value in definition.get("properties", {}).items()
        if not value.get("description")
    ]
    assert undescribed == []


def declared_keys() -> dict[str, Any]:
    """Our own keys; those of Pulumi and of plugins have a colon."""
    return {key: entry for key, entry in document(ROOT / "Pulumi.yaml")["config"].items() if ":" not in key}


def test_the_project_declares_every_key_it_can() -> None:
    # A list or a mapping, and a key whose mere presence means something, cannot be declared.
    assert set(declared_keys()) == {stack_key(name) for name in Site.model_fields} - {"nodes", "lab"}


def test_declared_defaults_change_nothing() -> None:
    defaults = {key: entry["default"] for key, entry in declared_keys().items()}
    assert Site.model_validate(defaults, by_alias=True, by_name=False) == Site()


# The command line -------------------------------------------------------------------------------------------------------


def test_check_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "Pulumi.dev.yaml")]) == 0
    assert "1 note" in capsys.readouterr().out


def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "Pulumi.dev.yaml"), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["blocking"] is False


def test_check_prints_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "none.yaml"), "--format", "markdown"]) == 1
    assert "| error | CFG-001 |" in capsys.readouterr().out


def test_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_docs_are_written(tmp_path: Path) -> None:
    assert main(["docs", str(tmp_path / "docs")]) == 0
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == sorted(GENERATED)
