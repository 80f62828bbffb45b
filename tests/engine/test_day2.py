"""A cluster that changes under the real engine, told as one story: it grows, loses a machine, lets others go, is destroyed."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from cozystack_iac.kube.client import Kube, Object, Ref
from lab import control, scenario
from lab.session import Done
from lab.stack import stack_file
from tests.addresses import prefix
from tests.engine.site import SCENARIOS, TALOS_ONLY, LabSite, site

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PREFIX = prefix()
EVERYBODY = ("cp1", "cp2", "cp3", "cp4", "w1", "w2")
T = TypeVar("T")
PDBS = Ref("policy/v1", "poddisruptionbudgets", "default")


@dataclass
class Cluster:
    """The lab, and the stack file as it is now."""

    lab: LabSite
    full: dict[str, Any]

    def wants(self, names: str, **more: Any) -> None:
        """Make these machines the inventory; `more` are further keys of the stack file."""
        config, keep = copy.deepcopy(self.full), names.split()
        config["cozystack:nodes"] = [node for node in config["cozystack:nodes"] if node["name"] in keep]
        approved: dict[str, Any] = config["cozystack:storage"]["approvedDisks"]
        config["cozystack:storage"]["approvedDisks"] = {name: approved[name] for name in keep}
        self.lab.session.configure(config | {f"cozystack:{key}": value for key, value in more.items()})

    def up(self, *flags: str) -> Done:
        return self.lab.session.pulumi("up", "--yes", "--skip-preview", *flags, timeout_s=180)

    def preview(self) -> Done:
        return self.lab.session.pulumi("preview", timeout_s=120)

    def machine(self, name: str, **change: Any) -> None:
        control.ask(self.lab.state.socket, "mutate", machine={"name": name, **change})

    def members(self) -> list[str]:
        return sorted(m["machine"] for m in control.ask(self.lab.state.socket, "state")["cluster"]["members"])

    def told(self, *names: str, since: int = 0) -> list[str]:
        """What happened to machines, as far as it matters here."""
        kinds = ("config applied", "etcd running", "etcd left", "etcd removed", "resetting", "maintenance")
        return [
            f"{e['subject'].removeprefix('machine ')} {e['what']}"
            for e in self.lab.events()
            if e["seq"] > since and e["subject"].removeprefix("machine ") in names and e["what"] in kinds
        ]

    @property
    def now(self) -> int:
        return int(self.lab.events()[-1]["seq"])

    def kubernetes(self, ask: Callable[[Kube], Awaitable[T]]) -> T:
        kubeconfig = str(self.lab.session.outputs(show_secrets=True)["kubeconfig"])

        async def answer() -> T:
            async with Kube.connect(kubeconfig) as kube:
                return await ask(kube)

        return asyncio.run(answer())

    def nodes(self) -> list[str]:
        return sorted(
            str(o["metadata"]["name"]) for o in self.kubernetes(lambda kube: kube.objects(Ref("v1", "nodes")))
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    full = stack_file(scenario.load(SCENARIOS / "day-two.yaml").relocated(PREFIX))
    with site(tmp_path_factory.mktemp("day2"), PREFIX, "day-two", program=TALOS_ONLY) as lab:
        made = Cluster(lab, full)
        made.wants("cp1 w1")
        born = made.up()
        assert born.code == 0, born.output[-4000:]
        yield made


def test_from_one_control_plane_to_three_and_a_worker_more_in_one_run(cluster: Cluster) -> None:
    since = cluster.now
    cluster.wants("cp1 cp2 cp3 w1 w2")
    done = cluster.up()

    assert done.code == 0, done.output[-4000:]
    assert "checking 3 machines" in done.output  # the plan gate looks at newcomers only
    assert cluster.members() == ["cp1", "cp2", "cp3"]
    assert cluster.nodes() == ["cp1", "cp2", "cp3", "w1", "w2"]
    joined = ["cp2 config applied", "cp2 etcd running", "cp3 config applied", "cp3 etcd running"]
    assert cluster.told("cp2", "cp3", since=since) == joined
    assert cluster.told("w1", "w2", since=since) == ["w2 config applied"]
    assert len(cluster.lab.events("cluster bootstrapped")) == 1
    assert cluster.lab.events("cp1 rebooting") == []


def test_a_removal_that_would_cost_the_quorum_is_refused_before_anything_is_touched(cluster: Cluster) -> None:
    cluster.machine("cp2", power="off")
    since = cluster.now
    cluster.wants("cp1 cp2 cp4 w1 w2")
    previewed, done = cluster.preview(), cluster.up()

    for refused in (previewed, done):
        assert refused.code != 0
        told = " ".join(refused.output.split())
        assert "MEM-002" in told
        assert "etcd member cp2 is not healthy: only 1 of 2 voting members would be healthy, but 2 are needed" in told
        assert "Traceback" not in refused.output
    assert cluster.told(*EVERYBODY, since=since) == []
    assert cluster.members() == ["cp1", "cp2", "cp3"]


def test_a_dead_control_plane_is_given_up_only_when_a_person_says_so(cluster: Cluster) -> None:
    cluster.wants("cp1 cp3 cp4 w1 w2")
    refused = cluster.preview()
    assert refused.code != 0
    assert "cp2 is to be removed but does not respond" in " ".join(refused.output.split())


def test_a_lost_control_plane_is_replaced_in_one_run(cluster: Cluster) -> None:
    since = cluster.now
    lost = [{"name": "cp2", "lost": {"approved": True, "reason": "its board is dead"}}]
    cluster.wants("cp1 cp3 cp4 w1 w2", removed=lost)
    done = cluster.up()

    assert done.code == 0, done.output[-4000:]
    assert cluster.members() == ["cp1", "cp3", "cp4"]
    assert cluster.nodes() == ["cp1", "cp3", "cp4", "w1", "w2"]
    assert cluster.told("cp2", "cp4", since=since) == ["cp2 etcd removed", "cp4 config applied", "cp4 etcd running"]
    assert cluster.told("w1", "w2", since=since) == []


def test_a_worker_goes_when_its_pods_can_and_what_keeps_it_is_named(cluster: Cluster) -> None:
    cluster.kubernetes(_guarded_deployment)
    cluster.wants("cp1 cp3 cp4 w2", waits={"removal": "3s"})
    blocked = cluster.up()
    assert blocked.code != 0
    told = " ".join(blocked.output.split())
    assert "A node cannot leave the cluster yet: draining w1 timed out after 3 s" in told
    assert "violate the pod's disruption budget" in told
    assert "default/guarded-" in told
    assert "w1" in cluster.nodes()

    cluster.kubernetes(lambda kube: kube.delete(PDBS.named("guarded")))
    done = cluster.up()
    assert done.code == 0, done.output[-4000:]
    assert cluster.nodes() == ["cp1", "cp3", "cp4", "w2"]
    assert cluster.told("w1")[-1] == "w1 config applied"  # without approval it keeps what it has


async def _guarded_deployment(kube: Kube) -> None:
    """One pod that prefers w1, and a budget that does not let it go."""
    labels = {"app": "guarded"}
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    prefers = {
        "weight": 100,
        "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["w1"]}]},
    }
    spec: Object = {
        "hostNetwork": True,
        "containers": [{"name": "main", "image": "example.org/main"}],
        "tolerations": tolerations,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}},
    }
    await kube.merge_patch(
        Ref("v1", "namespaces", name="default"),
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}},
    )
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    budget = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    for ref, kind, body in (
        (Ref("apps/v1", "deployments", "default"), "Deployment", deployment),
        (PDBS, "PodDisruptionBudget", budget),
    ):
        await kube.create(
            ref, {"apiVersion": ref.api_version, "kind": kind, "metadata": {"name": "guarded"}, "spec": body}
        )
    while not (await kube.get(PDBS.named("guarded"))).get("status", {}).get("currentHealthy"):
        await asyncio.sleep(0.2)


def test_from_three_control_planes_to_one_with_a_reset_only_where_it_is_approved(cluster: Cluster) -> None:
    since = cluster.now
    approval = {"name": "cp3", "reset": {"approved": True, "reason": "moves to the other site"}}
    cluster.wants("cp1 w2", removed=[approval])
    previewed = cluster.preview()
    assert previewed.code == 0, previewed.output[-4000:]
    told = " ".join(previewed.output.split())
    assert "cp3 will be drained, removed from etcd, reset (moves to the other site)" in told
    assert "cp4 will be drained, removed from etcd, and its Node will be deleted; it keeps its configuration" in told
    assert cluster.told(*EVERYBODY, since=since) == []

    done = cluster.up()
    assert done.code == 0, done.output[-4000:]
    assert cluster.members() == ["cp1"]
    assert cluster.nodes() == ["cp1", "w2"]
    steps = cluster.told("cp3", "cp4", since=since)
    assert [step for step in steps if step != "cp3 maintenance"] == ["cp3 etcd left", "cp3 resetting", "cp4 etcd left"]
    again = cluster.up("--expect-no-changes")
    assert again.code == 0, again.output[-4000:]


def test_the_end_of_the_stack_is_not_the_end_of_the_machines(cluster: Cluster) -> None:
    since = cluster.now
    done = cluster.lab.session.pulumi("destroy", "--yes", "--skip-preview", "--ignore-protect", timeout_s=120)
    assert done.code == 0, done.output[-4000:]
    assert [step for step in cluster.told(*EVERYBODY, since=since) if step != "cp3 maintenance"] == []
    assert cluster.members() == ["cp1"]
    state = json.loads(cluster.lab.session.pulumi("stack", "export").output)
    assert not state["deployment"].get("resources")
