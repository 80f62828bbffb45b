"""Machine-config documents: what a stack file says about disks, registries, sign-on and patches arrives in the machine."""

from typing import Any

import pytest

from cozystack_iac.talos import documents
from lab.plugins.talos import merge, secrets
from lab.talos import RELEASES
from tests.talos_documents import base_for, merged_for, site_on


@pytest.mark.parametrize(
    ("disk", "classic", "expression"),
    [
        (
            {"wwid": "naa.1", "serial": "S1"},
            {"diskSelector": {"wwid": "naa.1", "serial": "S1"}},
            'disk.wwid == "naa.1" && disk.serial == "S1"',
        ),
        ({"byId": "ata-X"}, {"disk": "/dev/disk/by-id/ata-X"}, '"/dev/disk/by-id/ata-X" in disk.symlinks'),
        ({"serial": 'a"b'}, {"diskSelector": {"serial": 'a"b'}}, 'disk.serial == "a\\"b"'),
        ({"selector": "disk.size > 1u"}, {"disk": "/dev/sda"}, "disk.size > 1u"),
    ],
)
def test_the_install_disk(bundle: secrets.Bundle, disk: Any, classic: dict[str, Any], expression: str) -> None:
    for minor in (13, 14):
        node = {"name": "n", "role": "worker", "address": "10.0.0.5", "installDisk": disk}
        site = site_on(minor, nodes=[node])
        merged = merged_for(bundle, site, site.nodes[0])
        if minor == 14:
            assert merged["UnattendedInstallConfig/"]["provisioning"]["diskSelector"]["match"] == expression
        else:
            install = merged["/"]["machine"]["install"]
            assert {key: install[key] for key in ("disk", "diskSelector") if key in install} == classic


@pytest.mark.parametrize("minor", RELEASES)
def test_registries_proxy_time_and_roots(bundle: secrets.Bundle, minor: int) -> None:
    network = {
        "nodeCIDR": "10.0.0.0/24",
        "registries": {
            "mirrors": {"ghcr.io": {"endpoints": ["https://m.example.org/ghcr"], "overridePath": True}},
            "config": {
                "m.example.org": {"auth": {"username": "u", "password": "canary"}, "tls": {"insecureSkipVerify": True}}
            },
        },
        "proxy": {"https": "http://proxy:3128", "noProxy": ["intern"], "trustedRoots": "PEM\n"},
    }
    site = site_on(minor, network=network, talos={"version": RELEASES[minor], "timeServers": ["10.0.0.1"]})
    node = site.nodes[0]
    written = documents.emit(documents.patches(site, node))
    assert "canary" not in written
    assert "canary" in documents.emit(documents.secret_patches(site, node))
    texts = [*documents.config_patches(site, node), documents.emit(documents.secret_patches(site, node))]
    merged = {
        f"{one.get('kind', '')}/{one.get('name', '')}": one
        for one in merge.patch(base_for(bundle, site, node), texts, max(13, minor))
    }
    machine = merged["/"]["machine"]
    assert merged["TrustedRootsConfig/site"]["certificates"] == "PEM\n"
    if minor >= 12:
        assert merged["RegistryMirrorConfig/ghcr.io"]["endpoints"] == [
            {"url": "https://m.example.org/ghcr", "overridePath": True}
        ]
        assert merged["RegistryMirrorConfig/docker.io"]["endpoints"] == [{"url": "https://mirror.gcr.io"}]
        assert merged["RegistryAuthConfig/m.example.org"]["password"] == "canary"
        assert merged["RegistryTLSConfig/m.example.org"]["insecureSkipVerify"] is True
        assert merged["TimeSyncConfig/"]["ntp"] == {"servers": ["10.0.0.1"]}
    else:
        registries = machine["registries"]
        assert registries["mirrors"]["ghcr.io"]["overridePath"] is True
        assert registries["mirrors"]["docker.io"]["endpoints"] == ["https://mirror.gcr.io"]
        assert registries["config"]["m.example.org"] == {
            "tls": {"insecureSkipVerify": True},
            "auth": {"username": "u", "password": "canary"},
        }
        assert machine["time"]["servers"] == ["10.0.0.1"]
    variables = merged["EnvironmentConfig/"]["variables"] if minor >= 14 else machine["env"]
    assert variables["https_proxy"] == "http://proxy:3128" and "http_proxy" not in variables
    near = variables["no_proxy"].split(",")
    assert {"127.0.0.1", "10.244.0.0/16", "10.96.0.0/16", "10.0.0.0/24", ".cozy.local", "intern"} <= set(near)


@pytest.mark.parametrize("minor", RELEASES)
def test_single_sign_on_reaches_the_api_server(bundle: secrets.Bundle, minor: int) -> None:
    issuer = "https://keycloak.example.org/realms/cozy"
    merged = merged_for(bundle, site_on(minor), site_on(minor).nodes[0])
    if minor >= 14:
        (jwt,) = merged["KubeAuthenticationConfig/"]["configuration"]["jwt"]
        assert jwt["issuer"]["url"] == issuer
        assert merged["KubeAuthenticationConfig/"]["configuration"]["anonymous"]["enabled"] is True
        assert jwt["claimMappings"]["username"]["prefix"] == f"{issuer}#"  # kube-apiserver's default for the arguments
    else:
        arguments = merged["/"]["cluster"]["apiServer"]["extraArgs"]
        assert arguments["oidc-issuer-url"] == issuer and arguments["oidc-groups-claim"] == "groups"


def test_user_patches_come_last_and_win(bundle: secrets.Bundle) -> None:
    everywhere = {"machine": {"sysctls": {"net.ipv4.tcp_fin_timeout": "60"}}}
    site = site_on(13, talos={"version": "v1.13.6", "patches": [everywhere], "sysctls": {"vm.nr_hugepages": "8"}})
    own = {"machine": {"sysctls": {"net.ipv4.tcp_fin_timeout": "90"}}}
    node = site.nodes[0].model_copy(update={"patches": (own,), "sysctls": {"vm.nr_hugepages": "16"}})
    sysctls = merged_for(bundle, site, node)["/"]["machine"]["sysctls"]
    assert sysctls["net.ipv4.tcp_fin_timeout"] == "90" and sysctls["vm.nr_hugepages"] == "16"
    sysctls = merged_for(bundle, site, site.nodes[1])["/"]["machine"]["sysctls"]
    assert sysctls["net.ipv4.tcp_fin_timeout"] == "60" and sysctls["vm.nr_hugepages"] == "8"


def test_repeated_user_documents_are_accepted_up_to_1_13(bundle: secrets.Bundle) -> None:
    """One patch may name a document once, so every document of a user is a patch of its own."""
    link = {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens5"}
    site = site_on(13, talos={"version": "v1.13.6", "patches": [link | {"mtu": 9000}, link | {"up": True}]})
    merged = merged_for(bundle, site, site.nodes[0])["LinkConfig/ens5"]
    assert merged["mtu"] == 9000 and merged["up"] is True and merged["addresses"] == [{"address": "10.0.0.11/24"}]
