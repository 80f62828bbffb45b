"""The support bundle: complete, without a secret in any of its files, private, and named by the failure."""

import base64
import json
import secrets
import stat
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.__main__ import main
from cozystack_iac.diagnosis import bundle, issue, recognise
from cozystack_iac.diagnosis.evidence import collect
from cozystack_iac.diagnosis.signs import Evidence, Kind, Sign
from cozystack_iac.kube.client import Unreachable
from cozystack_iac.runner import support
from cozystack_iac.stages.base import Properties, StageProvider
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG
from tests.asked import Asked, ServedBy, condition, crashing, event, named, pod, status

WHEN = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)

# Every kind of secret that passes through an install, each in the shape it has there.
PEM_BODY = base64.b64encode(secrets.token_bytes(48)).decode()
CANARIES = {
    "private key": f"-----BEGIN PRIVATE KEY-----\n{PEM_BODY}\n-----END PRIVATE KEY-----",
    "key in base64": base64.b64encode(f"-----BEGIN EC PRIVATE KEY-----\n{secrets.token_hex(40)}".encode()).decode(),
    "jwt": f"eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.{secrets.token_urlsafe(60)}.{secrets.token_urlsafe(32)}",
    "bearer": f"Bearer {secrets.token_urlsafe(18)}",
    "url": f"https://robot:{secrets.token_hex(8)}@registry.example.org/v2/",
    "password": f"password={secrets.token_hex(6)}",
    "talos secret": base64.b64encode(secrets.token_bytes(32)).decode(),
    "talos token": f"{secrets.token_hex(3)}.{secrets.token_hex(8)}",
    "client secret": f'"client_secret": "{secrets.token_hex(16)}"',
    "secret object": f"kind: Secret\ndata:\n  key: {base64.b64encode(secrets.token_bytes(9)).decode()}\n",
}
NEEDLES = {
    "private key": PEM_BODY,
    "url": CANARIES["url"].split(":")[2].partition("@")[0],
    "bearer": CANARIES["bearer"].split()[1],
    "password": CANARIES["password"].partition("=")[2],
    "client secret": CANARIES["client secret"].split('"')[3],
    "secret object": CANARIES["secret object"].split("key: ")[1].strip(),
    **{name: CANARIES[name] for name in ("key in base64", "jwt", "talos secret", "talos token")},
}
FAILED = condition("Ready", "False", "InstallFailed", "Helm install failed: context deadline exceeded")


def leaking(canary: str) -> Asked:
    """A cluster in which every text anybody writes holds `canary`."""
    text = f"it went wrong: {canary} and so on"
    bad = condition("Ready", "False", "InstallFailed", text)
    return Asked(
        {
            "helmreleases": [named("cozy-x", "x", spec={"values": {"password": canary}}, status=status(bad))],
            "packages": [named("", "p", status=status(bad))],
            "pods": [pod("cozy-x", "p", {**crashing(), "state": {"waiting": {"reason": "E", "message": text}}})],
            "events": [event("cozy-x", "p", "Failed", text)],
            "jobs": [named("cozy-x", "j", status=status(condition("Failed", "True", "BackoffLimitExceeded", text)))],
            "orders": [named("cozy-x", "o", status={"state": "errored", "reason": text})],
            "certificates": [named("cozy-x", "o", status=status(bad))],
            "nodes": [named("", "cp1", status=status(bad))],
            "secrets": [named("cozy-x", "s", data={"key": canary})],
        },
        logs={"p/main": text, "previous p/main": f"{canary}\n"},
        trouble={"apiservices": Unreachable(text)},
    )


@pytest.mark.parametrize("shape", sorted(CANARIES))
async def test_no_secret_is_in_any_file_of_the_archive(shape: str, tmp_path: Path) -> None:
    canary, needle = CANARIES[shape], NEEDLES[shape]
    seen = await collect(leaking(canary).kube, ["cozy-x/x"])
    case = bundle.Case(
        "PlatformReady",
        f"The platform is stuck: {canary}",
        seen,
        WHEN,
        probes={"machines": canary},
        record={"message": canary},
    )

    path = bundle.write(tmp_path / "bundles", case)
    contents = unpacked(path)

    assert needle in canary
    assert {name for name, text in contents.items() if needle in text} == set()
    assert "it went wrong" in contents["signs.txt"]
    assert "it went wrong" in contents["logs/cozy-x_p_main.log"]


