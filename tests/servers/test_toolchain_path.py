"""Tools on PATH: which of them the toolchain takes, and why it passes others over."""

import os
from pathlib import Path

import pytest

from lab.toolchain import ambient
from lab.toolchain.ambient import DEMANDS, Demand
from lab.toolchain.cache import Cache
from tests.toolbox import OLD_ENOUGH, fake_tools, script


def demand(name: str) -> Demand:
    return next(demand for demand in DEMANDS if demand.name == name)


@pytest.mark.parametrize(
    "name, said, version",
    [
        ("pulumi", "v3.255.0", "3.255.0"),
        ("pulumi", "v3.256.0-alpha.1700+dirty", "3.256.0"),
        ("pulumi", "v3.254.9", None),
        ("etcd", OLD_ENOUGH["etcd"], "3.6.1"),
        ("etcd", "etcd Version: 3.4.30\nGo Version: go1.24.1", None),
        ("kwok", OLD_ENOUGH["kwok"], "0.8.0"),
        ("kwok", "kwok version 0.5.2 go1.22.0 (linux/amd64)", None),
        ("kube-apiserver", "Kubernetes v1.33.0+k3s1", "1.33.0"),
        ("kube-apiserver", "Kubernetes v1.32.11", None),
        ("pulumi", "", None),
    ],
)
def test_a_tool_on_path_is_taken_when_its_version_satisfies(
    tmp_path: Path, name: str, said: str, version: str | None
) -> None:
    found, unfit = ambient.find(demand(name), [fake_tools(tmp_path, {name: said})])
    assert (str(found.version) if found else None) == version
    assert len(unfit) == (0 if found else 1)


def test_a_broken_tool_is_reported_and_the_next_one_on_path_is_used(tmp_path: Path) -> None:
    script(tmp_path / "a" / "etcd", "echo 'cannot load library' >&2; exit 127")
    fake_tools(tmp_path / "b", {"etcd": OLD_ENOUGH["etcd"]})
    found, unfit = ambient.find(demand("etcd"), [tmp_path / "a", tmp_path / "b"])
    assert found is not None
    assert found.path == tmp_path / "b" / "etcd"
    assert [passed.path for passed in unfit] == [tmp_path / "a" / "etcd"]
    assert "cannot load library" in unfit[0].reason


def test_a_file_that_is_no_program_is_reported(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_bytes(b"\x7fELFgarbage")
    (tmp_path / "etcd").chmod(0o755)
    found, unfit = ambient.find(demand("etcd"), [tmp_path])
    assert found is None
    assert "does not run" in unfit[0].reason


@pytest.mark.parametrize(
    "scheduler, count", [("Kubernetes v1.34.9", 3), ("Kubernetes v1.35.0", 0), ("Kubernetes v1.30.0", 0)]
)
def test_the_kubernetes_binaries_come_together_or_not_at_all(tmp_path: Path, scheduler: str, count: int) -> None:
    fake_tools(tmp_path, OLD_ENOUGH | {"kube-scheduler": scheduler})
    trio = [demand for demand in DEMANDS if demand.name.startswith("kube-")]
    found, unfit = ambient.find_set(trio, [tmp_path])
    assert len(found) == count
    assert bool(unfit) == (count == 0)


def test_our_own_directories_on_path_are_not_mistaken_for_the_users(cache: Cache, tmp_path: Path) -> None:
    ours = fake_tools(tmp_path / "state" / "bin")
    (ours / ambient.OURS).write_text("")
    cached = fake_tools(cache.tools / "etcd-0123456789ab" / "bin")
    theirs = fake_tools(tmp_path / "theirs")
    path = os.pathsep.join(map(str, (ours, cached, theirs)))
    assert ambient.search_path(path, without=cache.root) == [theirs]
