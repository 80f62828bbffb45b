"""Reads the one context of the one kubeconfig file that a stack names for an existing cluster."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from cozystack_iac.kube.kubeconfig import BadKubeconfig, parse


@dataclass(frozen=True)
class Existing:
    """A kubeconfig with one context only, which is its current one."""

    text: str
    server: str


def from_file(path: str, context: str) -> Existing:
    """The kubeconfig reduced to `context`. Raises BadKubeconfig; the file's own current context is never trusted."""
    if not path or not context:
        raise BadKubeconfig("set the kubeconfig file and its context; nothing is taken from the environment")
    try:
        text = Path(path).expanduser().read_text()
    except OSError as error:
        raise BadKubeconfig(f"{path} cannot be read: {error.strerror}") from None
    access = parse(text, context)
    yaml = YAML(typ="safe", pure=True)
    data = yaml.load(io.StringIO(text))
    chosen = next(entry for entry in data["contexts"] if entry["name"] == context)
    reduced = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "contexts": [chosen],
        "clusters": [c for c in data["clusters"] if c["name"] == chosen["context"]["cluster"]],
        "users": [u for u in data["users"] if u["name"] == chosen["context"]["user"]],
    }
    out = io.StringIO()
    yaml.dump(reduced, out)
    return Existing(out.getvalue(), access.server)
