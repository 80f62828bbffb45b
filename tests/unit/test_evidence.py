"""What is collected when something is stuck: all of it, in bounded time, with what could not be asked said openly."""

import asyncio
import time

import httpx
import pytest

from cozystack_iac.diagnosis import account, diagnose, evidence, recognise, signs
from cozystack_iac.diagnosis.evidence import collect
from cozystack_iac.diagnosis.signs import Kind
from cozystack_iac.kube.client import Kube, Refused, Unavailable, Unreachable
from tests.asked import RUNNING, Asked, condition, crashing, event, named, pod, status, waiting

FAILED = condition("Ready", "False", "InstallFailed", "Helm install failed: context deadline exceeded")
KEYCLOAK = named("cozy-keycloak", "keycloak", status=status(FAILED))
CLAIM = named(
    "cozy-keycloak",
    "data-keycloak-0",
    spec={"resources": {"requests": {"storage": "10Gi"}}},
    status={"phase": "Pending"},
)


async def test_everything_around_what_is_stuck_is_found() -> None:
    asked = Asked(
        {
            "helmreleases": [
                KEYCLOAK,
                named("cozy-x", "fine", status=status(condition("Ready", "True", "InstallSucceeded"))),
            ],
            "pods": [
                pod("cozy-keycloak", "keycloak-0", crashing("keycloak", ended="OOMKilled", code=137)),
                pod("cozy-x", "fine-0", RUNNING),
            ],
            "persistentvolumeclaims": [CLAIM],
            "storageclasses": [],
            "events": [
                event("cozy-keycloak", "data-keycloak-0", "ProvisioningFailed", "no pool", kind="PersistentVolumeClaim")
            ],
        },
        logs={"keycloak-0/keycloak": "starting\nout of memory", "previous keycloak-0/keycloak": "first run"},
    )

    seen = await collect(asked.kube, ["cozy-keycloak/keycloak"])
    rows = seen.details()

    assert "OOMKilled (exit code 137)" in rows["pods"]
    assert "restarted 7 times" in rows["pods"]
    assert "out of memory" in rows["logs"]
    assert "first run" in rows["logs"]
    assert rows["volumes"] == "cozy-keycloak/data-keycloak-0: Pending: no class given, 10Gi"
    assert "ProvisioningFailed" in rows["events"]
    assert "NoStorageClass" in rows["cluster"]
    assert seen.gaps == {}
    assert "fine" not in str(rows)


async def test_an_api_that_is_away_is_said_once_and_nobody_waits_for_it() -> None:
    asked = Asked(away=Unreachable("https://10.0.0.10:6443: connection refused"))

    seen = await collect(asked.kube, ["cozy-x/x"])

    assert list(seen.gaps) == ["everything"]
    assert "connection refused" in seen.gaps["everything"]
    assert "unknown" in seen.details()
    assert len(asked.calls) <= evidence.AT_ONCE
    assert diagnose(seen) is None


async def test_an_answer_that_was_refused_is_a_gap_and_the_rest_goes_on() -> None:
    asked = Asked(
        {"pods": [pod("cozy-x", "p", crashing())]},
        trouble={"events": Refused(403, "Forbidden", "events is forbidden"), "nodes": Unavailable(503, "x", "later")},
    )

    seen = await collect(asked.kube, ["cozy-x/x"])

    assert "forbidden" in seen.gaps["events"]
    assert "later" in seen.gaps["nodes"]
    assert "CrashLoopBackOff" in seen.details()["pods"]


async def test_a_server_that_hangs_costs_no_more_than_the_deadline() -> None:
    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        return httpx.Response(200)

    started = time.monotonic()
    async with httpx.AsyncClient(transport=httpx.MockTransport(hang), base_url="https://api.test") as http:
        seen = await collect(Kube(http), [], deadline_s=0.2)

    assert time.monotonic() - started < 2
    assert "not everything could be queried" in seen.gaps["the rest"]


async def test_an_object_that_cannot_be_read_is_a_gap_and_costs_the_others_nothing() -> None:
    asked = Asked(
        {
            "helmreleases": [named("cozy-x", "x", status={"conditions": [{"type": "Ready"}, {"type": "Released"}]})],
            "nodes": [{"metadata": {"name": "cp1"}, "status": {"conditions": 7}}],
            "pods": [pod("cozy-x", "p", crashing())],
        }
    )

    seen = await collect(asked.kube, ["cozy-x/x"])

    assert "cannot be read" in seen.gaps["releases"]
    assert "cannot be read" in seen.gaps["nodes"]
    assert "CrashLoopBackOff" in seen.details()["pods"]


async def test_webhooks_are_not_called_dead_when_their_endpoints_could_not_be_read() -> None:
    hooks = [
        named(
            "",
            "hooks",
            webhooks=[
                {"name": "v", "clientConfig": {"service": {"namespace": "cozy-x", "name": "w"}, "caBundle": "x"}}
            ],
        )
    ]
    blind = Asked(
        {"validatingwebhookconfigurations": hooks}, trouble={"endpointslices": Refused(403, "Forbidden", "no")}
    )
    seeing = Asked({"validatingwebhookconfigurations": hooks, "endpointslices": []})

    assert (await collect(blind.kube)).of(Kind.WEBHOOK) == ()
    assert [s.reason for s in (await collect(seeing.kube)).of(Kind.WEBHOOK)] == ["NoReadyEndpoints"]


