"""OIDC as a second step through the real engine and a real API server: two writers of one Package, each with its own part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from rich.console import Console

from cozystack_iac.kube.client import Kube
from cozystack_iac.platform import claim, helm_records
from cozystack_iac.stages import sign_on
from cozystack_iac.talos.documents import emit
from lab import launch, scenario, toolchain
from lab.platform.installer import stamped
from lab.session import Done, Session
from lab.stack import stack_file
from lab.state import StateDir
from tests.addresses import prefix

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
T = TypeVar("T")
SCALE = 150.0  # nothing here is about time


@dataclass
class Lab:
    session: Session
    config: dict[str, Any]

    def up(self, *flags: str) -> Done:
        self.session.configure(self.config)
        return self.session.pulumi("up", "--yes", "--skip-preview", *flags, timeout_s=300)

    def ask(self, question: Callable[[Kube], Awaitable[T]]) -> T:
        """One question to the cluster, with the kubeconfig that the stack hands out."""

        async def asked(kubeconfig: str) -> T:
            async with Kube.connect(kubeconfig) as kube:
                return await question(kube)

        return asyncio.run(asked(self.session.outputs(show_secrets=True)["kubeconfig"]))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("later")
    chosen = scenario.load(scenario.FOLDER / "platform" / "oidc-later.yaml").relocated(prefix())
    chosen = chosen.model_copy(update={"scale": SCALE})
    config = stack_file(chosen)
    config["cozystack:platform"]["chart"] = str(stamped(chosen.cozystack, root / "chart"))
    stack, state, console = root / "stack.yaml", StateDir(root), Console(stderr=True)
    stack.write_text(emit([{"config": config}]))
    session = Session(root, toolchain.ensure(root, console=console), stack)
    try:
        launch.up(state, chosen, console)
        session.prepare()
        yield Lab(session, config)
    finally:
        launch.down(state)


@pytest.fixture(scope="module")
def installed(lab: Lab) -> Done:
    return lab.up()


async def package(kube: Kube) -> dict[str, Any]:
    return await kube.get(claim.PACKAGE)


def test_one_run_installs_without_oidc_and_then_switches_it_on(lab: Lab, installed: Done) -> None:
    assert installed.code == 0, installed.output[-6000:]
    assert "turning OIDC on" in installed.output
    made = lab.ask(package)
    assert claim.oidc_is_on(made)
    assert made["metadata"]["generation"] == 2
    managers = [
        entry["manager"] for entry in made["metadata"]["managedFields"] if "authentication" in json.dumps(entry)
    ]
    assert managers == [sign_on.MANAGER]


def test_afterwards_nobody_wants_to_change_anything(lab: Lab, installed: Done) -> None:
    again = lab.up("--refresh", "--expect-no-changes")
    assert again.code == 0, again.output[-4000:]


def test_a_change_leaves_oidc_alone_and_helm_goes_over_what_was_interrupted(lab: Lab, installed: Done) -> None:
    secrets = helm_records.collection("cozy-system")

    async def interrupt(kube: Kube) -> None:
        [last] = await kube.objects(secrets, selector=f"{helm_records.selector('cozy-installer')},status=deployed")
        patch = helm_records.restated(last, "pending-upgrade", "Preparing upgrade")
        patch["metadata"]["labels"]["modifiedAt"] = "1000000000"  # long ago: nobody works on it any more
        await kube.merge_patch(secrets.named(last["metadata"]["name"]), patch)

    async def last_status(kube: Kube) -> str:
        found = helm_records.last(await kube.objects(secrets, selector=helm_records.selector("cozy-installer")))
        return found.status if found else ""

    lab.ask(interrupt)
    lab.config["cozystack:platform"]["values"] = {"resources": {"cpuAllocationRatio": 4}}
    done = lab.up()
    assert done.code == 0, done.output[-4000:]
    assert "is pending-upgrade: interrupted" in done.output
    assert lab.ask(last_status) == "deployed"
    made = lab.ask(package)
    assert made["spec"]["components"]["platform"]["values"]["resources"] == {"cpuAllocationRatio": 4}
    assert claim.oidc_is_on(made)
