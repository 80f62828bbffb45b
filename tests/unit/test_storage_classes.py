"""Storage classes: the documented ones, and what is done about those that are there already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from cozystack_iac.findings import ERROR, Finding
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import Known
from cozystack_iac.stages.classes_fit import ClassesFitProvider, ClassInputs, ClassOutputs
from cozystack_iac.storage import classes
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG, MemoryApi

WANTED = classes.storage_classes("data", 3)
DEFAULT = {classes.DEFAULT_ANNOTATION: "true"}


def cls(name: str, *, default: bool = False, ours: bool = False, like: str = "", **changes: Any) -> dict[str, Any]:
    """A class of a cluster; `like`: otherwise as we would make that one."""
    base = next((body for body in WANTED if body["metadata"]["name"] == (like or name)), WANTED[1])
    labels = dict(classes.MANAGED) if ours else {}
    metadata = {
        "name": name,
        "labels": labels,
        "annotations": DEFAULT if default else {},
        "creationTimestamp": "2026-01-01",
    }
    return {**base, "metadata": metadata, **changes}


def replicated(**parameters: str) -> dict[str, Any]:
    """Somebody's `replicated` with other parameters; an empty one is left out."""
    given = {**WANTED[1]["parameters"], **{f"{classes.PROVISIONER}/{key}": value for key, value in parameters.items()}}
    return cls("replicated", parameters={key: value for key, value in given.items() if value})


def codes(existing: list[dict[str, Any]], mode: Literal["create", "adopt"], copies: int = 3) -> list[str]:
    return [finding.code for finding in classes.judge_classes(existing, WANTED, mode, copies)]


def the(finding: list[Finding]) -> Finding:
    [one] = finding
    return one


# What is made --------------------------------------------------------------------------------------------------------


def test_exactly_one_class_is_the_default_and_both_names_exist() -> None:
    assert [c["metadata"]["name"] for c in WANTED] == list(classes.NAMES)
    assert classes.defaults(WANTED) == ["local"]
    assert [c["volumeBindingMode"] for c in WANTED] == ["WaitForFirstConsumer", "Immediate"]


@pytest.mark.parametrize(("nodes", "copies"), [(1, "1"), (2, "2"), (3, "3"), (5, "3")])
def test_a_volume_has_three_copies_or_as_many_as_there_are_storage_nodes(nodes: int, copies: str) -> None:
    disks = {"dataDisks": [{"serial": "D"}]}
    site = Site.model_validate({"nodes": [{"name": f"n{i}", **disks} for i in range(nodes)] + [{"name": "w"}]})
    made = classes.storage_classes("data", site.replicas)
    assert made[1]["parameters"]["linstor.csi.linbit.com/autoPlace"] == copies


# What is there -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("existing", "create", "adopt"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param(
            [cls("local", default=True), cls("replicated")], ["CLS-001", "CLS-001"], [], id="somebody's, fitting"
        ),
        pytest.param([cls("replicated")], ["CLS-001"], [], id="one of them is somebody's"),
        pytest.param([cls("local", ours=True, default=True), cls("replicated", ours=True)], [], [], id="ours"),
        pytest.param([cls("hdd", like="local")], [], [], id="another one that is not the default"),
        pytest.param([cls("local-path", default=True)], ["CLS-004"], [], id="another default"),
        pytest.param(
            [cls("local", default=True), cls("replicated", default=True)],
            ["CLS-001", "CLS-001", "CLS-004"],
            ["CLS-004"],
            id="two defaults",
        ),
        pytest.param(
            [cls("local"), cls("replicated")], ["CLS-001", "CLS-001", "CLS-005"], ["CLS-005"], id="no default"
        ),
        pytest.param(
            [cls("local", ours=True), cls("replicated", ours=True)], [], ["CLS-005"], id="ours, mark taken away"
        ),
    ],
)
def test_classes_that_are_there_are_judged_all_at_once(
    existing: list[dict[str, Any]], create: list[str], adopt: list[str]
) -> None:
    assert codes(existing, "create") == create
    assert codes(existing, "adopt") == adopt


def test_the_old_mark_of_a_default_counts() -> None:
    old = {"storageclass.beta.kubernetes.io/is-default-class": "true"}
    found = cls("gp2")
    found["metadata"]["annotations"] = old
    assert codes([found], "create") == ["CLS-004"]


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (cls("replicated", provisioner="ebs.csi.aws.com"), "CLS-002", "its provisioner is ebs.csi.aws.com"),
        (replicated(storagePool="ssd"), "CLS-002", "storagePool is ssd (would be data)"),
        (replicated(layerList="storage"), "CLS-002", "layerList is storage (would be drbd storage)"),
        (replicated(layerList=""), "CLS-002", "layerList is not set (would be drbd storage)"),
        (replicated(autoPlace="4"), "CLS-002", "it asks for 4 replicas, but there are nodes for only 3"),
        (replicated(autoPlace="", placementCount="4"), "CLS-002", "it asks for 4 replicas"),
        (replicated(autoPlace="2"), None, ""),
        (replicated(autoPlace="", placementCount="2"), None, ""),
        (replicated(allowRemoteVolumeAccess="false"), "CLS-003", "allowRemoteVolumeAccess is false (would be true)"),
        (cls("replicated", reclaimPolicy="Retain"), "CLS-003", "reclaimPolicy is Retain (would be Delete)"),
        (cls("replicated", volumeBindingMode="WaitForFirstConsumer"), "CLS-003", "volumeBindingMode"),
        (replicated(encryption="true"), "CLS-003", "encryption is true (would not be set)"),
    ],
)
def test_an_adopted_class_has_to_place_volumes_and_may_differ_otherwise(
    found: dict[str, Any], code: str | None, words: str
) -> None:
    findings = classes.judge_classes([found], WANTED, "adopt", 3)
    assert [finding.code for finding in findings] == ([code] if code else [])
    assert all(words in finding.problem for finding in findings)


