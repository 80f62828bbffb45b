"""A Kubernetes cluster in memory: for stories that need what the API server promises, and no API server.

    api          objects, kinds, watches            kinds, fields, admission: pure
    kube         the product's own client, answered from memory
    controllers  Deployments, Nodes, Services and what belongs to deleted objects; jobs: the Job controller
    helm         the charts the product installs, as Helm would install them
    machines     machines whose part of the install is over

Every answer is the one the real API server gives, errors included; what no client of this project looks at is left out.
"""

from __future__ import annotations

from lab.memory.api import MemoryApi
from lab.memory.controllers import Controllers
from lab.memory.kube import MemoryKube

__all__ = ["Controllers", "MemoryApi", "MemoryKube"]
