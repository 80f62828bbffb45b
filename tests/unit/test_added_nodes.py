"""A node is added to a cluster: stages ask about that node and leave what they know of the others alone."""

from __future__ import annotations

import pytest

from cozystack_iac.stages.base import Known
from cozystack_iac.stages.machine_config_rollout import RolloutInputs, concerned_by
from cozystack_iac.stages.nodes_registered import NodesRegisteredProvider, RegisteredInputs, RegisteredOutputs
from cozystack_iac.stages.zpools_online import PlannedPool, Zpool, ZpoolInputs, ZpoolOutputs, ZpoolsOnlineProvider
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.waiting import Progress

SILENT = Progress("Stage", write=lambda _: None)


def registered(**nodes: str) -> RegisteredInputs:
    return RegisteredInputs(kubeconfig="", nodes=nodes, deadline_s=1)


async def test_only_new_nodes_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    async def establish(_: object, inputs: RegisteredInputs, progress: Progress) -> RegisteredOutputs:
        asked.append(inputs.nodes)
        return RegisteredOutputs(registered=list(inputs.nodes))

    monkeypatch.setattr(NodesRegisteredProvider, "establish", establish)
    known = Known(registered(cp1="10.0.0.11", w1="10.0.0.21"), RegisteredOutputs(registered=["cp1", "w1"]))
    provider = NodesRegisteredProvider()
    more = await provider.revise(registered(cp1="10.0.0.11", w1="10.0.0.22", w2="10.0.0.23"), known, SILENT)
    less = await provider.revise(registered(cp1="10.0.0.11"), known, SILENT)

    assert asked == [{"w1": "10.0.0.22", "w2": "10.0.0.23"}]
    assert more.registered == ["cp1", "w1", "w2"]
    assert less.registered == ["cp1"]


OLD = Zpool(health="ONLINE", size_bytes=1, devices=["/dev/sdb1"])
NEW = Zpool(health="ONLINE", size_bytes=2, devices=["/dev/sdc1"])


def zpools(**plans: str) -> ZpoolInputs:
    """Plans by node; Jobs that another version of the program names otherwise."""
    planned = {node: PlannedPool(text=text, least_bytes=1) for node, text in plans.items()}
    jobs = {node: f"zpool-{node}-{len(plans)}" for node in plans}
    return ZpoolInputs(kubeconfig="", zpool="data", jobs=jobs, plans=planned, deadline_s=1)


async def test_only_nodes_with_another_plan_or_a_pool_in_trouble_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def make(_: object, inputs: ZpoolInputs, serving: object, progress: Progress) -> ZpoolOutputs:
        asked.append(list(inputs.jobs))
        return ZpoolOutputs(pools=dict.fromkeys(inputs.jobs, NEW))

    monkeypatch.setattr(ZpoolsOnlineProvider, "_make", make)
    pools = {"cp1": OLD, "w1": OLD, "w2": OLD.model_copy(update={"health": "not imported"})}
    known = Known(zpools(cp1="a", w1="b", w2="c"), ZpoolOutputs(pools=pools))
    provider = ZpoolsOnlineProvider()
    more = await provider.revise(zpools(cp1="a", w1="b2", w2="c", w3="d"), known, SILENT)
    less = await provider.revise(zpools(cp1="a"), known, SILENT)

    assert asked == [["w1", "w2", "w3"], []]
    assert more.pools == {"cp1": OLD, "w1": NEW, "w2": NEW, "w3": NEW}
    assert less.pools == {"cp1": OLD}


def rollout(**machines: tuple[str, str]) -> RolloutInputs:
    """Address and configuration by machine."""
    refs = [
        MachineRef(name=name, role="worker", maintenance=address, address=address, internal=address)
        for name, (address, _) in machines.items()
    ]
    return RolloutInputs(
        machines=refs, configurations={name: text for name, (_, text) in machines.items()}, deadline_s=1
    )


def test_a_rollout_concerns_what_is_new_or_different() -> None:
    before = rollout(w1=("10.0.0.1", "a"), w2=("10.0.0.2", "b"), w3=("10.0.0.3", "c"), gone=("10.0.0.9", "d"))
    after = rollout(w1=("10.0.0.1", "a"), w2=("10.0.0.2", "changed"), w3=("10.0.0.7", "c"), w4=("10.0.0.4", "a"))
    assert concerned_by(after, before) == ["w2", "w3", "w4"]
    assert concerned_by(before, before) == []
