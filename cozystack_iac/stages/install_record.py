"""The last stage of all: the run has come to its end, and the cluster says so."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pydantic import Field

from cozystack_iac import record, report, timeline
from cozystack_iac.kube.client import Kube, KubeError, Refused
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, poll

LOOK_EVERY_S = 1.0


class RecordInputs(Properties):
    kubeconfig: str = Field(repr=False)
    links: dict[str, timeline.Took | None]  # stage -> when it last ran; a change means that something was done
    revision: str
    summary: str = ""  # Markdown for the report of the run, before the timeline
    deadline_s: float


class RecordOutputs(Properties):
    started: str = ""
    completed: str = ""
    failed: str = ""
    stage: str = ""  # where it failed
    message: str = ""


class InstallRecordProvider(StageProvider[RecordInputs, RecordOutputs]):
    """The last stage of all: the run has come to its end, and the cluster says so."""

    inputs = RecordInputs
    outputs = RecordOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"links", "revision"})

    async def establish(self, inputs: RecordInputs, progress: Progress) -> RecordOutputs:
        known = await written(inputs.kubeconfig, inputs.deadline_s, record.completed(datetime.now(UTC)))
        ran = timeline.since(inputs.links, record.PROCESS_STARTED)
        report.add("Installed", "\n\n".join(part for part in (inputs.summary, timeline.markdown(ran)) if part))
        return _outputs(known)

    async def observe(self, inputs: RecordInputs, outputs: RecordOutputs) -> RecordOutputs | None:
        """What the record says now; a later run that failed is seen here, and is no reason to write anything again."""
        try:
            async with Kube.connect(inputs.kubeconfig) as kube:
                known = await record.read(kube)
        except KubeError as error:
            raise _unknown(error) from None
        return None if known is None else _outputs(known)

    async def withdraw(self, inputs: RecordInputs, outputs: RecordOutputs, progress: Progress) -> None:
        """What was installed is going away, so nothing may say that it is there. A cluster that is gone needs no telling."""
        try:
            async with Kube.connect(inputs.kubeconfig, deadline_s=record.WRITE_S) as kube:
                await kube.delete(record.PLACE)
        except KubeError as error:
            progress.say(f"{record.PLACE} is kept: {error}")


class InstallRecord(StageResource[RecordInputs], provider=InstallRecordProvider):
    pass


def _outputs(known: Mapping[str, str]) -> RecordOutputs:
    return RecordOutputs(**{name: known.get(name, "") for name in RecordOutputs.model_fields})


async def written(kubeconfig: str, deadline_s: float, data: record.Data) -> dict[str, str]:
    """Write, through an outage of the API server if need be."""
    last = "no answer yet"

    def expired() -> StageFailed:
        return StageFailed(
            f"The install record could not be written (timed out after {format_seconds(deadline_s)}).",
            details={"last seen": last},
            means="nothing else is affected, but the cluster does not show how the install ended",
            next_step="check that the API server is reachable from here, then run `pulumi up` again",
        )

    async with budget(deadline_s, expired), Kube.connect(kubeconfig) as kube:

        async def attempt() -> dict[str, str] | None:
            nonlocal last
            try:
                return await record.write(kube, data)
            except Refused as error:
                if error.status in (401, 403):
                    raise _refused(error) from None
                last = str(error)
            except KubeError as error:
                last = str(error)
            return None

        return await poll(attempt, every_s=LOOK_EVERY_S)
    raise expired()


def _refused(error: Refused) -> StageFailed:
    return StageFailed(
        f"The install record {record.PLACE} may not be written.",
        details={"answer": str(error)},
        means="this kubeconfig lacks the administrator rights that the install needs",
        next_step="use an administrator's kubeconfig, then run `pulumi up` again",
    )


def _unknown(error: KubeError) -> StageFailed:
    return StageFailed(
        "The install record could not be read.",
        details={"answer": str(error)},
        means="it is unknown how the last run ended; nothing was changed",
        next_step="check that the API server is reachable from here, then run the refresh again",
    )
