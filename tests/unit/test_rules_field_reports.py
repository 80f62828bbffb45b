"""Mistakes from public bug reports, as minimal inputs with the right answer. The reference is in each row's name."""

from typing import Any

import pytest

from cozystack_iac import releases
from cozystack_iac.findings import Severity
from tests.sites import GONE, changed, codes, existing, found, good, judged, node

ROWS: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("cozystack#2869: no OIDC on 1.4.2", [("cluster.cozystack", "1.4.2"), ("access.oidc", False)], "VER-009", "1.5.0"),
    (
        "cozystack#3288: OIDC at install through the public name",
        [("cluster.cozystack", "1.4.2"), ("access.keycloakInternalUrl", "https://keycloak.example.org/realms/cozy")],
        "VER-010",
        "keycloak-http.cozy-keycloak.svc",
    ),
    (
        "cozystack#3288: OIDC at install with an emptied URL",
        [("cluster.cozystack", "1.4.2"), ("access.keycloakInternalUrl", "")],
        "VER-010",
        "keycloak-http.cozy-keycloak.svc",
    ),
    ("gravity#2296: a given range against a default", [("network.podCIDR", "10.96.0.0/16")], "NET-004", "free range"),
    (
        "ovn-kubernetes#1153: pods over the join network",
        [("network.podCIDR", "100.64.0.0/14")],
        "NET-004",
        "free range",
    ),
    ("shipyard#930: services in the join network", [("network.serviceCIDR", "100.64.0.0/16")], "NET-004", "free range"),
    ("tailscale#1381: a node in the join network", [("nodes.0.address", "100.64.10.5")], "NET-010", "free range"),
    ("tailscale#12829: a node in 100.64.0.0/10", [("nodes.0.address", "100.101.7.7")], "NET-011", "joinCIDR"),
    ("tailscale#12829: an overlay route", [("network.reserved", ["100.64.0.0/10"])], "NET-011", "joinCIDR"),
    ("kubernetes#95723: pods for one node only", [("network.podCIDR", "10.244.0.0/24")], "NET-006", "/22"),
    (
        "kubespray#8720: 20 nodes in a /20",
        [
            ("network.podCIDR", "10.244.0.0/20"),
            ("nodes", [node(n, "worker") if n > 3 else node(n) for n in range(1, 21)]),
        ],
        "NET-006",
        "/19",
    ),
    (
        "kubespray#8720: IPv6 pods in a /64",
        [("network.podCIDR", "fd10::/64"), ("network.serviceCIDR", "fd11::/108"), ("network.joinCIDR", "fd12::/64")],
        "NET-006",
        "/62",
    ),
    ("k0sctl#451: one address twice", [("nodes.1.address", "10.0.0.11")], "INV-005", "correct"),
    (
        "k0sctl#451: one internal address twice",
        [("nodes.0.internalAddress", "10.0.2.15"), ("nodes.1.internalAddress", "10.0.2.15")],
        "INV-005",
        "correct",
    ),
    ("cpython#77614: two spellings of one address", [("nodes.1.address", "::ffff:10.0.0.11")], "INV-005", "correct"),
    ("k0sctl#451: white space around an address", [("nodes.1.address", "10.0.0.11 ")], "INV-005", "correct"),
    ("talos#7928: an underscore", [("nodes.0.name", "master_62")], "INV-001", "`master-62`"),
    ("rke2#7978: upper case", [("nodes.0.name", "CP1")], "INV-001", "`cp1`"),
    ("kube-vip#1462: a dash at the end", [("nodes.0.name", "node-")], "INV-001", "`node`"),
    ("kube-vip#1462: a dash at the start", [("nodes.0.name", "-n")], "INV-001", "`n`"),
    ("talos#4484: two dots", [("nodes.0.name", "a..b")], "INV-001", "`a-b`"),
    ("AKSFlexNode#184: 64 characters", [("nodes.0.name", "a" * 64)], "INV-001", "a" * 63),
    ("talos#7928: a space", [("nodes.0.name", "cp1 ")], "INV-001", "`cp1`"),
    ("rke2#7978: equal after lower-casing", [("nodes.1.name", "CP1")], "INV-002", "rename"),
    ("talos#9276: two control planes", [("nodes.2", node(4, "worker"))], "ROL-002", "use 1 or 3"),
    (
        "talos#12370: an expression chooses the install disk",
        [("nodes.0.installDisk", {"selector": "!disk.rotational"})],
        "STO-007",
        "serial",
    ),
    ("talos#9647: no install disk, no fallback", [("nodes.0.installDisk", GONE)], "STO-001", "installDisk"),
    ("talos#12081: disks below 10 GiB", [("storage.minimumSize", "4GB")], "STO-014", "50GiB"),
    ("talos#12081: disks below the recommendation", [("storage.minimumSize", "32GB")], "STO-014", "50GiB"),
    (
        "talos#12081: one disk for Talos and data",
        [("nodes.0.dataDisks.0.serial", "SYS0001")],
        "STO-004",
        "different disk",
    ),
    ("omni#1090: a kernel name", [("nodes.0.dataDisks.0", {"byId": "/dev/nvme0n1"})], "STO-002", "serial"),
    ("alpinebox#4: a partition", [("nodes.0.dataDisks.0", {"byId": "nvme-X-part1"})], "STO-003", "`nvme-X`"),
    (
        "e2e: three copies on two nodes",
        [("storage.replicas", 3), ("nodes.2.dataDisks", [])],
        "STO-011",
        "replicas to 2",
    ),
    (
        "turing-rk1#46: classic host name",
        [("nodes.0.patches", [{"machine": {"network": {"hostname": "cp1"}}}])],
        "TAL-006",
        "remove",
    ),
    (
        "cilium#32133: a mapped public address as external",
        [
            ("nodes.0.publicAddress", "118.255.15.25"),
            ("publishing.provider", "aws"),
            ("publishing.externalIPs", {"strategy": "explicit", "addresses": ["118.255.15.25"]}),
        ],
        "PUB-007",
        "internal",
    ),
    (
        "cilium#14765: the external strategy behind NAT",
        [
            *[(f"nodes.{n}.publicAddress", f"118.255.15.2{n}") for n in range(3)],
            ("publishing.provider", "oci"),
            ("publishing.externalIPs.strategy", "external"),
        ],
        "PUB-007",
        "internal",
    ),
    ("talos#5195: a proxy that is no URL", [("network.proxy.https", "proxy:3128")], "REG-004", "http://"),
    (
        "talos#1901: an exception that is none",
        [("network.proxy", {"https": "http://p:1", "noProxy": ["10.0.0.0/33"]})],
        "REG-005",
        "CIDR",
    ),
    ("netaddr#362: leading zeros", [("nodes.0.address", "10.0.0.011")], "INV-003", "`10.0.0.11`"),
    ("netaddr#362: a mapped VIP", [("talos.vip", "::ffff:10.0.0.5")], "NET-023", "`10.0.0.5`"),
    ("netaddr#362: host bits", [("network.podCIDR", "10.244.1.5/16")], "NET-002", "`10.244.0.0/16`"),
    ("netaddr#362: a prefix of 33", [("network.podCIDR", "10.244.0.0/33")], "NET-001", "/16"),
    ("talos#5320: a VIP that is a node", [("talos.vip", "10.0.0.12")], "NET-021", "no node"),
    ("ansible-cozystack 1.4.0: an older release", [("cluster.cozystack", "1.2.9")], "VER-001", releases.DEFAULT),
    (
        "ansible-cozystack 1.4.0: a newer release",
        [("cluster.cozystack", "1.99.0")],
        "VER-002",
        "read its release notes, or use 1.",
    ),
    ("ansible-cozystack 1.4.0: no release", [("cluster.cozystack", "latest")], "VER-001", releases.DEFAULT),
    ("cozystack#2396: the contract is another minor", [("talos.version", "v1.12.6")], "VER-004", "v1.13.6"),
    ("cozystack#2396: the image is another minor", [("talos.image", "x.org/talos:v1.12.6")], "VER-005", "1.13"),
]


