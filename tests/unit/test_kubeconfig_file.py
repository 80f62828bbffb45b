"""The kubeconfig file: private, whole, and nobody else's entry is touched."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac.kube.kubeconfig import BadKubeconfig, parse
from cozystack_iac.kube.merging import Entry, holds, merged, without
from cozystack_iac.stages.kubeconfig_file import FileInputs, FileOutputs, KubeconfigFileProvider
from cozystack_iac.waiting import Progress, StageFailed
from cozystack_iac.yaml_text import emit


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def config(name: str = "admin@c1", ca: str = "ours", key: str = "key", server: str = "https://10.0.0.10:6443") -> str:
    cluster = {"server": server, "certificate-authority-data": b64(ca)}
    user = {"client-certificate-data": b64("crt"), "client-key-data": b64(key)}
    return emit(
        [
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "contexts": [{"name": name, "context": {"cluster": "c1", "namespace": "default", "user": name}}],
                "clusters": [{"name": "c1", "cluster": cluster}],
                "users": [{"name": name, "user": user}],
            }
        ]
    )


def other(name: str = "work") -> str:
    """Somebody's file with a cluster of theirs, current and called `name` everywhere."""
    return (
        f"apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: {name}\n"
        f"clusters:\n- name: {name}\n  cluster: {{server: 'https://work:6443', certificate-authority-data: {b64('theirs')}}}\n"
        f"contexts:\n- name: {name}\n  context: {{cluster: {name}, user: {name}, namespace: dev}}\n"
        f"users:\n- name: {name}\n  user: {{token: '0123'}}\n"
    )


def loaded(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


OURS = Entry.of(config())


def test_an_empty_file_becomes_ours_and_current() -> None:
    made = merged("", OURS)
    assert loaded(made.text)["current-context"] == made.context == "admin@c1"
    assert parse(made.text).client_key_pem == b"key"


def test_everybody_elses_entries_and_the_current_context_stay() -> None:
    made = merged(other(), OURS)
    before, after = loaded(other()), loaded(made.text)
    assert after["current-context"] == "work"
    assert after["preferences"] == {}
    assert [after[s][0] for s in ("clusters", "contexts", "users")] == [
        before[s][0] for s in ("clusters", "contexts", "users")
    ]
    assert parse(made.text, "admin@c1").server == "https://10.0.0.10:6443"
    assert after["users"][0]["user"]["token"] == "0123"


def test_another_clusters_name_is_left_to_it() -> None:
    made = merged(other("admin@c1"), OURS)
    assert made.context == f"admin@c1-{OURS.mark}"
    assert parse(made.text, "admin@c1").server == "https://work:6443"
    assert parse(made.text, made.context).server == "https://10.0.0.10:6443"


@pytest.mark.parametrize("present", ["", other(), other("admin@c1")])
def test_writing_again_changes_nothing_and_a_renewed_certificate_replaces_only_ours(present: str) -> None:
    once = merged(present, OURS)
    renewed = Entry.of(config(key="new", server="https://10.0.0.20:6443"))
    again = merged(once.text, renewed)

    assert merged(once.text, OURS).text == once.text
    assert again.context == once.context
    assert parse(again.text, again.context).client_key_pem == b"new"
    assert len(loaded(again.text)["clusters"]) == len(loaded(once.text)["clusters"])
    assert holds(once.text, OURS)
    assert not holds(again.text, OURS)


@pytest.mark.parametrize(("present", "left"), [("", None), (other(), "work"), (other("admin@c1"), "admin@c1")])
def test_taking_it_out_leaves_what_was_there_before(present: str, left: str | None) -> None:
    rest = without(merged(present, OURS).text, OURS)
    assert (loaded(rest) or {}).get("current-context") == left
    assert [item["name"] for item in (loaded(rest) or {}).get("clusters", [])] == ([left] if left else [])


def test_taking_out_what_is_not_there_changes_nothing() -> None:
    assert without(other("admin@c1"), OURS) == other("admin@c1")


def test_the_current_context_is_not_left_pointing_at_nothing() -> None:
    mine = merged("", OURS).text
    both = loaded(merged(mine, Entry.of(config("admin@c2", "second"))).text)
    assert loaded(without(emit([both]), OURS))["current-context"] == ""


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "clusters: x\n", "clusters: [1]\n"])
def test_what_cannot_be_understood_is_not_written_over(text: str) -> None:
    with pytest.raises(BadKubeconfig):
        merged(text, OURS)


