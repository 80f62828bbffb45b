"""Machine-config documents: golden files per Talos minor, the recorded preset, and laws that hold for every site."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cozystack_iac.settings import Node, Site
from cozystack_iac.talos import documents
from cozystack_iac.talos.documents import Found, UnsupportedTalos, text
from lab.machines import config, validation
from lab.plugins.talos import contracts, generate, merge, secrets

GOLDEN = Path(__file__).parent / "golden" / "talos"
MINORS = range(10, 15)
VERSIONS = {10: "v1.10.9", 11: "v1.11.6", 12: "v1.12.7", 13: "v1.13.6", 14: "v1.14.0"}
# What each golden file rests on.
NOTES = {
    10: "one v1alpha1 document: network documents do not exist before 1.12",
    11: "as 1.10; merged, it equals the recorded preset for 1.11 except for DELIBERATE in test_talos_documents.py",
    12: "network, registries and time in documents of their own; `auto: off` because the base says `auto: stable`",
    13: "as 1.12; merged, it equals the recorded preset for 1.13 except for DELIBERATE in test_talos_documents.py",
    14: "kubelet, network, install and control plane in documents of their own (old keys beside them are refused); field "
    "names from siderolabs/talos pkg/machinery/config/types after 1.14.0-rc.1; lvm.conf stays in machine.files because "
    "EtcFileConfig refuses lvm/; KubeProxyConfig is switched off, not deleted, because v1alpha1's default is on",
}


def _site(minor: int, **changes: Any) -> Site:
    """Three control planes behind 1:1 NAT and a worker."""
    nodes = [
        {
            "name": f"cp{number}",
            "role": "controlPlane",
            "address": f"203.0.113.1{number}",
            "internalAddress": f"10.0.0.1{number}",
            "publicAddress": f"203.0.113.1{number}",
            "link": "ens5",
            "addresses": [f"10.0.0.1{number}/24"],
            "gateway": "10.0.0.1",
            "installDisk": {"wwid": f"naa.5000c500a1b2c30{number}"},
            "zone": "a",
        }
        for number in (1, 2, 3)
    ]
    worker = {
        "name": "worker1",
        "role": "worker",
        "address": "10.0.0.21",
        "link": "ens5",
        "installDisk": {"serial": "S1"},
    }
    given_: dict[str, Any] = {
        "cluster": {"name": "prod", "cozystack": "1.6.2"},
        "nodes": [*nodes, worker],
        "talos": {"version": VERSIONS[minor], "vip": "10.0.0.10", "nameservers": ["10.0.0.1"], "reach": "public"},
        "network": {"nodeCIDR": "10.0.0.0/24"},
        "publishing": {"host": "example.org"},
    }
    return Site.model_validate(given_ | changes)


@pytest.fixture(scope="module")
def bundle() -> secrets.Bundle:
    return secrets.generate()


def _base(bundle: secrets.Bundle, site: Site, node: Node) -> tuple[text.Document, ...]:
    request = contracts.Request(
        cluster=site.cluster.name,
        endpoint=site.endpoint,
        machine_type="controlplane" if node.is_control_plane else "worker",
        minor=documents.minor_of(site.talos_version),
        kubernetes="1.33.12",
        installer="ghcr.io/siderolabs/installer:v1.13.0",
    )
    return generate.generate(bundle, request)


def _merged(bundle: secrets.Bundle, site: Site, node: Node, found: Found | None = None) -> dict[str, Mapping[str, Any]]:
    minor = documents.minor_of(site.talos_version)
    patched = merge.patch(_base(bundle, site, node), documents.config_patches(site, node, found), max(13, minor))
    return {f"{one.get('kind', '')}/{one.get('name', '')}": one for one in patched}


@pytest.mark.parametrize("name", ["cp1", "worker1"])
@pytest.mark.parametrize("minor", MINORS)
def test_documents_equal_the_golden_files(minor: int, name: str) -> None:
    """Run with UPDATE_GOLDEN=1 to write them anew; read the difference before you commit it."""
    site = _site(minor)
    node = next(node for node in site.nodes if node.name == name)
    patches = documents.patches(site, node)
    path = GOLDEN / f"v1.{minor}" / f"{name}.yaml"
    written = f"# Cozystack 1.6.2 on Talos {VERSIONS[minor]}: {NOTES[minor]}.\n" + documents.emit(patches)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written)
    assert path.read_text() == written
    assert text.parse(written) == patches


# Where we deliberately differ from the recorded preset, and why.
DELIBERATE = {
    "machine.certSANs": "loopback name and every way to the machine, not only what a person remembered",
    "cluster.apiServer.certSANs": "also all control planes and the public name; each name once (lists are appended)",
    "machine.kubelet.nodeIP.validSubnets": "excludes virtual addresses (siderolabs/talos#4318)",
    "cluster.etcd.advertisedSubnets": "excludes virtual addresses (siderolabs/talos#12410)",
    "cluster.discovery.enabled": "off on workers too: nobody answers them when the control planes do not publish",
}


@pytest.mark.parametrize("name", ["node1", "node2", "node3", "worker1"])
@pytest.mark.parametrize("minor", [11, 13])
def test_merged_configuration_equals_the_recorded_preset(vectors: Path, minor: int, name: str) -> None:
    site = _recorded_site(minor)
    node = next(node for node in site.nodes if node.name == name)
    folder = vectors / "talos"
    kind = "controlplane" if node.is_control_plane else "worker"
    base = text.parse((folder / "configs" / f"v1.{minor}" / f"{kind}.yaml").read_text())
    ours = merge.patch(base, documents.config_patches(site, node))
    theirs = text.parse((folder / "preset-golden" / f"v1.{minor}" / f"{name}.yaml").read_text())
    assert [merge.identify(one) for one in ours if one.get("kind")] != [] or minor == 11
    assert {merge.identify(one) for one in ours} == {merge.identify(one) for one in theirs}
    differing = set()
    for one in ours:
        twin = next(other for other in theirs if merge.identify(other) == merge.identify(one))
        differing |= _differences(one, twin)
    assert differing <= set(DELIBERATE)
    expected = {"machine.certSANs", "machine.kubelet.nodeIP.validSubnets"}
    assert differing >= expected


def _recorded_site(minor: int) -> Site:
    nodes = [
        {
            "name": name,
            "role": "worker" if name == "worker1" else "controlPlane",
            "address": address,
            "publicAddress": "192.0.2.10",
            "link": "ens5",
            "addresses": [f"{address}/24"],
            "gateway": "10.0.0.1",
        }
        for name, address in (
            ("node1", "10.0.0.11"),
            ("node2", "10.0.0.12"),
            ("node3", "10.0.0.13"),
            ("worker1", "10.0.0.21"),
        )
    ]
    talos = {"version": VERSIONS[minor], "vip": "10.0.0.10", "nameservers": ["10.0.0.1", "8.8.8.8"]}
    return _site(minor, cluster={"name": "lab"}, nodes=nodes, talos=talos, access={"oidc": False})


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = set[str]()
        for key in {*one, *other}:
            below = f"{path}.{key}" if path else str(key)
            found |= _differences(one.get(key), other.get(key), below)
        return found
    return set() if one == other else {path}


@pytest.mark.parametrize("minor", MINORS)
def test_the_vip_is_on_every_control_plane_and_on_no_worker(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor)
    for node in site.nodes:
        merged = _merged(bundle, site, node)
        if minor >= 12:
            carries = merged.get("Layer2VIPConfig/10.0.0.10") == {
                "apiVersion": "v1alpha1",
                "kind": "Layer2VIPConfig",
                "name": "10.0.0.10",
                "link": "ens5",
            }
        else:
            interfaces = merged["/"]["machine"]["network"].get("interfaces", [])
            carries = any(interface.get("vip") == {"ip": "10.0.0.10"} for interface in interfaces)
        assert carries is node.is_control_plane


@pytest.mark.parametrize("minor", MINORS)
def test_certificates_carry_every_way_to_the_machine(bundle: secrets.Bundle, minor: int) -> None:
    talos = {"version": VERSIONS[minor], "vip": "10.0.0.10", "extraSans": ["talos.example.org"]}
    site = _site(minor, talos=talos, cluster={"name": "prod", "endpoint": "https://kube.example.org:6443"})
    node = site.control_planes[0].model_copy(update={"vips": site.control_planes[0].vips, "extra_sans": ("cp1.lan",)})
    merged = _merged(bundle, site, node)
    ways = {
        *("127.0.0.1", "localhost", "203.0.113.11", "10.0.0.11", "10.0.0.10"),
        *("kube.example.org", "talos.example.org", "cp1.lan"),
    }
    assert ways <= set(merged["/"]["machine"]["certSANs"])
    classic = merged["/"]["cluster"].get("apiServer", {}).get("certSANs")
    api = merged["KubeAPIServerConfig/"]["certExtraSANs"] if minor >= 14 else classic
    assert ways | {"api.example.org", "10.0.0.12", "203.0.113.13"} <= set(api)
    assert len(set(api)) == len(api)


@pytest.mark.parametrize("minor", MINORS)
def test_node_address_and_etcd_exclude_every_virtual_address(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor)
    nodes = [node.model_dump(by_alias=True, exclude_none=True) for node in site.nodes]
    nodes[1]["vips"] = [{"address": "10.0.0.9", "link": "ens6"}]
    site = _site(minor, nodes=nodes)
    for node in site.nodes:
        merged = _merged(bundle, site, node)
        main = merged["/"]
        kubelet = merged["KubeNodeConfig/"] if minor >= 14 else main["machine"]["kubelet"]
        expected = ["10.0.0.0/24", "!10.0.0.10/32", "!10.0.0.9/32"]
        assert kubelet["nodeIP"]["validSubnets"] == expected
        if node.is_control_plane:
            assert main["cluster"]["etcd"]["advertisedSubnets"] == expected


@pytest.mark.parametrize("minor", MINORS)
def test_the_preset_is_complete(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor)
    merged = _merged(bundle, site, site.nodes[0])
    main = merged["/"]
    if minor >= 14:
        modules = {one["name"]: one for kind, one in merged.items() if kind.startswith("KernelModuleConfig")}
        sysctls, kubelet = merged["SysctlConfig/"]["params"], merged["KubeletConfig/"]["config"]
        network, cni_gone = merged["KubeNetworkConfig/"], "KubeFlannelCNIConfig/" not in merged
        proxy_off = merged["KubeProxyConfig/"]["enabled"] is False
        discovery_off = "DiscoveryServiceConfig/default" not in merged
        labels, taints = merged["KubeNodeConfig/"]["labels"], merged["KubeNodeConfig/"].get("taints")
        schedulable, installed = taints is None, merged["UnattendedInstallConfig/"]["installer"]["image"]
        arguments = merged["KubeControllerManagerConfig/"]["extraArgs"]
        scheduler = merged["KubeSchedulerConfig/"]["extraArgs"]
        containerd = merged["CRICustomizationConfig/cozystack"]["content"]
    else:
        machine, cluster = main["machine"], main["cluster"]
        modules = {one["name"]: one for one in machine["kernel"]["modules"]}
        sysctls, kubelet = machine["sysctls"], machine["kubelet"]["extraConfig"]
        network, cni_gone = cluster["network"], cluster["network"]["cni"] == {"name": "none"}
        proxy_off, discovery_off = cluster["proxy"]["disabled"], cluster["discovery"]["enabled"] is False
        labels, schedulable = machine.get("nodeLabels", {}), cluster["allowSchedulingOnControlPlanes"]
        installed = machine["install"]["image"]
        arguments, scheduler = cluster["controllerManager"]["extraArgs"], cluster["scheduler"]["extraArgs"]
        containerd = next(file["content"] for file in machine["files"] if "cri" in file["path"])
    assert {"openvswitch", "drbd", "zfs", "spl", "vfio_pci", "vfio_iommu_type1"} == set(modules)
    assert modules["drbd"]["parameters"] == ["usermode_helper=disabled"]
    assert sysctls["net.ipv4.neigh.default.gc_thresh3"] == "16384" and len(sysctls) == 8
    assert kubelet == {"cpuManagerPolicy": "static", "maxPods": 512}
    assert network["dnsDomain"] == "cozy.local" and network["podSubnets"] == ["10.244.0.0/16"]
    assert cni_gone and proxy_off and discovery_off and schedulable
    assert "node.kubernetes.io/exclude-from-external-load-balancers" not in labels
    assert labels["topology.kubernetes.io/zone"] == "a"
    assert installed == f"ghcr.io/cozystack/cozystack/talos:{VERSIONS[minor]}"
    assert arguments == {
        "bind-address": "0.0.0.0",
        "allocate-node-cidrs": "true",
        "cluster-cidr": "10.244.0.0/16",
    }
    assert scheduler == {"bind-address": "0.0.0.0"}
    assert containerd.count("device_ownership_from_security_context = true") == 2
    lvm = next(file for file in main["machine"]["files"] if file["path"] == "/etc/lvm/lvm.conf")
    assert lvm["permissions"] == 0o644 and lvm["op"] == "overwrite"
    for device in ("drbd", "dm-", "zd", "loop"):
        assert f'"r|^/dev/{device}.*|"' in lvm["content"]
    assert main["cluster"]["etcd"]["extraArgs"] == {"quota-backend-bytes": "8589934592"}


def test_no_old_key_stands_beside_a_document_of_1_14(bundle: secrets.Bundle) -> None:
    site = _site(14)
    for node in site.nodes:
        main = _merged(bundle, site, node)["/"]
        assert set(main["machine"]) <= {"type", "token", "ca", "certSANs", "features", "files"}
        assert set(main["cluster"]) <= {"token", "etcd"}


@pytest.mark.parametrize("minor", MINORS)
def test_simulated_machines_accept_the_result(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor)
    for node in site.nodes:
        patches = documents.config_patches(site, node)
        written = documents.emit(merge.patch(_base(bundle, site, node), patches, max(13, minor)))
        judged = validation.validate(config.decode(written, minor), installed=False)
        assert not judged.main and not judged.other
        # lvm.conf has no other place: see the note of the golden file.
        assert [warning.split(" ")[0] for warning in judged.warnings] == ([".machine.files"] if minor >= 14 else [])


@pytest.mark.parametrize("minor", MINORS)
def test_a_fixed_host_name_in_the_form_of_the_version(bundle: secrets.Bundle, minor: int) -> None:
    merged = _merged(bundle, _site(minor), _site(minor).nodes[0])
    if minor >= 12:
        assert merged["HostnameConfig/"]["auto"] == "off" and merged["HostnameConfig/"]["hostname"] == "cp1"
        assert "hostname" not in merged["/"]["machine"].get("network", {})
    else:
        assert merged["/"]["machine"]["network"]["hostname"] == "cp1"
        assert "HostnameConfig/" not in merged


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
        site = _site(minor, nodes=[node])
        merged = _merged(bundle, site, site.nodes[0])
        if minor == 14:
            assert merged["UnattendedInstallConfig/"]["provisioning"]["diskSelector"]["match"] == expression
        else:
            install = merged["/"]["machine"]["install"]
            assert {key: install[key] for key in ("disk", "diskSelector") if key in install} == classic


@pytest.mark.parametrize("minor", MINORS)
def test_a_link_without_static_addresses_asks_for_dhcp(bundle: secrets.Bundle, minor: int) -> None:
    """Naming an interface takes Talos' default DHCP away from it."""
    site = _site(minor, nodes=[{"name": "cp1", "role": "controlPlane", "address": "10.0.0.11", "link": "ens5"}])
    merged = _merged(bundle, site, site.nodes[0])
    if minor >= 12:
        assert "DHCPv4Config/ens5" in merged and "LinkConfig/ens5" not in merged
    else:
        (interface,) = merged["/"]["machine"]["network"]["interfaces"]
        assert interface == {"interface": "ens5", "dhcp": True, "vip": {"ip": "10.0.0.10"}}


