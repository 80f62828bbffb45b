"""A cluster in memory as clients find it: behind every connection of this process, or behind one client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from cozystack_iac.kube import client
from cozystack_iac.kube.client import Kube
from cozystack_iac.kube.kubeconfig import ApiAccess
from lab.memory.api import MemoryApi
from lab.memory.shell import Command, no_program
from lab.memory.transport import MemoryTransport
from lab.memory.wire import Encoder

_OUTSIDE = "https://kubernetes.in-memory:6443"
_INSIDE = "https://kubernetes.default.svc"


def _kubeconfig(server: str) -> str:
    content = {
        "current-context": "memory",
        "contexts": [{"name": "memory", "context": {"cluster": "memory", "user": "memory"}}],
        "clusters": [{"name": "memory", "cluster": {"server": server}}],
        "users": [{"name": "memory", "user": {"token": "memory"}}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Config", **content})


KUBECONFIG = _kubeconfig(_OUTSIDE)
IN_CLUSTER = _kubeconfig(_INSIDE)  # of a component of the cluster: no outage of the way there concerns it


class Server:
    """Serves `api`; what is executed in a pod is run by `command`."""

    def __init__(self, api: MemoryApi, command: Command = no_program) -> None:
        self.api = api
        self._command = command
        self._encoder = Encoder()

    def kube(self, *, inside: bool = False) -> Kube:
        """A client; `inside`: one that no outage concerns."""
        return Kube(httpx.AsyncClient(transport=self._way(inside), base_url=_OUTSIDE, trust_env=False))

    @contextmanager
    def behind_every_connection(self) -> Iterator[None]:
        """Whatever kubeconfig this process connects with, it gets here."""

        def route(access: ApiAccess) -> httpx.AsyncBaseTransport:
            return self._way(access.server == _INSIDE)

        with client.routed(route):
            yield

    def _way(self, inside: bool) -> MemoryTransport:
        return MemoryTransport(self.api, self._encoder, self._command, inside=inside)
