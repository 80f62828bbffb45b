"""The main job on the lab, told as one story: preview, install, nothing to do, drift, destroy; each test is a chapter."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.kube.kubeconfig import parse
from lab import scenario
from lab.session import Done
from lab.stack import stack_file
from lab.state import StateDir
from tests.addresses import prefix
from tests.engine.site import LabSite, site

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

EXPECTED_TYPES = {
    "cozystack:index:CozystackCluster",
    "pulumi-python:dynamic/cozystack:NodeProbe",
    "cozystack:talos:TalosMachineConfigs",
    "talos:machine/secrets:Secrets",
    "cozystack:talos:TalosBootstrap",
    "pulumi-python:dynamic/cozystack:MachineConfigRollout",
    "pulumi-python:dynamic/cozystack:ClusterMembership",
    "pulumi-python:dynamic/cozystack:EtcdBootstrap",
    "talos:cluster/kubeconfig:Kubeconfig",
    "pulumi-python:dynamic/cozystack:NodesRegistered",
    "pulumi-python:dynamic/cozystack:NodeVerification",
    "pulumi-python:dynamic/cozystack:KubeconfigFile",
    "pulumi-python:dynamic/cozystack:TalosUpgrade",
    "pulumi:providers:kubernetes",
    "cozystack:storage:ZfsPoolJob",
    "kubernetes:core/v1:Namespace",
    "kubernetes:batch/v1:Job",
    "pulumi-python:dynamic/cozystack:ZpoolsOnline",
    "cozystack:platform:CozyInstaller",
    "kubernetes:helm.sh/v3:Release",
    "pulumi-python:dynamic/cozystack:PlatformClaim",
    "pulumi-python:dynamic/cozystack:InstallerHook",
    "pulumi-python:dynamic/cozystack:OperatorReady",
    "cozystack:platform:PlatformPackage",
    "kubernetes:cozystack.io/v1alpha1:Package",
    "pulumi-python:dynamic/cozystack:PlatformValues",
    "pulumi-python:dynamic/cozystack:LinstorReady",
    "kubernetes:piraeus.io/v1:LinstorSatelliteConfiguration",
    "pulumi-python:dynamic/cozystack:PoolsRegistered",
    "kubernetes:storage.k8s.io/v1:StorageClass",
    "pulumi-python:dynamic/cozystack:RootTenantPatched",
    "pulumi-python:dynamic/cozystack:PlatformReady",
    "pulumi-python:dynamic/cozystack:PostVerify",
    "pulumi-python:dynamic/cozystack:Reachability",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    with site(tmp_path_factory.mktemp("install"), prefix(), spare=["w1"]) as made:
        yield made


def changes(done: Done) -> dict[str, int]:
    """`{"create": 31, "same": 2}` from the engine's own summary."""
    return {kind: int(n) for n, kind in re.findall(r"^\s+[+~\-]*\s*(\d+) (?:to )?(\w+)", done.output, re.M)}


@pytest.fixture(scope="module")
def previewed(lab: LabSite) -> Done:
    return lab.session.pulumi("preview", "--json", env=lab.ambient())


@pytest.fixture(scope="module")
def installed(lab: LabSite, previewed: Done) -> Done:
    return lab.session.pulumi("up", "--yes", "--skip-preview", env=lab.ambient(), timeout_s=600)


def test_a_preview_of_nothing_shows_every_resource(previewed: Done) -> None:
    assert previewed.code == 0, previewed.output[-4000:]
    steps = json.loads(previewed.output[previewed.output.index("{") :])["steps"]
    types = {step["newState"]["type"] for step in steps}
    assert types >= EXPECTED_TYPES
    assert {step["op"] for step in steps} == {"create"}


def test_up_installs_the_platform(lab: LabSite, installed: Done) -> None:
    assert installed.code == 0, installed.output[-6000:]
    outputs = lab.session.outputs()
    assert outputs["access"]["dashboard"] == "https://dashboard.lab.example.org:8443"
    assert outputs["releases"] > 89
    assert outputs["kubeconfig"] == "[secret]"
    assert outputs["talosconfig"] == "[secret]"


def test_every_machine_was_configured_once_and_etcd_bootstrapped_once(lab: LabSite, installed: Done) -> None:
    assert len(lab.events("config applied")) == 3
    assert len(lab.events("cluster bootstrapped")) == 1
    assert len(lab.events("zpool create")) == 3


