"""The whole graph under a mocked engine: who waits for whom, how many wait at once, and what a generic cluster gets."""

import asyncio
import base64
import json
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks

from cozystack_iac.cluster import own_kubeconfig
from cozystack_iac.findings import Verdict
from cozystack_iac.settings import Site

# Stages that only ask once and answer at once; all others may wait for minutes.
INSTANT = {"NodeProbe", "ClassesFit", "KubeconfigFile", "InstallStarted", "InstallRecord"}
STAGE = "pulumi-python:dynamic/cozystack:"
ROOT = Path(__file__).parents[2]
B64 = base64.b64encode(b"pem").decode()


def kubeconfig(server: str) -> str:
    return json.dumps(
        {
            "current-context": "admin",
            "contexts": [{"name": "admin", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"client-certificate-data": B64, "client-key-data": B64}}],
        }
    )


class Engine(MockMonitor):
    """Plays the engine and remembers what depends on what."""

    def __init__(self, server: str) -> None:
        super().__init__(_Answers(server))
        self.types: dict[str, str] = {}
        self.needs: dict[str, set[str]] = {}
        self.parents: dict[str, str] = {}
        self.inputs: dict[str, dict[str, Any]] = {}
        self._before: dict[str, set[str]] = {}  # asked only once everything is declared

    def RegisterResource(self, request: Any) -> Any:
        urn = self.make_urn(request.parent, request.type, request.name)
        self.types[urn] = request.type
        self.needs[urn] = set(request.dependencies)
        self.parents[urn] = request.parent
        self.inputs[urn] = pulumi.runtime.rpc.deserialize_properties(request.object)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]  # the SDK has no types here

    def of(self, kind: str) -> list[str]:
        return [urn for urn, found in self.types.items() if found == kind or found == STAGE + kind]

    def before(self, urn: str) -> set[str]:
        """Everything that has to be finished before `urn` starts.

        A child starts after its component is registered, so it waits for what the component waits for; waiting for a
        component means waiting for all that is in it.
        """
        if urn not in self._before:
            found: set[str] = set()
            open_ = self._direct(urn)
            while open_:
                each = open_.pop()
                found.add(each)
                open_ |= (self._direct(each) | self._inside(each)) - found
            self._before[urn] = found
        return self._before[urn]

    def _direct(self, urn: str) -> set[str]:
        found: set[str] = set()
        while urn:
            found |= self.needs.get(urn, set())
            urn = self.parents.get(urn, "")
        return found

    def _inside(self, component: str) -> set[str]:
        return {urn for urn in self.types if component in self._ancestors(urn)}

    def _ancestors(self, urn: str) -> Iterator[str]:
        while urn := self.parents.get(urn, ""):
            yield urn

    def one(self, kind: str) -> str:
        [found] = self.of(kind)
        return found


class _Answers(Mocks):
    def __init__(self, server: str) -> None:
        self._server = server

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        secrets = {
            "certs": {
                n: {"cert": "c", "key": "k"} for n in ("etcd", "k8s", "k8sAggregator", "os", "k8sServiceaccount")
            },
            "cluster": {"id": "i", "secret": "s"},
            "secrets": {"bootstrapToken": "b", "secretboxEncryptionSecret": "x"},
            "trustdinfo": {"token": "t"},
        }
        client = {"caCertificate": "a", "clientCertificate": "b", "clientKey": "c"}
        made: dict[str, dict[str, Any]] = {
            "talos:machine/secrets:Secrets": {"machineSecrets": secrets, "clientConfiguration": client},
            "talos:cluster/kubeconfig:Kubeconfig": {"kubeconfigRaw": kubeconfig(self._server)},
            f"{STAGE}DevicesFit": {"links": {node: f"/dev/disk/by-id/{node}" for node in args.inputs.get("disks", {})}},
        }
        return args.name, {**args.inputs, **made.get(args.typ, {})}

    def call(self, args: MockCallArgs) -> Any:
        return {"talosConfig": "t"} if args.token.startswith("talos:client/") else {"machineConfiguration": "m"}


