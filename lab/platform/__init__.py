"""The simulated Cozystack: everything that happens between the operator's first pod and an open dashboard.

Objects and statuses are real ones in a real API server; no component of Cozystack runs. Time is the world's clock.

    catalogue    what a release consists of            (pure, data in releases/*.yaml)
    schedule     helm-controller's decisions           (pure)      helmstatus, timing, crds, objects: pure, too
    operator     Packages into HelmReleases            flux        HelmReleases through their states
    effects      what an installed release brings      linstor     controller, satellites, pools
    tenants      the aggregated API                    dashboard   the hosts on the ingress address
    kubelet      runs the storage job's real script    toolbox     stub commands, answered over the control socket
    manifests    objects that only the scenario puts there

`ExternalArtifact` and `ArtifactGenerator` objects exist only for the platform's own chart: nobody reads the other hundred.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from cozystack_iac.kube.client import Kube
from lab.platform import catalogue, resolver, toolbox
from lab.platform.context import Platform
from lab.platform.dashboard import Dashboard
from lab.platform.effects import ReleaseEffects
from lab.platform.flux import HelmController
from lab.platform.hub import Hub
from lab.platform.installer import Labeler
from lab.platform.kubelet import Kubelet
from lab.platform.linstor import Linstor
from lab.platform.manifests import Manifests
from lab.platform.operator import Operator
from lab.platform.tenants import Tenants
from lab.world import World

# PlatformSpec.options. guardrail: false leaves the no-delete admission policy out; package_wave: seconds, see context
OPTIONS = frozenset({"guardrail", "package_wave"})


class UnknownOption(ValueError):
    """The scenario names a platform option that does not exist."""


async def run(world: World, kubeconfig: str, state: Path) -> None:
    """Play the platform in this world until cancelled. `kubeconfig` is text with administrator's access.

    Raises UnknownOption, and FileNotFoundError for a Cozystack release without data.
    """
    unknown = sorted(world.scenario.platform.options.keys() - OPTIONS)
    if unknown:
        raise UnknownOption(f"platform options {', '.join(unknown)} do not exist; there are {', '.join(OPTIONS)}")

    def refused(message: str) -> None:
        world.log.record("platform", "write refused", message=message)

    known = catalogue.load(world.scenario.cozystack)
    tools = toolbox.install(state / "bin")
    async with Kube.connect(kubeconfig, deadline_s=30) as kube, asyncio.TaskGroup() as tasks:
        tasks.create_task(resolver.serve(world.scenario.platform.resolvers), name="resolvers")
        platform = Platform(world, Hub(kube, tasks, refused), known, state)
        manifests = Manifests(platform)
        await manifests.found()
        world.log.record("platform", "began")
        operator = Operator(platform)
        effects = ReleaseEffects(platform, operator)
        controller = HelmController(platform, effects)
        linstor = Linstor(platform, effects)
        Tenants(platform, effects)
        Dashboard(platform, effects)
        toolbox.answer(world, linstor)
        tasks.create_task(Labeler(platform).run(), name="labeler")
        tasks.create_task(operator.run(), name="operator")
        tasks.create_task(controller.run(), name="flux")
        tasks.create_task(Kubelet(platform, tools).run(), name="kubelet")
