"""Running the engine: no ambient kubeconfig, and only provably dead locks are removed."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cozystack_iac import runner
from cozystack_iac.runner import Engine, Lock, RunnerError, environment, file_backend, locks

NOW = datetime.now(UTC)


@pytest.fixture
def zombie() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended; nobody has taken its exit code
    yield process.pid
    process.wait()


def lock(pid: int, *, host: str = "here", since: datetime = NOW) -> Lock:
    return Lock(Path("lock.json"), pid, host, since)


def test_a_living_holder_keeps_its_lock() -> None:
    assert not lock(os.getpid()).is_dead("here")


def test_a_holder_on_another_host_is_never_called_dead() -> None:
    assert not lock(2**22 + 1, host="there").is_dead("here")


def test_a_gone_holder_is_dead() -> None:
    assert lock(2**22 + 1).is_dead("here")


def test_a_zombie_is_dead(zombie: int) -> None:
    assert lock(zombie).is_dead("here")


def test_a_number_that_a_younger_process_has_is_a_dead_holder() -> None:
    assert lock(os.getpid(), since=NOW - timedelta(days=30)).is_dead("here")


def test_locks_are_read_from_the_stacks_own_folder(tmp_path: Path) -> None:
    folder = tmp_path / ".pulumi/locks/organization/cozystack/prod"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(
        json.dumps({"pid": 7, "username": "u", "hostname": "h", "timestamp": "2026-11-30T14:42:33.676031262Z"})
    )
    (folder / "broken.json").write_text("{")
    assert [(found.pid, found.host, found.since.year) for found in locks(tmp_path, "prod")] == [(7, "h", 2026)]
    assert locks(tmp_path, "dev") == []


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///srv/state", Path("/srv/state")),
        ("file://~", Path.home()),
        ("https://api.example.org", None),
        ("s3://b", None),
    ],
)
def test_only_file_backends_are_folders(url: str, path: Path | None) -> None:
    assert file_backend(url) == path


def test_plugins_get_an_empty_kubeconfig_because_an_empty_variable_falls_back_to_the_home_folder() -> None:
    assert environment({"KUBECONFIG": "/home/me/.kube/config"})["KUBECONFIG"] == os.devnull


def test_a_missing_engine_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="not on PATH"):
        Engine("dev", env={"PATH": str(tmp_path)})


class Fake:
    """A `pulumi` that writes down how it was called and answers from files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.state: dict[str, object] = {"deployment": {}}
        script = self.bin / "pulumi"
        script.write_text(
            f'#!/bin/sh\necho "$KUBECONFIG|$@" >> {root}/calls\n[ "$1" = stack ] && cat {root}/state.json\n'
            f'[ "$1" = up ] && echo key > "$TMPDIR/kubeconfig1" && ls -ld "$TMPDIR" > {root}/folder\nexit 0\n'
        )
        script.chmod(0o755)

    def engine(self) -> Engine:
        (self.root / "state.json").write_text(json.dumps(self.state))
        env = {"PATH": f"{self.bin}:/usr/bin:/bin", "PULUMI_BACKEND_URL": f"file://{self.root}"}
        return Engine("dev", env=env, project=self.root)

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_preview_and_up_always_run_the_policies(fake: Fake) -> None:
    fake.engine().run("preview")
    assert fake.calls == [f"{os.devnull}|preview --stack dev --policy-pack {runner.POLICY_PACK}"]


def test_pending_creates_of_a_killed_run_are_cleared_after_a_good_one(fake: Fake) -> None:
    fake.state = {"deployment": {"pending_operations": [{"type": "creating"}]}}
    fake.engine().run("up", ["--yes"])
    assert [call.partition("|")[2].split()[0] for call in fake.calls] == ["up", "stack", "refresh"]
    assert "--clear-pending-creates" in fake.calls[-1]


def test_nothing_is_cleared_when_nothing_is_pending(fake: Fake) -> None:
    fake.engine().run("up", ["--yes"])
    assert len(fake.calls) == 2


def test_the_lock_of_a_dead_run_is_removed_before_the_next(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fake.root / ".pulumi/locks/organization/cozystack/dev"
    folder.mkdir(parents=True)
    held = {"pid": 2**22 + 1, "hostname": os.uname().nodename, "timestamp": "2026-11-30T14:42:33.676031262Z"}
    (folder / "dead.json").write_text(json.dumps(held))
    (folder / "other.json").write_text(json.dumps({**held, "hostname": "elsewhere"}))
    fake.engine().run("up")
    assert [path.name for path in folder.iterdir()] == ["other.json"]
    assert "which is dead" in capsys.readouterr().out


def test_a_blocking_verdict_stops_before_the_engine_is_started(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    (fake.root / "Pulumi.dev.yaml").write_text("config:\n  cozystack:cluster: {name: Not_A_Label}\n")
    assert fake.engine().run("up") == 1
    assert not (fake.root / "calls").exists()
    assert "cozystack:cluster.name" in capsys.readouterr().err


def test_what_plugins_leave_among_the_temporary_files_goes_with_the_run(
    fake: Fake, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pulumi-kubernetes writes the kubeconfig for Helm with os.CreateTemp and never removes it (provider.go, v4)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
    fake.engine().run("up")
    mode, *_, folder = (fake.root / "folder").read_text().split()
    assert mode == "drwx------"
    assert Path(folder).parent == Path(tempfile.gettempdir())
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
