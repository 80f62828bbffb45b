"""Admission webhooks that cannot be called: normal while the pod network converges, somebody's fault when it lasts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cozystack_iac.kube.client import Kube, KubeError, Ref

_CALL = re.compile(r'failed calling webhook "(?P<webhook>[^"]+)"')
_SERVICE = re.compile(r"https://(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc[:/]")
_OF_SERVICE = "kubernetes.io/service-name"


@dataclass(frozen=True)
class Webhook:
    """A webhook as the API server's complaint names it. `service` is `namespace/name`, empty when it is no Service."""

    name: str
    namespace: str
    service: str

    @property
    def whose(self) -> str:
        return f"{self.namespace}/{self.service}" if self.service else "an address outside the cluster"


def blamed(message: str) -> Webhook | None:
    """The webhook that an answer of the API server is about; None when it is about something else."""
    call = _CALL.search(message)
    if call is None:
        return None
    service = _SERVICE.search(message, call.end())
    if service is None:
        return Webhook(call["webhook"], "", "")
    return Webhook(call["webhook"], service["namespace"], service["name"])


async def account(kube: Kube, webhook: Webhook) -> str:
    """What stands behind the webhook's Service right now; never raises: a question without an answer is said to be one."""
    if not webhook.service:
        return "the cluster does not serve it"
    slices = Ref("discovery.k8s.io/v1", "endpointslices", webhook.namespace)
    try:
        service = await kube.find(Ref("v1", "services", webhook.namespace, webhook.service))
        found = await kube.objects(slices, selector=f"{_OF_SERVICE}={webhook.service}")
    except KubeError as error:
        return f"unknown: {error}"
    if service is None:
        return f"Service {webhook.whose} does not exist"
    return endpoints(webhook, found)


def endpoints(webhook: Webhook, slices: Iterable[Mapping[str, Any]]) -> str:
    """`Service ns/name has endpoints 10.244.0.7 (not ready), 10.244.1.3`."""
    listed = [
        f"{address}{'' if _ready(endpoint) else ' (not ready)'}"
        for each in slices
        for endpoint in each.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
    ]
    if not listed:
        return f"Service {webhook.whose} has no endpoints, because no pod backs it"
    return f"Service {webhook.whose} has the endpoints {', '.join(sorted(listed))}"


def _ready(endpoint: Mapping[str, Any]) -> bool:
    return (endpoint.get("conditions") or {}).get("ready") is not False
