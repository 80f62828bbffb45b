"""Every LINSTOR pool is registered and well, and nobody loses a replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Literal

from pydantic import Field

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.storage import evacuation, linstor
from cozystack_iac.storage.controller import SHELL, Controller, satellite
from cozystack_iac.storage.evacuation import Stored
from cozystack_iac.storage.linstor import PoolStanding, PoolState
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds

EXEC_EVERY_S = 2.0  # LINSTOR offers no watch; short commands in its own pod

LIN_001 = Rule(
    "LIN-001",
    ERROR,
    title="a node that stops being a storage node keeps nothing",
    why="replicas that live there would not be reached any more, and the last copy of a volume may be among them",
    remedy="approve an evacuation in `cozystack:removed`, or move the resources away yourself",
)

LIN_002 = Rule(
    "LIN-002",
    ERROR,
    title="what a node keeps that stops being a storage node is known",
    why="without LINSTOR's answer nobody knows whose data would be left behind",
    remedy="bring LINSTOR's controller back first",
)

LIN_003 = Rule(
    "LIN-003",
    WARNING,
    title="nodes that stop being storage nodes are looked at",
    why="whether LINSTOR still keeps replicas there is only known from LINSTOR; the update asks it",
    remedy="preview with `checks: live` where the cluster can be reached",
)


class PoolInputs(Properties):
    kubeconfig: str = Field(repr=False)
    nodes: list[str] = Field(min_length=1)  # a gate that waits for nobody would pass at once
    pool: str
    zpool: str
    sizes: dict[str, int] = Field(default_factory=dict)  # of the zpools in bytes, by node, as far as they are known
    evacuate: dict[str, str] = Field(default_factory=dict)  # nodes that LINSTOR may empty when they leave, and why
    lost: list[str] = Field(default_factory=list)  # nodes that are gone for good, with what they stored
    checks: Literal["live", "offline"] = "live"
    deadline_s: float


class Pool(Properties):
    """One node's pool as LINSTOR lists it."""

    state: PoolState
    total_kib: int = 0
    detail: str = ""


class PoolOutputs(Properties):
    pools: dict[str, Pool]  # by node