async def test_a_bundle_holds_what_somebody_needs_who_was_not_there(tmp_path: Path) -> None:
    asked = Asked(
        {
            "helmreleases": [named("cozy-keycloak", "keycloak", status=status(FAILED))],
            "pods": [pod("cozy-keycloak", "keycloak-0", crashing("keycloak"))],
            "persistentvolumeclaims": [named("cozy-keycloak", "data-0", status={"phase": "Pending"})],
            "storageclasses": [],
            "events": [event("cozy-keycloak", "data-0", "ProvisioningFailed", "no pool", at="2026-11-30T12:05:00Z")],
        },
        logs={"keycloak-0/keycloak": "waiting for the database"},
        trouble={"nodes": Unreachable("gone")},
    )
    seen = await collect(asked.kube, ["cozy-keycloak/keycloak"])
    known = {"started": "2026-11-30T11:58:00Z", "failed": "2026-11-30T12:29:00Z", "stage": "PlatformReady"}

    contents = bundle.files(bundle.Case("PlatformReady", "The platform is stuck.", seen, WHEN, record=known))

    assert "no-storage-class" in contents["diagnosis.txt"]
    assert "Ready=False InstallFailed" in contents["states.txt"]
    assert "ProvisioningFailed" in contents["events.txt"]
    assert "waiting for the database" in contents["logs/cozy-keycloak_keycloak-0_keycloak.log"]
    assert json.loads(contents["versions.json"])["kubernetes"] == "v1.33.12"
    assert json.loads(contents["record.json"])["stage"] == "PlatformReady"
    assert json.loads(contents["findings.json"])["findings"] == []
    assert "gone" in contents["gaps.txt"]
    assert "ok" in contents["probes.txt"]
    times = [line.split()[0] for line in contents["timeline.txt"].splitlines()]
    assert times == sorted(times)
    assert times[0] == "2026-11-30T11:58:00Z"
    assert times[-1] == "2026-11-30T12:29:00Z"
    assert all(name in bundle.README for name in contents if name != "README.txt" and not name.startswith("logs/"))


def test_only_its_owner_may_read_it_and_nothing_is_written_over(tmp_path: Path) -> None:
    case = bundle.Case("PlatformReady", "", Evidence(), WHEN)

    first, second = bundle.write(tmp_path / "bundles", case), bundle.write(tmp_path / "bundles", case)

    assert first != second
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    with tarfile.open(first) as tar:
        assert {(m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, "", "", 0o600)}


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        files = {m.name: tar.extractfile(m) for m in tar}
        return {name.partition("/")[2]: file.read().decode() for name, file in files.items() if file is not None}


# For whom it is ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "failure", "sign", "project"),
    [
        ("PlatformReady", "stuck", Sign(Kind.RELEASE, "cozy-x/x", "InstallFailed", "no idea"), "cozystack"),
        (
            "PlatformReady",
            "stuck",
            Sign(Kind.LOG, "cozy-linstor/sat/main", "log", "PKIX path building failed"),
            "piraeus-operator",
        ),
        (
            "PlatformReady",
            "stuck",
            Sign(Kind.NODE, "cp1", "Ready=Unknown NodeStatusUnknown", "stopped posting"),
            "talos",
        ),
        ("PoolsRegistered", "no pool", None, "piraeus-operator"),
        ("NodesRegistered", "no node", None, "talos"),
        ("PlatformReady", "unexpected: KeyError", None, "cozystack-iac"),
    ],
)
def test_the_issue_is_for_the_project_that_the_evidence_points_at(
    stage: str, failure: str, sign: Sign | None, project: str
) -> None:
    seen = Evidence((sign,) if sign else ())

    assert issue.project(stage, failure, recognise(seen), seen) == project


def test_an_issue_says_what_happened_with_versions_and_points_at_what_is_known() -> None:
    sign = Sign(
        Kind.LOG,
        "cozy-dashboard/incloud-web-gatekeeper-1/auth-proxy",
        "log",
        "Unable to fetch OIDC well-known: refused",
    )
    seen = Evidence((sign,), ("cozy-dashboard/dashboard",), versions={"cozystack": "1.5.4"})

    text = issue.text("PlatformReady", "The platform is stuck.\n  more", recognise(seen), seen)

    assert text.startswith("# The platform is stuck.\n")
    assert "- cozystack: 1.5.4" in text
    assert "https://github.com/cozystack/cozystack/issues/new" in text
    assert "https://github.com/cozystack/cozystack/issues/3288" in text
    assert "Unable to fetch OIDC well-known" in text


