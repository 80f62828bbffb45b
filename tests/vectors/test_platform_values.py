"""Values and objects we render, held against the charts and CRDs of every release."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cozystack_iac import releases
from cozystack_iac.platform import installer, package, tenant
from cozystack_iac.platform.claim import CHART_OBJECTS
from cozystack_iac.platform.package import merged
from cozystack_iac.platform.values import expected
from cozystack_iac.releases import RENDERED_KEYS, Release
from cozystack_iac.settings import Site
from lab.platform import catalogue, rendered
from tests.recorded import RELEASES

VARIANTS = ("talos", "generic", "hosted")
NODES = [{"name": "cp1", "role": "controlPlane", "address": "10.0.0.11"}]
PLAIN: dict[str, Any] = {
    "publishing": {"host": "example.org", "hostOwned": True},
    "nodes": NODES,
}
# Everything a stack file can ask of the package; what a release does not know is left out of it.
RICH: dict[str, Any] = {
    "network": {
        "masterNodes": ["10.0.0.11"],
        "registries": {
            "mirrors": {"docker.io": {"endpoints": ["https://mirror.example.org"]}},
            "config": {
                "mirror.example.org": {
                    "auth": {"username": "u", "password": "canary"},
                    "tls": {"insecureSkipVerify": True},
                }
            },
        },
    },
    "publishing": {
        "proxyProtocol": True,
        "loadBalancer": True,
        "loadBalancerClass": "robotlb",
        "exposed": ["api", "dashboard", "vm-exportproxy", "cdi-uploadproxy", "linstor-gui"],
        "certificates": {
            "solver": "dns01",
            "issuer": "letsencrypt-stage",
            "dns01": {"provider": "route53", "region": "eu-1", "accessKeyID": "AK", "secretName": "s", "secretKey": "k"},
            "wildcard": True,
            "wildcardSecretName": "wild",
        },
    },
    "platform": {
        "bundles": {
            "system": True,
            "iaas": False,
            "paas": True,
            "naas": False,
            "enable": ["cozystack.hami"],
            "disable": ["cozystack.velero"],
        },
        "telemetry": False,
        "values": {"resources": {"cpuAllocationRatio": 4.5}, "authentication": {"oidc": {"insecureSkipVerify": True}}},
    },
    "tenant": {"gateway": True},
}  # fmt: skip
CASES = [
    (version, variant, oidc, parts)
    for version in RELEASES
    for variant in VARIANTS
    for oidc in (False, True)
    for parts in (PLAIN, merged(PLAIN, RICH))
]
each = pytest.mark.parametrize(
    ("version", "variant", "oidc", "parts"),
    CASES,
    ids=[f"{v}-{kind}-{'oidc' if o else 'token'}-{'plain' if p is PLAIN else 'rich'}" for v, kind, o, p in CASES],
)


def made(version: str, variant: str, oidc: bool, parts: Mapping[str, Any]) -> tuple[Site, Release]:
    release = releases.find(version)
    assert release is not None
    own = {"cluster": {"name": "eu1", "cozystack": version, "variant": variant}, "access": {"oidc": oidc}}
    return Site.model_validate(merged(parts, own)), release


def facts(vectors: Path, version: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((vectors / "cozystack" / version / name).read_text())
    return found


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")


@each
def test_every_value_we_set_exists_in_that_release(
    vectors: Path, version: str, variant: str, oidc: bool, parts: Mapping[str, Any]
) -> None:
    site, release = made(version, variant, oidc, parts)
    keys = facts(vectors, version, "platform-values.json")["keys"]
    known = {entry["path"] for entry in keys}
    free = tuple(e["path"] + "." for e in keys if e.get("default") == {} or e["path"] == "registries")
    values = merged(package.platform_values(site, release), {"authentication": package.authentication(site, release)})
    assert {path for path in set(leaves(values)) - known if not path.startswith(free)} == set()


@each
def test_every_value_of_the_installer_exists_in_that_release(
    vectors: Path, version: str, variant: str, oidc: bool, parts: Mapping[str, Any]
) -> None:
    site, _ = made(version, variant, oidc, parts)
    known = {entry["path"] for entry in facts(vectors, version, "installer-values.json")["keys"]}
    assert set(leaves(installer.installer_values(site))) - known == set()


@each
def test_every_value_we_read_back_is_rendered_by_that_release(
    vectors: Path, version: str, variant: str, oidc: bool, parts: Mapping[str, Any]
) -> None:
    site, release = made(version, variant, oidc, parts)
    values = merged(package.platform_values(site, release), {"authentication": package.authentication(site, release)})
    asked = expected(values, site.platform_variant, release)
    assert set(asked) - set(facts(vectors, version, "platform-values.json")["cozystack_values_secret_keys"]) == set()
    # The lab's own account of the template agrees with what the product waits for.
    choice = values.get("bundles", {}).get("system", {}).get("variant", site.platform_variant)
    played = rendered.cluster(catalogue.load(version).traits, choice, values, {})
    assert {key: played.get(key) for key in asked} == asked


@pytest.mark.parametrize("version", RELEASES)
def test_the_table_of_rendered_values_is_that_of_the_releases(vectors: Path, version: str) -> None:
    found = facts(vectors, version, "platform-values.json")
    paths = {entry["path"] for entry in found["keys"]}
    release = releases.find(version)
    assert release is not None
    values: dict[str, Any] = {}
    for path, _ in RENDERED_KEYS.values():
        if path in paths:
            values = merged(values, nested(path, "x"))
    assert set(expected(values, "isp-full", release)) <= set(found["cozystack_values_secret_keys"])


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` -> `{"a": {"b": value}}`."""
    for step in reversed(path.split(".")):
        value = {step: value}
    return dict(value)


