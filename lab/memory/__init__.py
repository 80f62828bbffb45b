"""A Kubernetes cluster in memory: for stories that need what the API server promises, and no API server.

    api          objects, kinds, watches            kinds, fields, history, admission: pure
    server       how clients get to it              transport, wire: HTTP as the API server speaks it
    feed         watches                            shell: commands in pods; aggregation: APIs behind a Service
    controllers  Deployments, Nodes, Services and what belongs to deleted objects; jobs: the Job controller
    helm         the charts the product installs, as Helm would install them
    machines     machines whose part of the install is over

The client is always the product's own. Every answer is the one the real API server gives, errors included; what no client
of this project looks at is left out.
"""

from __future__ import annotations

from lab.memory.api import MemoryApi
from lab.memory.controllers import Controllers
from lab.memory.server import IN_CLUSTER, KUBECONFIG, Server

__all__ = ["IN_CLUSTER", "KUBECONFIG", "Controllers", "MemoryApi", "Server"]
