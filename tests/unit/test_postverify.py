"""What stands in people's way after the last release is ready: judged from the objects, and by the stage that waits for it."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from cozystack_iac.diagnosis.issuance import Issuers
from cozystack_iac.findings import ERROR
from cozystack_iac.kube.client import Refused, Unreachable
from cozystack_iac.readiness.postverify import Patience, PlatformStanding, SeenPlatform, WantedPlatform, verify
from cozystack_iac.stages.post_verify import PostVerifyInputs, PostVerifyOutputs, PostVerifyProvider
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG
from tests.asked import RUNNING, Asked, ServedBy, condition, crashing, named, pod, status, waiting

pytestmark = pytest.mark.pace(looks=0.005)

NOW = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)
OLD, YOUNG = "2026-11-30T12:00:00Z", "2026-11-30T12:29:30Z"
HOST = "example.org"


def owned(kind: str, name: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True}]}


def ingress(*addresses: str, **more: Any) -> dict[str, Any]:
    spec = {"type": "ClusterIP", "externalIPs": list(addresses)} if addresses else {"type": "LoadBalancer"}
    return named("tenant-root", "root-ingress-controller", spec=spec, **more)


SLICE = named(
    "tenant-root",
    "root-ingress-controller-x",
    metadata={"labels": {"kubernetes.io/service-name": "root-ingress-controller"}},
    endpoints=[{"addresses": ["10.244.0.5"], "conditions": {"ready": True}}],
)
CLASS = named("", "tenant-root")
WELL = SeenPlatform(services=[ingress("10.0.0.11")], slices=[SLICE], ingress_classes=[CLASS])
WANTED = WantedPlatform(HOST, ingress=True, addresses=("10.0.0.11",))


def look(seen: SeenPlatform, wanted: WantedPlatform = WANTED, waited_s: float = 0.0) -> PlatformStanding:
    return verify(wanted, seen, NOW, waited_s=waited_s, patience=Patience())


def with_pods(*pods: dict[str, Any]) -> SeenPlatform:
    return SeenPlatform(pods, WELL.services, WELL.slices, WELL.ingress_classes)


def test_a_platform_that_is_well_has_nothing_to_say() -> None:
    standing = look(with_pods(pod("cozy-dashboard", "gate-1", RUNNING), pod("cozy-x", "job-1", phase="Succeeded")))

    assert standing.findings == ()
    assert standing.waiting == ()
    assert standing.pods == 2


@pytest.mark.parametrize(
    ("namespace", "code"), [("cozy-dashboard", "PST-001"), ("cozy-system", "PST-001"), ("cozy-telemetry", "PST-002")]
)
def test_a_workload_without_a_ready_pod_blocks_where_people_pass(namespace: str, code: str) -> None:
    dead = [
        pod(namespace, f"gate-7d9f8b6c5-{n}", crashing(), metadata=owned("ReplicaSet", "gate-7d9f8b6c5"), at=OLD)
        for n in "ab"
    ]

    [finding] = look(with_pods(*dead)).findings

    assert finding.code == code
    assert finding.path == f"Deployment {namespace}/gate"
    assert "0 of 2 pods are ready" in finding.problem
    assert "CrashLoopBackOff" in finding.problem


def test_one_pod_of_three_is_a_warning_that_names_the_node() -> None:
    agents = [pod("cozy-cilium", f"cilium-{n}", RUNNING, metadata=owned("DaemonSet", "cilium")) for n in "ab"]
    sick = pod(
        "cozy-cilium", "cilium-c", crashing(), metadata=owned("DaemonSet", "cilium"), spec={"nodeName": "w7"}, at=OLD
    )

    [finding] = look(with_pods(*agents, sick)).findings

    assert finding.code == "PST-002"
    assert "2 of 3 pods are ready" in finding.problem
    assert "on w7" in finding.problem


def test_young_pods_are_waited_for_and_not_for_ever() -> None:
    young = pod("cozy-dashboard", "gate", waiting("gate", "ContainerCreating", ""), phase="Pending", at=YOUNG)

    assert look(with_pods(young)).findings == ()
    assert look(with_pods(young)).waiting == ("Pod cozy-dashboard/gate (0 of 1 pods ready)",)
    assert [f.code for f in look(with_pods(young), waited_s=Patience().pods_s).findings] == ["PST-001"]


def test_a_workstation_whose_clock_is_behind_does_not_wait_for_ever() -> None:
    future = (NOW + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    sick = pod("cozy-dashboard", "gate", crashing(), at=future)

    assert look(with_pods(sick)).waiting != ()
    assert look(with_pods(sick), waited_s=Patience().pods_s).waiting == ()


def test_a_failed_attempt_that_a_later_one_made_good_is_no_news() -> None:
    failed = pod(
        "cozy-system",
        "migrate-a",
        {**RUNNING, "ready": False, "state": {"terminated": {"exitCode": 1}}},
        phase="Failed",
        metadata=owned("Job", "migrate"),
    )
    done = pod("cozy-system", "migrate-b", phase="Succeeded", metadata=owned("Job", "migrate"))
    evicted = pod("cozy-x", "x-1-a", phase="Failed", metadata=owned("ReplicaSet", "x-1"))
    again = pod("cozy-x", "x-1-b", RUNNING, metadata=owned("ReplicaSet", "x-1"))

    assert look(with_pods(failed, done, evicted, again)).findings == ()
    assert [f.code for f in look(with_pods(failed)).findings] == ["PST-002"]


def test_a_known_failure_brings_its_remedy() -> None:
    sick = pod(
        "cozy-cert-manager",
        "cert-manager-cainjector-1-a",
        crashing(ended="OOMKilled", code=137),
        at=OLD,
        metadata=owned("ReplicaSet", "cert-manager-cainjector-1"),
    )

    [finding] = look(with_pods(sick)).findings

    assert "runs out of memory" in finding.problem
    assert "kubectl -n cozy-cert-manager set resources" in finding.fix


@pytest.mark.parametrize(
    ("seen", "code", "says"),
    [
        (SeenPlatform(slices=[SLICE], ingress_classes=[CLASS]), "PST-003", "does not exist"),
        (SeenPlatform(services=[ingress("10.0.0.11")], ingress_classes=[CLASS]), "PST-003", "no ready pod"),
        (SeenPlatform(services=[ingress("10.0.0.11")], slices=[SLICE]), "PST-003", "does not exist"),
        (
            SeenPlatform(services=[ingress("10.0.0.99")], slices=[SLICE], ingress_classes=[CLASS]),
            "PST-004",
            "does not listen on 10.0.0.11",
        ),
    ],
)
def test_an_ingress_that_is_not_as_asked_keeps_people_out(seen: SeenPlatform, code: str, says: str) -> None:
    [finding] = look(seen, waited_s=Patience().pods_s).findings

    assert finding.code == code
    assert finding.severity is ERROR
    assert says in finding.problem
    assert look(seen).findings == ()
    assert look(seen).waiting != ()


def test_a_load_balancer_has_to_give_an_address() -> None:
    wanted = WantedPlatform(HOST, ingress=True, load_balancer=True)
    without = SeenPlatform(services=[ingress()], slices=[SLICE], ingress_classes=[CLASS])
    given = ingress(status={"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]}})

    [finding] = look(without, wanted, Patience().pods_s).findings

    assert finding.code == "PST-004"
    assert "no load balancer" in finding.problem
    assert look(SeenPlatform(services=[given], slices=[SLICE], ingress_classes=[CLASS]), wanted).waiting == ()


def test_loopback_addresses_of_a_lab_are_not_asked_of_the_service() -> None:
    lab = WantedPlatform(HOST, ingress=True, addresses=("127.47.0.9",))

    assert ip_address(lab.addresses[0]).is_loopback
    assert look(WELL, lab).findings == ()


def test_who_asked_for_no_ingress_gets_no_finding_about_it() -> None:
    assert look(SeenPlatform(), WantedPlatform(HOST, ingress=False)) == PlatformStanding((), (), 0, 0)


# Certificates -------------------------------------------------------------------------------------------------------


def chain(
    challenge: dict[str, Any] | None, *, order: dict[str, Any] | None = None, issuer: str = "True", at: str = OLD
) -> Issuers:
    """A certificate of the dashboard with what cert-manager made for it."""

    def by(owner: dict[str, Any], kind: str) -> dict[str, Any]:
        return {"ownerReferences": [{"kind": kind, "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]}

    ready = condition("Ready", "False", "DoesNotExist", "Issuing certificate as Secret does not exist", at)
    spec = {"dnsNames": [f"dashboard.{HOST}"], "issuerRef": {"name": "letsencrypt-prod", "kind": "ClusterIssuer"}}
    certificate = named("cozy-dashboard", "dashboard-web-tls", spec=spec, status=status(ready))
    request = named("cozy-dashboard", "dashboard-web-tls-1", metadata=by(certificate, "Certificate"), status={})
    made = named(
        "cozy-dashboard",
        "dashboard-web-tls-1-77",
        metadata=by(request, "CertificateRequest"),
        status=order or {"state": "pending"},
    )
    challenges = (
        [
            named(
                "cozy-dashboard",
                "dashboard-web-tls-1-77-9",
                metadata=by(made, "Order"),
                spec={"dnsName": f"dashboard.{HOST}"},
                status=challenge,
            )
        ]
        if challenge
        else []
    )
    account = condition("Ready", issuer, "ErrRegisterACMEAccount", "Failed to register ACME account: i/o timeout")
    return Issuers(
        [certificate], [request], [made], challenges, [named("", "letsencrypt-prod", status=status(account))]
    )


SELF_CHECK = (
    f"Waiting for HTTP-01 challenge propagation: failed to perform self check GET request 'http://dashboard.{HOST}/x': "
)


def waits_for(reason: str, state: str = "pending") -> dict[str, Any]:
    return {"state": state, "presented": True, "reason": reason}


NXDOMAIN = waits_for(f"{SELF_CHECK}dial tcp: lookup dashboard.{HOST} on 10.96.0.10:53: no such host")
REFUSED = waits_for(f"{SELF_CHECK}dial tcp 10.0.0.11:80: connect: connection refused")
DROPPED = waits_for(f"{SELF_CHECK}dial tcp 10.0.0.11:80: i/o timeout")
ELSEWHERE = waits_for("Waiting for HTTP-01 challenge propagation: wrong status code '404', expected '200'")
FROM_OUTSIDE = waits_for("Error accepting authorization: Timeout during connect (likely firewall problem)", "invalid")
LIMITED = {"state": "errored", "reason": "Failed to create Order: 429 urn:ietf:params:acme:error:rateLimited: too many"}


@pytest.mark.parametrize(
    ("issuers", "says", "remedy"),
    [
        (chain(NXDOMAIN), f"the name dashboard.{HOST} does not exist in DNS", f"dig +short dashboard.{HOST}"),
        (chain(REFUSED), "nothing listens on port 80", "external addresses"),
        (chain(DROPPED), "are dropped", "open port 80"),
        (chain(ELSEWHERE), "does not know the challenge", "root ingress"),
        (chain(FROM_OUTSIDE), "are dropped", "open port 80"),
        (chain(None, order=LIMITED), "limits certificates per domain", "letsencrypt-stage"),
        (chain(None, issuer="False"), "no account at its CA", "kubectl describe clusterissuer letsencrypt-prod"),
        (chain(None, order={"state": "invalid", "reason": ""}), "could not verify", "failed request"),
    ],
    ids=["no-name", "refused", "timeout", "wrong-backend", "ca-cannot-reach", "rate-limited", "issuer", "order"],
)
def test_a_pending_certificate_is_diagnosed_down_to_its_challenge(issuers: Issuers, says: str, remedy: str) -> None:
    [finding] = look(
        SeenPlatform(services=WELL.services, slices=WELL.slices, ingress_classes=WELL.ingress_classes, issuers=issuers)
    ).findings

    assert finding.code == "PST-005"
    assert finding.path == "Certificate cozy-dashboard/dashboard-web-tls"
    assert says in finding.problem
    assert remedy in finding.fix


def test_a_certificate_has_two_minutes() -> None:
    young = chain(waits_for(f"{SELF_CHECK}connection refused"), at="2026-11-30T12:28:30Z")
    seen = SeenPlatform(services=WELL.services, slices=WELL.slices, ingress_classes=WELL.ingress_classes, issuers=young)

    assert look(seen).waiting == ("certificate cozy-dashboard/dashboard-web-tls",)
    assert [f.code for f in look(seen, waited_s=120).findings] == ["PST-005"]


# The stage ----------------------------------------------------------------------------------------------------------

INPUTS = PostVerifyInputs(
    kubeconfig=KUBECONFIG,
    host=HOST,
    ingress=True,
    addresses=["10.0.0.11"],
    pods_s=0.05,
    certificates_s=0.05,
    deadline_s=5,
)


def served(*pods: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {
        "pods": list(pods),
        "services": [ingress("10.0.0.11")],
        "endpointslices": [SLICE],
        "ingressclasses": [CLASS],
    }


async def established(said: list[str] | None = None, **changes: Any) -> PostVerifyOutputs:
    inputs = INPUTS.model_copy(update=changes)
    return await PostVerifyProvider().establish(
        inputs, Progress("PostVerify", write=([] if said is None else said).append)
    )


async def test_what_does_not_block_is_told_and_the_run_goes_on(served_by: ServedBy) -> None:
    served_by(Asked(served(pod("cozy-telemetry", "t", crashing()), pod("cozy-dashboard", "gate", RUNNING))).answer)
    said: list[str] = []

    made = await established(said)

    assert made.failing == []
    assert len(made.warnings) == 1
    assert "PST-002" in made.warnings[0]
    assert "PST-002" in "\n".join(said)


async def test_what_blocks_people_fails_with_what_to_do(served_by: ServedBy) -> None:
    served_by(Asked(served(pod("cozy-dashboard", "gate", crashing()))).answer)

    with pytest.raises(StageFailed) as failed:
        await established()

    text = str(failed.value)
    assert "not fully usable" in text
    assert "Pod cozy-dashboard/gate" in text
    assert "kubectl -n cozy-dashboard describe pod gate" in text


async def test_an_api_server_that_comes_back_is_waited_for(served_by: ServedBy) -> None:
    asked = Asked(served(), away=Unreachable("gone"))
    served_by(asked.answer)
    said: list[str] = []

    def write(text: str) -> None:
        said.append(text)
        asked.away = None

    made = await PostVerifyProvider().establish(INPUTS, Progress("PostVerify", write=write))

    assert "the list of pods: the API server does not respond: https://kubernetes.in-memory:6443: gone" in said[0]
    assert made.failing == []


async def test_an_api_server_that_stays_away_is_unknown_and_not_fine(served_by: ServedBy) -> None:
    served_by(Asked(away=Unreachable("gone")).answer)

    with pytest.raises(StageFailed, match="timed out after") as failed:
        await established(deadline_s=0.2)

    assert "the API server does not respond" in str(failed.value)
    with pytest.raises(StageFailed, match="cannot be read"):
        await PostVerifyProvider().observe(INPUTS, PostVerifyOutputs(pods=0, certificates=0))


async def test_what_may_not_be_listed_is_said_at_once(served_by: ServedBy) -> None:
    served_by(Asked(served(), trouble={"pods": Refused(403, "Forbidden", "pods is forbidden")}).answer)

    with pytest.raises(StageFailed) as failed:
        await established(deadline_s=60)

    assert "PST-006 pods" in str(failed.value)
    assert "may list these kinds cluster-wide" in str(failed.value)


async def test_a_refresh_sees_drift_and_the_next_run_looks_again(served_by: ServedBy) -> None:
    asked = Asked(served(pod("cozy-dashboard", "gate", RUNNING)))
    served_by(asked.answer)
    made = await established()
    assert not PostVerifyProvider().drifted(INPUTS, made)

    asked.served["pods"] = [pod("cozy-dashboard", "gate", crashing())]
    seen = await PostVerifyProvider().observe(INPUTS, made)

    assert seen is not None
    assert PostVerifyProvider().drifted(INPUTS, seen)
    assert "PST-001" in seen.failing[0]
