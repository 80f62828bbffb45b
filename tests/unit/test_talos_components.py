"""The Talos components with a mocked engine: what they declare, in which order, and that nothing secret is plain."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import Mocks
from pulumi.runtime.mocks import MockCallArgs, MockResourceArgs
from pulumi.runtime.rpc import is_rpc_secret, unwrap_rpc_secret

from cozystack_iac.settings import Site
from cozystack_iac.talos.inventory import machine_refs, targets
from cozystack_iac.talos.secrets import client_configuration, machine_secrets

NODES = [
    {
        "name": name,
        "role": "controlPlane" if name.startswith("cp") else "worker",
        "address": f"10.0.0.1{number}",
        "link": "ens5",
        "installDisk": {"serial": f"SYS{number}"},
        "dataDisks": [{"serial": f"DATA{number}"}],
    }
    for number, name in enumerate(("cp1", "cp2", "cp3", "w1"), 1)
]
SITE: dict[str, Any] = {
    "cluster": {"name": "prod"},
    "nodes": NODES,
    "talos": {"vip": "10.0.0.10", "batch": 5},
    "publishing": {"host": "example.org"},
}

SECRETS: dict[str, Any] = {
    "certs": {
        **{name: {"cert": f"{name}-crt", "key": f"canary-{name}"} for name in ("etcd", "k8s", "k8sAggregator", "os")},
        "k8sServiceaccount": {"key": "canary-sa"},
    },
    "cluster": {"id": "id", "secret": "canary-cluster"},
    "secrets": {"bootstrapToken": "canary-bootstrap", "secretboxEncryptionSecret": "canary-box"},
    "trustdinfo": {"token": "canary-trustd"},
}
CLIENT = {"caCertificate": "ca", "clientCertificate": "crt", "clientKey": "canary-client"}


class Recorder(Mocks):
    """Plays the engine; remembers what was declared and asked."""

    def __init__(self) -> None:
        self.resources: list[MockResourceArgs] = []
        self.calls: list[MockCallArgs] = []

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.resources.append(args)
        made: dict[str, dict[str, Any]] = {
            "talos:machine/secrets:Secrets": {"machineSecrets": SECRETS, "clientConfiguration": CLIENT},
            "talos:cluster/kubeconfig:Kubeconfig": {"kubeconfigRaw": "canary-kubeconfig"},
        }
        return args.name, {**args.inputs, **made.get(args.typ, {})}

    def call(self, args: MockCallArgs) -> Any:
        self.calls.append(args)
        if args.token.startswith("talos:client/"):
            return {"talosConfig": "canary-talosconfig"}
        return {"machineConfiguration": f"canary-config-{args.args['machineType']}"}

    def of(self, kind: str) -> MockResourceArgs:
        [found] = [r for r in self.resources if r.typ.endswith(kind)]
        return found


@pytest.fixture(scope="module")
def built() -> Recorder:
    """One program, which the tests only look at."""
    recorder = Recorder()
    asyncio.set_event_loop(asyncio.new_event_loop())  # the mocks of the SDK expect one
    pulumi.runtime.set_mocks(recorder, preview=False)

    from cozystack_iac.components.access import Access
    from cozystack_iac.components.node_gate import NodeGate
    from cozystack_iac.components.talos_bootstrap import TalosBootstrap
    from cozystack_iac.components.talos_machine_configs import TalosMachineConfigs

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def build() -> None:
        site = Site.model_validate(SITE)
        configs = TalosMachineConfigs("configs", site)
        NodeGate("gate", site, Access(client=configs.client_configuration))
        TalosBootstrap("bootstrap", site, configs)

    build()
    return recorder


def test_every_stage_is_declared_once(built: Recorder) -> None:
    kinds = [r.typ for r in built.resources]
    assert sorted(kinds) == [
        "cozystack:talos:NodeGate",
        "cozystack:talos:TalosBootstrap",
        "cozystack:talos:TalosMachineConfigs",
        "pulumi-python:dynamic/cozystack:ClusterMembership",  # of machines that are lost
        "pulumi-python:dynamic/cozystack:ClusterMembership",  # of machines that leave
        "pulumi-python:dynamic/cozystack:EtcdBootstrap",
        "pulumi-python:dynamic/cozystack:MachineConfigRollout",
        "pulumi-python:dynamic/cozystack:NodeProbe",
        "pulumi-python:dynamic/cozystack:NodeVerification",
        "pulumi-python:dynamic/cozystack:NodesRegistered",
        "pulumi-python:dynamic/cozystack:TalosUpgrade",  # of machines that run already
        "pulumi-python:dynamic/cozystack:TalosUpgrade",  # of machines that joined
        "talos:cluster/kubeconfig:Kubeconfig",
        "talos:machine/secrets:Secrets",
    ]


def test_the_secrets_reach_the_generator_in_its_own_spelling(built: Recorder) -> None:
    generated = [c for c in built.calls if c.token == "talos:machine/getConfiguration:getConfiguration"]

    assert len(generated) == 4
    assert all(call.args["machineSecrets"] == SECRETS for call in generated)
    assert [c.args["machineType"] for c in generated].count("controlplane") == 3
    assert {c.args["kubernetesVersion"] for c in generated} == {"1.33.12"}


def test_the_rollout_gets_secret_configurations_and_plain_documents(built: Recorder) -> None:
    inputs = built.of("MachineConfigRollout").inputs
    assert is_rpc_secret(inputs["configurations"])
    assert is_rpc_secret(inputs["client_configuration"])
    configurations = unwrap_rpc_secret(inputs["configurations"])

    assert set(configurations) == set(inputs["documents"]) == {"cp1", "cp2", "cp3", "w1"}
    assert configurations["w1"] == "canary-config-worker"
    assert "canary" not in json.dumps(inputs["documents"])
    assert "Layer2VIPConfig" in inputs["documents"]["cp1"]


def test_etcd_knows_the_control_planes_only_and_the_first_one_first(built: Recorder) -> None:
    machines = built.of("EtcdBootstrap").inputs["control_planes"]
    assert [machine["name"] for machine in machines] == ["cp1", "cp2", "cp3"]


def test_the_kubeconfig_is_asked_from_a_machine_and_never_from_the_vip(built: Recorder) -> None:
    assert built.of("Kubeconfig").inputs["node"] == "10.0.0.11"


def test_the_probe_looks_for_the_vip_on_control_planes_only() -> None:
    found = targets(Site.model_validate(SITE))
    assert {t.name: t.vip for t in found} == {"cp1": "10.0.0.10", "cp2": "10.0.0.10", "cp3": "10.0.0.10", "w1": None}
    assert found[0].path == "cozystack:nodes[0]"


def test_a_pinned_key_reaches_the_probe_and_the_rollout() -> None:
    pin = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
    site = Site.model_validate(SITE | {"nodes": [NODES[0] | {"fingerprint": pin}, NODES[3]]})
    assert [t.fingerprint for t in targets(site)] == [pin, None]
    assert [ref.fingerprint for ref in machine_refs(site)] == [pin, None]


def test_the_gate_knows_our_own_machines_by_a_secret_certificate(built: Recorder) -> None:
    assert unwrap_rpc_secret(built.of("NodeProbe").inputs["client_configuration"]) == CLIENT


def test_workers_change_in_the_batches_of_the_stack_file(built: Recorder) -> None:
    assert built.of("MachineConfigRollout").inputs["worker_batch"] == 5


def test_an_approved_reset_carries_its_reason_and_an_unapproved_one_none() -> None:
    nodes = [NODES[0] | {"reset": {"approved": True, "reason": "old"}}, NODES[3] | {"reset": {"reason": "old"}}]
    refs = machine_refs(Site.model_validate(SITE | {"nodes": nodes}))
    assert [ref.reset_reason for ref in refs] == ["old", None]


@pytest.mark.parametrize("missing", ["certs", "cluster", "secrets", "trustdinfo"])
def test_incomplete_secrets_are_an_error_and_not_an_empty_configuration(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        machine_secrets({name: part for name, part in SECRETS.items() if name != missing})


def test_the_recorded_secrets_keep_their_shape(vectors: Path) -> None:
    recorded = json.loads((vectors / "pulumi-plugins" / "talos-secrets.json").read_text())["outputs"]

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return value["$secret"] if "$secret" in value else {k: bare(v) for k, v in value.items()}
        return value

    assert machine_secrets(bare(recorded["machineSecrets"])) == bare(recorded["machineSecrets"])
    assert client_configuration(bare(recorded["clientConfiguration"])) == bare(recorded["clientConfiguration"])