@pytest.mark.parametrize(("changes", "code", "hint"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_mistake_from_the_field_is_found_with_its_way_out(
    changes: list[tuple[str, Any]], code: str, hint: str
) -> None:
    finding = found(changed(good(), *changes), code)
    assert hint in finding.fix
    assert finding.severity != Severity.NOTE


def test_a_pod_range_inside_the_service_range_is_found_for_ipv6() -> None:  # kubeadm#3312
    raw = changed(good(), ("network.podCIDR", "fd83::/64"), ("network.serviceCIDR", "fd83::/108"))
    assert "lies inside" in found(raw, "NET-004").problem or "contains" in found(raw, "NET-004").problem


def test_an_overlap_names_both_ranges_and_which_is_the_default() -> None:  # gravity#2296
    problem = found(changed(good(), ("network.podCIDR", "10.96.0.0/16")), "NET-004").problem
    assert "podCIDR 10.96.0.0/16" in problem
    assert "serviceCIDR 10.96.0.0/16 (the default)" in problem


def test_the_capacity_is_computed() -> None:  # kubernetes#95723
    nodes = [node(n, "worker") if n > 3 else node(n) for n in range(1, 21)]
    problem = found(changed(good(), ("network.podCIDR", "10.244.0.0/20"), ("nodes", nodes)), "NET-006").problem
    assert "holds 16 nodes" in problem


def test_two_empty_public_addresses_are_not_one() -> None:  # k0sctl#484
    raw = changed(good(), ("nodes.0.publicAddress", ""), ("nodes.1.publicAddress", ""))
    assert "INV-005" not in judged(raw).codes


@pytest.mark.parametrize("release", ["1.3.3", "1.4.0-rc.1", "v1.4.2", "1.5.2"])  # cozystack#2508
def test_every_release_of_the_table_is_accepted(release: str) -> None:
    assert "VER-001" not in judged(changed(good(), ("cluster.cozystack", release))).codes


def test_a_private_address_in_a_name_is_noted() -> None:  # nip.io#9
    raw = changed(good(), ("publishing.host", "10-0-0-11.nip.io"))
    assert found(raw, "PUB-005").severity is Severity.NOTE


def test_ranges_of_an_existing_cluster_have_to_be_told() -> None:  # ansible-cozystack defaults
    raw = changed(existing(), ("network.podCIDR", GONE), ("network.serviceCIDR", GONE))
    warned = [finding for finding in judged(raw) if finding.code == "NET-018"]
    assert [finding.severity for finding in warned] == [Severity.WARNING, Severity.WARNING]
    assert all("10.42.0.0/16" in finding.fix for finding in warned)


def test_a_maintenance_address_may_differ() -> None:  # terraform-proxmox-talos#12
    assert codes(judged(changed(good(), ("nodes.0.maintenanceAddress", "10.0.0.143")))) == []


def test_a_maintenance_address_of_another_node_is_found() -> None:  # terraform-proxmox-talos#12
    raw = changed(good(), ("nodes.0.maintenanceAddress", "10.0.0.12"))
    assert "cp2" in found(raw, "INV-005").problem
