"""The objects that Cozystack's operator and charts write, as the lab writes them. Pure builders."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from cozystack_iac.kube.client import Object, Ref
from lab.platform.catalogue import (
    PLATFORM_PACKAGE,
    PLATFORM_VARIANTS,
    ROOT_TENANT_RELEASE,
    ChartRelease,
    Component,
    Package,
    Release,
    Traits,
)
from lab.platform.helmstatus import Chart

SYSTEM = "cozy-system"
NO_DELETE = "platform.cozystack.io/no-delete"
TENANT_SHARD = {"sharding.fluxcd.io/key": "tenants"}
FINALIZER = "finalizers.fluxcd.io"

# kind -> (api version, plural, namespaced)
KINDS: Mapping[str, tuple[str, str, bool]] = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "Service": ("v1", "services", True),
    "Secret": ("v1", "secrets", True),
    "ConfigMap": ("v1", "configmaps", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "Job": ("batch/v1", "jobs", True),
    "Lease": ("coordination.k8s.io/v1", "leases", True),
    "Deployment": ("apps/v1", "deployments", True),
    "StorageClass": ("storage.k8s.io/v1", "storageclasses", False),
    "Ingress": ("networking.k8s.io/v1", "ingresses", True),
    "IngressClass": ("networking.k8s.io/v1", "ingressclasses", False),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices", True),
    "APIService": ("apiregistration.k8s.io/v1", "apiservices", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ValidatingAdmissionPolicy": ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        False,
    ),
    "Package": ("cozystack.io/v1alpha1", "packages", False),
    "PackageSource": ("cozystack.io/v1alpha1", "packagesources", False),
    "HelmRelease": ("helm.toolkit.fluxcd.io/v2", "helmreleases", True),
    "OCIRepository": ("source.toolkit.fluxcd.io/v1", "ocirepositories", True),
    "ExternalArtifact": ("source.toolkit.fluxcd.io/v1", "externalartifacts", True),
    "ArtifactGenerator": ("source.extensions.fluxcd.io/v1beta1", "artifactgenerators", True),
    "ClusterIssuer": ("cert-manager.io/v1", "clusterissuers", False),
    "LinstorCluster": ("piraeus.io/v1", "linstorclusters", False),
    "LinstorSatellite": ("piraeus.io/v1", "linstorsatellites", False),
    "LinstorSatelliteConfiguration": ("piraeus.io/v1", "linstorsatelliteconfigurations", False),
}


def kind_ref(kind: str, namespace: str | None = None, name: str | None = None) -> Ref:
    """A collection or an object of one of `KINDS`."""
    api_version, plural, _ = KINDS[kind]
    return Ref(api_version, plural, namespace, name)


def ref_of(obj: Object) -> Ref:
    meta = obj["metadata"]
    return kind_ref(obj["kind"], meta.get("namespace"), meta["name"])


def new(kind: str, name: str, namespace: str | None = None, **body: Any) -> Object:
    """An object of one of `KINDS`; `labels`, `annotations` and `owners` go into its metadata."""
    metadata: dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    for key, field in (
        ("labels", "labels"),
        ("annotations", "annotations"),
        ("owners", "ownerReferences"),
        ("finalizers", "finalizers"),
    ):
        if body.get(key):
            metadata[field] = body[key]
        body.pop(key, None)
    return {"apiVersion": KINDS[kind][0], "kind": kind, "metadata": metadata, **body}


def base64_text(text: str) -> str:
    """How the API carries bytes in JSON."""
    return base64.b64encode(text.encode()).decode()


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type_: str, status: str, reason: str, message: str, generation: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(),
    }
    return found | ({"observedGeneration": generation} if generation is not None else {})


def owner(obj: Object) -> dict[str, Any]:
    """A controller reference to an object that exists."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


# Namespaces ------------------------------------------------------------------------------------------------------------


def namespace(name: str, *, privileged: bool = False, no_delete: bool = False) -> Object:
    """A namespace as the operator makes it; tenants' namespaces do not count as part of the system."""
    labels = {} if name.startswith("tenant-") else {"cozystack.io/system": "true"}
    if privileged:
        labels["pod-security.kubernetes.io/enforce"] = "privileged"
    if no_delete:
        labels[NO_DELETE] = "true"
    return new("Namespace", name, labels=labels, annotations={"helm.sh/resource-policy": "keep"})


def namespaces(packages: Iterable[Package]) -> dict[str, bool]:
    """Every namespace of these packages, and whether anything privileged runs in it."""
    found: dict[str, bool] = {}
    for package in packages:
        for component in package.components:
            found[component.namespace] = found.get(component.namespace, False) or component.privileged
    return found