@pytest.mark.parametrize("version", RELEASES)
def test_the_old_configmap_has_the_keys_we_write_and_compare(vectors: Path, version: str) -> None:
    site, _ = made(version, "generic", True, PLAIN)
    legacy = facts(vectors, version, "platform-values.json")["legacy_configmap"]
    assert (legacy["namespace"], legacy["name"]) == ("cozy-system", "cozystack")
    assert set(installer.legacy_expected(site)) == set(legacy["keys"])
    assert "Cilium" in legacy["keys"]["api-server-endpoint"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", RELEASES)
def test_helm_objects_that_the_claim_looks_at_are_those_of_the_chart(vectors: Path, version: str, variant: str) -> None:
    objects = facts(vectors, version, "installer-values.json")["objects"][variant]
    plain = {(o["kind"].lower() + "s", o["name"], o["namespace"]) for o in objects if not o.get("hook")}
    looked = {(ref.plural, ref.name, ref.namespace) for ref in CHART_OBJECTS}
    _, release = made(version, variant, True, PLAIN)
    namespaces = {("namespaces", "cozy-system", None)} if not release.creates_namespace else set()
    assert looked | namespaces == plain


# The real CRDs --------------------------------------------------------------------------------------------------------


def problems(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Where `value` does not fit an OpenAPI v3 schema of a CRD; unknown fields count."""
    if schema.get("x-kubernetes-int-or-string"):
        yield from [] if isinstance(value, int | str) else [f"{path}: {value!r} is neither number nor text"]
        return
    kinds: dict[str, Any] = {"object": Mapping, "array": list, "string": str, "boolean": bool}
    kinds |= {"integer": int, "number": (int, float)}
    wanted = schema.get("type")
    if wanted and not isinstance(value, kinds[wanted]):
        yield f"{path}: {type(value).__name__} is no {wanted}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, Mapping):
        known = schema.get("properties") or {}
        for key in set(schema.get("required") or ()) - value.keys():
            yield f"{path}.{key} is missing"
        for key, inner in value.items():
            if key in known:
                yield from problems(known[key], inner, f"{path}.{key}")
            elif isinstance(schema.get("additionalProperties"), Mapping):
                yield from problems(schema["additionalProperties"], inner, f"{path}.{key}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and path:
                yield f"{path}.{key} is unknown"
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from problems(schema.get("items") or {}, inner, f"{path}[{index}]")


def schema_of(vectors: Path, version: str, crd: str) -> tuple[dict[str, Any], dict[str, Any]]:
    found = YAML(typ="safe", pure=True).load(vectors / "cozystack" / "crds" / version / f"{crd}.yaml")
    [served] = [v for v in found["spec"]["versions"] if v["served"]]
    return found["spec"], served


@each
def test_the_package_fits_the_real_crd(
    vectors: Path, version: str, variant: str, oidc: bool, parts: Mapping[str, Any]
) -> None:
    site, release = made(version, variant, oidc, parts)
    spec, served = schema_of(vectors, version, "packages.cozystack.io")
    rendered_package = package.package(site, release)
    assert rendered_package["apiVersion"] == f"{spec['group']}/{served['name']}"
    assert (rendered_package["kind"], spec["scope"]) == (spec["names"]["kind"], "Cluster")
    schema = served["schema"]["openAPIV3Schema"]
    assert list(problems(schema["properties"]["spec"], rendered_package["spec"], "spec")) == []


def test_the_check_against_crds_can_fail(vectors: Path) -> None:
    schema = schema_of(vectors, "1.6.2", "packages.cozystack.io")[1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(problems(schema, {"variant": 1}, "spec")) == ["spec.variant: int is no string"]
    assert list(problems(schema, {"frob": {}}, "spec")) == ["spec.frob is unknown"]


@pytest.mark.parametrize("version", RELEASES)
def test_the_tenants_spec_has_only_keys_of_that_release(version: str) -> None:
    site, release = made(version, "talos", True, merged(PLAIN, RICH))
    known = {"host", "etcd", "monitoring", "ingress", "seaweedfs"} | (
        {"gateway"} if release.tenant_has("gateway") else set()
    )
    assert set(tenant.root_spec(site, release)) == known