def test_a_parameter_is_the_same_with_and_without_linstor_csis_prefix() -> None:
    plain = {key.removeprefix(f"{classes.PROVISIONER}/"): value for key, value in WANTED[1]["parameters"].items()}
    assert codes([cls("replicated", parameters=plain)], "adopt") == []


def test_a_conflict_names_owner_differences_and_three_ways_out() -> None:
    found = replicated(autoPlace="2")
    found["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    found["metadata"]["annotations"] = {
        "meta.helm.sh/release-name": "storage",
        "meta.helm.sh/release-namespace": "infra",
    }
    finding = the(classes.judge_classes([found], WANTED, "create", 3))
    assert "belongs to Helm release infra/storage" in finding.problem
    assert "autoPlace is 2 (would be 3)" in finding.problem
    assert all(
        way in finding.fix for way in ("classes: adopt", "kubectl delete storageclass replicated", "classes: skip")
    )


def test_of_two_defaults_every_one_is_named_with_the_command_that_takes_its_mark() -> None:
    finding = the(classes.judge_classes([cls("local-path", default=True)], WANTED, "create", 3))
    assert "local, local-path" in finding.problem
    assert finding.command == f"kubectl annotate storageclass local-path {classes.DEFAULT_ANNOTATION}-"


def test_where_somebody_elses_class_is_the_default_the_missing_one_is_made_without_the_mark() -> None:
    made = classes.missing([cls("gp2", default=True)], WANTED)
    assert [body["metadata"]["name"] for body in made] == ["local", "replicated"]
    assert classes.defaults(made) == []


# The stage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve(api: MemoryApi) -> Callable[..., MemoryApi]:
    """Makes these the storage classes of the cluster."""

    def serving(*found: dict[str, Any]) -> MemoryApi:
        for _, name in tuple(api.of("storageclasses", "storage.k8s.io")):
            api.delete(api.target("storage.k8s.io/v1", "storageclasses", name=name))
        for body in found:
            api.create(api.target("storage.k8s.io/v1", "storageclasses"), body)
        return api

    return serving


def there(api: MemoryApi) -> set[str]:
    return {name for _, name in api.of("storageclasses", "storage.k8s.io")}


def inputs(mode: str = "create", **changes: Any) -> ClassInputs:
    given = {"kubeconfig": KUBECONFIG, "mode": mode, "pool": "data", "copies": 3, "nodes": 3, "deadline_s": 5}
    return ClassInputs.model_validate({**given, **changes})


def quiet() -> Progress:
    return Progress("t", write=lambda _: None)


async def test_conflicts_are_shown_by_the_preview_already(serve: Callable[..., MemoryApi]) -> None:
    serve(cls("local-path", default=True), replicated(autoPlace="2"))
    found = await ClassesFitProvider().preflight(inputs(), None)
    assert sorted(f.code for f in found) == ["CLS-001", "CLS-004"]
    assert await ClassesFitProvider().preflight(inputs(), inputs()) == []


async def test_a_cluster_that_does_not_answer_is_not_one_without_classes(serve: Callable[..., MemoryApi]) -> None:
    serve().go_away(True)
    briefly = inputs(deadline_s=0.1)
    [finding] = await ClassesFitProvider().preflight(briefly, None)
    assert (finding.code, finding.severity) == ("CLS-006", ERROR)
    with pytest.raises(StageFailed, match="cannot be read"):
        await ClassesFitProvider().establish(briefly, quiet())
    [skipped] = await ClassesFitProvider().preflight(inputs(checks="offline"), None)
    assert skipped.severity is not ERROR


async def test_with_create_nothing_is_written_here_and_a_foreign_class_ends_it(serve: Callable[..., MemoryApi]) -> None:
    api = serve(cls("replicated"))
    with pytest.raises(StageFailed, match="1 storage class conflict") as failure:
        await ClassesFitProvider().establish(inputs(), quiet())
    assert "no storage class was created, changed or removed" in str(failure.value)
    assert there(api) == {"replicated"}


async def test_with_adopt_only_what_is_missing_is_made_and_only_that_goes_again(
    serve: Callable[..., MemoryApi],
) -> None:
    api = serve(cls("replicated"))
    provider = ClassesFitProvider()
    made = await provider.establish(inputs("adopt"), quiet())
    assert there(api) == {"local", "replicated"}
    assert made.classes == {"local": "ours", "replicated": "foreign"}
    again = await provider.establish(inputs("adopt"), quiet())
    assert (there(api), again) == ({"local", "replicated"}, made)
    await provider.withdraw(inputs("adopt"), made, quiet())
    assert there(api) == {"replicated"}


async def test_a_refresh_sees_a_second_default_and_a_class_that_is_gone(serve: Callable[..., MemoryApi]) -> None:
    provider = ClassesFitProvider()
    serve(cls("local", default=True), cls("replicated"), cls("gp2", default=True))
    second = await provider.observe(inputs("adopt"), ClassOutputs(classes={}))
    serve(cls("local", default=True))
    gone = await provider.observe(inputs("adopt"), ClassOutputs(classes={}))
    assert second is not None
    assert gone is not None
    assert provider.drifted(inputs("adopt"), second)
    assert second.conflicts[0].startswith("CLS-004: 2 classes are, or would become, the default")
    assert gone.classes["replicated"] == "missing"
    assert provider.drifted(inputs("adopt"), gone)
    known = Known(inputs("adopt"), gone)
    assert (await provider.revise(inputs("adopt"), known, quiet())).classes["replicated"] == "ours"
