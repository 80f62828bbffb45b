"""The first mark of an install on its cluster."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from cozystack_iac import record
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.stages.install_record import written
from cozystack_iac.waiting import Progress


class StartedInputs(Properties):
    kubeconfig: str = Field(repr=False)
    versions: dict[str, str]
    revision: str  # of what was asked for
    deadline_s: float


class StartedOutputs(Properties):
    place: str


class InstallStartedProvider(StageProvider[StartedInputs, StartedOutputs]):
    """The record says what is being installed; when, it knows from the base of all stages."""

    inputs = StartedInputs
    outputs = StartedOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"versions", "revision"})

    async def establish(self, inputs: StartedInputs, progress: Progress) -> StartedOutputs:
        began = record.begun("InstallStarted", datetime.now(UTC))
        known = await written(inputs.kubeconfig, inputs.deadline_s, record.described(inputs.versions, inputs.revision))
        if "started" not in known:  # the API was away when the run began
            await written(inputs.kubeconfig, inputs.deadline_s, began)
        return StartedOutputs(place=str(record.PLACE))


class InstallStarted(StageResource[StartedInputs], provider=InstallStartedProvider):
    pass
