"""The zpool stage: every storage node's pool ONLINE, or a list of what every node said."""

from __future__ import annotations

from pydantic import Field

from cozystack_iac import residue
from cozystack_iac.kube.client import Kube, KubeError
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.storage import health, zfs
from cozystack_iac.storage.jobs import Batch, Halted
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds

SIZE_SLACK = 0.9  # labels, metadata and what ZFS keeps for itself take less than a tenth


class PlannedPool(Properties):
    """What a node's pool has to be."""

    text: str  # "mirror of serial=A, serial=B"
    least_bytes: int


class ZpoolInputs(Properties):
    kubeconfig: str = Field(repr=False)
    zpool: str
    jobs: dict[str, str]  # node -> name of its Job
    plans: dict[str, PlannedPool] = Field(default_factory=dict)
    machines: list[MachineRef] = Field(
        default_factory=list
    )  # with an API of their own; none on other systems than Talos
    client_configuration: dict[str, str] = Field(default_factory=dict, repr=False)
    drop_privileges: bool = True
    deadline_s: float


class Zpool(Properties):
    health: str  # in ZFS' own word
    size_bytes: int
    devices: list[str]  # by the kernel's names when it was last made or read back

    @property
    def online(self) -> bool:
        return self.health == "ONLINE"


class ZpoolOutputs(Properties):
    pools: dict[str, Zpool]  # by node


class ZpoolsOnlineProvider(StageProvider[ZpoolInputs, ZpoolOutputs]):
    """Every storage node's Job has looked, then written, and its pool is ONLINE and as planned.

    What another run of the same program finds again is never run again: new Job names alone (another image, another
    version of the script) are no reason, only another plan is, or a pool that a refresh saw in trouble.
    """

    inputs = ZpoolInputs
    outputs = ZpoolOutputs
    secret = frozenset({"kubeconfig", "client_configuration"})
    matters = frozenset({"plans", "zpool", "drop_privileges"})

    async def establish(self, inputs: ZpoolInputs, progress: Progress) -> ZpoolOutputs:
        return await self._make(inputs, frozenset(), progress)

    async def revise(
        self, inputs: ZpoolInputs, known: Known[ZpoolInputs, ZpoolOutputs], progress: Progress
    ) -> ZpoolOutputs:
        """Only nodes with another plan are touched, and those whose pool was in trouble are looked at."""
        if known.inputs is None or known.outputs is None or known.inputs.zpool != inputs.zpool:
            return await self.establish(inputs, progress)
        before, plans = known.outputs, known.inputs.plans
        same = {node for node, plan in inputs.plans.items() if node in before.pools and plans.get(node) == plan}
        kept = {node for node in same if before.pools[node].online}
        fresh = {node: job for node, job in inputs.jobs.items() if node not in kept}
        made = await self._make(inputs.model_copy(update={"jobs": fresh}), same - kept, progress)
        return ZpoolOutputs(pools=dict(sorted({**{n: before.pools[n] for n in kept}, **made.pools}.items())))

    async def observe(self, inputs: ZpoolInputs, outputs: ZpoolOutputs) -> ZpoolOutputs | None:
        """Health as it is now. A node that cannot be asked keeps what was known of it, and that is said."""
        seen = await _health(inputs, list(outputs.pools))
        silent = [node for node in outputs.pools if seen.get(node) is None]
        if silent:
            Progress("ZpoolsOnline").say(
                f"the health of zpool {inputs.zpool} is unknown on {', '.join(silent)}, because these nodes "
                "do not respond"
            )
        known = outputs.pools.items()
        return ZpoolOutputs(pools={n: p.model_copy(update={"health": seen.get(n) or p.health}) for n, p in known})

    def drifted(self, inputs: ZpoolInputs, outputs: ZpoolOutputs) -> bool:
        return not all(pool.online for pool in outputs.pools.values())

    async def withdraw(self, inputs: ZpoolInputs, outputs: ZpoolOutputs, progress: Progress) -> None:
        progress.say(f"zpool {inputs.zpool} and its data are kept on {', '.join(sorted(outputs.pools)) or 'no node'}")

    async def _make(self, inputs: ZpoolInputs, serving: frozenset[str] | set[str], progress: Progress) -> ZpoolOutputs:
        """`serving`: nodes whose pool this stack has made; there a DEGRADED one is said, and does not stop anything."""
        batch: Batch | None = None

        def expired() -> StageFailed:
            return _failed(inputs, batch, f"timed out after {format_seconds(inputs.deadline_s)}")

        def welcome(report: zfs.PoolReport) -> bool:
            degraded = report.health == "DEGRADED" and report.node in serving
            return report.fit or degraded

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            batch = Batch(kube, inputs.zpool, inputs.jobs, progress)
            try:
                if inputs.jobs:
                    await batch.level("privileged")
                    await batch.look(welcome)
                    await batch.write()
                    await batch.clear()
                if small := _too_small(inputs, batch):
                    raise _failed(inputs, batch, small)
                await batch.level("restricted" if inputs.drop_privileges else "privileged")
            except Halted:
                raise _failed(inputs, batch, "details below") from None
            except KubeError as error:
                raise _failed(inputs, batch, f"the API server rejected the request: {error}") from None
        for node, report in batch.reports.items():
            if not report.online:
                progress.say(
                    f"{node}: zpool {inputs.zpool} is {report.health}: replace the failed disk of {report.devices}"
                )
        return ZpoolOutputs(pools={node: _pool(report) for node, report in sorted(batch.reports.items())})


