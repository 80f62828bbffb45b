"""The links of the install chain: which release belongs to which, how long it usually takes, and how long one waits at most.

Numbers are seconds of real life on ordinary hardware. They come from Cozystack's own end-to-end suite (its waiting limits
and what its authors measured), from the intervals and timeouts of its Flux, and, where neither says anything, from the
size of the charts. Pure data and look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RECHECK_S: Final = 15.0  # dependencies are polled every 30 s, not watched: half of that per level on average
SLOTS: Final = 5  # actions that the main helm-controller runs at the same time


@dataclass(frozen=True)
class Link:
    """A part of the chain that is waited for as one. `budget_s`: how long the same failure may go on before it is no noise."""

    name: str
    budget_s: float


# Attempts end after 10 min, so less than that is never a budget: it would be over before the second attempt has failed.
PLATFORM = Link("platform chart", 600)  # waits for all Packages from 1.5 on; longest: one action
NETWORKING = Link("networking", 600)  # Cilium and KubeOVN: 5 min each, nodes are Ready at most 5 min after
CERTIFICATES = Link("certificates", 600)  # its start-up check needs up to 3 min
STORAGE = Link("storage", 900)  # suite: 15 min; the controller's database migrates, and is retried
SIGN_IN = Link("sign-in", 1200)  # suite: 20 min for the three Keycloak releases, whose database needs a volume
ENGINE = Link("engine", 600)  # suite: 10 min for the dashboard, 2 min for the aggregated API
DEFINITIONS = Link("application definitions", 960)  # 1.3: the last of its growing pauses is 15 min long
TENANT = Link("root tenant", 1200)  # suite: 20 min; 5 to 6 min on idle machines
OPERATORS = Link("operators", 600)
SOURCES = Link("sources", 900)  # the operator heals a stalled source-watcher within 12 min, or gives up

_BY_NAMESPACE: Final[Mapping[str, Link]] = {
    **dict.fromkeys(("cozy-cilium", "cozy-kubeovn", "cozy-gateway-api", "cozy-multus", "cozy-metallb"), NETWORKING),
    "cozy-cert-manager": CERTIFICATES,
    **dict.fromkeys(("cozy-linstor", "cozy-snapshot-controller"), STORAGE),
    "cozy-keycloak": SIGN_IN,
    "cozy-dashboard": ENGINE,
    "cozy-system": ENGINE,
    "tenant-root": TENANT,
}


def link_of(subject: str) -> Link:
    """The link of a release ("namespace/name") or of what releases come from ("Package name")."""
    if " " in subject:
        return PLATFORM if subject.startswith("Package ") else SOURCES
    namespace, _, name = subject.partition("/")
    if namespace == "cozy-system" and name == "cozystack-platform":
        return PLATFORM
    if namespace == "cozy-system" and name.endswith("-rd"):
        return DEFINITIONS
    return _BY_NAMESPACE.get(namespace, OPERATORS)


_DEFINITIONS_ONLY_S: Final = 3.0  # no workloads to wait for
_ONE_DEPLOYMENT_S: Final = 25.0
_TYPICAL_S: Final[Mapping[str, float]] = {
    "cozystack-platform": 70,
    "cilium": 60,
    "cilium-networkpolicy": 5,
    "kubeovn": 90,
    "cert-manager": 40,
    "cert-manager-issuers": 10,
    "postgres-operator": 35,
    "grafana-operator": 30,
    "velero": 40,
    "piraeus-operator": 30,
    "linstor": 30,
    "keycloak": 90,
    "keycloak-configure": 60,
    "cozystack-api": 20,
    "cozystack-basics": 5,
    "vertical-pod-autoscaler": 20,
    "vpa-for-vpa": 20,
    "flux-shard-operator": 20,
    "info": 5,
    "etcd": 120,
    "ingress-nginx-system": 60,
    "monitoring-system": 270,
    "seaweedfs-db": 120,
    "seaweedfs-system": 150,
}


def typical_s(subject: str) -> float:
    """How long one successful installation of a release usually takes."""
    namespace, _, name = subject.partition("/")
    if name in _TYPICAL_S:
        return _TYPICAL_S[name]
    definitions = name.endswith(("-crds", "-rd", "-crd")) or namespace == "tenant-root"
    return _DEFINITIONS_ONLY_S if definitions else _ONE_DEPLOYMENT_S


# Who brings the kinds of an API group. Some releases use them without being ordered after that release: in 1.3 to 1.5 all
# application definitions, in 1.3 and 1.4 the cluster API, Kamaji and RabbitMQ operators, everywhere the instance types.
_PROVIDERS: Final[Mapping[str, str]] = {
    "cozystack.io": "cozy-system/application-definition-crd",
    "apps.cozystack.io": "cozy-system/cozystack-api",
    "cert-manager.io": "cozy-cert-manager/cert-manager-crds",
    "cilium.io": "cozy-cilium/cilium",
    "gateway.networking.k8s.io": "cozy-gateway-api/gateway-api-crds",
    "instancetype.kubevirt.io": "cozy-kubevirt/kubevirt",
    "monitoring.coreos.com": "cozy-victoria-metrics-operator/prometheus-operator-crds",
    "operator.victoriametrics.com": "cozy-victoria-metrics-operator/victoria-metrics-operator",
    "piraeus.io": "cozy-linstor/piraeus-operator-crds",
    "postgresql.cnpg.io": "cozy-postgres-operator/postgres-operator",
}


_KINDS: Final[Mapping[str, str]] = {  # for messages without the version
    "ApplicationDefinition": "cozystack.io",
    "Certificate": "cert-manager.io",
    "Issuer": "cert-manager.io",
    "ClusterIssuer": "cert-manager.io",
    "PrometheusRule": "monitoring.coreos.com",
    "VirtualMachineClusterInstancetype": "instancetype.kubevirt.io",
    "VirtualMachineClusterPreference": "instancetype.kubevirt.io",
}


def providers_in(message: str) -> frozenset[str]:
    """Releases that bring the kinds whose absence a message complains of."""
    found = re.findall(r'no matches for kind "(\w+)"(?: in version "([\w.-]+)/)?', message)
    groups = {group or _KINDS.get(kind, "") for kind, group in found}
    return frozenset(_PROVIDERS[group] for group in groups if group in _PROVIDERS)
