"""What the platform chart makes of its values for all other charts: `_cluster` in Secret cozy-system/cozystack-values. Pure.

Every entry is a text. Values that the Package leaves out have the chart's own defaults; keys of the old ConfigMap
cozy-system/cozystack win over the host in every variant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from cozystack_iac.kube.client import Object
from lab.platform.catalogue import Traits
from lab.platform.objects import SYSTEM, new

SECRET = "cozystack-values"
LEGACY = "cozystack"
_KEYCLOAK = "http://keycloak-http.cozy-keycloak.svc:8080/realms/cozy"
_EXPOSED = ("api", "dashboard", "vm-exportproxy", "cdi-uploadproxy")


def cluster(
    traits: Traits, system_variant: str, values: Mapping[str, Any], legacy: Mapping[str, str]
) -> dict[str, str]:
    """The entries of `_cluster` that anybody in the lab looks at."""
    publishing, oidc = _part(values, "publishing"), _part(values, "authentication", "oidc")
    certificates, resources = _part(values, "publishing", "certificates"), _part(values, "resources")
    made: dict[str, Any] = {
        "root-host": legacy.get("root-host") or publishing.get("host", "example.org"),
        "bundle-name": system_variant,
        "solver": certificates.get("solver", "http01"),
        "issuer-name": certificates.get("issuerName", "letsencrypt-prod"),
        "oidc-enabled": oidc.get("enabled", False),
        "oidc-insecure-skip-verify": oidc.get("insecureSkipVerify", False),
        "extra-keycloak-redirect-uri-for-dashboard": oidc.get("keycloakExtraRedirectUri", ""),
        "keycloak-internal-url": oidc.get("keycloakInternalUrl", _KEYCLOAK if traits.keycloak_inside else ""),
        "expose-services": publishing.get("exposedServices", _EXPOSED),
        "expose-ingress": publishing.get("ingressName", "tenant-root"),
        "expose-external-ips": publishing.get("externalIPs", ()),
        "cluster-domain": _part(values, "networking").get("clusterDomain", "cozy.local"),
        "api-server-endpoint": publishing.get("apiServerEndpoint", ""),
        "cpu-allocation-ratio": resources.get("cpuAllocationRatio", 10),
        "memory-allocation-ratio": resources.get("memoryAllocationRatio", 1),
        "ephemeral-storage-allocation-ratio": resources.get("ephemeralStorageAllocationRatio", 40),
    }
    later = {
        "wildcard-secret-name": certificates.get("wildcardSecretName", ""),
        "dns01-provider": _part(values, "publishing", "certificates", "dns01").get("provider", "cloudflare"),
        "proxy-protocol": publishing.get("proxyProtocol", False),
        "gateway-enabled": _part(values, "gateway").get("enabled", False),
        "expose-ingress-admin": publishing.get("ingressNameAdmin", ""),
        "load-balancer-class": publishing.get("loadBalancerClass", ""),
        "monitoring-enabled": _part(values, "monitoring").get("rootEnabled", True),
    }
    made |= {key: later[key] for key in sorted(traits.renders)}
    return {key: _text(value) for key, value in made.items()}


def secret(entries: Mapping[str, str]) -> Object:
    lines = "".join(f'  {key}: "{value}"\n' for key, value in entries.items())
    labels = {"reconcile.fluxcd.io/watch": "Enabled"}
    return new("Secret", SECRET, SYSTEM, labels=labels, stringData={"values.yaml": f"_cluster:\n{lines}"})


def dashboard_hangs(traits: Traits, values: Mapping[str, Any], *, oidc: bool, ingress: bool) -> bool:
    """Whether the dashboard's gatekeeper cannot start.

    With OIDC and without an internal URL, it asks Keycloak through the root ingress, which comes after the dashboard.
    """
    if not oidc:
        return traits.dashboard_needs_oidc
    internal = _part(values, "authentication", "oidc").get("keycloakInternalUrl")
    return not traits.keycloak_inside and not internal and not ingress


def cilium_hangs(system_variant: str, values: Mapping[str, Any], legacy: Mapping[str, str]) -> bool:
    """Whether Cilium cannot reach the API server on a generic cluster: before it runs, nodes resolve no name of the platform.

    It takes host and port from the published endpoint, unless the old ConfigMap has one for it.
    """
    url = legacy.get("api-server-endpoint") or str(_part(values, "publishing").get("apiServerEndpoint") or "")
    host = urlsplit(url).hostname or ""
    return system_variant == "isp-full-generic" and not re.fullmatch(r"[0-9.]+|[0-9a-f:]+", host)


def _part(values: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    found: Any = values
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
