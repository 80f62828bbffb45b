"""The record of an install in the cluster: what a run writes, and that writing never gets in anybody's way."""

import asyncio
from datetime import UTC, datetime

import pytest
from pydantic import Field

from cozystack_iac import record
from cozystack_iac.diagnosis import bundle
from cozystack_iac.kube.client import Object
from cozystack_iac.stages.base import Properties, StageProvider
from cozystack_iac.stages.install_record import InstallRecordProvider, RecordInputs
from cozystack_iac.stages.install_started import InstallStartedProvider, StartedInputs
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG, Server
from lab.memory.kinds import Kind

pytestmark = pytest.mark.pace(looks=0.01)

NOW = datetime(2026, 11, 30, 17, 0, tzinfo=UTC)
STAMP = "2026-11-30T17:00:00Z"


class Cluster:
    """A cluster in memory, and what its record said after each write."""

    def __init__(self, server: Server) -> None:
        self.api, self.kube = server.api, server.kube(inside=True)
        self.history: list[dict[str, str]] = []
        self.api.on(self._written)

    @property
    def body(self) -> Object | None:
        return self.api.of("configmaps").get(("kube-system", "cozystack-iac"))

    @property
    def data(self) -> dict[str, str]:
        return dict((self.body or {}).get("data") or {})

    def _written(self, kind: Kind, _before: Object | None, after: Object | None) -> None:
        if kind.name == "ConfigMap" and after is not None:
            self.history.append(dict(after["data"]))


@pytest.fixture
def cluster(server: Server, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    async def no_bundle(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(bundle, "after_failure", no_bundle)
    monkeypatch.setattr(record, "_runs", set())
    return Cluster(server)


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
    provider().create({"kubeconfig": KUBECONFIG, "fails": fails})


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
    cluster.api.go_away(True)
    run()
    with pytest.raises(StageFailed, match="The well is dry"):
        run("The well is dry.")

    assert cluster.body is None


def test_a_record_that_could_not_be_begun_is_begun_by_the_next_stage(cluster: Cluster) -> None:
    cluster.api.go_away(True)
    run()
    cluster.api.go_away(False)
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
    one, two = record.described({"cozystack": "1.6.2"}, "abc"), record.failed("Pump", "dry", NOW)
    await asyncio.gather(record.write(cluster.kube, one), record.write(cluster.kube, two))
    assert cluster.data == {
        "revision": "abc", "version.cozystack": "1.6.2", "failed": STAMP, "stage": "Pump", "message": "dry",
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
        await record.write(cluster.kube, made[step])

    assert all(len({"completed", "failed"} & set(data)) <= 1 for data in cluster.history)
    assert ({"completed", "failed"} & set(cluster.data)) == {steps[-1]}


# The two ends -------------------------------------------------------------------------------------------------------

STARTED = StartedInputs(kubeconfig=KUBECONFIG, versions={"cozystack": "1.6.2"}, revision="abc", deadline_s=1)
ENDED = RecordInputs(kubeconfig=KUBECONFIG, links={"Pump": None}, revision="abc", deadline_s=1)
SAYS = Progress("x", write=print)


async def test_the_first_end_says_what_is_being_installed(cluster: Cluster) -> None:
    await InstallStartedProvider().establish(STARTED, SAYS)

    assert cluster.data["version.cozystack"] == "1.6.2"
    assert cluster.data["revision"] == "abc"
    assert "started" in cluster.data


async def test_the_last_end_takes_failure_and_stage_away(cluster: Cluster) -> None:
    await record.write(cluster.kube, record.failed("Pump", "dry", NOW))
    made = await InstallRecordProvider().establish(ENDED, SAYS)

    assert set(cluster.data) == {"completed"}
    assert made.completed == cluster.data["completed"]
    assert await InstallRecordProvider().observe(ENDED, made) == made


async def test_an_outage_is_waited_for_and_named_when_it_does_not_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.api.go_away(True)
    waiting = asyncio.create_task(InstallRecordProvider().establish(ENDED, SAYS))
    await asyncio.sleep(0.05)
    cluster.api.go_away(False)
    assert (await waiting).completed

    cluster.api.go_away(True)
    with pytest.raises(StageFailed) as failed:
        await InstallRecordProvider().establish(ENDED.model_copy(update={"deadline_s": 0.05}), SAYS)
    assert "https://kubernetes.in-memory:6443: All connection attempts failed" in str(failed.value)


async def test_a_record_that_cannot_be_read_is_not_taken_for_gone(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    cluster.api.go_away(True)
    with pytest.raises(StageFailed, match="could not be read"):
        await InstallRecordProvider().observe(ENDED, made)


async def test_a_record_that_somebody_deleted_is_gone(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    await cluster.kube.delete(record.PLACE)

    assert await InstallRecordProvider().observe(ENDED, made) is None


async def test_a_cluster_that_is_gone_does_not_hold_up_a_destroy(cluster: Cluster) -> None:
    made = await InstallRecordProvider().establish(ENDED, SAYS)
    cluster.api.go_away(True)
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
