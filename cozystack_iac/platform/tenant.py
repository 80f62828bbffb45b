"""The root tenant as data: what its spec has to say, and what of that is missing. Pure.

It is served by an aggregated API (there is no CRD), created by the platform with an empty spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cozystack_iac.kube.client import Ref
from cozystack_iac.releases import Release
from cozystack_iac.settings import Site

RELEASES = ("cozy-system/cozystack-api", "cozy-system/tenant-rd", "cozy-system/cozystack-basics")  # what brings it
ROOT = Ref("apps.cozystack.io/v1alpha1", "tenants", "tenant-root", "root")


def root_spec(site: Site, release: Release) -> dict[str, Any]:
    """Host and ingress belong together: either alone leaves a half-published platform."""
    spec: dict[str, Any] = {
        "host": site.publishing.host,
        "ingress": site.tenant.ingress,
        "etcd": site.tenant.etcd,
        "monitoring": site.tenant.monitoring,
        "seaweedfs": site.tenant.seaweedfs,
    }
    if release.tenant_has("gateway"):
        spec["gateway"] = site.tenant.gateway
    return spec


def missing(wanted: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `wanted` that `spec` does not say yet; an absent switch means off."""
    return {key: value for key, value in wanted.items() if spec.get(key, "" if key == "host" else False) != value}
