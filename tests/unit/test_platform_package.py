"""The platform package: only keys its release knows, the stack file's values in the right places."""

from typing import Any

import pytest

from cozystack_iac import releases
from cozystack_iac.components.access import Access
from cozystack_iac.components.cozy_installer import claim
from cozystack_iac.platform.installer import chart, installer_values, legacy_config
from cozystack_iac.platform.package import authentication, carries_secrets, merged, package, platform_values
from cozystack_iac.platform.tenant import missing, root_spec
from cozystack_iac.releases import KEYCLOAK_INTERNAL_URL, Release
from cozystack_iac.settings import Site


def release(version: str) -> Release:
    found = releases.find(version)
    assert found is not None
    return found


def site(version: str = "1.6.2", **parts: Any) -> Site:
    base: dict[str, Any] = {
        "cluster": {"name": "eu1", "cozystack": version},
        "publishing": {"host": "example.org", "hostOwned": True},
        "nodes": [{"name": "cp1", "role": "controlPlane", "address": "10.0.0.11"}],
    }
    return Site.model_validate(merged(base, parts))


FULL: dict[str, Any] = {
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
        "loadBalancerClass": "robotlb",
        "certificates": {
            "solver": "dns01",
            "dns01": {"provider": "cloudflare", "secretName": "token"},
            "wildcard": True,
        },
    },
    "platform": {"bundles": {"naas": False, "enable": ["cozystack.external-dns"], "disable": ["cozystack.velero"]}},
    "tenant": {"gateway": True},
}


def test_the_package_has_the_one_component_that_exists() -> None:
    made = package(site(), release("1.6.2"))
    assert made["metadata"]["name"] == "cozystack.cozystack-platform"
    assert list(made["spec"]["components"]) == ["platform"]
    assert made["spec"]["variant"] == "isp-full"


def test_values_of_a_plain_site() -> None:
    values = platform_values(site(), release("1.6.2"))
    assert values["networking"]["podGateway"] == "10.244.0.1"
    assert values["publishing"]["apiServerEndpoint"] == "https://api.example.org:443"
    assert values["publishing"]["externalIPs"] == ["10.0.0.11"]
    assert values["monitoring"] == {"rootEnabled": True}
    assert "bundles" not in values
    assert "registries" not in values


def test_the_users_values_come_last() -> None:
    values = platform_values(site(platform={"values": {"resources": {"cpuAllocationRatio": 4}}}), release("1.6.2"))
    assert values["resources"] == {"cpuAllocationRatio": 4}


@pytest.mark.parametrize(("version", "url"), [("1.4.6", KEYCLOAK_INTERNAL_URL), ("1.6.2", None)])
def test_oidc_that_is_on_at_install_never_waits_for_the_ingress(version: str, url: str | None) -> None:
    oidc = platform_values(site(version), release(version))["authentication"]["oidc"]
    assert (oidc["enabled"], oidc.get("keycloakInternalUrl")) == (True, url)


@pytest.mark.parametrize("version", ["1.3.6", "1.5.4"])
def test_where_oidc_comes_later_the_package_leaves_it_to_the_second_step(version: str) -> None:
    given = {"platform": {"values": {"authentication": {"oidc": {"keycloakExtraRedirectUri": "https://x"}}}}}
    made = site(version, **given)
    assert "authentication" not in platform_values(made, release(version))
    assert authentication(made, release(version)) == {
        "oidc": {
            "enabled": True,
            "keycloakInternalUrl": KEYCLOAK_INTERNAL_URL,
            "keycloakExtraRedirectUri": "https://x",
        }
    }


def test_hosted_with_the_system_bundle_never_brings_a_second_network() -> None:
    hosted = site(cluster={"variant": "hosted"}, platform={"bundles": {"system": True}})
    assert platform_values(hosted, release("1.6.2"))["bundles"]["system"] == {"enabled": True, "variant": "isp-hosted"}


ALLOWED = [{"guardrail": "VER-008", "reason": "tried on staging"}]


