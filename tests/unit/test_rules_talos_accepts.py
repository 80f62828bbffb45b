"""What Talos' own offline validation lets through, or refuses only one at a time: every line of it is a finding here.

The lines are those measured with Talos v1.13.6 (`Validate(metal)`).
"""

from typing import Any

import pytest

from tests.sites import changed, good, judged, node


def worker_with(**more: Any) -> dict[str, Any]:
    return node(4, "worker", **more)


ACCEPTED: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("pods and services in one range", [("network.podCIDR", "10.96.0.0/16")], "NET-004", "cozystack:network.podCIDR"),
    ("pods contain services", [("network.podCIDR", "10.0.0.0/8")], "NET-004", "cozystack:network.podCIDR"),
    ("a range called banana", [("network.podCIDR", "banana")], "NET-001", "cozystack:network.podCIDR"),
    ("host bits", [("network.podCIDR", "10.244.1.5/16")], "NET-002", "cozystack:network.podCIDR"),
    ("a pod /24", [("network.podCIDR", "10.244.0.0/24")], "NET-006", "cozystack:network.podCIDR"),
    ("v4 pods, v6 services", [("network.serviceCIDR", "fd11::/108")], "NET-005", "cozystack:network.serviceCIDR"),
    (
        "dual stack in another order",
        [("network.podCIDR", "10.244.0.0/16,fd10::/56"), ("network.serviceCIDR", "fd11::/108,10.96.0.0/16")],
        "NET-005",
        "cozystack:network.podCIDR",
    ),
    ("a domain with an underscore", [("cluster.domain", "cozy_local")], "END-003", "cozystack:cluster.domain"),
    ("a name that is no name", [("talos.extraSans", ["not a san!"])], "SAN-001", "cozystack:talos.extraSans[0]"),
    ("a name with a prefix", [("talos.extraSans", ["10.0.0.1/24"])], "SAN-001", "cozystack:talos.extraSans[0]"),
    (
        "a VIP on a worker",
        [("nodes.2", worker_with(vips=[{"address": "10.0.0.9"}]))],
        "NET-028",
        "cozystack:nodes[2].vips",
    ),
    (
        "a VIP document on a worker",
        [("nodes.2", worker_with(patches=[{"apiVersion": "v1alpha1", "kind": "Layer2VIPConfig", "name": "10.0.0.9"}]))],
        "NET-028",
        "cozystack:nodes[2].patches[0]",
    ),
    ("VIP 127.0.0.1", [("talos.vip", "127.0.0.1")], "NET-022", "cozystack:talos.vip"),
    ("VIP 0.0.0.0", [("talos.vip", "0.0.0.0")], "NET-022", "cozystack:talos.vip"),
    ("VIP 224.0.0.1", [("talos.vip", "224.0.0.1")], "NET-022", "cozystack:talos.vip"),
    ("VIP 169.254.1.1", [("talos.vip", "169.254.1.1")], "NET-022", "cozystack:talos.vip"),
    ("VIP ::ffff:10.0.0.5", [("talos.vip", "::ffff:10.0.0.5")], "NET-023", "cozystack:talos.vip"),
    ("VIP of a node", [("talos.vip", "10.0.0.11")], "NET-021", "cozystack:talos.vip"),
    (
        "VIP of a node's static address",
        [("nodes.0.addresses", ["10.0.0.11/24", "10.0.0.10/24"])],
        "NET-021",
        "cozystack:talos.vip",
    ),
    (
        "VIP on an undefined link",
        [("nodes.0.vips", [{"address": "10.0.0.9", "link": "ens9"}])],
        "NET-031",
        "cozystack:nodes[0].vips[0].link",
    ),
    *[
        (f"host name {name!r}", [("nodes.0.name", name)], "INV-001", "cozystack:nodes[0].name")
        for name in ("CP1", "node_1", "-cp1", "cp1.", "10.0.0.1", "cp 1", "cpü", "a..b")
    ],
    ("endpoint over http", [("cluster.endpoint", "http://10.0.0.10:6443")], "END-001", "cozystack:cluster.endpoint"),
    ("endpoint without a port", [("cluster.endpoint", "https://10.0.0.10")], "END-001", "cozystack:cluster.endpoint"),
    (
        "endpoint with a slash",
        [("cluster.endpoint", "https://10.0.0.10:6443/")],
        "END-001",
        "cozystack:cluster.endpoint",
    ),
    (
        "endpoint with an underscore",
        [("cluster.endpoint", "https://k8s_api.local:6443")],
        "END-001",
        "cozystack:cluster.endpoint",
    ),
    ("disk sda", [("nodes.0.installDisk", "sda")], "CFG-003", "cozystack:nodes[0].installDisk"),
    (
        "disk sda as an identity",
        [("nodes.0.installDisk", {"byId": "sda"})],
        "STO-002",
        "cozystack:nodes[0].installDisk.byId",
    ),
    ("an image that is none", [("talos.image", "not an image::")], "TAL-001", "cozystack:talos.image"),
    ("a module named twice", [("talos.kernelModules", ["nbd", "nbd"])], "TAL-004", "cozystack:talos.kernelModules[1]"),
    ("a module of the preset", [("talos.kernelModules", ["drbd"])], "TAL-004", "cozystack:talos.kernelModules[0]"),
    (
        "two files writing lvm.conf",
        [
            (
                "talos.patches",
                [{"machine": {"files": [{"path": "/etc/lvm/lvm.conf", "op": "overwrite", "content": ""}]}}],
            )
        ],
        "TAL-005",
        "cozystack:talos.patches[0]",
    ),
]