def test_the_kubeconfig_file_is_private_and_leads_to_this_cluster(lab: LabSite, installed: Done) -> None:
    path = Path(lab.config["cozystack:access"]["kubeconfigFile"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert parse(path.read_text()).server == f"https://{prefix()}.0.10:6443"


def test_every_dynamic_resource_has_a_type_of_its_own(lab: LabSite, installed: Done) -> None:
    state = json.loads(lab.session.pulumi("stack", "export").output)
    dynamic = [r["type"] for r in state["deployment"]["resources"] if r["type"].startswith("pulumi-python:dynamic")]
    assert dynamic
    assert all(kind.startswith("pulumi-python:dynamic/cozystack:") for kind in dynamic)


def test_a_second_up_changes_nothing(lab: LabSite, installed: Done) -> None:
    again = lab.session.pulumi("up", "--yes", "--skip-preview", "--expect-no-changes", env=lab.ambient())
    assert again.code == 0, again.output[-4000:]


def test_a_refresh_sees_no_drift(lab: LabSite, installed: Done) -> None:
    done = lab.session.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes", env=lab.ambient())
    assert done.code == 0, done.output[-4000:]


def test_a_changed_setting_reaches_the_platform_without_touching_the_machines(lab: LabSite, installed: Done) -> None:
    config = json.loads(json.dumps(lab.config))
    config["cozystack:tenant"] = {**config.get("cozystack:tenant", {}), "seaweedfs": False}
    lab.session.configure(config)
    done = lab.session.pulumi("up", "--yes", "--skip-preview", env=lab.ambient())
    lab.session.configure(lab.config)
    assert done.code == 0, done.output[-4000:]
    assert "RootTenantPatched" in done.output
    assert len(lab.events("config applied")) == 3


def test_a_renewed_kubeconfig_replaces_nothing_of_the_platform(lab: LabSite, installed: Done) -> None:
    state = json.loads(lab.session.pulumi("stack", "export").output)
    [urn] = [r["urn"] for r in state["deployment"]["resources"] if r["type"] == "talos:cluster/kubeconfig:Kubeconfig"]
    before = lab.session.outputs(show_secrets=True)["kubeconfig"]
    preview = lab.session.pulumi("preview", "--replace", urn, env=lab.ambient())
    done = lab.session.pulumi("up", "--yes", "--skip-preview", "--replace", urn, env=lab.ambient())
    assert preview.code == 0, preview.output[-4000:]
    assert done.code == 0, done.output[-4000:]
    assert lab.session.outputs(show_secrets=True)["kubeconfig"] != before
    replaced = re.findall(r"^\s*\+-\s+(kubernetes:\S+|pulumi:providers:kubernetes)", done.output, re.M)
    assert replaced == []


def with_worker(lab: LabSite) -> dict[str, Any]:
    """The lab's stack file with the spare machine in it."""
    config = json.loads(json.dumps(lab.config))
    grown = stack_file(scenario.load(scenario.FOLDER / "day-two.yaml").relocated(prefix()))
    config["cozystack:nodes"] += [node for node in grown["cozystack:nodes"] if node["name"] == "w1"]
    config["cozystack:storage"]["approvedDisks"]["w1"] = grown["cozystack:storage"]["approvedDisks"]["w1"]
    return dict(config)


def told(lab: LabSite, since: int) -> list[str]:
    kinds = ("config applied", "zpool create", "zpool destroy", "resetting", "rebooting", "disk wiped")
    lines = [f"{e['subject']} {e['what']}" for e in lab.events() if e["seq"] > since and e["what"] in kinds]
    return [*lines, *(f"{e['subject']} registered" for e in lab.events("pool w1 registered") if e["seq"] > since)]


def resources(lab: LabSite) -> dict[str, dict[str, Any]]:
    state = json.loads(lab.session.pulumi("stack", "export").output)
    return {r["urn"].rpartition("::")[2]: r.get("outputs", {}) for r in state["deployment"]["resources"]}


def test_a_new_worker_gets_its_own_pool_and_nobody_else_is_touched(lab: LabSite, installed: Done) -> None:
    since = int(lab.events()[-1]["seq"])
    lab.session.configure(with_worker(lab))
    done = lab.session.pulumi("up", "--yes", "--skip-preview", env=lab.ambient())
    assert done.code == 0, done.output[-4000:]
    assert told(lab, since) == ["machine w1 config applied", "machine w1 zpool create", "pool w1 registered"]
    assert "+ 2 created" in done.output  # its Job and its satellite's configuration; every other object is what it was
    assert "checking 1 machines" in done.output
    made = resources(lab)
    assert set(made["lab-zpools-online"]["pools"]) == {"cp1", "cp2", "cp3", "w1"}
    assert set(made["lab-pools-registered"]["pools"]) == {"cp1", "cp2", "cp3", "w1"}


def test_a_worker_that_leaves_keeps_its_pool_on_its_disks(lab: LabSite, installed: Done) -> None:
    since = int(lab.events()[-1]["seq"])
    lab.session.configure(lab.config)
    done = lab.session.pulumi("up", "--yes", "--skip-preview", env=lab.ambient())
    assert done.code == 0, done.output[-4000:]
    assert told(lab, since) == []
    assert "- 2 deleted" in done.output
    made = resources(lab)
    assert made["lab-bootstrap-membership"]["departed"] == {"w1": "is drained, its Node is deleted"}
    assert set(made["lab-pools-registered"]["pools"]) == {"cp1", "cp2", "cp3"}


def test_no_secret_is_in_state_output_or_logs_in_clear(lab: LabSite, installed: Done, previewed: Done) -> None:
    outputs = lab.session.outputs(show_secrets=True)
    canaries = secret_values(outputs["kubeconfig"]) | secret_values(outputs["talosconfig"])
    state = json.loads(lab.session.pulumi("stack", "export", "--show-secrets").output)
    canaries |= machine_secrets(state)
    assert len(canaries) >= 10
    haystacks = {
        "output of preview": previewed.output,
        "output of up": installed.output,
        "state": "\n".join(p.read_text(errors="replace") for p in lab.session.backend.rglob("*.json*")),
        "event log": json.dumps(lab.events()),
        **{f"log {p.name}": p.read_text(errors="replace") for p in lab.state.logs.rglob("*") if p.is_file()},
    }
    assert len(haystacks) > 6
    found = {(name, canary[:12]) for name, text in haystacks.items() for canary in canaries if canary in text}
    assert found == set()


def secret_values(text: str) -> set[str]:
    """Private key material of a kubeconfig or talosconfig, as it stands there and as part of it would leak."""
    return set(re.findall(r"(?:client-key-data|key|token): ([A-Za-z0-9+/=]{40,})", text))


def machine_secrets(state: dict[str, Any]) -> set[str]:
    """Every key, token and shared secret of the machine secrets."""
    resources = state["deployment"]["resources"]
    made = next(r for r in resources if r["type"] == "talos:machine/secrets:Secrets")
    return set(sealed(made["outputs"]))


def sealed(value: Any, inside: bool = False) -> Iterator[str]:
    """Texts below the engine's secret marks, as `stack export --show-secrets` writes them."""
    if isinstance(value, dict) and "plaintext" in value:
        yield from sealed(json.loads(value["plaintext"]), True)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from sealed(inner, inside)
    elif isinstance(value, list):
        for inner in value:
            yield from sealed(inner, inside)
    elif inside and isinstance(value, str) and len(value) >= 16:
        yield value


def test_the_lab_stays_below_two_gibibytes(lab: LabSite, installed: Done) -> None:
    record = lab.state.read()
    assert record is not None
    assert 0 < record.memory.peak_bytes < 2 * 2**30


def test_destroy_works_and_wipes_nothing(lab: LabSite, installed: Done) -> None:
    done = lab.session.pulumi("destroy", "--yes", "--skip-preview", "--ignore-protect", env=lab.ambient())
    assert done.code == 0, done.output[-4000:]
    state = json.loads(lab.session.pulumi("stack", "export").output)
    assert state["deployment"].get("resources", []) == [] or len(state["deployment"]["resources"]) <= 1
    assert lab.events("wipe") == []
    assert lab.events("zpool destroy") == []


def test_the_ambient_kubeconfig_was_never_contacted(lab: LabSite, installed: Done) -> None:
    assert lab.decoy.contacts == []


def test_the_decoy_would_have_noticed(lab: LabSite) -> None:
    before = len(lab.decoy.contacts)
    text = lab.decoy.kubeconfig.read_text()
    port = int(re.findall(r"127\.0\.0\.1:(\d+)", text)[0])
    socket.create_connection(("127.0.0.1", port)).close()
    deadline = time.monotonic() + 30
    while len(lab.decoy.contacts) == before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(lab.decoy.contacts) > before


def test_the_lab_leaves_nothing_behind(tmp_path: Path) -> None:
    with site(tmp_path, prefix(1), "one-node") as made:
        record = made.state.read()
        assert record is not None
        ports = [p.port for p in record.processes if p.port]
        processes = [p.identity for p in record.processes]
    assert [i for i in processes if i.alive()] == []
    for port in ports:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=2)
    assert StateDir(tmp_path).read() is None
