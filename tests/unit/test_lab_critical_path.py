"""The critical path of an install: what it is made of, and that nothing can be faster."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from lab import critical_path as paths
from lab import scenario
from lab.critical_path import CriticalPath, Endless, critical_path, measured
from lab.platform import catalogue
from lab.platform.timing import LINSTOR_CONTROLLER_S, LINSTOR_NODES_S
from lab.scenario import Scenario

TENANT = {"host": "example.org", "ingress": True, "etcd": True, "monitoring": True, "seaweedfs": True}


@cache
def loaded(name: str) -> Scenario:
    return scenario.load(scenario.FOLDER / f"{name}.yaml")


def three(**changes: Any) -> Scenario:
    return loaded("three-nodes").model_copy(update=changes)


@cache
def usual() -> CriticalPath:
    """Of three nodes as they are."""
    return critical_path(three(), TENANT, {})


def platform(**options: Any) -> Any:
    return three().platform.model_copy(update=options)


def total(chosen: Scenario, values: dict[str, Any] | None = None) -> float:
    return critical_path(chosen, TENANT, values or {}).total_s


def test_machines_install_then_etcd_grows_member_by_member() -> None:
    links, delays = usual().links, three().delays
    up = delays.apply + delays.install + delays.shut_down + delays.boot
    first = up + delays.services_up + delays.etcd_start
    assert links["machines configured"] == up
    assert links["etcd complete"] == first + 2 * (delays.etcd_join + delays.etcd_promote)
    assert links["nodes registered"] > links["etcd complete"]


def test_an_installed_machine_only_has_to_activate_its_configuration() -> None:
    chosen = loaded("one-node")
    assert critical_path(chosen, TENANT, {}).links["machines configured"] == 16.0


def test_links_follow_each_other() -> None:
    links = list(usual().links.values())
    assert links == sorted(links)


def test_storage_takes_its_time_after_its_release() -> None:
    links = usual().links
    assert links["pools registered"] > links["operator ready"] + LINSTOR_CONTROLLER_S + LINSTOR_NODES_S


@pytest.mark.parametrize("version", catalogue.known())
def test_every_release_has_an_end(version: str) -> None:
    assert 600 < total(three(cozystack=version)) < 3600


def test_a_slower_release_on_the_way_makes_the_install_longer_by_as_much() -> None:
    slow = platform(overrides={"tenant-root/monitoring-system": scenario.ReleaseOverride(ready_after=500)})
    added = 500 - 270  # 270 s is its own time; waits are looked at every 30 s, so the sum is not exact
    assert total(three(platform=slow)) == pytest.approx(usual().total_s + added, abs=30)


def test_waves_of_packages_count() -> None:
    assert total(three(platform=platform(options={"package_wave": 120}))) > usual().total_s + 120


def test_sign_on_waits_for_a_volume() -> None:
    assert total(three(), {"authentication": {"oidc": {"enabled": True}}}) > usual().total_s


def test_what_never_becomes_ready_has_no_critical_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "LONGEST_S", 3600.0)  # every release above has ended by then
    broken = platform(overrides={"cozy-cert-manager/cert-manager": scenario.ReleaseOverride(exhausts=True)})
    with pytest.raises(Endless, match="cozy-cert-manager/cert-manager"):
        total(three(platform=broken))


def test_the_same_links_are_read_from_what_happened() -> None:
    events = [
        (1.0, "node cp1 registered"),
        (5.0, "node cp1 registered"),
        (9.0, "node cp2 registered"),
        (12.0, "operator platform source written"),
        (20.0, "tenant root patched"),
    ]
    links = measured(events, started_s=4.0, ended_s=30.0)
    assert links == {"nodes registered": 5.0, "operator ready": 8.0, "tenant patched": 16.0, "platform ready": 26.0}
