"""What a simulated release waits for: the children its own action rendered, whatever is patched meanwhile."""

from types import SimpleNamespace
from typing import Any, cast

from cozystack_iac.kube.client import Object, Ref
from lab.platform import catalogue
from lab.platform.catalogue import ROOT_TENANT_RELEASE
from lab.platform.context import Platform
from lab.platform.effects import ReleaseEffects
from lab.platform.hub import Store
from lab.platform.operator import Operator

ROOT_TENANT = ("tenant-root", "tenant-root")


class FakeHub:
    """Keeps what is created; no API server behind it."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}
        self.created: list[str] = []

    def store(self, ref: Ref, selector: str = "") -> Store:
        return self.stores.setdefault(ref.plural, Store())

    async def create(self, obj: Object) -> Object:
        self.created.append(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
        return obj


class FakePlatform:
    def __init__(self) -> None:
        self.hub = FakeHub()
        self.known = catalogue.load("1.6.2")
        self.namespaces: dict[str, bool] = {}
        self.schedule = SimpleNamespace(ready=lambda ref: ref == "tenant-root/info")

    async def sleep(self, real_life_s: float) -> None:
        """Time is of no interest here."""

    def tenant(self, **values: Any) -> None:
        tenant = {"metadata": {"namespace": "tenant-root", "name": "tenant-root"}, "spec": {"values": values}}
        self.hub.store(Ref("v1", "helmreleases")).update({ROOT_TENANT: tenant})


async def test_a_tenant_patched_during_its_own_install_does_not_wait_for_children_of_the_next_action() -> None:
    platform = FakePlatform()
    effects = ReleaseEffects(cast("Platform", platform), cast("Operator", SimpleNamespace(emit=None)))

    platform.tenant()
    await effects.starting(ROOT_TENANT_RELEASE)
    platform.tenant(etcd=True)  # the patch arrives while the install still runs

    assert platform.hub.created == ["tenant-root/info"]
    assert effects.gate(ROOT_TENANT_RELEASE) is None

    await effects.starting(ROOT_TENANT_RELEASE)  # the upgrade that the patch causes

    assert "tenant-root/etcd" in platform.hub.created
    assert effects.gate(ROOT_TENANT_RELEASE) == "HelmRelease/tenant-root/etcd"
