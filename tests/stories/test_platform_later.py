"""OIDC as a second step and a Helm release that is left half done: killed anywhere, the next `up` goes on and ends the same."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.kube.client import Ref
from cozystack_iac.platform import claim
from lab import scenario
from lab.scenario import Scenario
from lab.story.engine import HELM
from lab.story.platform import Story, platform_story
from tests.addresses import prefix

PREFIX = prefix()
HOSTED = {"guardrail": "VER-008", "reason": "tried on staging"}
LATER = scenario.FOLDER / "platform" / "oidc-later.yaml"


def chosen(**stack: Any) -> Scenario:
    found = scenario.load(LATER).relocated(PREFIX)
    return found.model_copy(update={"stack": {**found.stack, **stack}})


async def existing(told: Story, state: Path, variant: str, **stack: Any) -> None:
    """The stack file now says that the cluster was there before us, and how to reach it."""
    path = state / "kubeconfig"
    path.write_text(told.kubeconfig)
    cluster = {"variant": variant, "access": {"kubeconfig": str(path), "context": "admin@lab"}}
    ranges = {"podCIDR": "10.42.0.0/16", "serviceCIDR": "10.43.0.0/16"}
    told.change(cluster=cluster, talos=None, network=ranges, **stack)


async def package(told: Story) -> dict[str, Any]:
    return await told.kube().get(claim.PACKAGE)


async def revisions(told: Story) -> dict[str, str]:
    """Status of every revision of the installer's release, as Helm itself reads it: from the payload."""
    found = {}
    for (_, name), secret in told.api.of("secrets").items():
        if name.startswith("sh.helm.release.v1.cozy-installer."):
            content = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(secret["data"]["release"]))))
            assert content["info"]["status"] == secret["metadata"]["labels"]["status"]
            found[name.rpartition(".")[2]] = content["info"]["status"]
    return found


@pytest.mark.parametrize(
    ("event", "noted", "left", "after"),
    [
        ("helm * pending-install", False, "pending-install", {"v1": "superseded", "v2": "deployed"}),
        ("helm * deployed", False, "deployed", {"v1": "superseded", "v2": "deployed"}),
        ("helm * deployed", True, "deployed", {"v1": "superseded", "v2": "deployed"}),
    ],
    ids=["in the hook", "done, and not in the state", "done, and the operator not seen yet"],
)
async def test_a_release_that_a_killed_run_left_behind_is_taken_up_again(
    event: str, noted: bool, left: str, after: dict[str, str], tmp_path: Path
) -> None:
    async with platform_story(chosen(), tmp_path) as told:
        await told.killed_at(event)
        assert await revisions(told) == {"v1": left}
        if not noted:
            told.program.state.pop((HELM, "lab-installer-release"), None)
        done = await told.until("package cozystack.cozystack-platform ready")
        assert done.succeeded, done.text
        assert await revisions(told) == after


@pytest.mark.parametrize(
    "event",
    [
        "tenant root patched",
        "release cozy-keycloak/keycloak installing",
    ],
)
async def test_killed_anywhere_oidc_is_on_at_the_end_and_was_switched_on_once(event: str, tmp_path: Path) -> None:
    async with platform_story(chosen(), tmp_path) as told:
        await told.killed_at(event)
        done = await told.install()
        assert done.succeeded, done.text
        assert claim.oidc_is_on(await package(told))
        assert (await package(told))["metadata"]["generation"] == 2
        assert told.events().count("tenant root patched") == 1
        again = await told.install()
        assert [name for name in again.changes if "platform" in name or "sign-on" in name or "ready" in name] == []


async def test_once_on_oidc_is_switched_off_only_by_a_decision(tmp_path: Path) -> None:
    async with platform_story(chosen(), tmp_path) as told:
        assert (await told.install()).succeeded
        told.change(access={"oidc": False})
        planned = await told.plan()
        assert "OIDC-001" in planned.codes
        refused = await told.install()
        assert not refused.succeeded
        assert "cozystack#3478" in refused.text
        assert claim.oidc_is_on(await package(told))
        told.change(allow=[{"guardrail": "OIDC-001", "reason": "the identity provider moves"}])
        done = await told.install()
        assert done.succeeded, done.text
        assert not claim.oidc_is_on(await package(told))
        assert "turning OIDC off" in done.text


async def test_an_engine_that_remembers_nothing_ends_with_the_same_platform(tmp_path: Path) -> None:
    """The state is lost, the cluster is ours: nothing is refused, and OIDC is not switched off on the way."""
    async with platform_story(chosen(), tmp_path) as told:
        assert (await told.install()).succeeded
        before = await package(told)
        done = await told.again()
        assert done.succeeded, done.text
        assert (await package(told))["metadata"]["generation"] == before["metadata"]["generation"]
        assert await revisions(told) == {"v1": "superseded", "v2": "deployed"}
        assert "handed over to the stack" in done.text


async def test_on_a_generic_cluster_cilium_has_its_own_way_to_the_api(tmp_path: Path) -> None:
    async with platform_story(scenario.load(scenario.FOLDER / "one-node.yaml").relocated(PREFIX), tmp_path) as told:
        await existing(told, tmp_path, "generic")
        done = await told.install()
        assert done.succeeded, done.text
        found = (await told.kube().get(claim.LEGACY))["data"]
        assert found == {"api-server-endpoint": "https://127.0.0.1:7445"}
        values = (await package(told))["spec"]["components"]["platform"]["values"]
        assert values["publishing"]["apiServerEndpoint"] == "https://api.lab.example.org:8443"


async def test_a_hosted_cluster_is_installed_once_somebody_decided_how(tmp_path: Path) -> None:
    async with platform_story(scenario.load(scenario.FOLDER / "one-node.yaml").relocated(PREFIX), tmp_path) as told:
        await existing(told, tmp_path, "hosted")
        assert {"PLT-015", "VER-008"} <= set((await told.plan()).codes)
        await existing(told, tmp_path, "hosted", nodes={"cp1": {"dataDisks": None}}, storage=None, allow=[HOSTED])
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        metadata = {"name": "replicated", "annotations": default}
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": metadata,
            "provisioner": "theirs",
        }
        await told.kube().create(Ref("storage.k8s.io/v1", "storageclasses"), body)
        planned = await told.plan()
        assert planned.succeeded, planned.text
        assert "isp-hosted of 1.6.2" in planned.text
        done = await told.install()
        assert done.succeeded, done.text
        assert "cozystack.backupstrategy-controller" not in [
            name for _, name in told.api.of("packages", "cozystack.io")
        ]