# Packages --------------------------------------------------------------------------------------------------------------


def platform_source() -> Object:
    """The PackageSource that the operator itself writes; everything else comes out of its chart."""
    variants = [
        {
            "name": name,
            "components": [
                {
                    "name": "platform",
                    "path": "core/platform",
                    "valuesFiles": ["values.yaml"] + ([f"values-{name}.yaml"] if name != "default" else []),
                    "install": {"namespace": SYSTEM, "releaseName": "cozystack-platform"},
                }
            ],
        }
        for name in PLATFORM_VARIANTS
    ]
    return new(
        "PackageSource",
        PLATFORM_PACKAGE,
        annotations={"operator.cozystack.io/skip-cozystack-values": "true"},
        spec={
            "sourceRef": {"kind": "OCIRepository", "name": "cozystack-platform", "namespace": SYSTEM, "path": "/"},
            "variants": variants,
        },
    )


def package_source(name: str, variants: Iterable[Package]) -> Object:
    return new(
        "PackageSource",
        name,
        labels={"app.kubernetes.io/managed-by": "Helm"},
        annotations={"helm.sh/resource-policy": "keep"},
        spec={
            "sourceRef": {"kind": "OCIRepository", "name": "cozystack-packages", "namespace": SYSTEM, "path": "/"},
            "variants": [
                {
                    "name": variant.variant,
                    "dependsOn": list(variant.needs),
                    "components": [_component(component) for component in variant.components],
                }
                for variant in variants
            ],
        },
    )


def package(chosen: Package) -> Object:
    return new(
        "Package",
        chosen.name,
        labels={"app.kubernetes.io/managed-by": "Helm"},
        annotations={"helm.sh/resource-policy": "keep"},
        spec={"variant": chosen.variant},
    )


def _component(component: Component) -> dict[str, Any]:
    install: dict[str, Any] = {"namespace": component.namespace, "releaseName": component.release}
    if component.privileged:
        install["privileged"] = True
    if component.after:
        install["dependsOn"] = list(component.after)
    return {"name": component.name, "path": f"system/{component.name}", "install": install}


# Releases --------------------------------------------------------------------------------------------------------------


def platform_release(pkg: Object, variant: str, values: Mapping[str, Any] | None, traits: Traits) -> Object:
    spec = _operator_spec(f"cozystack-cozystack-platform-{variant}-platform", (), traits)
    del spec["valuesFrom"]
    if values is not None:
        spec["values"] = values
    return _operator_release("cozystack-platform", SYSTEM, pkg, spec, privileged=False, suspended=False)


def release(item: Release, pkg: Object, traits: Traits, *, suspended: bool) -> Object:
    component = item.component
    values = ((pkg.get("spec") or {}).get("components") or {}).get(component.name, {}).get("values")
    spec = _operator_spec(item.artifact, item.depends_on, traits)
    if values is not None:
        spec["values"] = values
    return _operator_release(
        component.release, component.namespace, pkg, spec, privileged=component.privileged, suspended=suspended
    )


def chart_release(item: ChartRelease, values: Mapping[str, Any] | None = None) -> Object:
    """A HelmRelease that another release's chart renders."""
    labels = dict(TENANT_SHARD) if item.namespace == "tenant-root" else {"cozystack.io/system-app": "true"}
    kind, name = ("Tenant", "tenant-root") if item.ref == ROOT_TENANT_RELEASE else (item.kind, item.name)
    if kind:
        labels |= {
            "apps.cozystack.io/application.kind": kind,
            "apps.cozystack.io/application.group": "apps.cozystack.io",
            "apps.cozystack.io/application.name": name,
        }
    spec: dict[str, Any] = {"chartRef": _chart_ref(item.artifact), "interval": item.interval}
    if item.ref == ROOT_TENANT_RELEASE:
        labels[NO_DELETE] = "true"
    else:
        labels |= {"internal.cozystack.io/tenantmodule": "true"} if kind else {}
        spec["install"] = spec["upgrade"] = {"remediation": {"retries": -1}}
    if item.timeout:
        spec["timeout"] = item.timeout
    if item.release_name:
        spec["releaseName"] = item.release_name
    if item.needs:
        spec["dependsOn"] = [_dependency(need) for need in item.needs]
    spec["valuesFrom"] = [{"kind": "Secret", "name": "cozystack-values"}]
    if values:
        spec["values"] = dict(values)
    return new("HelmRelease", item.name, item.namespace, labels=labels, finalizers=[FINALIZER], spec=spec)