class PoolsRegisteredProvider(StageProvider[PoolInputs, PoolOutputs]):
    """LINSTOR lists the pool on every node, of the right kind and size, with its satellite online and DRBD 9 below it.

    A controller that restarts meanwhile is expected: cert-manager rewrites its certificates during every bring-up.
    """

    inputs = PoolInputs
    outputs = PoolOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"nodes", "pool", "zpool"})
    late = frozenset({"sizes"})

    async def preflight(self, new: PoolInputs, known: PoolInputs | None) -> list[Finding]:
        leaving = _leaving(new, known)
        if not leaving:
            return []
        if new.checks == "offline":
            return [LIN_003.at(", ".join(leaving), problem="LINSTOR was not asked what they keep", fix=LIN_003.remedy)]
        async with Kube.connect(new.kubeconfig) as kube:
            kept = {node: await evacuation.stored(kube, node) for node in leaving}
        return [finding for node in leaving for finding in _leaving_findings(node, kept[node], new.evacuate)]

    async def establish(self, inputs: PoolInputs, progress: Progress) -> PoolOutputs:
        seen: tuple[PoolStanding, ...] = ()
        evidence: dict[str, str] = {}
        trouble = "nothing was asked yet"

        def expired() -> StageFailed:
            return _pools_failed(inputs, seen, evidence, trouble, f"{format_seconds(inputs.deadline_s)} budget used up")

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            while True:
                try:
                    seen = await pool_standings(kube, inputs)
                    trouble = linstor.pools_summary(seen)
                    if all(s.state is PoolState.REGISTERED for s in seen):
                        return _listed(seen)
                    evidence = await _evidence(kube, seen)
                except (KubeError, linstor.Unreadable) as error:
                    seen, trouble = (), f"unknown: {error}"
                if any(s.state is PoolState.FOREIGN for s in seen):
                    raise _pools_failed(inputs, seen, evidence, trouble, "waiting does not change that")
                progress.say(f"pool {inputs.pool}: {trouble}")
                await asyncio.sleep(EXEC_EVERY_S)

    async def revise(
        self, inputs: PoolInputs, known: Known[PoolInputs, PoolOutputs], progress: Progress
    ) -> PoolOutputs:
        """Nodes that leave are emptied before their configuration goes, which the engine does last.

        Only what is new or was not well is waited for: a node that is away today must not keep others from joining.
        """
        for node in _leaving(inputs, known.inputs, lost=True):
            progress.say(f"{node} is lost: `{SHELL} node lost {node}` has LINSTOR replace its replicas elsewhere")
        leaving = _leaving(inputs, known.inputs)
        if leaving:
            await self._emptied(inputs, leaving, progress)
        kept = _well(inputs, known)
        fresh = [node for node in inputs.nodes if node not in kept]
        made = (await self.establish(inputs.model_copy(update={"nodes": fresh}), progress)).pools if fresh else {}
        return PoolOutputs(pools={node: (kept | made)[node] for node in inputs.nodes})

    async def _emptied(self, inputs: PoolInputs, leaving: Iterable[str], progress: Progress) -> None:
        open_: dict[str, str] = {}

        def expired() -> StageFailed:
            return StageFailed(
                f"LINSTOR did not empty every node that leaves ({format_seconds(inputs.deadline_s)} budget used up).",
                details=open_,
                means="what was moved stays moved; pools and configurations of these nodes are left as they are",
                next_step="give the others room for these replicas, then run `pulumi up` again: it continues from here",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            kept = {node: await evacuation.stored(kube, node) for node in leaving}
            findings = [finding for node in kept for finding in _leaving_findings(node, kept[node], inputs.evacuate)]
            if findings:
                raise StageFailed(
                    f"{len(findings)} node(s) cannot stop being storage nodes.",
                    details={f"{f.code} {f.path}": f"{f.problem}; {f.fix}" for f in findings},
                    means="replicas would be lost or out of reach; nothing was changed",
                    next_step="do what is named above, then run `pulumi up` again",
                )
            open_.update({node: str(one) for node, one in kept.items() if not one.nothing})
            while open_:
                for node in list(open_):
                    open_[node] = await _round(kube, node)
                    if not open_[node]:
                        del open_[node]
                if open_:
                    progress.say("; ".join(f"{node}: {text}" for node, text in open_.items()))
                    await asyncio.sleep(EXEC_EVERY_S)

    async def observe(self, inputs: PoolInputs, outputs: PoolOutputs) -> PoolOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                seen = await pool_standings(kube, inputs)
        except (KubeError, linstor.Unreadable) as error:
            raise StageFailed(
                f"Whether LINSTOR still has pool {inputs.pool} could not be found out.",
                details={"answer": str(error)},
                means="the state keeps what it knew; nothing was changed",
                next_step=f"look at {linstor.NAMESPACE}/{linstor.CONTROLLER}, then refresh again",
            ) from None
        return _listed(seen)

    def drifted(self, inputs: PoolInputs, outputs: PoolOutputs) -> bool:
        return any(pool.state is not PoolState.REGISTERED for pool in outputs.pools.values())

    async def withdraw(self, inputs: PoolInputs, outputs: PoolOutputs, progress: Progress) -> None:
        progress.say(f"LINSTOR is told to forget pool {inputs.pool}; the zpools {inputs.zpool} and their data stay")


class PoolsRegistered(StageResource[PoolInputs], provider=PoolsRegisteredProvider):
    pass


async def pool_standings(kube: Kube, inputs: PoolInputs) -> tuple[PoolStanding, ...]:
    """Ask the controller about its nodes and their pools. Raises KubeError and Unreadable."""
    controller = await Controller.find(kube)
    satellites = await controller.nodes()
    rows = await controller.pools()
    return linstor.pool_standings(
        inputs.nodes, inputs.pool, inputs.zpool, rows, satellites=satellites, sizes=inputs.sizes
    )


async def _round(kube: Kube, node: str) -> str:
    try:
        return await evacuation.evacuate(kube, node)
    except KubeError as error:
        return str(error)


async def _evidence(kube: Kube, seen: Iterable[PoolStanding]) -> dict[str, str]:
    """What the operator, and LINSTOR's newest error report, say about every node that is not well. Best effort."""
    found = {}
    for standing in seen:
        if standing.state is not PoolState.REGISTERED:
            said: list[str] = []
            with suppress(KubeError, linstor.Unreadable):
                said.append(linstor.satellite_evidence(await satellite(kube, standing.node)))
                reports = await (await Controller.find(kube)).errors(standing.node)
                said += [f"newest error report: {text}" for text in reports[:1]]
            found[standing.node] = "\n".join(filter(None, said))
    return found


def _leaving(new: PoolInputs, known: PoolInputs | None, *, lost: bool = False) -> list[str]:
    """Nodes that are no storage nodes any more: those that can still be asked for what they keep, or those that are `lost`."""
    gone = [node for node in known.nodes if node not in new.nodes] if known is not None else []
    return [node for node in gone if (node in new.lost) is lost]


def _listed(seen: Iterable[PoolStanding]) -> PoolOutputs:
    return PoolOutputs(pools={s.node: Pool(state=s.state, total_kib=s.total_kib, detail=s.detail) for s in seen})


def _well(new: PoolInputs, known: Known[PoolInputs, PoolOutputs]) -> dict[str, Pool]:
    """Nodes that had this very pool when they were last looked at, as it was."""
    before, pools = known.inputs, known.outputs.pools if known.outputs is not None else {}
    if before is None or (before.pool, before.zpool) != (new.pool, new.zpool):
        return {}
    return {n: pool for n, pool in pools.items() if n in new.nodes and pool.state is PoolState.REGISTERED}


def _leaving_findings(node: str, kept: Stored, approved: Mapping[str, str]) -> list[Finding]:
    """Why the node cannot go; nothing when it is empty, or may be emptied and can be."""
    listing = f"{SHELL} resource list --nodes {node}"
    if kept.unknown:
        problem = f"LINSTOR does not say what it keeps on {node}: {kept.unknown}"
        fix = f"look at `kubectl -n {linstor.NAMESPACE} get pods`, then run it again"
        return [LIN_002.at(node, problem=problem, fix=fix, command=listing)]
    if kept.rooted:
        problem = f"{node} keeps {evacuation.named(kept.rooted)}, which LINSTOR cannot copy (no DRBD below)"
        fix = "save what is in them and delete their claims; or keep the node"
        return [LIN_001.at(node, problem=problem, fix=fix, command=listing)]
    if kept.replicas and node not in approved:
        problem = f"{node} keeps {evacuation.named(kept.replicas)}"
        fix = (
            f"write `{{name: {node}, evacuate: {{approved: true, reason: …}}}}` in `cozystack:removed` once it is out of "
            f"`nodes`; or empty it yourself: `{SHELL} node evacuate {node}`"
        )
        return [LIN_001.at(node, problem=problem, fix=fix, command=listing)]
    return []


# What a person does about each state.
_REMEDIES: Mapping[PoolState, str] = {
    PoolState.MISSING: "`kubectl describe linstorsatellite {node}` says why the pool is not made (often: the zpool is not "
    "imported on the node)",
    PoolState.OFFLINE: f"`kubectl -n {linstor.NAMESPACE} get pods -o wide -l app.kubernetes.io/component=linstor-satellite`: "
    "is {node}'s satellite there, does it restart? TCP 3367 must be open from the controller to the node",
    PoolState.LEAVING: f"{{node}} is wanted and LINSTOR was told to empty it: `{SHELL} node restore {{node}}` takes that back",
    PoolState.WITHOUT_DRBD: "{node} needs DRBD 9 loaded (`/sys/module/drbd/version`; 8.4 is the kernel's own and is not "
    "enough), then restart its satellite: "
    f"`kubectl -n {linstor.NAMESPACE} delete pod -l app.kubernetes.io/component=linstor-satellite "
    "--field-selector spec.nodeName={node}`",
    PoolState.FAULTY: "`zpool status` on {node}, and "
    f"`{SHELL} error-reports list --nodes {{node}}`; after a failed creation `{SHELL} storage-pool delete {{node}} {{pool}}` "
    "lets the operator try again",
    PoolState.FOREIGN: f"choose another name in `storage.pool`, or remove it: `{SHELL} storage-pool delete {{node}} {{pool}}`",
    PoolState.MISSIZED: "compare `zpool list {zpool}` on {node} with what LINSTOR says; after it grew on purpose run "
    "`pulumi refresh` first",
}


def _pools_failed(
    inputs: PoolInputs, seen: Iterable[PoolStanding], evidence: Mapping[str, str], trouble: str, why: str
) -> StageFailed:
    bad = [s for s in seen if s.state is not PoolState.REGISTERED]
    details = {s.node: "\n".join(t for t in (str(s), evidence.get(s.node, "")) if t) for s in seen} or {
        "last seen": trouble
    }
    steps = [
        _REMEDIES[s.state].format(node=s.node, pool=inputs.pool, zpool=inputs.zpool)
        for s in {s.state: s for s in reversed(bad)}.values()
    ] or [f"LINSTOR's controller does not answer: `kubectl -n {linstor.NAMESPACE} get pods`, its log says why"]
    return StageFailed(
        f"LINSTOR does not have pool {inputs.pool} on every node ({why}).",
        details=details,
        means="zpools are there and untouched; volumes cannot be placed on the nodes above that are not registered",
        next_step="\n".join([*steps, "then run `pulumi up` again: it continues from here"]),
    )
