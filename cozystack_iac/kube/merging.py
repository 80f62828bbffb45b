"""One cluster's entry inside somebody's kubeconfig: put in, found again, taken out. Pure; `kubeconfig_file` does the writing.

A cluster is known by its CA and by nothing else: names and addresses are used twice, a CA is not.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cozystack_iac.kube.kubeconfig import BadKubeconfig, parse
from cozystack_iac.yaml_text import emit

_SECTIONS = {"clusters": "cluster", "contexts": "context", "users": "user"}


@dataclass(frozen=True)
class Entry:
    """One cluster's access, as one context. `mark` is a short name of its CA."""

    name: str
    mark: str
    cluster: Mapping[str, Any]
    user: Mapping[str, Any] = field(repr=False)

    @property
    def ca(self) -> str:
        return _ca(self.cluster)

    @classmethod
    def of(cls, kubeconfig: str) -> Entry:
        """The current context of `kubeconfig`. Raises BadKubeconfig."""
        parse(kubeconfig)
        data = _load(kubeconfig)
        name = str(data["current-context"])
        context = _find(data, "contexts", name) or {}
        cluster = _find(data, "clusters", str(context.get("cluster"))) or {}
        user = _find(data, "users", str(context.get("user"))) or {}
        ca = _ca(cluster)
        if not ca:
            raise BadKubeconfig("the cluster in the kubeconfig has no CA, so its entry cannot be identified")
        return cls(name, hashlib.sha256(ca.encode()).hexdigest()[:8], cluster, user)


@dataclass(frozen=True)
class Merged:
    """A kubeconfig file's new text, and the name our context has in it."""

    text: str = field(repr=False)
    context: str


def merged(existing: str, entry: Entry) -> Merged:
    """`existing` (may be empty) with this entry in it. Everybody else's entries and the current context stay.

    The entry keeps its own name, or the one it was written under before. Where the name belongs to another cluster, it gets
    the mark of its CA as a suffix. Raises BadKubeconfig when `existing` cannot be read: what we do not understand we do not
    write over.
    """
    data = _load(existing) if existing.strip() else {}
    name = _own_name(data, entry) or _free_name(data, entry)
    result = {"apiVersion": "v1", "kind": "Config", **data}
    for section, value in (
        ("clusters", dict(entry.cluster)),
        ("contexts", {**(_find(data, "contexts", name) or {}), "cluster": name, "user": name}),
        ("users", dict(entry.user)),
    ):
        result[section] = _with(data.get(section) or [], name, _SECTIONS[section], value)
    if not result.get("current-context"):
        result["current-context"] = name
    return Merged(emit([result]), name)


def without(existing: str, entry: Entry) -> str:
    """`existing` without this cluster's entry; empty when nothing of anybody is left. Raises BadKubeconfig."""
    data = _load(existing) if existing.strip() else {}
    name = _own_name(data, entry)
    if name is None:
        return existing
    result = dict(data)
    for section in _SECTIONS:
        result[section] = [item for item in data.get(section) or [] if item.get("name") != name]
    if not any(result[section] for section in _SECTIONS):
        return ""
    if result.get("current-context") == name:
        result["current-context"] = ""
    return emit([result])


def holds(existing: str, entry: Entry) -> bool:
    """Whether the file says exactly this about the cluster. Raises BadKubeconfig."""
    data = _load(existing) if existing.strip() else {}
    name = _own_name(data, entry)
    if name is None:
        return False
    return _find(data, "clusters", name) == entry.cluster and _find(data, "users", name) == entry.user


def _own_name(data: Mapping[str, Any], entry: Entry) -> str | None:
    """The name this cluster's entry has in the file: only names that we would have given, and only with its own CA."""
    for name in (entry.name, _suffixed(entry)):
        cluster = _find(data, "clusters", name)
        context = _find(data, "contexts", name)
        ours = cluster is not None and _ca(cluster) == entry.ca
        if ours and (context is None or (context.get("cluster"), context.get("user")) == (name, name)):
            return name
    return None


def _free_name(data: Mapping[str, Any], entry: Entry) -> str:
    taken = any(_find(data, section, entry.name) is not None for section in _SECTIONS)
    if not taken:
        return entry.name
    suffixed = _suffixed(entry)
    if any(_find(data, section, suffixed) is not None for section in _SECTIONS):
        raise BadKubeconfig(f"the names {entry.name} and {suffixed} are both used by other entries in it")
    return suffixed


def _suffixed(entry: Entry) -> str:
    return f"{entry.name}-{entry.mark}"


def _with(items: list[Any], name: str, key: str, value: Mapping[str, Any]) -> list[Any]:
    entry = {"name": name, key: dict(value)}
    names = [item.get("name") for item in items]
    if name not in names:
        return [*items, entry]
    return [entry if item.get("name") == name else item for item in items]


def _ca(cluster: Mapping[str, Any]) -> str:
    return str(cluster.get("certificate-authority-data") or "")


def _find(data: Mapping[str, Any], section: str, name: str) -> dict[str, Any] | None:
    for item in data.get(section) or []:
        if item.get("name") == name:
            found: dict[str, Any] = item.get(_SECTIONS[section]) or {}
            return found
    return None


def _load(text: str) -> dict[str, Any]:
    try:
        data = YAML(typ="safe", pure=True).load(io.StringIO(text))
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise BadKubeconfig(f"it is not valid YAML{where}") from None
    if data is None:
        return {}
    lists = [data.get(section) or [] for section in _SECTIONS] if isinstance(data, dict) else [None]
    if not all(isinstance(items, list) and all(isinstance(item, dict) for item in items) for items in lists):
        raise BadKubeconfig("it is not a kubeconfig")
    result: dict[str, Any] = data
    return result