def test_a_kubeconfig_without_a_ca_has_no_owner() -> None:
    with pytest.raises(BadKubeconfig, match="no CA"):
        Entry.of(config(ca=""))


def test_an_entry_never_shows_its_credentials() -> None:
    assert b64("key") not in repr(OURS)
    assert b64("key") not in repr(merged("", OURS))


# The file itself -----------------------------------------------------------------------------------------------------


def given(path: Path, **changes: str) -> FileInputs:
    return FileInputs(kubeconfig=config(**changes), path=str(path))


async def written(path: Path, **changes: str) -> tuple[FileOutputs, list[str]]:
    said: list[str] = []
    provider = KubeconfigFileProvider()
    return await provider.establish(given(path, **changes), Progress("File", write=said.append)), said


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_new_file_is_private_and_so_is_its_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "kube" / "prod"
    made, _ = await written(path)
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert made == FileOutputs(context="admin@c1", written=OURS.mark)
    assert names(path.parent) == ["prod"]


async def test_a_file_that_was_open_to_others_is_closed_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(other())
    path.chmod(0o644)
    _, said = await written(path)
    assert mode(path) == 0o600
    assert "is now private" in said[0]


async def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text(other())
    link.symlink_to(real)
    await written(link)
    assert link.is_symlink()
    assert parse(real.read_text(), "admin@c1").client_key_pem == b"key"


async def test_a_file_that_cannot_be_read_stays_as_it_is_and_is_found_in_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: [")
    with pytest.raises(StageFailed, match="could not be written"):
        await written(path)
    findings = await KubeconfigFileProvider().preflight(FileInputs(path=str(path)), None)
    assert [f.code for f in findings] == ["RUN-010"]
    assert path.read_text() == "clusters: ["


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    findings = await KubeconfigFileProvider().preflight(FileInputs(path=str(tmp_path)), None)
    assert [f.code for f in findings] == ["RUN-010"]


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_an_interrupted_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text(other())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StageFailed) as failed:
        await written(path)
    assert "No space left" in str(failed.value)
    assert path.read_text() == other()
    assert names(tmp_path) == ["config"]


async def test_a_refresh_notices_a_missing_changed_or_opened_entry(tmp_path: Path) -> None:
    path, provider = tmp_path / "config", KubeconfigFileProvider()
    made, _ = await written(path)
    assert await provider.observe(given(path), made) == made
    path.chmod(0o640)
    assert await provider.observe(given(path), made) is None
    path.unlink()
    assert await provider.observe(given(path), made) is None


async def test_deleting_removes_our_entry_and_a_file_that_was_only_ours(tmp_path: Path) -> None:
    alone, shared, provider = tmp_path / "alone", tmp_path / "shared", KubeconfigFileProvider()
    shared.write_text(other())
    for path in (alone, shared):
        made, _ = await written(path)
        await provider.withdraw(given(path), made, Progress("File"))
    assert not alone.exists()
    assert [c["name"] for c in loaded(shared.read_text())["contexts"]] == ["work"]


async def test_deleting_never_fails_because_of_the_file(tmp_path: Path) -> None:
    path, said = tmp_path / "config", list[str]()
    path.write_text("clusters: [")
    progress = Progress("File", write=said.append)
    await KubeconfigFileProvider().withdraw(given(path), FileOutputs(context="x", written="y"), progress)
    assert "was not changed" in said[0]
