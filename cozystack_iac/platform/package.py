"""The platform package as data: one `Package` whose only component, `platform`, takes all values. Pure.

Other component keys are silently ignored upstream, so nothing else is ever emitted. Which keys a release knows comes from
`cozystack_iac.releases`; the same table serves the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cozystack_iac.platform.claim import PACKAGE_MARKS
from cozystack_iac.platform.installer import PLATFORM_PACKAGE
from cozystack_iac.releases import KEYCLOAK_INTERNAL_URL, Release
from cozystack_iac.settings import Dns01, Registries, Site


def package(site: Site, release: Release) -> dict[str, Any]:
    """The Package object. It is cluster-scoped and has to be called like its PackageSource."""
    return {
        "apiVersion": "cozystack.io/v1alpha1",
        "kind": "Package",
        "metadata": {"name": PLATFORM_PACKAGE, "labels": dict(PACKAGE_MARKS)},
        "spec": {
            "variant": site.platform_variant,
            "components": {"platform": {"values": platform_values(site, release)}},
        },
    }


def carries_secrets(site: Site) -> bool:
    """Whether the values contain credentials, so that the whole object has to be a secret in state and diffs."""
    return any(config.auth is not None for config in site.network.registries.config.values())


def platform_values(site: Site, release: Release) -> dict[str, Any]:
    """Values of component `platform`; the user's own are merged last.

    Where OIDC is switched on in a second step, `authentication` is not among them: that part of the Package belongs to the stage
    `SignOn`, and what two writers claim is fought over at every run.
    """
    values: dict[str, Any] = {"networking": _networking(site), "publishing": _publishing(site, release)}
    if not release.oidc_later:
        values["authentication"] = {"oidc": _oidc(site, release)}
    _set(values, "bundles", _bundles(site, release))
    _set(values, "registries", _registries(site.network.registries))
    if release.has("gateway") and site.tenant.gateway:
        values["gateway"] = {"enabled": True}
    if release.has("monitoring"):
        # Differing from the tenant's own switch loses logs without a word.
        values["monitoring"] = {"rootEnabled": site.tenant.monitoring}
    given = dict(site.platform.values)
    if release.oidc_later:
        given.pop("authentication", None)
    return merged(values, given)


def authentication(site: Site, release: Release) -> dict[str, Any]:
    """The part of the values that says who signs people in, as it is in the end."""
    given = site.platform.values.get("authentication")
    return merged({"oidc": _oidc(site, release)}, given if isinstance(given, Mapping) else {})


def hosted_is_made_to_work(site: Site) -> bool:
    """Whether somebody decided that isp-hosted is installed with what it lacks as released (VER-008)."""
    wanted = site.platform.bundles.system
    return site.platform_variant == "isp-hosted" and (wanted is True or (wanted is None and "VER-008" in site.allowed))


def merged(base: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Helm's own merge: mappings are merged, everything else (lists too) is replaced."""
    result = dict(base)
    for key, value in last.items():
        inner = result.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            value = merged(inner, value)
        result[key] = value
    return result


def _networking(site: Site) -> dict[str, Any]:
    networking: dict[str, Any] = {
        "clusterDomain": site.cluster.domain,
        "podCIDR": site.network.pod_cidr,
        "podGateway": site.pod_gateway,
        "serviceCIDR": site.network.service_cidr,
        "joinCIDR": site.network.join_cidr,
    }
    if site.network.master_nodes:
        networking["kubeovn"] = {"MASTER_NODES": ",".join(site.network.master_nodes)}
    return networking


def _publishing(site: Site, release: Release) -> dict[str, Any]:
    publishing: dict[str, Any] = {
        "host": site.publishing.host,
        "exposedServices": list(site.publishing.exposed),
        "apiServerEndpoint": site.api_server_endpoint,
        "externalIPs": list(site.external_ips),
        "certificates": _certificates(site, release),
    }
    if release.has("publishing.proxyProtocol") and site.publishing.proxy_protocol:
        publishing["proxyProtocol"] = True
    if release.has("publishing.loadBalancerClass"):
        _set(publishing, "loadBalancerClass", site.publishing.load_balancer_class)
    return publishing


def _certificates(site: Site, release: Release) -> dict[str, Any]:
    wanted = site.publishing.certificates
    certificates: dict[str, Any] = {"solver": wanted.solver, "issuerName": wanted.issuer}
    if wanted.dns01 is not None and release.has("publishing.certificates.dns01"):
        certificates["dns01"] = _dns01(wanted.dns01)
    if wanted.wildcard and release.has("publishing.certificates.wildcard"):
        certificates["wildcard"] = True
    if release.has("publishing.certificates.wildcardSecretName"):
        _set(certificates, "wildcardSecretName", wanted.wildcard_secret_name)
    return certificates


def _dns01(wanted: Dns01) -> dict[str, Any]:
    given = {
        "secretName": wanted.secret_name,
        "secretKey": wanted.secret_key,
        "region": wanted.region,
        "accessKeyID": wanted.access_key_id,
        "nameserver": wanted.nameserver,
        "tsigKeyName": wanted.tsig_key_name,
        "tsigAlgorithm": wanted.tsig_algorithm,
    }
    return {"provider": wanted.provider, wanted.provider: {k: v for k, v in given.items() if v is not None}}


def _oidc(site: Site, release: Release) -> dict[str, Any]:
    oidc: dict[str, Any] = {"enabled": site.access.oidc}
    # Without an internal URL, releases before 1.6 look Keycloak up through an ingress that only comes after the dashboard.
    url = site.access.keycloak_internal_url or ("" if release.oidc_at_install else KEYCLOAK_INTERNAL_URL)
    if site.access.oidc and url:
        oidc["keycloakInternalUrl"] = url
    return oidc


def _bundles(site: Site, release: Release) -> dict[str, Any]:
    wanted = site.platform.bundles
    bundles: dict[str, Any] = {}
    for name, enabled in (
        ("system", wanted.system),
        ("iaas", wanted.iaas),
        ("paas", wanted.paas),
        ("naas", wanted.naas),
    ):
        if enabled is not None:
            bundles[name] = {"enabled": enabled}
    disabled = list(wanted.disable)
    if hosted_is_made_to_work(site):
        # Without the variant the bundle would bring a CNI to a cluster that has one.
        bundles["system"] = {"enabled": True, "variant": "isp-hosted"}
        disabled += [name for name in release.hosted_without if name not in disabled]
    _set(bundles, "enabledPackages", _enabled_packages(site, release))
    _set(bundles, "disabledPackages", disabled)
    return bundles


def _enabled_packages(site: Site, release: Release) -> list[str]:
    wanted = site.platform.bundles.enable
    if not wanted or site.platform_variant != "isp-full-generic":
        return list(wanted)
    # Package values replace lists, so the variant's own list is repeated wherever something is added to it.
    return list(dict.fromkeys((*release.generic_enabled, *wanted)))


def _registries(wanted: Registries) -> dict[str, Any]:
    registries: dict[str, Any] = {}
    _set(registries, "mirrors", {host: {"endpoints": list(m.endpoints)} for host, m in wanted.mirrors.items()})
    config: dict[str, Any] = {}
    for endpoint, access in wanted.config.items():
        entry: dict[str, Any] = {}
        if access.tls.insecure_skip_verify:
            entry["tls"] = {"insecureSkipVerify": True}
        if access.auth is not None:
            entry["auth"] = {"username": access.auth.username, "password": access.auth.password.get_secret_value()}
        config[endpoint] = entry
    _set(registries, "config", config)
    return registries


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Leave out what was not given: the release's own default is the right one."""
    if value:
        values[key] = value
