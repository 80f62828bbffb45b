"""The plan gate in the engine: a blocking finding ends a preview before anything is contacted; large sites go through."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from ruamel.yaml import YAML

from lab import toolchain
from lab.session import Session
from lab.stack import checked_in
from tests.addresses import prefix
from tests.matrix import LONG

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """The program without any lab behind it: nothing listens on these addresses."""
    tools = toolchain.ensure(tmp_path, console=Console(stderr=True))
    stack_file = tmp_path / "stack.yaml"
    write(stack_file, checked_in(prefix(), {"cp1", "cp2", "cp3"}))
    made = Session(tmp_path, tools, stack_file)
    made.prepare()
    yield made


def write(path: Path, config: dict[str, Any]) -> None:
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump({"config": config}, file)


def test_a_blocking_finding_stops_the_preview_with_the_table_and_contacts_nothing(session: Session) -> None:
    config = checked_in(prefix(), {"cp1", "cp2", "cp3"})
    config["cozystack:talos"]["vip"] = config["cozystack:nodes"][0]["address"]
    config["cozystack:network"]["podCIDR"] = "banana"
    session.configure(config)
    done = session.preview()
    assert done.code != 0
    assert "cozystack:network.podCIDR" in done.output
    assert "cozystack:talos.vip" in done.output
    assert "NodeProbe" not in done.output
    assert "Traceback" not in done.output


def test_machines_that_do_not_answer_stop_the_preview_all_at_once(session: Session) -> None:
    done = session.preview()
    assert done.code != 0
    for name in ("cp1", "cp2", "cp3"):
        assert name in done.output
    assert "Traceback" not in done.output


def many(prefix: str, count: int = 1000) -> list[dict[str, Any]]:
    base = checked_in(prefix, {"cp1", "cp2", "cp3"})["cozystack:nodes"]
    workers = [
        {
            "name": f"w{n}",
            "role": "worker",
            "address": f"{prefix}.{4 + n // 250}.{1 + n % 250}",
            "link": "ens5",
            "installDisk": {"serial": f"LABSYS{n:06}"},
        }
        for n in range(count - 3)
    ]
    return [*base, *workers]


def large(prefix: str, nodes: Any) -> dict[str, Any]:
    config = checked_in(prefix, {"cp1", "cp2", "cp3"})
    config["cozystack:network"]["nodeCIDR"] = f"{prefix}.0.0/16"
    config["cozystack:network"]["podCIDR"] = "10.128.0.0/9"
    config["cozystack:checks"] = "offline"
    config["cozystack:nodes"] = nodes
    return config


def test_many_machines_in_a_file_of_their_own_preview(session: Session) -> None:
    (session.project / "nodes.json").write_text(json.dumps(many(prefix(), 1000 if LONG else 300)))
    session.configure(large(prefix(), {"file": "nodes.json"}))
    done = session.preview()
    assert done.code == 0, done.output[-4000:]
    assert "skipped" in done.output


def test_many_machines_inline_are_refused_with_the_way_out(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.configure(large(prefix(), many(prefix())))
    assert session.engine.run("preview", ["--non-interactive"]) == 1
    said = capsys.readouterr().err
    assert "CFG-006" in said
    assert "file:" in said