def build(site: Site, server: str) -> Engine:
    engine = Engine(server)
    asyncio.set_event_loop(asyncio.new_event_loop())  # the SDK's mocks expect one
    pulumi.runtime.set_mocks(engine.mocks, preview=False, monitor=engine)
    from cozystack_iac.cluster import CozystackCluster

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def program() -> None:
        CozystackCluster(site.cluster.name, site, Verdict())

    program()
    return engine


NODES = [
    {
        "name": f"cp{n}",
        "role": "controlPlane",
        "address": f"10.0.0.1{n}",
        "link": "ens5",
        "installDisk": {"serial": f"SYS{n}"},
        "dataDisks": [{"serial": f"DATA{n}"}],
    }
    for n in (1, 2, 3)
]
SITE: dict[str, Any] = {
    "cluster": {"name": "prod"},
    "nodes": NODES,
    "talos": {"vip": "10.0.0.10"},
    "publishing": {"host": "example.org"},
}


@pytest.fixture(scope="module")
def talos() -> Iterator[Engine]:
    yield build(Site.model_validate(SITE), "https://10.0.0.10:6443")


@pytest.fixture(scope="module")
def generic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("generic") / "kubeconfig"
    path.write_text(kubeconfig("https://10.0.0.11:6443"))
    cluster = {"name": "k3s", "variant": "generic", "access": {"kubeconfig": str(path), "context": "admin"}}
    nodes = [{key: value for key, value in node.items() if key not in ("installDisk", "link")} for node in NODES]
    yield build(
        Site.model_validate({**SITE, "cluster": cluster, "nodes": nodes, "talos": {}}), "https://10.0.0.11:6443"
    )


CHAIN = [
    "NodeProbe",
    "MachineConfigRollout",
    "EtcdBootstrap",
    "talos:cluster/kubeconfig:Kubeconfig",
    "NodesRegistered",
    "NodeVerification",
    "DiskLedger",
    "ZpoolsOnline",
    "kubernetes:helm.sh/v3:Release",
    "OperatorReady",
    "kubernetes:cozystack.io/v1alpha1:Package",
    "LinstorReady",
    "PoolsRegistered",
    "PlatformReady",
    "PostVerify",
    "Reachability",
]


@pytest.mark.parametrize(("earlier", "later"), list(pairwise(CHAIN)))
def test_the_install_goes_in_one_order(talos: Engine, earlier: str, later: str) -> None:
    assert talos.one(earlier) in talos.before(talos.one(later))