async def test_what_is_logged_is_clean() -> None:
    asked = Asked(
        {"pods": [pod("cozy-x", "p", crashing())]}, logs={"p/main": "login with password=hunter2-canary failed"}
    )

    seen = await collect(asked.kube, ["cozy-x/x"])

    assert "hunter2" not in str(seen)
    assert "failed" in seen.details()["logs"]


async def test_logs_are_read_first_where_it_is_stuck_and_not_of_everybody() -> None:
    many = [pod(f"cozy-{n}", "p", crashing()) for n in range(40)]
    asked = Asked({"pods": [*many, pod("cozy-z", "last", crashing())]}, logs={"last/main": "the reason"})

    seen = await collect(asked.kube, ["cozy-z/z"])

    assert [s.subject for s in seen.of(Kind.LOG)] == ["cozy-z/last/main"]
    assert len([c for c in asked.calls if "/log?" in c]) <= 2 * evidence.LOGGED


async def test_pods_of_tenants_are_their_owners_business() -> None:
    asked = Asked(
        {"pods": [pod("tenant-shop", "db-0", crashing()), pod("tenant-root", "root-ingress-controller-x", crashing())]}
    )

    assert [s.namespace for s in (await collect(asked.kube)).of(Kind.POD)] == ["tenant-root"]


async def test_versions_come_from_what_runs() -> None:
    template = {"spec": {"containers": [{"image": "ghcr.io/cozystack/cozystack/cozystack-operator:v1.6.2@sha256:00"}]}}
    operator = named("cozy-system", "cozystack-operator", spec={"template": template})
    node = named(
        "",
        "cp1",
        status={
            "nodeInfo": {"osImage": "Talos (v1.13.6)", "kernelVersion": "6.18", "kubeletVersion": "v1.33.12"},
            "conditions": [],
        },
    )

    seen = await collect(Asked({"deployments": [operator], "nodes": [node], "pods": []}).kube)

    assert seen.versions["cozystack"] == "1.6.2"
    assert seen.versions["kubernetes"] == "v1.33.12"
    assert "Talos (v1.13.6)" in seen.versions["nodes"]


async def test_what_was_asked_for_tells_the_version_of_an_operator_without_a_tag() -> None:
    record = named("kube-system", "cozystack-iac", data={"version.cozystack": "1.5.4"})

    assert (await collect(Asked({"configmaps": [record], "pods": []}).kube)).versions["cozystack"] == "1.5.4"


def test_a_failure_that_two_conditions_repeat_is_said_once() -> None:
    other = condition("Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
    release = named("cozy-x", "x", status=status(FAILED, other, {**FAILED, "type": "Released"}))

    assert [s.reason for s in signs.unready(Kind.RELEASE, [release])] == ["InstallFailed", "RetriesExceeded"]


def test_events_are_said_once_with_how_often_the_latest_first() -> None:
    found = signs.events(
        [
            event(
                "cozy-x",
                "x-7d9f8b6c5-abcde",
                "BackOff",
                "back-off restarting x-7d9f8b6c5-abcde",
                count=3,
                at="2026-11-30T12:00:00Z",
            ),
            event(
                "cozy-x",
                "x-7d9f8b6c5-fghij",
                "BackOff",
                "back-off restarting x-7d9f8b6c5-fghij",
                count=2,
                at="2026-11-30T12:01:00Z",
            ),
            event("cozy-x", "x", "Scheduled", "fine", of="Normal"),
            event("cozy-y", "y", "Failed", "pull", at="2026-11-30T12:02:00Z"),
        ]
    )

    assert [(s.reason, s.times) for s in found] == [("Failed", 1), ("BackOff", 5)]


@pytest.mark.parametrize(
    ("annotated", "reason"),
    [
        ([], "NoStorageClass"),
        (["false"], "NoDefaultClass"),
        (["true", "true"], "SeveralDefaultClasses"),
        (["true", "false"], None),
    ],
)
def test_storage_classes_are_judged_as_a_whole(annotated: list[str], reason: str | None) -> None:
    objects = [
        named("", f"c{n}", metadata={"annotations": {signs.DEFAULT_CLASS: value}}) for n, value in enumerate(annotated)
    ]

    assert next((s.reason for s in signs.classes(objects)), None) == reason


async def test_the_evidence_beats_what_the_release_itself_says() -> None:
    """The release only says that it timed out; its pods and its claims say why."""
    asked = Asked({"helmreleases": [KEYCLOAK], "persistentvolumeclaims": [CLAIM], "storageclasses": []})

    found = diagnose(await collect(asked.kube, ["cozy-keycloak/keycloak"]))

    assert found is not None
    assert found.id == "no-storage-class"
    assert "kubectl get storageclass" in found.remedy


async def test_trouble_in_other_namespaces_is_no_cause_of_this_one_but_is_said() -> None:
    asked = Asked(
        {
            "helmreleases": [named("cozy-x", "x", status=status(FAILED))],
            "pods": [pod("cozy-y", "y", waiting("y", "InvalidImageName", "couldn't parse image name", "a/b:v1+k3s1"))],
        }
    )

    seen = await collect(asked.kube, ["cozy-x/x"])

    assert diagnose(seen) is None
    assert [d.id for d in recognise(seen)] == ["image-name"]
    assert "v1+k3s1" in account(seen)["image name"]
