"""Tools that only say a version, and plugins that only lie there."""

from pathlib import Path

from lab.toolchain.plugins import Package

OLD_ENOUGH = {
    "pulumi": "v3.276.0",
    "etcd": "etcd Version: 3.6.1\nGit SHA: abc\nGo Version: go1.24.1",
    "kube-apiserver": "Kubernetes v1.34.2",
    "kube-controller-manager": "Kubernetes v1.34.0",
    "kube-scheduler": "Kubernetes v1.34.9",
    "kwok": "kwok version 0.8.0 go1.26.8 (linux/amd64)",
}


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_tools(directory: Path, says: dict[str, str] | None = None) -> Path:
    for name, text in (says or OLD_ENOUGH).items():
        script(directory / name, f"cat <<'END'\n{text}\nEND")
    return directory


KUBERNETES = Package("kubernetes", "4.34.2")


def installed(plugins_directory: Path, version: str = "4.34.2") -> Path:
    return script(plugins_directory / f"resource-kubernetes-v{version}" / "pulumi-resource-kubernetes", "exit 0")
