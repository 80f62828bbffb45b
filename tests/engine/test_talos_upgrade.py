"""Machines brought to the pinned image by the real engine, on a lab with a real API server: two clusters, each a story."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cozystack_iac.kube import absence
from cozystack_iac.kube.client import Kube
from cozystack_iac.kube.drain import NODES
from lab import control
from lab.session import Done
from tests.addresses import prefix
from tests.engine.site import TALOS_ONLY, LabSite, site

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PLANES = ("cp1", "cp2", "cp3")


def upgraded(lab: LabSite) -> list[str]:
    """Machines in the order in which an image was written over what they ran."""
    return [e["subject"].removeprefix("machine ") for e in lab.events() if e["what"] in ("upgrading", "image written")]


def away_together(events: list[dict[str, Any]]) -> int:
    """How many etcd members were at most away at the same time, after each had run once."""
    started: set[str] = set()
    away: set[str] = set()
    most = 0
    for event in events:
        name = event["subject"].removeprefix("machine ")
        if event["what"] == "etcd running":
            started.add(name)
            away.discard(name)
        elif event["what"] in ("rebooting", "off") and name in started:
            away.add(name)
            most = max(most, len(away))
    return most


def up(lab: LabSite, *flags: str) -> Done:
    return lab.session.pulumi("up", "--yes", "--skip-preview", "--parallel", "10", *flags, timeout_s=180)


def resource(lab: LabSite, name: str) -> dict[str, Any]:
    """Outputs of one resource in the stack's state."""
    state = json.loads(lab.session.pulumi("stack", "export").output)
    [found] = [r for r in state["deployment"]["resources"] if r["urn"].endswith(f"::{name}")]
    outputs: dict[str, Any] = found["outputs"]
    return outputs


# ---- older disk images, an upgrade that fails on the second machine --------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    with site(tmp_path_factory.mktemp("upgrade"), prefix(), "upgrade-interrupted", program=TALOS_ONLY) as made:
        yield made


@pytest.fixture(scope="module")
def interrupted(lab: LabSite) -> Done:
    return up(lab)


@pytest.fixture(scope="module")
def finished(lab: LabSite, interrupted: Done) -> Done:
    return up(lab)


def test_an_upgrade_stops_at_the_first_failure_with_everybodys_state(lab: LabSite, interrupted: Done) -> None:
    assert interrupted.code != 0
    assert f"cp2 ({prefix()}.0.12) was not upgraded." in interrupted.output
    assert "could not be upgraded: error pulling image: not found" in interrupted.output
    assert re.search(r"cp1 +runs v1.13.6\n", interrupted.output)
    assert re.search(r"cp3 +does not have the extension drbd, zfs\n", interrupted.output)
    assert "Traceback" not in interrupted.output


def test_the_next_up_continues_and_touches_nobody_twice(lab: LabSite, finished: Done) -> None:
    assert finished.code == 0, finished.output[-4000:]
    assert upgraded(lab) == ["cp1", "cp2", "cp3"]
    assert [len(lab.events(f"machine {name} config applied")) for name in PLANES] == [1, 1, 1]
    assert len(lab.events("cluster bootstrapped")) == 1


def test_never_are_two_members_of_etcd_away(lab: LabSite, finished: Done) -> None:
    assert away_together(lab.events()) == 1


def test_every_node_is_open_again(lab: LabSite, finished: Done) -> None:
    kubeconfig = lab.session.outputs(show_secrets=True)["kubeconfig"]

    async def marked() -> list[str]:
        async with Kube.connect(kubeconfig) as kube:
            nodes = await kube.objects(NODES)
            assert len(nodes) == len(PLANES)
            closed = [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]
            return [*closed, *await absence.away(kube)]

    assert asyncio.run(marked()) == []


def test_every_machine_is_verified_by_its_own_answers(lab: LabSite, finished: Done) -> None:
    verified = resource(lab, "bootstrap-verification")
    assert {name: one["talos"] for name, one in verified["verified"].items()} == dict.fromkeys(PLANES, "v1.13.6")
    assert [one["findings"] for one in verified["verified"].values()] == [[], [], []]
    assert all("drbd 9.3.2-v1.13.6" in one["extensions"] for one in verified["verified"].values())
    assert [member.split()[0] for member in verified["members"]] == list(PLANES)


def test_a_further_up_and_a_refresh_find_nothing_to_do(lab: LabSite, finished: Done) -> None:
    again = up(lab, "--expect-no-changes")
    assert again.code == 0, again.output[-4000:]
    refreshed = lab.session.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes", timeout_s=120)
    assert refreshed.code == 0, refreshed.output[-4000:]


def test_a_machine_that_was_downgraded_by_hand_is_drift_and_the_next_up_repairs_it(
    lab: LabSite, finished: Done
) -> None:
    before = len(lab.events())
    control.ask(lab.state.socket, "mutate", machine={"name": "cp2", "talos": "v1.13.0"})
    refreshed = lab.session.pulumi("refresh", "--yes", "--skip-preview", timeout_s=120)
    assert refreshed.code == 0, refreshed.output[-4000:]
    assert resource(lab, "bootstrap-verification")["verified"]["cp2"]["findings"] == ["VRF-002"]
    assert resource(lab, "bootstrap-upgrade-joined")["running"]["cp2"]["talos"] == "v1.13.0"

    repaired = up(lab)

    assert repaired.code == 0, repaired.output[-4000:]
    assert upgraded(lab) == ["cp1", "cp2", "cp3", "cp2"]
    assert away_together(lab.events()[before:]) <= 1
    assert resource(lab, "bootstrap-verification")["verified"]["cp2"]["findings"] == []


# ---- from one minor to the next --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    with site(tmp_path_factory.mktemp("minor"), prefix(1), "upgrade-minor", program=TALOS_ONLY) as made:
        made.config["cozystack:talos"]["version"] = "v1.12.7"
        made.session.configure(made.config)
        yield made


def test_another_minor_is_pinned_and_the_machines_follow_before_their_configurations(older: LabSite) -> None:
    made = up(older)
    assert made.code == 0, made.output
    assert upgraded(older) == []
    born = len(older.events())
    del older.config["cozystack:talos"]["version"]
    older.session.configure(older.config)

    done = up(older)

    assert done.code == 0, done.output
    steps = [e for e in older.events()[born:] if e["what"] in ("upgrading", "config applied")]
    assert [(e["subject"], e["what"]) for e in steps] == [
        (f"machine {name}", what) for what in ("upgrading", "config applied") for name in PLANES
    ]
    assert away_together(older.events()) == 1
    assert {one["talos"] for one in resource(older, "bootstrap-verification")["verified"].values()} == {"v1.13.6"}
    assert up(older, "--expect-no-changes").code == 0
