"""The record of an install in the cluster: what a run writes, and that writing never gets in anybody's way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import Field

from cozystack_iac import record
from cozystack_iac.diagnosis import bundle
from cozystack_iac.kube.client import Conflict, Kube, NotFound, Ref, Unreachable
from cozystack_iac.stages.base import Properties, StageProvider
from cozystack_iac.stages.install_record import InstallRecordProvider, RecordInputs
from cozystack_iac.stages.install_started import InstallStartedProvider, StartedInputs
from cozystack_iac.waiting import Progress, StageFailed

pytestmark = pytest.mark.pace(looks=0.01)

NOW = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)
STAMP = "2026-11-30T17:00:00Z"


class Cluster:
    """The one ConfigMap, as an API server keeps it. `away`: every call is refused its answer."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.away = False
        self.raced = False  # somebody else makes the record between our look and our creation
        self.history: list[dict[str, str]] = []

    @property
    def data(self) -> dict[str, str]:
        return dict((self.body or {}).get("data") or {})

    async def merge_patch(self, ref: Ref, body: dict[str, Any]) -> dict[str, Any]:
        self._reach(ref)
        if self.body is None:
            raise NotFound(404, "NotFound", "no such ConfigMap")
        merged = {**self.body["data"], **body["data"]}
        self.body["data"] = {key: value for key, value in merged.items() if value is not None}
        self.history.append(self.data)
        return self.body

    async def create(self, ref: Ref, body: dict[str, Any]) -> dict[str, Any]:
        self._reach(ref)
        if self.raced:
            self.raced, self.body = False, {"data": {"started": "earlier"}}
            raise Conflict(409, "AlreadyExists", "it is there")
        self.body = body
        self.history.append(self.data)
        return body

    async def find(self, ref: Ref) -> dict[str, Any] | None:
        self._reach(ref)
        return self.body

    async def delete(self, ref: Ref) -> None:
        self._reach(ref)
        self.body = None

    def _reach(self, ref: Ref) -> None:
        if self.away:
            raise Unreachable("https://10.0.0.10:6443: no answer")
        assert (ref.namespace, ref.name) == ("kube-system", "cozystack-iac")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()

    @asynccontextmanager
    async def connect(_kubeconfig: str, **_: object) -> AsyncIterator[Cluster]:
        yield made

    async def no_bundle(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(Kube, "connect", connect)
    monkeypatch.setattr(bundle, "after_failure", no_bundle)
    monkeypatch.setattr(record, "_runs", set())
    yield made


class PumpInputs(Properties):
    kubeconfig: str = Field(repr=False)
    fails: str = ""


class PumpOutputs(Properties):
    litres: int = 0


class PumpProvider(StageProvider[PumpInputs, PumpOutputs]):
    inputs = PumpInputs
    outputs = PumpOutputs
    secret = frozenset({"kubeconfig"})

    async def establish(self, inputs: PumpInputs, progress: Progress) -> PumpOutputs:
        if inputs.fails == "crash":
            raise RuntimeError("password=s3cret")
        if inputs.fails:
            raise StageFailed(inputs.fails, means="it is dry", next_step="dig deeper")
        return PumpOutputs(litres=1)


class LocalPumpProvider(PumpProvider):
    on_cluster = False


def run(fails: str = "", provider: type[PumpProvider] = PumpProvider) -> None:
    provider().create({"kubeconfig": "k", "fails": fails})


def test_the_first_stage_of_a_run_says_that_it_has_started_and_the_others_leave_it(cluster: Cluster) -> None:
    run()
    run()

    assert len(cluster.history) == 1
    assert set(cluster.data) == {"started", "stage"}
    assert cluster.body is not None
    assert cluster.body["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "cozystack-iac"


def test_a_stage_that_fails_says_where_and_why_and_the_failure_stays_the_same(cluster: Cluster) -> None:
    with pytest.raises(StageFailed) as failed:
        run("The well is dry.\nsecond line")

    assert failed.value.next_step == "dig deeper"
    assert set(cluster.data) == {"started", "failed", "stage", "message"}
    assert (cluster.data["stage"], cluster.data["message"]) == ("Pump", "The well is dry.")


def test_what_nobody_foresaw_is_recorded_by_its_kind_only(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError):
        run("crash")

    assert cluster.data["message"] == "unexpected: RuntimeError"
    assert "s3cret" not in str(cluster.history)


def test_a_cluster_that_is_away_changes_nothing_about_success_or_failure(cluster: Cluster) -> None:
    cluster.away = True
    run()
    with pytest.raises(StageFailed, match="The well is dry"):
        run("The well is dry.")

    assert cluster.body is None


def test_a_record_that_could_not_be_begun_is_begun_by_the_next_stage(cluster: Cluster) -> None:
    cluster.away = True
    run()
    cluster.away = False
    run()

    assert "started" in cluster.data


def test_the_next_run_takes_the_old_failure_away(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StageFailed):
        run("The well is dry.")
    monkeypatch.setattr(record, "_runs", set())  # another process
    run()

    assert set(cluster.data) == {"started", "stage"}


def test_a_stage_that_does_not_work_on_the_cluster_leaves_no_mark(cluster: Cluster) -> None:
    with pytest.raises(StageFailed):
        run("The well is dry.", LocalPumpProvider)

    assert cluster.history == []


async def test_two_stages_that_make_the_record_at_once_both_get_their_keys_in(cluster: Cluster) -> None:
    cluster.raced = True
    assert await record.write(cluster, record.failed("Pump", "dry", NOW)) == {  # type: ignore[arg-type]
        "started": "earlier", "failed": STAMP, "stage": "Pump", "message": "dry",
    }  # fmt: skip


@pytest.mark.parametrize(
    "steps",
    [
        ["begun", "completed"],
        ["begun", "failed", "begun", "completed"],
        ["begun", "failed", "failed"],
        ["begun", "completed", "begun", "failed"],
        ["completed", "failed", "completed"],
    ],
)
async def test_completed_and_failed_are_never_there_together(cluster: Cluster, steps: list[str]) -> None:
    made = {
        "begun": record.begun("Pump", NOW),
        "failed": record.failed("Pump", "dry", NOW),
        "completed": record.completed(NOW),
    }
    for step in steps:
        await record.write(cluster, made[step])  # type: ignore[arg-type]

    assert all(len({"completed", "failed"} & set(data)) <= 1 for data in cluster.history)
    assert ({"completed", "failed"} & set(cluster.data)) == {steps[-1]}


# The two ends -------------------------------------------------------------------------------------------------------

STARTED = StartedInputs(kubeconfig="k", versions={"cozystack": "1.6.2"}, revision="abc", deadline_s=1)
ENDED = RecordInputs(kubeconfig="k", links={"Pump": None}, revision="abc", deadline_s=1)
SAYS = Progress("x", write=print)


async def test_the_first_end_says_what_is_being_installed(cluster: Cluster) -> None:
    await InstallStartedProvider().establish(STARTED, SAYS)

    assert cluster.data["version.cozystack"] == "1.6.2"
    assert cluster.data["revision"] == "abc"
    assert "started" in cluster.data


async def test_the_last_end_takes_failure_and_stage_away(cluster: Cluster) -> None:
    await record.write(cluster, record.failed("Pump", "dry", NOW))  # type: ignore[arg-type]
    made = await InstallRecordProvider().establish(ENDED, SAYS)

    assert set(cluster.data) == {"completed"}
    assert made.completed == cluster.data["completed"]
    assert await InstallRecordProvider().observe(ENDED, made) == made


async def test_an_outage_is_waited_for_and_named_when_it_does_not_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.away = True
    waiting = asyncio.create_task(InstallRecordProvider().establish(ENDED, SAYS))
    await asyncio.sleep(0.05)
    cluster.away = False
    assert (await waiting).completed

    cluster.away = True
    with pytest.raises(StageFailed) as failed:
        await InstallRecordProvider().establish(ENDED.model_copy(update={"deadline_s": 0.05}), SAYS)
    assert "https://10.0.0.10:6443: no answer" in str(failed.value)


async def test_a_record_that_cannot_be_read_is_not_taken_for_gone(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    cluster.away = True
    with pytest.raises(StageFailed, match="could not be read"):
        await InstallRecordProvider().observe(ENDED, made)


async def test_a_record_that_somebody_deleted_is_gone(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    cluster.body = None

    assert await InstallRecordProvider().observe(ENDED, made) is None


async def test_a_cluster_that_is_gone_does_not_hold_up_a_destroy(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    cluster.away = True
    said: list[str] = []
    await InstallRecordProvider().withdraw(ENDED, made, Progress("x", write=said.append))

    assert any("is kept" in line for line in said)


def test_how_often_links_ran_decides_whether_the_end_is_written_again() -> None:
    took = {"started": STAMP, "seconds": 1.0}
    old = {"kubeconfig": "k", "links": {"Pump": took}, "revision": "abc", "summary": "a", "deadline_s": 1.0}

    assert not InstallRecordProvider().diff("id", old, {**old, "summary": "b", "kubeconfig": "renewed"}).changes
    assert InstallRecordProvider().diff("id", old, {**old, "links": {"Pump": {**took, "started": "later"}}}).changes


def test_the_message_is_one_line_of_bounded_length() -> None:
    message = record.failed("Pump", "dry " * 2000 + "\nmore", NOW)["message"]

    assert message == ("dry " * 2000)[: record.SHOWN]


def test_key_material_never_gets_into_the_message() -> None:
    told = record.failed("Pump", "the well said token=eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", NOW)

    assert "eyJ" not in (told["message"] or "")
