"""One look at a platform, for people who look: verdict, reasons, matrix."""

from pathlib import Path
from typing import Any

import pytest

from cozystack_iac.__main__ import main
from cozystack_iac.kube.client import KubeError, Object, Refused, Unreachable
from lab.memory import KUBECONFIG
from tests.asked import Asked, ServedBy

READY = {"type": "Ready", "status": "True", "reason": "InstallSucceeded", "message": "done"}
GIVEN_UP = {"type": "Stalled", "status": "True", "reason": "RetriesExceeded", "message": "Failed to install"}


def release(name: str, *conditions: object) -> Object:
    meta = {"namespace": "cozy-system", "name": name, "generation": 1, "labels": {"cozystack.io/package": "p"}}
    return {"metadata": meta, "spec": {}, "status": {"observedGeneration": 1, "conditions": list(conditions)}}


def answers(*releases: Object, trouble: KubeError | None = None) -> Asked:
    """These releases below a platform of one package."""
    install = {"namespace": "cozy-system", "releaseName": "cozystack-platform"}
    variant = {"name": "default", "components": [{"name": "platform", "install": install}]}
    name = {"metadata": {"name": "cozystack.cozystack-platform"}}
    return Asked(
        {
            "helmreleases": releases,
            "packages": [{**name, "status": {"conditions": [READY]}}],
            "packagesources": [{**name, "spec": {"variants": [variant]}}],
        },
        away=trouble,
    )


@pytest.fixture
def run(served_by: ServedBy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def look(asked: Asked) -> tuple[int, str]:
        served_by(asked.answer)
        (tmp_path / "kubeconfig").write_text(KUBECONFIG)
        code = main(["status", "--kubeconfig", str(tmp_path / "kubeconfig")])
        return code, capsys.readouterr().out

    return look


def test_a_platform_that_is_ready(run: Any) -> None:
    code, text = run(answers(release("cozystack-platform", READY), release("a", READY)))

    assert (code, text.splitlines()[0]) == (0, "ready: all 2 releases")


def test_a_platform_that_is_stuck_says_why_and_what_to_do(run: Any) -> None:
    code, text = run(answers(release("cozystack-platform", READY), release("a", GIVEN_UP)))

    assert code == 1
    assert "stuck: 1 of 2 releases are ready" in text
    assert "cozy-system/a: given up by Flux" in text
    assert "fix: " in text


def test_a_platform_that_is_on_its_way_says_what_is_missing(run: Any) -> None:
    code, text = run(answers(release("cozystack-platform", READY), release("a")))

    assert code == 1
    assert "progressing: 1 of 2 releases are ready" in text
    assert "cozy-system/a: not started yet" in text
    assert "fix:" not in text


@pytest.mark.parametrize("trouble", [Unreachable("connection refused"), Refused(403, "Forbidden", "not you")])
def test_what_cannot_be_asked_is_unknown(run: Any, trouble: KubeError) -> None:
    code, text = run(answers(trouble=trouble))

    assert code == 2
    assert text.startswith("unknown: ")


def test_a_kubeconfig_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
