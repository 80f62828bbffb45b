"""Kubeconfigs as data: parse, check, merge. Pure: nothing here opens a file or a socket.

A kubeconfig that is empty or points elsewhere must be found out before it reaches anything that connects: clients fall
back to whatever KUBECONFIG or ~/.kube/config names, and that is how somebody else's cluster gets changed.
"""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError


class BadKubeconfig(ValueError):
    """The text is not a kubeconfig that can be used; the message says why and never quotes a secret."""


@dataclass(frozen=True)
class ApiAccess:
    """How to reach one API server: the effective content of one kubeconfig context."""

    server: str
    ca_pem: bytes | None = None
    client_certificate_pem: bytes | None = None
    client_key_pem: bytes | None = None
    token: str | None = None
    tls_server_name: str | None = None
    insecure: bool = False

    def __repr__(self) -> str:
        return f"Access(server={self.server!r})"  # never the credentials


@lru_cache(maxsize=8)  # every stage of a run connects with the same one, and YAML is slow to read
def parse(text: str, context: str | None = None) -> ApiAccess:
    """The access that `context` (default: the current one) describes.

    Raises BadKubeconfig for anything unusable: file references and credential helpers are refused too, because a
    kubeconfig that lives in a stack's state must stand alone.
    """
    if not text or not text.strip():
        raise BadKubeconfig("the kubeconfig is empty")
    try:
        data = YAML(typ="safe", pure=True).load(io.StringIO(text))  # one each: a loader is not for several threads
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise BadKubeconfig(f"the kubeconfig is not valid YAML{where}") from None
    if not isinstance(data, dict):
        raise BadKubeconfig("the kubeconfig is not a mapping")
    name = context or data.get("current-context")
    if not name:
        raise BadKubeconfig("the kubeconfig has no current-context, and no context was selected")
    chosen = _named(data, "contexts", name).get("context") or {}
    cluster = _named(data, "clusters", chosen.get("cluster")).get("cluster") or {}
    user = _named(data, "users", chosen.get("user")).get("user") or {}
    for part, keys in (
        (cluster, ("certificate-authority",)),
        (user, ("client-certificate", "client-key", "tokenFile")),
    ):
        for key in keys:
            if part.get(key):
                raise BadKubeconfig(
                    f"the kubeconfig refers to a file ({key}); embed it with `kubectl config view --raw --flatten`"
                )
    if user.get("exec") or user.get("auth-provider"):
        raise BadKubeconfig(
            "the kubeconfig uses an exec credential plugin; provide one with a token or a client certificate"
        )
    server = str(cluster.get("server") or "")
    if urlsplit(server).scheme != "https" or not urlsplit(server).hostname:
        raise BadKubeconfig(f"the kubeconfig's server {server!r} is not an https:// URL")
    return ApiAccess(
        server=server.rstrip("/"),
        ca_pem=_pem(cluster, "certificate-authority-data"),
        client_certificate_pem=_pem(user, "client-certificate-data"),
        client_key_pem=_pem(user, "client-key-data"),
        token=user.get("token"),
        tls_server_name=cluster.get("tls-server-name"),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
    )


def checked(text: str | None, expected_server: str) -> str:
    """`text` itself, once it is known to stand alone and to point at `expected_server` ("https://10.0.0.10:6443")."""
    access = parse(text or "")
    if _origin(access.server) != _origin(expected_server):
        raise BadKubeconfig(f"the kubeconfig points to {access.server}, but this stack's cluster is {expected_server}")
    if not (access.client_key_pem or access.token):
        raise BadKubeconfig("the kubeconfig has no credentials")
    return text or ""


def _origin(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or 443


def _named(data: dict[str, Any], section: str, name: Any) -> dict[str, Any]:
    for entry in data.get(section) or []:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    raise BadKubeconfig(f"the kubeconfig has no entry {name!r} under {section}")


def _pem(part: dict[str, Any], key: str) -> bytes | None:
    if not part.get(key):
        return None
    try:
        return base64.b64decode(str(part[key]), validate=False)
    except binascii.Error:
        raise BadKubeconfig(f"{key} in the kubeconfig is not valid base64") from None
