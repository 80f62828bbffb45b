"""A worker comes to a finished platform and goes again: storage follows the one machine, and nobody else is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab import scenario
from lab.session import Done
from lab.stack import stack_file
from tests.addresses import prefix
from tests.engine.site import SCENARIOS, LabSite, site

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
PREFIX = prefix()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    with site(tmp_path_factory.mktemp("platform"), PREFIX, "day-two") as made:
        assert up(made, "cp1 cp2 cp3").code == 0
        yield made


def up(lab: LabSite, names: str) -> Done:
    config, keep = stack_file(scenario.load(SCENARIOS / "day-two.yaml").relocated(PREFIX)), names.split()
    config["cozystack:nodes"] = [node for node in config["cozystack:nodes"] if node["name"] in keep]
    approved = config["cozystack:storage"]["approvedDisks"]
    config["cozystack:storage"]["approvedDisks"] = {name: approved[name] for name in keep}
    lab.session.configure(config)
    return lab.session.pulumi("up", "--yes", "--skip-preview", timeout_s=240)


def told(lab: LabSite, since: int) -> list[str]:
    kinds = ("config applied", "zpool create", "zpool destroy", "resetting", "rebooting", "disk wiped")
    lines = [f"{e['subject']} {e['what']}" for e in lab.events() if e["seq"] > since and e["what"] in kinds]
    return [*lines, *(f"{e['subject']} registered" for e in lab.events("pool w1 registered") if e["seq"] > since)]


def resources(lab: LabSite) -> dict[str, dict[str, Any]]:
    state = json.loads(lab.session.pulumi("stack", "export").output)
    return {r["urn"].rpartition("::")[2]: r.get("outputs", {}) for r in state["deployment"]["resources"]}


def test_a_new_worker_gets_its_own_pool_and_nobody_else_is_touched(lab: LabSite) -> None:
    since = int(lab.events()[-1]["seq"])
    done = up(lab, "cp1 cp2 cp3 w1")
    assert done.code == 0, done.output[-4000:]
    assert told(lab, since) == ["machine w1 config applied", "machine w1 zpool create", "pool w1 registered"]
    assert "+ 2 created" in done.output  # its Job and its satellite's configuration; every other object is what it was
    assert "asking 1 machines" in done.output
    made = resources(lab)
    assert set(made["lab-zpools-online"]["pools"]) == {"cp1", "cp2", "cp3", "w1"}
    assert set(made["lab-pools-registered"]["pools"]) == {"cp1", "cp2", "cp3", "w1"}


def test_a_worker_that_leaves_keeps_its_pool_on_its_disks(lab: LabSite) -> None:
    since = int(lab.events()[-1]["seq"])
    done = up(lab, "cp1 cp2 cp3")
    assert done.code == 0, done.output[-4000:]
    assert told(lab, since) == []
    assert "- 2 deleted" in done.output
    made = resources(lab)
    assert made["lab-bootstrap-membership"]["departed"] == {"w1": "is drained, its Node is deleted"}
    assert set(made["lab-pools-registered"]["pools"]) == {"cp1", "cp2", "cp3"}
