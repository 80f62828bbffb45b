"""A cluster on which the platform's stages work: what they are asked, what they find there, and what they said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cozystack_iac.kube.client import Kube, Object, Ref
from cozystack_iac.kube.definitions import DEFINITIONS
from cozystack_iac.platform import claim
from cozystack_iac.stages.platform_claim import ClaimInputs
from cozystack_iac.waiting import Progress, StageFailed
from lab.memory import KUBECONFIG, MemoryApi
from lab.platform import catalogue, crds, rendered

SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cozy-system"}}
SOURCE = {
    "apiVersion": "cozystack.io/v1alpha1",
    "kind": "PackageSource",
    "metadata": {"name": "cozystack.cozystack-platform"},
    "spec": {},
}


class Said(Progress):
    """Progress that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__("test", write=self.lines.append)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@contextmanager
def fails() -> Iterator[Callable[[], str]]:
    text = ""
    with pytest.raises(StageFailed) as failed:
        yield lambda: text
    text = str(failed.value)


async def until(wanted: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while True:
            answer = wanted()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


def wanted(**parts: Any) -> ClaimInputs:
    """What the stage that claims the cluster is asked."""
    given: dict[str, Any] = {
        "kubeconfig": KUBECONFIG,
        "cluster": "eu1",
        "release_namespace": "cozy-system",
        "brings_namespace": False,
        "version": "1.6.2",
        "oidc": True,
        "legacy": {"root-host": "example.org"},
        "legacy_write": {},
        "deadline_s": 2,
    }
    return ClaimInputs.model_validate(given | parts)


async def space(kube: Kube) -> Object:
    metadata: Object = (await kube.get(claim.NAMESPACE))["metadata"]
    return metadata


async def crds_of_operator(kube: Kube) -> None:
    for name in crds.OPERATOR:
        await kube.create(DEFINITIONS, crds.definition(name, catalogue.load("1.6.2").traits))


async def platform_package(api: MemoryApi, kube: Kube, oidc: bool | None) -> None:
    await kube.create(claim.NAMESPACE, SPACE)
    await crds_of_operator(kube)
    values: dict[str, Any] = {"publishing": {"host": "example.org"}}
    if oidc is not None:
        values["authentication"] = {"oidc": {"enabled": oidc}}
    body = {
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "Package",
        "metadata": {"name": "cozystack.cozystack-platform"},
        "spec": {"variant": "isp-full", "components": {"platform": {"values": values}}},
    }
    await kube.apply(claim.PACKAGE, body, manager="pulumi")


async def render(kube: Kube, **entries: str) -> None:
    body = rendered.secret({key.replace("_", "-"): value for key, value in entries.items()})
    await kube.apply(Ref("v1", "secrets", "cozy-system", "cozystack-values"), body, manager="platform", force=True)
