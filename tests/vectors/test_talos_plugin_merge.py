"""Merging machine configuration: Talos' own cases, and laws that must hold for any patch."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cozystack_iac import yaml_text as text
from lab.plugins.talos import merge
from lab.plugins.talos.schema import schema


def _machinery(version: str) -> int:
    return int(version.split(".")[1])


@cache
def _base(folder: Path, contract: str, machine_type: str) -> tuple[text.Document, ...]:
    return text.parse((folder / "talos" / "configs" / contract / f"{machine_type}.yaml").read_text())


def _outcome(base: tuple[text.Document, ...], patch: str, machinery: int) -> tuple[str, Any]:
    try:
        return "ok", list(merge.patch(base, [patch], machinery))
    except merge.Refused as refused:
        return refused.stage, str(refused)


def test_every_recorded_case_comes_out_as_in_talos(vectors: Path) -> None:
    cases = json.loads((vectors / "talos" / "patches.json").read_text())
    wrong = []
    for case in cases:
        base = _base(vectors, case["contract"], case["base"])
        stage, result = _outcome(base, case["patch"], _machinery(case["machinery"]))
        expected = case.get("error_stage", "ok")
        if stage != expected or (stage == "ok" and result != list(text.parse(case["result"]))):
            wrong.append((case["name"], stage, result if stage != "ok" else "other result"))
    assert not wrong
    assert len(cases) >= 45


def test_other_machinery_versions_differ_as_recorded(vectors: Path) -> None:
    cases = json.loads((vectors / "talos" / "patches.json").read_text())
    compared = 0
    for case in cases:
        base = _base(vectors, case["contract"], case["base"])
        for version, other in case.get("differs", {}).items():
            stage, result = _outcome(base, case["patch"], _machinery(version))
            assert stage == other["stage"], (case["name"], version, result)
            if "result" in other:
                assert result == list(text.parse(other["result"])), (case["name"], version)
            compared += 1
    assert compared > 5


def test_refusals_are_worded_as_in_talos(vectors: Path) -> None:
    for case in json.loads((vectors / "talos" / "patches.json").read_text()):
        if "error" not in case or case["error_stage"] == "panic":
            continue
        base = _base(vectors, case["contract"], case["base"])
        _, message = _outcome(base, case["patch"], _machinery(case["machinery"]))
        # Struct type names and YAML positions inside a document are the Go decoder's own business.
        assert message.split(":")[0] == case["error"].split(":")[0], case["name"]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/machine/certSANs/-", "value": "a"}, ["127.0.0.1", "a"]),
        ({"op": "add", "path": "/machine/certSANs/0", "value": "a"}, ["a", "127.0.0.1"]),
        ({"op": "replace", "path": "/machine/certSANs/0", "value": "a"}, ["a"]),
        ({"op": "remove", "path": "/machine/certSANs/0"}, []),
        ({"op": "copy", "from": "/machine/certSANs/0", "path": "/machine/certSANs/-"}, ["127.0.0.1", "127.0.0.1"]),
        ({"op": "test", "path": "/machine/certSANs/0", "value": "127.0.0.1"}, ["127.0.0.1"]),
    ],
)
def test_json_patch_operations(operation: dict[str, Any], expected: list[str]) -> None:
    (result,) = merge.patch([{"machine": {"certSANs": ["127.0.0.1"]}}], [json.dumps([operation])])
    assert result["machine"]["certSANs"] == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/machine/certSANs/7"},
        {"op": "replace", "path": "/machine/none/x", "value": 1},
        {"op": "test", "path": "/machine/type", "value": "x"},
        {"op": "frob", "path": "/machine/type"},
        {"op": "add", "path": "machine", "value": 1},
        {"path": "/machine"},
    ],
)
def test_json_patch_that_cannot_be_applied_is_refused(operation: dict[str, Any]) -> None:
    with pytest.raises(merge.Refused) as refused:
        merge.patch([{"machine": {"type": "worker", "certSANs": []}}], [json.dumps([operation])])
    assert refused.value.stage == "patch"


def test_delete_then_set_in_one_patch_replaces() -> None:
    patch = "cluster: {apiServer: {admissionControl: [{name: A, $patch: delete}, {name: A, configuration: {y: 2}}]}}"
    base = {"cluster": {"apiServer": {"admissionControl": [{"name": "A", "configuration": {"x": 1}}]}}}
    (result,) = merge.patch([base], [patch])
    assert result["cluster"]["apiServer"]["admissionControl"] == [{"name": "A", "configuration": {"y": 2}}]


NAMES = st.sampled_from(["ens5", "ens6", "eth0"])
TEXTS = st.sampled_from(["", "a", "b", "10.0.0.1"])
WITHOUT_LISTS = st.fixed_dictionaries(
    {},
    optional={
        "machine": st.fixed_dictionaries(
            {},
            optional={
                "type": TEXTS,
                "sysctls": st.dictionaries(NAMES, TEXTS),
                "features": st.fixed_dictionaries({}, optional={"rbac": st.booleans()}),
                "kubelet": st.fixed_dictionaries(
                    {}, optional={"image": TEXTS, "extraConfig": st.dictionaries(NAMES, st.integers() | TEXTS)}
                ),
            },
        ),
        "cluster": st.fixed_dictionaries(
            {},
            optional={
                "clusterName": TEXTS,
                "network": st.fixed_dictionaries(
                    {}, optional={"podSubnets": st.lists(TEXTS, max_size=2), "dnsDomain": TEXTS}
                ),
            },
        ),
    },
)
WITH_LISTS = st.fixed_dictionaries(
    {},
    optional={
        "machine": st.fixed_dictionaries(
            {},
            optional={
                "certSANs": st.lists(TEXTS, max_size=2),
                "network": st.fixed_dictionaries(
                    {},
                    optional={
                        "interfaces": st.lists(
                            st.fixed_dictionaries(
                                {"interface": NAMES},
                                optional={"mtu": st.integers(0, 3), "addresses": st.lists(TEXTS, max_size=2)},
                            ),
                            max_size=3,
                        )
                    },
                ),
            },
        )
    },
)


def _merge(left: Any, right: Any) -> Any:
    return merge.merge(left, right, schema().config)


@given(WITHOUT_LISTS, WITHOUT_LISTS)
def test_merging_a_patch_without_appended_lists_twice_changes_nothing(base: Any, patch: Any) -> None:
    once = _merge(_merge({}, base), patch)
    assert _merge(once, patch) == once


@given(WITHOUT_LISTS | WITH_LISTS, WITHOUT_LISTS | WITH_LISTS, WITHOUT_LISTS | WITH_LISTS)
def test_merging_is_associative(one: Any, two: Any, three: Any) -> None:
    base = _merge({}, one)
    assert _merge(_merge(base, two), three) == _merge(base, _merge(_merge({}, two), three))


@given(WITHOUT_LISTS | WITH_LISTS, WITHOUT_LISTS | WITH_LISTS)
def test_merging_changes_neither_side(base: Any, patch: Any) -> None:
    before = json.dumps([base, patch])
    _merge(base, patch)
    assert json.dumps([base, patch]) == before


@given(WITHOUT_LISTS | WITH_LISTS)
def test_an_empty_patch_changes_nothing(base: Any) -> None:
    assert _merge(base, {}) == base