# Who makes it -----------------------------------------------------------------------------------------------------------


class In(Properties):
    kubeconfig: str


class Out(Properties):
    done: bool = True


class FailingProvider(StageProvider[In, Out]):
    inputs, outputs, secret = In, Out, frozenset({"kubeconfig"})

    async def establish(self, inputs: In, progress: Progress) -> Out:
        raise StageFailed("It is stuck.", details={"cozy-x/x": "failing"}, means="m", next_step="n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(bundle.FOLDER_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def failure_of(props: Mapping[str, Any]) -> str:
    with pytest.raises(StageFailed) as failed:
        FailingProvider().create(dict(props))
    return str(failed.value)


def test_a_stage_that_fails_on_the_cluster_leaves_a_bundle_and_says_where(folder: Path, served_by: ServedBy) -> None:
    served_by(Asked({"helmreleases": [named("cozy-x", "x", status=status(FAILED))]}).answer)

    text = failure_of({"kubeconfig": KUBECONFIG})

    [made] = folder.iterdir()
    assert str(made) in text
    assert text.startswith("It is stuck.")
    contents = unpacked(made)
    assert "It is stuck." in contents["failure.txt"]
    assert "cozy-x/x: InstallFailed" in contents["issue.md"]


def test_an_api_server_that_is_away_leaves_a_bundle_too(folder: Path, served_by: ServedBy) -> None:
    served_by(Asked(away=Unreachable("https://10.0.0.10:6443: refused")).answer)

    text = failure_of({"kubeconfig": KUBECONFIG})

    [made] = folder.iterdir()
    assert str(made) in text
    assert "refused" in unpacked(made)["gaps.txt"]


def test_a_bundle_that_cannot_be_written_never_hides_the_failure(folder: Path, served_by: ServedBy) -> None:
    folder.write_text("a file where the folder should be")
    served_by(Asked({}).answer)

    text = failure_of({"kubeconfig": KUBECONFIG})

    assert text.startswith("It is stuck.")
    assert "could not be written" in text


def test_findings_of_the_runs_stack_file_are_in_it(
    folder: Path, tmp_path: Path, served_by: ServedBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = tmp_path / "Pulumi.x.yaml"
    stack.write_text("config:\n  cozystack:cluster: {name: x}\n")
    monkeypatch.setenv(bundle.STACK_VARIABLE, str(stack))
    served_by(Asked({}).answer)

    failure_of({"kubeconfig": KUBECONFIG})

    [made] = folder.iterdir()
    assert json.loads(unpacked(made)["findings.json"])["findings"] != []


def test_a_person_can_ask_for_one(tmp_path: Path, served_by: ServedBy, capsys: pytest.CaptureFixture[str]) -> None:
    served_by(Asked({"pods": [pod("cozy-x", "p", crashing())]}).answer)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)

    code = main(["bundle", "--kubeconfig", str(kubeconfig), "--out", str(tmp_path / "out")])

    [made] = (tmp_path / "out").iterdir()
    said = capsys.readouterr().out
    assert code == 0
    assert str(made) in said
    assert "Nothing was sent anywhere" in said
    assert "CrashLoopBackOff" in unpacked(made)["signs.txt"]


def test_a_kubeconfig_that_is_not_there_is_said_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bundle", "--kubeconfig", str(tmp_path / "nothing"), "--out", str(tmp_path)])

    assert code == 2
    assert "nothing" in capsys.readouterr().err


def test_what_a_failure_is_about_stands_in_its_rows() -> None:
    details = {"cozy-x/x": "", "Package cozystack.p": "", "last seen": "", "and": "", "https://a at 10.0.0.1": ""}

    assert bundle.subjects(details) == ("cozy-x/x", "Package cozystack.p")


def test_the_runner_names_the_projects_own_folder_and_stack_file_unless_told_otherwise(tmp_path: Path) -> None:
    chosen = support(tmp_path, "prod", {})

    assert chosen[bundle.FOLDER_VARIABLE] == str(tmp_path / ".cozystack" / "bundles")
    assert chosen[bundle.STACK_VARIABLE] == str(tmp_path / "Pulumi.prod.yaml")
    assert support(tmp_path, "prod", {bundle.FOLDER_VARIABLE: "/srv"})[bundle.FOLDER_VARIABLE] == "/srv"
