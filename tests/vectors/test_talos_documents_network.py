"""Machine-config documents: addresses, names and links of a machine, in the form of every Talos minor."""

import pytest

from lab.plugins.talos import secrets
from lab.talos import RELEASES
from tests.talos_documents import merged_for, site_on


@pytest.mark.parametrize("minor", RELEASES)
def test_the_vip_is_on_every_control_plane_and_on_no_worker(bundle: secrets.Bundle, minor: int) -> None:
    site = site_on(minor)
    for node in site.nodes:
        merged = merged_for(bundle, site, node)
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


@pytest.mark.parametrize("minor", RELEASES)
def test_certificates_carry_every_way_to_the_machine(bundle: secrets.Bundle, minor: int) -> None:
    talos = {"version": RELEASES[minor], "vip": "10.0.0.10", "extraSans": ["talos.example.org"]}
    site = site_on(minor, talos=talos, cluster={"name": "prod", "endpoint": "https://kube.example.org:6443"})
    node = site.control_planes[0].model_copy(update={"vips": site.control_planes[0].vips, "extra_sans": ("cp1.lan",)})
    merged = merged_for(bundle, site, node)
    ways = {
        *("127.0.0.1", "localhost", "203.0.113.11", "10.0.0.11", "10.0.0.10"),
        *("kube.example.org", "talos.example.org", "cp1.lan"),
    }
    assert ways <= set(merged["/"]["machine"]["certSANs"])
    classic = merged["/"]["cluster"].get("apiServer", {}).get("certSANs")
    api = merged["KubeAPIServerConfig/"]["certExtraSANs"] if minor >= 14 else classic
    assert ways | {"api.example.org", "10.0.0.12", "203.0.113.13"} <= set(api)
    assert len(set(api)) == len(api)


@pytest.mark.parametrize("minor", RELEASES)
def test_node_address_and_etcd_exclude_every_virtual_address(bundle: secrets.Bundle, minor: int) -> None:
    site = site_on(minor)
    nodes = [node.model_dump(by_alias=True, exclude_none=True) for node in site.nodes]
    nodes[1]["vips"] = [{"address": "10.0.0.9", "link": "ens6"}]
    site = site_on(minor, nodes=nodes)
    for node in site.nodes:
        merged = merged_for(bundle, site, node)
        main = merged["/"]
        kubelet = merged["KubeNodeConfig/"] if minor >= 14 else main["machine"]["kubelet"]
        expected = ["10.0.0.0/24", "!10.0.0.10/32", "!10.0.0.9/32"]
        assert kubelet["nodeIP"]["validSubnets"] == expected
        if node.is_control_plane:
            assert main["cluster"]["etcd"]["advertisedSubnets"] == expected


@pytest.mark.parametrize("minor", RELEASES)
def test_a_fixed_host_name_in_the_form_of_the_version(bundle: secrets.Bundle, minor: int) -> None:
    merged = merged_for(bundle, site_on(minor), site_on(minor).nodes[0])
    if minor >= 12:
        assert merged["HostnameConfig/"]["auto"] == "off" and merged["HostnameConfig/"]["hostname"] == "cp1"
        assert "hostname" not in merged["/"]["machine"].get("network", {})
    else:
        assert merged["/"]["machine"]["network"]["hostname"] == "cp1"
        assert "HostnameConfig/" not in merged


@pytest.mark.parametrize("minor", RELEASES)
def test_a_link_without_static_addresses_asks_for_dhcp(bundle: secrets.Bundle, minor: int) -> None:
    """Naming an interface takes Talos' default DHCP away from it."""
    site = site_on(minor, nodes=[{"name": "cp1", "role": "controlPlane", "address": "10.0.0.11", "link": "ens5"}])
    merged = merged_for(bundle, site, site.nodes[0])
    if minor >= 12:
        assert "DHCPv4Config/ens5" in merged and "LinkConfig/ens5" not in merged
    else:
        (interface,) = merged["/"]["machine"]["network"]["interfaces"]
        assert interface == {"interface": "ens5", "dhcp": True, "vip": {"ip": "10.0.0.10"}}


@pytest.mark.parametrize("minor", RELEASES)
def test_kubespan_keeps_discovery_on(bundle: secrets.Bundle, minor: int) -> None:
    site = site_on(minor, network={"kubespan": True})
    merged = merged_for(bundle, site, site.nodes[0])
    if minor >= 13:
        assert merged["KubeSpanConfig/"]["enabled"] is True
    else:
        assert merged["/"]["machine"]["network"]["kubespan"] == {"enabled": True}
    if minor >= 14:
        assert "DiscoveryServiceConfig/default" in merged
    else:
        assert merged["/"]["cluster"]["discovery"]["enabled"] is True
