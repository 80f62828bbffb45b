"""Every LINSTOR pool is registered and well, and nobody loses a replica."""

from __future__ import annotations

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
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

EXEC_EVERY_S = 2.0  # LINSTOR offers no watch; short commands in its own pod

LIN_001 = Rule(
    "LIN-001",
    ERROR,
    title="A node that is no longer a storage node has no replicas",
    why="its replicas would become unreachable, and the last copy of a volume may be among them",
    remedy="approve an evacuation in `cozystack:removed`, or move the resources yourself",
)

LIN_002 = Rule(
    "LIN-002",
    ERROR,
    title="The replicas on a former storage node are known",
    why="without an answer from LINSTOR, the program cannot tell which data would be left behind",
    remedy="bring the LINSTOR controller back first",
)

LIN_003 = Rule(
    "LIN-003",
    WARNING,
    title="Former storage nodes are checked",
    why="only LINSTOR knows whether it still has replicas there; the update checks",
    remedy="run the preview with `checks: live` where the cluster is reachable",
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
            return [
                LIN_003.at(
                    ", ".join(leaving),
                    problem="LINSTOR was not asked about replicas on these nodes",
                    fix=LIN_003.remedy,
                )
            ]
        async with Kube.connect(new.kubeconfig) as kube:
            kept = {node: await evacuation.stored(kube, node) for node in leaving}
        return [finding for node in leaving for finding in _leaving_findings(node, kept[node], new.evacuate)]

    async def establish(self, inputs: PoolInputs, progress: Progress) -> PoolOutputs:
        seen: tuple[PoolStanding, ...] = ()
        evidence: dict[str, str] = {}
        trouble = "no answer yet"

        def expired() -> StageFailed:
            return _pools_failed(
                inputs, seen, evidence, trouble, f"timed out after {format_seconds(inputs.deadline_s)}"
            )

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
                    raise _pools_failed(inputs, seen, evidence, trouble, "waiting longer does not help")
                progress.say(f"pool {inputs.pool}: {trouble}")
                await pause(EXEC_EVERY_S)

    async def revise(
        self, inputs: PoolInputs, known: Known[PoolInputs, PoolOutputs], progress: Progress
    ) -> PoolOutputs:
        """Nodes that leave are emptied before their configuration goes, which the engine does last.

        Only what is new or was not well is waited for: a node that is away today must not keep others from joining.
        """
        for node in _leaving(inputs, known.inputs, lost=True):
            progress.say(
                f"{node} is lost: run `{SHELL} node lost {node}` so that LINSTOR replaces its replicas on other nodes"
            )
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
                "LINSTOR did not evacuate every node that leaves (timed out after "
                f"{format_seconds(inputs.deadline_s)}).",
                details=open_,
                means="replicas that were moved stay moved; the pools and configurations of these nodes are unchanged",
                next_step="free space for these replicas on the other nodes, then run `pulumi up` again: it "
                "continues from here",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            kept = {node: await evacuation.stored(kube, node) for node in leaving}
            findings = [finding for node in kept for finding in _leaving_findings(node, kept[node], inputs.evacuate)]
            if findings:
                raise StageFailed(
                    f"{len(findings)} node(s) still have replicas and must stay storage nodes.",
                    details={f"{f.code} {f.path}": f"{f.problem}; {f.fix}" for f in findings},
                    means="replicas would be lost or unreachable; nothing was changed",
                    next_step="fix the findings above, then run `pulumi up` again",
                )
            open_.update({node: str(one) for node, one in kept.items() if not one.nothing})
            while open_:
                for node in list(open_):
                    open_[node] = await _round(kube, node)
                    if not open_[node]:
                        del open_[node]
                if open_:
                    progress.say("; ".join(f"{node}: {text}" for node, text in open_.items()))
                    await pause(EXEC_EVERY_S)

    async def observe(self, inputs: PoolInputs, outputs: PoolOutputs) -> PoolOutputs | None:
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                seen = await pool_standings(kube, inputs)
        except (KubeError, linstor.Unreadable) as error:
            raise StageFailed(
                f"LINSTOR does not report whether it still has pool {inputs.pool}.",
                details={"answer": str(error)},
                means="the state keeps its last values; nothing was changed",
                next_step=f"check {linstor.NAMESPACE}/{linstor.CONTROLLER}, then run the refresh again",
            ) from None
        return _listed(seen)

    def drifted(self, inputs: PoolInputs, outputs: PoolOutputs) -> bool:
        return any(pool.state is not PoolState.REGISTERED for pool in outputs.pools.values())

    async def withdraw(self, inputs: PoolInputs, outputs: PoolOutputs, progress: Progress) -> None:
        progress.say(f"removing pool {inputs.pool} from LINSTOR; the zpools {inputs.zpool} and their data are kept")


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
                said += [f"the newest error report: {text}" for text in reports[:1]]
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
        problem = f"LINSTOR does not report which replicas are on {node}: {kept.unknown}"
        fix = f"check `kubectl -n {linstor.NAMESPACE} get pods`, then run this again"
        return [LIN_002.at(node, problem=problem, fix=fix, command=listing)]
    if kept.rooted:
        problem = (
            f"{node} stores {evacuation.named(kept.rooted)}, which LINSTOR cannot copy because there is no DRBD layer"
        )
        fix = "save the data and delete the PersistentVolumeClaims, or keep the node"
        return [LIN_001.at(node, problem=problem, fix=fix, command=listing)]
    if kept.replicas and node not in approved:
        problem = f"{node} still stores {evacuation.named(kept.replicas)}"
        fix = (
            f"once it is removed from `nodes`, add `{{name: {node}, evacuate: {{approved: true, reason: "
            f"…}}}}` to `cozystack:removed`; or evacuate it yourself: `{SHELL} node evacuate {node}`"
        )
        return [LIN_001.at(node, problem=problem, fix=fix, command=listing)]
    return []


# What a person does about each state.
_REMEDIES: Mapping[PoolState, str] = {
    PoolState.MISSING: "run `kubectl describe linstorsatellite {node}` to see why the pool is not created (often the zpool "
    "is not imported on the node)",
    PoolState.OFFLINE: f"check with `kubectl -n {linstor.NAMESPACE} get pods -o wide -l "
    "app.kubernetes.io/component=linstor-satellite` that the satellite of {node} exists and does not "
    "restart; the controller must reach TCP port 3367 on the node",
    PoolState.LEAVING: f"{{node}} is a storage node, but LINSTOR was told to evacuate it: run `{SHELL} node restore "
    "{node}` to undo that",
    PoolState.WITHOUT_DRBD: "load DRBD 9 on {node} (see `/sys/module/drbd/version`; the kernel's own 8.4 is too old), then "
    f"restart its satellite: `kubectl -n {linstor.NAMESPACE} delete pod -l "
    "app.kubernetes.io/component=linstor-satellite --field-selector spec.nodeName={node}`",
    PoolState.FAULTY: f"check `zpool status` on {{node}} and `{SHELL} error-reports list --nodes {{node}}`; after a failed "
    f"creation, run `{SHELL} storage-pool delete {{node}} {{pool}}` so that the operator tries again",
    PoolState.FOREIGN: f"choose another name in `storage.pool`, or delete the existing pool: `{SHELL} storage-pool delete "
    "{node} {pool}`",
    PoolState.MISSIZED: "compare `zpool list {zpool}` on {node} with LINSTOR's size; if the zpool was grown on purpose, run "
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
    ] or [f"the LINSTOR controller does not respond: check `kubectl -n {linstor.NAMESPACE} get pods` and its log"]
    return StageFailed(
        f"Pool {inputs.pool} is not registered in LINSTOR on every node ({why}).",
        details=details,
        means="the zpools exist and were not changed; no volumes can be placed on the nodes above that are not "
        "registered",
        next_step="\n".join([*steps, "then run `pulumi up` again: it continues from here"]),
    )
