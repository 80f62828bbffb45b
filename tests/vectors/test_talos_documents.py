"""Machine-config documents as a whole: golden files per Talos minor, the recorded preset, what machines and readers accept."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cozystack_iac import yaml_text as text
from cozystack_iac.settings import Site
from cozystack_iac.talos import documents
from cozystack_iac.talos.documents import UnsupportedTalos
from lab.machines import config, validation
from lab.plugins.talos import merge, secrets
from lab.talos import RELEASES
from tests.talos_documents import base_for, merged_for, site_on

GOLDEN = Path(__file__).parent / "golden" / "talos"
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


@pytest.mark.parametrize("name", ["cp1", "worker1"])
@pytest.mark.parametrize("minor", RELEASES)
def test_documents_equal_the_golden_files(minor: int, name: str) -> None:
    """Run with UPDATE_GOLDEN=1 to write them anew; read the difference before you commit it."""
    site = site_on(minor)
    node = next(node for node in site.nodes if node.name == name)
    patches = documents.patches(site, node)
    path = GOLDEN / f"v1.{minor}" / f"{name}.yaml"
    written = f"# Cozystack 1.6.2 on Talos {RELEASES[minor]}: {NOTES[minor]}.\n" + documents.emit(patches)
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
    talos = {"version": RELEASES[minor], "vip": "10.0.0.10", "nameservers": ["10.0.0.1", "8.8.8.8"]}
    return site_on(minor, cluster={"name": "lab"}, nodes=nodes, talos=talos, access={"oidc": False})


def _differences(one: Any, other: Any, path: str = "") -> set[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        found = set[str]()
        for key in {*one, *other}:
            below = f"{path}.{key}" if path else str(key)
            found |= _differences(one.get(key), other.get(key), below)
        return found
    return set() if one == other else {path}


@pytest.mark.parametrize("minor", RELEASES)
def test_the_preset_is_complete(bundle: secrets.Bundle, minor: int) -> None:
    site = site_on(minor)
    merged = merged_for(bundle, site, site.nodes[0])
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
    assert installed == f"ghcr.io/cozystack/cozystack/talos:{RELEASES[minor]}"
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
    site = site_on(14)
    for node in site.nodes:
        main = merged_for(bundle, site, node)["/"]
        assert set(main["machine"]) <= {"type", "token", "ca", "certSANs", "features", "files"}
        assert set(main["cluster"]) <= {"token", "etcd"}


@pytest.mark.parametrize("minor", RELEASES)
def test_simulated_machines_accept_the_result(bundle: secrets.Bundle, minor: int) -> None:
    site = site_on(minor)
    for node in site.nodes:
        patches = documents.config_patches(site, node)
        written = documents.emit(merge.patch(base_for(bundle, site, node), patches, max(13, minor)))
        judged = validation.validate(config.decode(written, minor), installed=False)
        assert not judged.main and not judged.other
        # lvm.conf has no other place: see the note of the golden file.
        assert [warning.split(" ")[0] for warning in judged.warnings] == ([".machine.files"] if minor >= 14 else [])


@pytest.mark.parametrize("version", ["v1.9.5", "v1.99.0", "1", "latest"])
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