def chart_of(obj: Object) -> Chart:
    """What helm-controller calls the chart of a HelmRelease: version 0.0.0 plus 12 digits of the artifact's digest."""
    meta, spec = obj["metadata"], obj.get("spec") or {}
    artifact = str((spec.get("chartRef") or {}).get("name") or meta["name"])
    digest = hashlib.sha256(artifact.encode()).hexdigest()[:12]
    return Chart(
        f"{meta['namespace']}/{spec.get('releaseName') or meta['name']}", f"cozy-{meta['name']}", f"0.0.0+{digest}"
    )


def _operator_spec(artifact: str, depends_on: Iterable[str], traits: Traits) -> dict[str, Any]:
    failing: dict[str, Any] = (
        {"strategy": {"name": "RetryOnFailure", "retryInterval": "30s"}, "timeout": "10m"}
        if traits.retries
        else {"remediation": {"retries": -1}, "timeout": "10m"}
    )
    spec: dict[str, Any] = {
        "chartRef": _chart_ref(artifact),
        "interval": "5m",
        "install": failing,
        "upgrade": failing,
        "valuesFrom": [{"kind": "Secret", "name": "cozystack-values"}],
    }
    if traits.retries:
        spec["maxHistory"] = 5
    needs = [_dependency(ref) for ref in depends_on]
    return spec | ({"dependsOn": needs} if needs else {})


def _operator_release(
    name: str, in_namespace: str, pkg: Object, spec: dict[str, Any], *, privileged: bool, suspended: bool
) -> Object:
    labels = {"cozystack.io/package": pkg["metadata"]["name"]}
    if privileged:
        labels["cozystack.io/privileged"] = "true"
    if suspended:
        spec = spec | {"suspend": True}
    return new("HelmRelease", name, in_namespace, labels=labels, owners=[owner(pkg)], finalizers=[FINALIZER], spec=spec)


def _chart_ref(artifact: str) -> dict[str, str]:
    return {"kind": "ExternalArtifact", "name": artifact, "namespace": SYSTEM}


def _dependency(ref: str) -> dict[str, str]:
    in_namespace, name = ref.split("/")
    return {"name": name, "namespace": in_namespace}


# Sources ---------------------------------------------------------------------------------------------------------------


def oci_repository(name: str) -> Object:
    return new(
        "OCIRepository",
        name,
        SYSTEM,
        labels={NO_DELETE: "true"} if name == "cozystack-packages" else {},
        spec={"interval": "5m", "url": "oci://ghcr.io/cozystack/cozystack/cozystack-packages"},
    )


def stored_artifact(revision: str) -> dict[str, Any]:
    """Status of an OCIRepository that has been pulled."""
    text = f"stored artifact for digest '{revision}'"
    return {
        "observedGeneration": 1,
        "artifact": {"revision": revision, "digest": revision.split("@")[-1]},
        "conditions": [
            condition("Ready", "True", "Succeeded", text, 1),
            condition("ArtifactInStorage", "True", "Succeeded", text, 1),
        ],
    }


def external_artifact(name: str) -> Object:
    return new("ExternalArtifact", name, SYSTEM, spec={"sourceRef": {"kind": "ArtifactGenerator", "name": name}})


# Workloads -------------------------------------------------------------------------------------------------------------


def deployment(
    name: str,
    in_namespace: str,
    *,
    containers: Iterable[str] = (),
    labels: Mapping[str, str] | None = None,
    host_network: bool = False,
    replicas: int = 1,
) -> Object:
    """A Deployment whose pods only KWOK runs; images are names, nothing is pulled."""
    match = {"app.kubernetes.io/name": name}
    return new(
        "Deployment",
        name,
        in_namespace,
        labels=match | dict(labels or {}),
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": match},
            "template": {
                "metadata": {"labels": match | dict(labels or {})},
                "spec": {
                    "hostNetwork": host_network,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": c, "image": f"lab.invalid/{c}"} for c in containers or (name,)],
                },
            },
        },
    )


def service(name: str, in_namespace: str, selector: str, port: int, **spec: Any) -> Object:
    """Without a `selector` whoever plays the Service says who is behind it."""
    ports = [{"name": "https" if port in (443, 3371) else "http", "port": port, "targetPort": port}]
    chosen = {"selector": {"app.kubernetes.io/name": selector}} if selector else {}
    return new("Service", name, in_namespace, spec={**chosen, "ports": ports, **spec})


def ingress_class(name: str) -> Object:
    return new("IngressClass", name, spec={"controller": f"k8s.io/ingress-nginx-{name}"})