class ZpoolsOnline(StageResource[ZpoolInputs], provider=ZpoolsOnlineProvider):
    pass


async def _health(inputs: ZpoolInputs, nodes: list[str]) -> dict[str, str | None]:
    if inputs.machines:
        fleet = Fleet.of((m for m in inputs.machines if m.name in nodes), inputs.client_configuration)
        return await health.of_machines(fleet, inputs.zpool)
    try:
        async with Kube.connect(inputs.kubeconfig) as kube:
            return await health.of_satellites(kube, nodes, inputs.zpool)
    except KubeError as error:
        raise StageFailed(
            "The health of the zpools cannot be read.",
            details={"answer": str(error)},
            means="a disk may have failed in the meantime; the state keeps its last values",
            next_step="check that the API server is reachable from here, then run `pulumi refresh` again",
        ) from None


def _pool(report: zfs.PoolReport) -> Zpool:
    return Zpool(health=report.health, size_bytes=report.size_bytes, devices=list(report.devices))


def _too_small(inputs: ZpoolInputs, batch: Batch) -> str:
    small = [
        f"{node} has {report.size_bytes} bytes, but at least {plan.least_bytes} are expected"
        for node, report in batch.reports.items()
        if (plan := inputs.plans.get(node)) and report.size_bytes < plan.least_bytes * SIZE_SLACK
    ]
    return f"some pools are smaller than planned: {'; '.join(small)}" if small else ""


def _text(report: zfs.PoolReport) -> str:
    return f"{report.health}, {report.size_bytes / 1024**3:.1f} GiB on {', '.join(report.devices)}"


# When it fails ------------------------------------------------------------------------------------------------------


def _failed(inputs: ZpoolInputs, batch: Batch | None, why: str) -> StageFailed:
    reports = batch.reports if batch else {}
    # Only what this run has made: a pool that was there before and is in trouble must never be offered for destruction.
    made = [r for r in reports.values() if r.state == "created"]
    broken = [r for r in reports.values() if batch and r.node == batch.writing and r.state == "failed"]
    details = {node: _standing(inputs, batch, node) for node in sorted(inputs.jobs)}
    for report in (*made, *broken):
        if commands := zfs.backout(report, bool(inputs.machines)):
            details[f"{report.node}: to undo"] = "\n".join(commands)
    return StageFailed(
        f"zpool {inputs.zpool} could not be created on every node ({why}).",
        details=details,
        means=_meaning(inputs, batch),
        next_step="fix the problems above (wipe disks yourself if needed), then run `pulumi up` again: existing "
        "pools are kept, and every disk is checked again",
    )


def _meaning(inputs: ZpoolInputs, batch: Batch | None) -> str:
    begun = {r.node for r in batch.reports.values() if r.state == "created"} if batch else set()
    if batch is not None and batch.writing is not None:
        begun |= {batch.writing}
    if not begun:
        return "nothing was written to any disk on any node"
    kept = "no disk with existing data was changed, and existing pools are kept"
    if batch is not None and batch.writing is not None and batch.reports[batch.writing].state == "fit":
        return f"{kept}; whether the pool on {batch.writing} was created is unknown; the next run checks that first"
    return f"{kept}; the remaining nodes were not changed"


def _standing(inputs: ZpoolInputs, batch: Batch | None, node: str) -> str:
    """What is known of one node, for a person."""
    report = batch.reports.get(node) if batch else None
    if batch is not None and (batch.writing == node or report is None):
        silent = batch.trouble.get(node) or "no answer yet"
        if report is None or report.state == "fit":
            return f"writing; {silent}" if batch.writing == node else silent
    if report is None:
        return "not checked yet"
    if report.state == "fit":
        return "its disks are suitable; nothing was written"
    if report.online:
        return f"{report.state}: {_text(report)}"
    head = f"{report.state}: {report.reason or report.health or 'no reason given'}"
    address = next((machine.address for machine in inputs.machines if machine.name == node), node)
    lines = [
        line
        for problem in report.problems
        for line in residue.lines(problem, node=node, talos=bool(inputs.machines), address=address, pool=inputs.zpool)
    ]
    more = [f"and {report.omitted} more problems"] if report.omitted else []
    return "\n".join([head, *lines, *more])
