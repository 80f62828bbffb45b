"""The custom resources the lab serves: right names, scopes and versions, schemas that accept what the real ones accept.

Deliberately minimal: objects are validated by the product's tests against the real schemas, not by the lab. Kinds that nothing
in the lab or the product touches are left out; each CRD costs the API server memory and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.platform.catalogue import Traits

OPERATOR = ("packages.cozystack.io", "packagesources.cozystack.io")
FLUX = (
    "helmreleases.helm.toolkit.fluxcd.io",
    "ocirepositories.source.toolkit.fluxcd.io",
    "gitrepositories.source.toolkit.fluxcd.io",
    "externalartifacts.source.toolkit.fluxcd.io",
    "artifactgenerators.source.extensions.fluxcd.io",
)
_READY = ".status.conditions[?(@.type=='Ready')]"
_COLUMNS = {
    "Package": (("Variant", ".spec.variant"), ("Ready", f"{_READY}.status"), ("Status", f"{_READY}.message")),
    "PackageSource": (("Variants", ".status.variants"), ("Ready", f"{_READY}.status"), ("Status", f"{_READY}.message")),
    "HelmRelease": (("Ready", f"{_READY}.status"), ("Status", f"{_READY}.message")),
}


@dataclass(frozen=True)
class _Kind:
    kind: str
    version: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    status: bool = True
    older: str = ""  # a version that is served where `Traits.older_apis`


_KINDS = {
    "packages.cozystack.io": _Kind("Package", "v1alpha1", False, ("pkg", "pkgs")),
    "packagesources.cozystack.io": _Kind("PackageSource", "v1alpha1", False, ("pks",)),
    "applicationdefinitions.cozystack.io": _Kind("ApplicationDefinition", "v1alpha1", False, status=False),
    "helmreleases.helm.toolkit.fluxcd.io": _Kind("HelmRelease", "v2", short=("hr",), older="v2beta2"),
    "ocirepositories.source.toolkit.fluxcd.io": _Kind("OCIRepository", "v1", short=("ocirepo",), older="v1beta2"),
    "gitrepositories.source.toolkit.fluxcd.io": _Kind("GitRepository", "v1", short=("gitrepo",), older="v1beta2"),
    "externalartifacts.source.toolkit.fluxcd.io": _Kind("ExternalArtifact", "v1"),
    "artifactgenerators.source.extensions.fluxcd.io": _Kind("ArtifactGenerator", "v1beta1", short=("ag",)),
    "certificates.cert-manager.io": _Kind("Certificate", "v1", short=("cert", "certs")),
    "certificaterequests.cert-manager.io": _Kind("CertificateRequest", "v1", short=("cr", "crs")),
    "issuers.cert-manager.io": _Kind("Issuer", "v1", short=("iss",)),
    "clusterissuers.cert-manager.io": _Kind("ClusterIssuer", "v1", False, ("ciss",)),
    "orders.acme.cert-manager.io": _Kind("Order", "v1"),
    "challenges.acme.cert-manager.io": _Kind("Challenge", "v1"),
    "ipaddresspools.metallb.io": _Kind("IPAddressPool", "v1beta1"),
    "l2advertisements.metallb.io": _Kind("L2Advertisement", "v1beta1"),
    "linstorclusters.piraeus.io": _Kind("LinstorCluster", "v1", False),
    "linstorsatelliteconfigurations.piraeus.io": _Kind("LinstorSatelliteConfiguration", "v1", False),
    "linstorsatellites.piraeus.io": _Kind("LinstorSatellite", "v1", False),
    "linstornodeconnections.piraeus.io": _Kind("LinstorNodeConnection", "v1", False),
}


def served(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` (plural.group) that the lab serves."""
    return tuple(name for name in names if name in _KINDS)


def definition(name: str, traits: Traits) -> dict[str, Any]:
    """The CustomResourceDefinition `plural.group`, as a Cozystack release with these traits brings it."""
    plural, group = name.split(".", 1)
    kind = _KINDS[name]
    versions = [_version(kind, kind.version, storage=True)]
    if kind.older and traits.older_apis:
        versions.append(_version(kind, kind.older, storage=False))
    labels = {"platform.cozystack.io/no-delete": "true"} if name in OPERATOR and traits.guardrail else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "group": group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short),
            },
            "versions": versions,
        },
    }


def _version(kind: _Kind, name: str, *, storage: bool) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: dict[str, Any] = {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
        "additionalPrinterColumns": [
            {"name": title, "type": "string", "jsonPath": path} for title, path in _COLUMNS.get(kind.kind, ())
        ],
    }
    if kind.status:
        version["subresources"] = {"status": {}}
    return version