@pytest.mark.parametrize(
    ("parts", "system", "without"),
    [
        ({}, None, None),
        ({"platform": {"bundles": {"system": True}}}, True, ["cozystack.backupstrategy-controller"]),
        ({"allow": ALLOWED}, True, ["cozystack.backupstrategy-controller"]),
        ({"allow": ALLOWED, "platform": {"bundles": {"system": False}}}, False, None),
        ({"allow": ALLOWED, "cluster": {"cozystack": "1.4.6"}}, True, None),
    ],
    ids=["as released", "asked for", "allowed", "refused by hand", "before 1.5"],
)
def test_hosted_is_changed_only_by_a_decision(
    parts: dict[str, Any], system: bool | None, without: list[str] | None
) -> None:
    hosted = site(**merged({"cluster": {"variant": "hosted"}}, parts))
    bundles = platform_values(hosted, release(hosted.cluster.cozystack)).get("bundles", {})
    assert bundles.get("system", {}).get("enabled") is system
    assert bundles.get("disabledPackages") == without


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.4.6", ["cozystack.velero", "cozystack.backupstrategy-controller", "cozystack.hami"]),
        ("1.6.2", ["cozystack.backupstrategy-controller", "cozystack.hami"]),
    ],
)
def test_enabling_a_package_keeps_those_the_variant_enables(version: str, expected: list[str]) -> None:
    generic = site(version, cluster={"variant": "generic"}, platform={"bundles": {"enable": ["cozystack.hami"]}})
    assert platform_values(generic, release(version))["bundles"]["enabledPackages"] == expected


def test_credentials_make_the_package_secret() -> None:
    assert carries_secrets(site(**FULL))
    assert not carries_secrets(site())


def test_merging_replaces_lists_and_merges_maps() -> None:
    assert merged({"a": {"b": [1], "c": 1}}, {"a": {"b": [2]}}) == {"a": {"b": [2], "c": 1}}


@pytest.mark.parametrize(
    ("version", "namespace", "creates"), [("1.3.6", "kube-system", False), ("1.4.0", "cozy-system", True)]
)
def test_the_installers_namespace_moved_with_1_4(version: str, namespace: str, creates: bool) -> None:
    assert (release(version).chart_namespace, release(version).creates_namespace) == (namespace, creates)
    claimed = claim(site(version), release(version), Access())
    assert (claimed.release_namespace, claimed.brings_namespace) == (namespace, not creates)


def test_installer_values_name_the_api_server_only_where_the_chart_asks() -> None:
    assert installer_values(site()) == {"cozystackOperator": {"variant": "talos"}}
    generic = installer_values(site(cluster={"variant": "generic"}))
    assert generic["cozystack"] == {"apiServerHost": "127.0.0.1", "apiServerPort": "7445"}


@pytest.mark.parametrize(
    ("parts", "endpoint"),
    [
        ({}, "https://127.0.0.1:7445"),
        ({"platform": {"prism": False}, "network": {"apiServerHost": "10.0.0.10"}}, "https://10.0.0.10:6443"),
        ({"platform": {"prism": False}, "network": {"apiServerHost": "fd00::1"}}, "https://[fd00::1]:6443"),
        ({"platform": {"variant": "default"}}, None),
    ],
)
def test_cilium_on_generic_clusters_is_told_its_own_way_to_the_api(parts: dict[str, Any], endpoint: str | None) -> None:
    generic = site(**merged({"cluster": {"variant": "generic"}}, parts))
    assert legacy_config(generic).get("api-server-endpoint") == endpoint
    published = platform_values(generic, release("1.6.2"))["publishing"]["apiServerEndpoint"]
    assert published == "https://api.example.org:443"


def test_elsewhere_nothing_is_written_to_the_old_configmap_but_what_overrules_is_known() -> None:
    talos = claim(site(), release("1.6.2"), Access())
    assert (talos.legacy_write, talos.legacy) == ({}, {"root-host": "example.org"})


def test_chart_versions_carry_no_v_and_folders_none() -> None:
    assert chart(site("v1.6.2")).version == "1.6.2"
    assert chart(site(platform={"chart": "charts/x"})).version is None


def test_the_root_tenant_gets_host_and_ingress_together() -> None:
    spec = root_spec(site(), release("1.6.2"))
    assert (spec["host"], spec["ingress"]) == ("example.org", True)
    assert "gateway" not in root_spec(site("1.4.6"), release("1.4.6"))


def test_only_what_differs_is_patched() -> None:
    wanted = {"host": "example.org", "ingress": True, "gateway": False}
    assert missing(wanted, {}) == {"host": "example.org", "ingress": True}
    assert missing(wanted, {"host": "example.org", "ingress": True}) == {}
    assert missing(wanted, {"host": "example.org", "ingress": False}) == {"ingress": True}
