"""A support bundle that is asked for with a stack file says how machines and public names answer right now."""

import io
import tarfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cozystack_iac.__main__ import main
from lab import scenario
from lab.memory import KUBECONFIG
from lab.stack import stack_file
from tests.addresses import prefix
from tests.asked import Asked, ServedBy


def test_machines_and_names_that_do_not_answer_are_in_it(
    tmp_path: Path, served_by: ServedBy, capsys: pytest.CaptureFixture[str]
) -> None:
    served_by(Asked({"pods": []}).answer)
    stack, access = tmp_path / "Pulumi.x.yaml", tmp_path / "kubeconfig"
    chosen = scenario.load(scenario.FOLDER / "one-node.yaml").relocated(prefix())
    written = io.StringIO()
    YAML(typ="safe", pure=True).dump({"config": stack_file(chosen)}, written)
    stack.write_text(written.getvalue())
    access.write_text(KUBECONFIG)

    code = main(["bundle", "--kubeconfig", str(access), "--stack", str(stack), "--out", str(tmp_path / "out")])

    [made] = (tmp_path / "out").iterdir()
    with tarfile.open(made) as tar:
        file = tar.extractfile(f"{made.name.removesuffix('.tar.gz')}/probes.txt")
        assert file is not None
        said = file.read().decode()
    assert code == 0
    assert str(made) in capsys.readouterr().out
    assert f"cp1 ({chosen.machines[0].address}" in said
    assert "https://dashboard.lab.example.org" in said
    assert "refused" in said
