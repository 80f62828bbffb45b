"""Plugins of the toolchain, without an engine or a network: where they are found, downloaded and installed."""

import time
from pathlib import Path

import pytest
from packaging.version import Version

import lab.toolchain as toolchain
from lab.toolchain import plugins, recipes
from lab.toolchain.cache import Cache
from lab.toolchain.recipes import KUBERNETES_PLUGIN
from tests.toolbox import KUBERNETES, installed, script


def locate(cache: Cache, *path: Path) -> toolchain.Tool | None:
    return plugins.locate(KUBERNETES, cache, list(path), Path.home() / ".pulumi")


def test_the_versions_of_the_plugins_are_those_of_the_installed_python_packages() -> None:
    asked = {package.name: package for package in plugins.requested()}
    assert set(asked) == {"kubernetes", "command", "talos"}
    assert all(Version(package.version) for package in asked.values())
    assert asked["talos"].server.endswith("pulumiverse")


@pytest.mark.parametrize("version, found", [("4.34.2", True), ("4.35.0", True), ("4.33.0", False), ("5.0.0", False)])
def test_a_plugin_in_the_labs_cache_is_used_when_the_engine_would_use_it(
    cache: Cache, version: str, found: bool
) -> None:
    installed(cache.plugins, version)
    tool = locate(cache)
    assert (tool is not None) == found
    assert tool is None or (tool.official and tool.origin == "plugin cache")


def test_a_plugin_whose_installation_was_interrupted_is_not_used(cache: Cache) -> None:
    path = installed(cache.plugins)
    path.parent.with_name(path.parent.name + ".partial").touch()
    assert locate(cache) is None


def test_our_build_of_a_plugin_is_called_ours_and_an_outdated_one_is_not_used(cache: Cache) -> None:
    installed(cache.plugins)
    plugins._record(cache, KUBERNETES.directory, KUBERNETES_PLUGIN.key())
    ours = locate(cache)
    plugins._record(cache, KUBERNETES.directory, "another-key")
    assert ours is not None
    assert (ours.origin, ours.official) == ("built", False)
    assert recipes.KUBERNETES_PLUGIN_SOURCE in ours.note
    assert locate(cache) is None


def test_official_plugins_on_path_and_in_the_users_own_cache_are_found(cache: Cache, tmp_path: Path) -> None:
    installed(Path.home() / ".pulumi" / "plugins")
    theirs = locate(cache)
    on_path = locate(cache, script(tmp_path / "pulumi-resource-kubernetes", "exit 0").parent)
    assert theirs is not None and theirs.official and theirs.note == plugins.USERS_OWN
    assert on_path is not None and on_path.official and on_path.origin == "PATH"


def engine(tmp_path: Path, body: str) -> tuple[Path, Path]:
    calls = tmp_path / "engine-calls"
    return script(tmp_path / "engine", f'echo "$PULUMI_HOME $@" >> {calls}\n{body}'), calls


def test_a_failed_download_is_remembered_for_a_day(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, calls = engine(tmp_path, "echo 'error: no such host' >&2; exit 1")
    said: list[str] = []
    first = plugins.download([KUBERNETES], binary, cache, say=said.append)
    second = plugins.download([KUBERNETES], binary, cache, say=said.append)
    tomorrow = time.time() + 25 * 3600
    monkeypatch.setattr("lab.toolchain.plugins.time.time", lambda: tomorrow)
    plugins.download([KUBERNETES], binary, cache, say=said.append)

    assert first == second == {"kubernetes": "error: no such host"}
    assert calls.read_text().count("plugin install") == 2
    assert calls.read_text().count(str(cache.pulumi_home)) == 2
    assert len(said) == 2


def test_a_silent_download_is_given_up(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary, _ = engine(tmp_path, "sleep 60")
    monkeypatch.setattr(plugins, "_DOWNLOAD_PATIENCE_S", 0.3)
    started = time.monotonic()
    failed = plugins.download([KUBERNETES], binary, cache, say=print)
    assert "nothing arrived" in failed["kubernetes"]
    assert time.monotonic() - started < 10


def test_a_download_from_which_bytes_arrive_is_waited_for(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drip = 'for i in 1 2 3 4 5 6; do echo data >> "$TMPDIR/pulumi-plugin-x.tar.gz"; sleep 0.3; done'
    binary, _ = engine(tmp_path, drip)
    monkeypatch.setattr(plugins, "_DOWNLOAD_PATIENCE_S", 1.0)
    assert plugins.download([KUBERNETES], binary, cache, say=print) == {}


def test_our_build_is_installed_into_the_labs_home_only(cache: Cache, tmp_path: Path) -> None:
    directory = f"{cache.plugins}/{KUBERNETES.directory}"
    body = f"mkdir -p {directory}; echo x > {directory}/{KUBERNETES.binary}; chmod +x {directory}/{KUBERNETES.binary}"
    binary, calls = engine(tmp_path, body)
    plugins.install_built(KUBERNETES, binary, tmp_path / "built", cache)
    tool = locate(cache)
    assert tool is not None and not tool.official
    assert calls.read_text().startswith(f"{cache.pulumi_home} plugin install resource kubernetes 4.34.2")
    assert not (Path.home() / ".pulumi").exists()
