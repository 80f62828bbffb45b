"""What a plan shows of machine configurations: every change, grouped, with the reboot it takes, and no secret ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.rpc import UNKNOWN

from cozystack_iac import report
from cozystack_iac.stages.machine_config_rollout import MachineConfigRolloutProvider, RolloutInputs, planned
from cozystack_iac.stages.node_probe import NodeProbeProvider
from cozystack_iac.talos import plan
from cozystack_iac.talos.documents import config_patches, emit, own_patches, parse
from cozystack_iac.talos.fleet import MachineRef
from lab.plugins.talos import generate, merge, secrets
from lab.plugins.talos.contracts import Request
from tests.sites import changed, good, node, site_of

CANARIES = ("canary-password", "canary-file", "canary-env", "canary-url")
NASTY = [
    {"machine": {"env": {"ANYTHING": "canary-env"}}},
    {"machine": {"files": [{"path": "/var/x", "op": "create", "content": "canary-file"}]}},
    {
        "machine": {
            "logging": {"destinations": [{"endpoint": "https://u:canary-url@log.example.org", "format": "json"}]}
        }
    },
    {"machine": {"registries": {"config": {"r.example.org": {"auth": {"password": "canary-password"}}}}}},
]


def inputs(raw: dict[str, Any], *, complete: bool = True) -> RolloutInputs:
    """What the rollout is given for a stack file; without `complete` as in a first preview."""
    site = site_of(raw)
    configurations = {n.name: _configuration(site, n) for n in site.nodes} if complete else {}
    return RolloutInputs(
        machines=[
            MachineRef(name=n.name, role=n.role, maintenance=n.address, address=n.address, internal=n.address)
            for n in site.nodes
        ],
        configurations=configurations,
        documents={n.name: emit(own_patches(site, n)) for n in site.nodes},
        deadline_s=1,
    )


def _configuration(site: Any, one: Any) -> str:
    request = Request(
        cluster="prod",
        endpoint=site.endpoint,
        machine_type="controlplane" if one.is_control_plane else "worker",
        minor=13,
        kubernetes="1.33.12",
        installer="x",
    )
    return _complete(request, tuple(config_patches(site, one)))


@cache
def own() -> secrets.Bundle:
    """The secrets of the one cluster of these tests."""
    return secrets.generate()


@cache
def _complete(request: Request, patches: tuple[str, ...]) -> str:
    return emit(merge.patch(generate.generate(own(), request), patches))


@cache
def before() -> RolloutInputs:
    return inputs(good())


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Every plan here is compared with the same configurations, and to read YAML takes most of the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan, "parse", cache(parse))
        yield


def test_the_first_plan_shows_the_plain_documents_once_and_each_machines_own() -> None:
    text = planned(inputs(good(), complete=False), None)
    assert text.startswith("cp1, cp2, cp3 (control plane)  new machine: it is installed and then rebooted\n")
    assert text.count("machine.kubelet.extraConfig.maxPods: 512") == 1
    assert "  only cp2\n" in text
    assert "    + machine.install.diskSelector.serial: SYS0002" in text
    assert "+ machine.kubelet.nodeIP.validSubnets: ['10.0.0.0/24', '!10.0.0.10/32']" in text


def test_nothing_changed_is_nothing_to_show() -> None:
    assert planned(before(), before()) == ""


def test_a_new_worker_is_the_only_one_shown() -> None:
    text = planned(inputs({**good(), "nodes": [*good()["nodes"], node(4, "worker")]}), before())
    assert text.startswith("w4 (worker)  new machine")
    assert "\ncp1" not in text


@pytest.mark.parametrize(
    ("change", "head", "line"),
    [
        (
            ("talos.sysctls", {"vm.swappiness": "1"}),
            "cp1, cp2, cp3 (control plane)  needs no reboot",
            "  + machine.sysctls.vm.swappiness: 1",
        ),
        (
            ("nodes.1.patches", [{"machine": {"features": {"kubePrism": {"port": 7000}}}}]),
            "cp2 (control plane)  needs a reboot",
            "  ~ machine.features.kubePrism.port",
        ),
        (
            ("nodes.1.labels", {"rack": "r1"}),
            "cp2 (control plane)  needs no reboot",
            "  + machine.nodeLabels.rack: r1",
        ),
    ],
)
def test_a_change_names_machines_setting_and_reboot(change: tuple[str, Any], head: str, line: str) -> None:
    lines = planned(inputs(changed(good(), change)), before()).splitlines()
    assert lines[0] == head
    assert line in lines


def test_a_machine_that_leaves_is_said() -> None:
    raw = changed(good(), ("nodes", good()["nodes"][:2]), ("storage.approvedDisks.cp3", None))
    del raw["storage"]["approvedDisks"]["cp3"]
    assert "cp3  removed from the inventory" in planned(inputs(raw), before())


def test_users_patches_are_shown_without_their_values() -> None:
    text = planned(inputs(changed(good(), ("talos.patches", NASTY))), before())
    assert "+ machine.env.ANYTHING" in text
    assert "+ machine.registries.config.r.example.org.auth.password" in text
    assert [canary for canary in CANARIES if canary in text] == []


def test_no_secret_of_the_cluster_is_in_any_plan() -> None:
    again = replace(own(), trustd_token="fedcba.9876543210fedcba")
    renewed = {
        name: text.replace(own().trustd_token, again.trustd_token)
        for name, text in inputs(changed(good(), ("talos.patches", NASTY))).configurations.items()
    }
    new = inputs(changed(good(), ("talos.patches", NASTY))).model_copy(update={"configurations": renewed})
    texts = [planned(new, before()), planned(new, None), planned(before(), new)]
    hidden = [
        value
        for bundle in (own(), again)
        for value in (bundle.cluster_secret, bundle.bootstrap_token, bundle.secretbox_secret, bundle.trustd_token)
    ]
    hidden += [pair.key for pair in (own().etcd, own().kubernetes, own().aggregator, own().os)]
    hidden += [own().service_account_key, *CANARIES]
    assert "~ machine.token" in texts[0]
    assert [value for value in hidden for text in texts if value in text] == []


def test_workers_carry_no_private_key() -> None:
    raw = {**good(), "nodes": [*good()["nodes"], node(4, "worker")]}
    [main, *_] = parse(inputs(raw).configurations["w4"])
    assert main["machine"]["ca"]["key"] == ""
    assert not main["cluster"]["ca"].get("key")
    assert "etcd" not in main["cluster"]
    assert "aggregatorCA" not in main["cluster"]


def test_many_machines_with_lines_of_their_own_are_counted() -> None:
    documents = {f"w{n}": emit([{"machine": {"nodeLabels": {"rack": f"r{n}"}}}]) for n in range(30)}
    text = plan.of_machines({}, documents, roles={})
    assert "w0, w1, w2, w3, w4, w5, w6, w7 and 22 more" in text
    assert "and 10 more machines with changes of their own" in text


def test_documents_nobody_can_read_do_not_break_a_plan() -> None:
    assert "machine.debug" in plan.of_machines({"a": "{"}, {"a": "machine: {debug: true}"}, roles={})


# In the engine's check -----------------------------------------------------------------------------------------------


def props(given: RolloutInputs) -> dict[str, Any]:
    return given.model_dump(mode="json")


def test_the_first_preview_shows_the_plan_although_the_secrets_are_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unknown = props(inputs(good(), complete=False)) | {"configurations": UNKNOWN, "client_configuration": UNKNOWN}
    result = MachineConfigRolloutProvider().check({}, unknown)
    assert result.failures == []
    assert result.inputs["configurations"] == UNKNOWN
    assert "+ machine.sysctls" in capsys.readouterr().out


def test_an_update_shows_what_differs_from_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    new = inputs(changed(good(), ("talos.sysctls", {"vm.swappiness": "1"})))
    MachineConfigRolloutProvider().check(props(before()), props(new))
    assert "+ machine.sysctls.vm.swappiness: 1" in capsys.readouterr().out


def test_the_plan_reaches_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    monkeypatch.setenv(report.VARIABLE, str(path))
    MachineConfigRolloutProvider().check({}, props(inputs(good(), complete=False)))
    text = path.read_text()
    assert text.startswith("### Machine configurations\n\n~~~\ncp1, cp2, cp3")
    assert text.endswith("~~~\n\n")


def test_a_report_that_cannot_be_written_is_said_and_harms_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report.add("Machines", "text", {report.VARIABLE: "/nonexistent/summary.md"})
    assert "cannot be written" in capsys.readouterr().out


def test_without_a_report_nothing_is_written(tmp_path: Path) -> None:
    report.add("Machines", "text", {})
    assert list(tmp_path.iterdir()) == []


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert report.fenced("a\n~~~\nb") == "~~~~\na\n~~~\nb\n~~~~"


def test_an_offline_preview_reports_that_nobody_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    monkeypatch.setenv(report.VARIABLE, str(path))
    target = {"name": "cp1", "role": "controlPlane", "path": "p", "maintenance": "a", "address": "a", "internal": "a"}
    given = {"machines": [target], "talos": "v1.13.6", "cozystack": "1.6.2", "checks": "offline", "deadline_s": 1}
    result = NodeProbeProvider().check({}, given | {"client_configuration": UNKNOWN})
    assert result.failures == []
    assert "1 machine(s) were not checked" in path.read_text()