REFUSED: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    ("endpoint without scheme", [("cluster.endpoint", "10.0.0.10:6443")], "END-001", "cozystack:cluster.endpoint"),
    (
        "endpoint with bare IPv6",
        [("cluster.endpoint", "https://fd00::1:6443")],
        "END-001",
        "cozystack:cluster.endpoint",
    ),
    ("port beyond 65535", [("cluster.endpoint", "https://10.0.0.10:65536")], "END-001", "cozystack:cluster.endpoint"),
    ("a label of 64 characters", [("nodes.0.name", "a" * 64)], "INV-001", "cozystack:nodes[0].name"),
    ("VIP with a prefix", [("talos.vip", "10.0.0.10/24")], "NET-023", "cozystack:talos.vip"),
    ("VIP with 256", [("talos.vip", "10.0.0.256")], "NET-023", "cozystack:talos.vip"),
    ("an empty disk", [("nodes.0.installDisk", {"serial": ""})], "STO-015", "cozystack:nodes[0].installDisk"),
    ("no disk", [("nodes.0.installDisk", {})], "STO-015", "cozystack:nodes[0].installDisk"),
    (
        "classic host name beside the document",
        [("nodes.0.patches", [{"machine": {"network": {"hostname": "cp1"}}}])],
        "TAL-006",
        "cozystack:nodes[0].patches[0]",
    ),
    (
        "a second host-name document",
        [("nodes.0.patches", [{"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "cp1"}])],
        "TAL-006",
        "cozystack:nodes[0].patches[0]",
    ),
    (
        "a second document for one VIP",
        [("nodes.0.vips", [{"address": "10.0.0.10"}])],
        "NET-029",
        "cozystack:nodes[0].vips",
    ),
    ("an unknown key", [("talos.frobnicate", 1)], "CFG-002", "cozystack:talos.frobnicate"),
]


@pytest.mark.parametrize(
    ("changes", "code", "path"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED]
)
def test_what_talos_accepts_is_found(changes: list[tuple[str, Any]], code: str, path: str) -> None:
    findings = [finding for finding in judged(changed(good(), *changes)) if finding.severity != "note"]
    assert (code, path) in {(finding.code, finding.path.removesuffix(".reference")) for finding in findings}


@pytest.mark.parametrize(("changes", "code", "path"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_talos_refuses_is_found_before_it_is_asked(changes: list[tuple[str, Any]], code: str, path: str) -> None:
    findings = [finding for finding in judged(changed(good(), *changes)) if finding.severity == "error"]
    assert (code, path) in {(finding.code, finding.path) for finding in findings}