@pytest.mark.parametrize("minor", MINORS)
def test_a_link_that_only_the_machine_knows_is_filled_in(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor, nodes=[{"name": "cp1", "role": "controlPlane", "address": "10.0.0.11"}])
    assert "eth7" not in documents.emit(documents.patches(site, site.nodes[0]))
    assert "eth7" in documents.emit(documents.patches(site, site.nodes[0], Found(links={"cp1": "eth7"})))


@pytest.mark.parametrize("minor", MINORS)
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
    site = _site(minor, network=network, talos={"version": VERSIONS[minor], "timeServers": ["10.0.0.1"]})
    node = site.nodes[0]
    written = documents.emit(documents.patches(site, node))
    assert "canary" not in written
    assert "canary" in documents.emit(documents.secret_patches(site, node))
    texts = [*documents.config_patches(site, node), documents.emit(documents.secret_patches(site, node))]
    merged = {
        f"{one.get('kind', '')}/{one.get('name', '')}": one
        for one in merge.patch(_base(bundle, site, node), texts, max(13, minor))
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


@pytest.mark.parametrize("minor", MINORS)
def test_single_sign_on_reaches_the_api_server(bundle: secrets.Bundle, minor: int) -> None:
    issuer = "https://keycloak.example.org/realms/cozy"
    merged = _merged(bundle, _site(minor), _site(minor).nodes[0])
    if minor >= 14:
        (jwt,) = merged["KubeAuthenticationConfig/"]["configuration"]["jwt"]
        assert jwt["issuer"]["url"] == issuer
        assert merged["KubeAuthenticationConfig/"]["configuration"]["anonymous"]["enabled"] is True
        assert jwt["claimMappings"]["username"]["prefix"] == f"{issuer}#"  # kube-apiserver's default for the arguments
    else:
        arguments = merged["/"]["cluster"]["apiServer"]["extraArgs"]
        assert arguments["oidc-issuer-url"] == issuer and arguments["oidc-groups-claim"] == "groups"


@pytest.mark.parametrize("minor", MINORS)
def test_kubespan_keeps_discovery_on(bundle: secrets.Bundle, minor: int) -> None:
    site = _site(minor, network={"kubespan": True})
    merged = _merged(bundle, site, site.nodes[0])
    if minor >= 13:
        assert merged["KubeSpanConfig/"]["enabled"] is True
    else:
        assert merged["/"]["machine"]["network"]["kubespan"] == {"enabled": True}
    if minor >= 14:
        assert "DiscoveryServiceConfig/default" in merged
    else:
        assert merged["/"]["cluster"]["discovery"]["enabled"] is True


def test_user_patches_come_last_and_win(bundle: secrets.Bundle) -> None:
    everywhere = {"machine": {"sysctls": {"net.ipv4.tcp_fin_timeout": "60"}}}
    site = _site(13, talos={"version": "v1.13.6", "patches": [everywhere], "sysctls": {"vm.nr_hugepages": "8"}})
    own = {"machine": {"sysctls": {"net.ipv4.tcp_fin_timeout": "90"}}}
    node = site.nodes[0].model_copy(update={"patches": (own,), "sysctls": {"vm.nr_hugepages": "16"}})
    sysctls = _merged(bundle, site, node)["/"]["machine"]["sysctls"]
    assert sysctls["net.ipv4.tcp_fin_timeout"] == "90" and sysctls["vm.nr_hugepages"] == "16"
    sysctls = _merged(bundle, site, site.nodes[1])["/"]["machine"]["sysctls"]
    assert sysctls["net.ipv4.tcp_fin_timeout"] == "60" and sysctls["vm.nr_hugepages"] == "8"


def test_repeated_user_documents_are_accepted_up_to_1_13(bundle: secrets.Bundle) -> None:
    """One patch may name a document once, so every document of a user is a patch of its own."""
    link = {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens5"}
    site = _site(13, talos={"version": "v1.13.6", "patches": [link | {"mtu": 9000}, link | {"up": True}]})
    merged = _merged(bundle, site, site.nodes[0])["LinkConfig/ens5"]
    assert merged["mtu"] == 9000 and merged["up"] is True and merged["addresses"] == [{"address": "10.0.0.11/24"}]


@pytest.mark.parametrize("version", ["v1.9.5", "v1.15.0", "1", "latest"])
def test_an_unknown_talos_is_refused_by_name(version: str) -> None:
    with pytest.raises(UnsupportedTalos, match=version):
        documents.minor_of(version)


SCALARS = st.one_of(
    st.sampled_from(
        ["off", "no", "y", "~", "null", "0o644", "0644", "1_000", "12:34:56", "52:54:00:12:34:56", "1e3", "2026-01-01"]
    ),
    st.text(st.characters(codec="ascii", min_codepoint=9), max_size=12),
    st.integers(-10, 10**12),
    st.booleans(),
    st.none(),
)


@given(st.dictionaries(st.sampled_from(["a", "b", "on"]), SCALARS | st.lists(SCALARS, max_size=3), min_size=1))
def test_emitted_documents_read_back_equal_in_yaml_1_2_and_1_1(document: dict[str, Any]) -> None:
    written = documents.emit([document])
    assert text.parse(written) == (document,)
    old = YAML(typ="safe", pure=True)
    old.version = (1, 1)
    old_reading = old.load(f"%YAML 1.1\n---\n{written}")
    # Keys are ours and plain; values are what a YAML 1.1 reader must not change.
    assert [value for _, value in sorted(document.items())] == [
        value for _, value in sorted(old_reading.items(), key=lambda item: "on" if item[0] is True else item[0])
    ]