@pytest.mark.parametrize("variant", ["talos", "generic"])
def test_a_job_that_writes_is_declared_asleep_and_only_behind_the_ledger(
    variant: str, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(variant)
    jobs, ledger = engine.of("kubernetes:batch/v1:Job"), engine.one("DiskLedger")
    assert len(jobs) == len(engine.inputs[engine.one("ZpoolsOnline")]["plans"]) > 0
    assert all(ledger in engine.before(job) for job in jobs)
    assert all(engine.inputs[job]["spec"]["suspend"] is True for job in jobs)


def test_storage_and_tenant_run_side_by_side_after_the_package(talos: Engine) -> None:
    tenant, linstor = talos.one("RootTenantPatched"), talos.one("LinstorReady")
    package = talos.one("kubernetes:cozystack.io/v1alpha1:Package")
    assert package in talos.before(tenant) & talos.before(linstor)
    assert tenant not in talos.before(linstor)
    assert linstor not in talos.before(tenant)
    assert talos.one("PlatformReady") not in talos.before(tenant) | talos.before(linstor)


@pytest.mark.parametrize("variant", ["talos", "generic"])
def test_the_record_of_the_install_is_written_last_and_begun_before_anything_on_the_cluster(
    variant: str, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(variant)
    stages = {urn for urn, kind in engine.types.items() if kind.startswith(STAGE)}
    record, started = engine.one("InstallRecord"), engine.one("InstallStarted")
    assert stages - {record} - engine.before(record) == set()
    assert started in engine.before(engine.one("ZpoolsOnline"))
    assert started in engine.before(engine.one("PlatformClaim"))


@pytest.mark.parametrize("variant", ["talos", "generic"])
def test_at_most_three_waits_are_ever_runnable_at_once(variant: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = request.getfixturevalue(variant)
    waits = [
        u for u, kind in engine.types.items() if kind.startswith(STAGE) and kind.removeprefix(STAGE) not in INSTANT
    ]
    assert len(waits) >= 7
    side_by_side = [
        group
        for group in combinations(waits, 4)
        if all(a not in engine.before(b) and b not in engine.before(a) for a, b in combinations(group, 2))
    ]
    assert side_by_side == []


def test_every_gating_component_has_a_child(talos: Engine) -> None:
    components = {urn for urn, kind in talos.types.items() if kind.startswith("cozystack:")}
    assert components - set(talos.parents.values()) == set()


def test_every_kubernetes_object_uses_the_explicit_provider(talos: Engine) -> None:
    provider = talos.inputs[talos.one("pulumi:providers:kubernetes")]
    assert provider["clusterIdentifier"] == "cozystack/prod"
    assert pulumi.runtime.rpc.is_rpc_secret(provider["kubeconfig"])


def test_a_generic_cluster_gets_the_api_balancer_and_no_talos(generic: Engine) -> None:
    assert [kind for kind in generic.types.values() if kind.startswith("talos:")] == []
    prism = [i for i in generic.inputs.values() if i.get("name") == "extractedprism"]
    assert [p["values"]["endpoints"] for p in prism] == ["10.0.0.11:6443,10.0.0.12:6443,10.0.0.13:6443"]
    assert generic.one("cozystack:platform:ExtractedPrism") in generic.types


def test_a_talos_cluster_never_gets_a_second_balancer_on_kubeprisms_port(talos: Engine) -> None:
    assert talos.of("cozystack:platform:ExtractedPrism") == []


def test_a_kubeconfig_of_another_cluster_never_reaches_the_provider() -> None:
    # Called directly: a program that fails inside the SDK's mocks leaves them unusable for the tests after it.
    text = kubeconfig("https://10.0.0.10:6443")
    assert own_kubeconfig(text, "https://10.0.0.10:6443") == text
    with pytest.raises(pulumi.RunError, match="points to https://10"):
        own_kubeconfig(text, "https://10.9.9.9:6443")
    with pytest.raises(pulumi.RunError, match="is empty"):
        own_kubeconfig("", "https://10.0.0.10:6443")


@pytest.mark.parametrize(("classes", "made", "looked"), [("create", 2, 1), ("adopt", 0, 1), ("skip", 0, 0)])
def test_storage_classes_are_made_used_or_left_alone(classes: str, made: int, looked: int) -> None:
    engine = build(Site.model_validate({**SITE, "storage": {"classes": classes}}), "https://10.0.0.10:6443")
    assert len(engine.of("kubernetes:storage.k8s.io/v1:StorageClass")) == made
    assert len(engine.of("ClassesFit")) == looked


def test_linstor_is_given_disks_only_behind_a_look_at_each() -> None:
    storage = {"provisioner": "linstor", "zpool": "tank"}
    engine = build(Site.model_validate({**SITE, "storage": storage}), "https://10.0.0.10:6443")
    [look] = engine.of("DevicesFit")
    assert engine.of("kubernetes:batch/v1:Job") == []
    configurations = engine.of("kubernetes:piraeus.io/v1:LinstorSatelliteConfiguration")
    assert configurations
    assert all(look in engine.before(each) for each in configurations)
    assert engine.inputs[look]["disks"].keys() == {node["name"] for node in SITE["nodes"] if node.get("dataDisks")}
