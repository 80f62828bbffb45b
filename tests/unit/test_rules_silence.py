"""What rules let pass: sites that are fine, existing clusters, the lab."""

from typing import Any

import pytest

from cozystack_iac.findings import Severity
from cozystack_iac.rules import judge
from cozystack_iac.rules.lab import EXCUSED
from tests.mistakes import BAD, BAD_EXISTING, NAT, VALID
from tests.sites import GONE, TODAY, changed, codes, existing, found, good, judged, site_of

# Existing clusters and the lab ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("NET-004", [("network.podCIDR", "10.43.0.0/16")]),
        ("NET-006", [("network.podCIDR", "10.42.0.0/24")]),
        ("ROL-002", [("nodes.2.role", "worker")]),
    ],
)
def test_an_existing_cluster_is_warned_where_a_new_one_is_refused(code: str, changes: list[tuple[str, Any]]) -> None:
    raw = changed(existing(), *changes)
    assert found(raw, code).severity is Severity.WARNING
    fresh = changed(raw, ("cluster.variant", "talos"), ("cluster.access", GONE), ("talos", {"vip": "10.0.0.10"}))
    assert found(fresh, code).severity is Severity.ERROR


def test_a_hosted_cluster_needs_no_nodes() -> None:
    raw = changed(
        existing(),
        ("cluster.variant", "hosted"),
        ("nodes", GONE),
        ("storage", GONE),
        ("platform.bundles", {"system": True, "disable": ["cozystack.backupstrategy-controller"]}),
    )
    assert codes(judged(raw)) == []


def lab() -> dict[str, Any]:
    raw = changed(
        good(), ("lab", {"httpsPort": 8443}), ("talos.vip", "127.10.0.10"), ("network.nodeCIDR", "127.10.0.0/24")
    )
    return changed(raw, *[(f"nodes.{n}.address", f"127.10.0.{n + 11}") for n in range(3)])


def test_a_lab_lives_on_loopback() -> None:
    assert codes(judged(lab())) == []


@pytest.mark.parametrize(("code", "changes"), [mistake for mistake in [*BAD, *BAD_EXISTING] if mistake[0] in EXCUSED])
def test_a_lab_is_excused(code: str, changes: list[tuple[str, Any]]) -> None:
    seen = {finding.severity for finding in judged(changed(lab(), *changes)) if finding.code == code}
    assert seen == {EXCUSED[code]} - {None}


def test_every_excuse_is_from_a_rule_that_others_are_held_to() -> None:
    assert set(EXCUSED) <= {code for code, _ in [*BAD, *BAD_EXISTING]}


def test_a_lab_asks_no_resolver_of_the_real_world() -> None:
    raw = changed(lab(), ("lab.resolver", "127.10.53.1:5353"), ("publishing.resolvers", ["9.9.9.9"]))
    assert found(raw, "RUN-002").path == "cozystack:publishing.resolvers[0]"


def test_without_saying_so_loopback_is_refused() -> None:
    assert {"INV-004", "NET-022"} <= judged(changed(lab(), ("lab", GONE))).codes


def test_a_lab_never_names_a_real_machine() -> None:
    assert found(changed(lab(), ("nodes.1.address", "10.0.0.12")), "RUN-002").severity is Severity.ERROR


# What must not be reported ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        [
            ("publishing.host", "my-cluster.eu"),
            ("publishing.certificates", {"solver": "dns01", "dns01": {"provider": "cloudflare"}}),
        ],
        [("nodes.0.labels", {"topology.kubernetes.io/rack": "r1", "gpu": ""})],
        [("nodes.0.addresses", ["10.0.0.11/24", "192.168.5.2/24"]), ("nodes.0.gateway", "10.0.0.1")],
        [
            ("nodes.0.vips", [{"address": "10.0.0.9", "link": "ens9"}]),
            ("nodes.0.patches", [{"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens9"}]),
        ],
        [("network.loadBalancerPools", ["10.0.0.192/27"]), ("publishing.loadBalancer", True)],
        [("talos.extraSans", ["*.k8s.example.org", "203.0.113.9", "fd00::1"])],
        [
            *NAT,
            ("talos.reach", "public"),
            ("publishing.provider", "oci"),
            ("talos.vip", GONE),
            ("cluster.endpoint", "https://k8s.example.org:6443"),
        ],
        [*NAT, ("publishing.provider", "hetzner"), ("publishing.externalIPs.strategy", "external")],
        [
            (
                "network.proxy",
                {
                    "http": "http://joe:x@p:3128",
                    "https": "http://p:3128",
                    "noProxy": [".example.org", "10.0.0.0/8", "10.0.0.1"],
                },
            )
        ],
        [("network.proxy.trustedRoots", VALID)],
        [
            (
                "network.registries.mirrors",
                {
                    "docker.io": {"endpoints": ["https://mirror.gcr.io", "http://10.0.0.5:5000/v2"]},
                    "*": {"endpoints": ["https://m"]},
                },
            )
        ],
        [("platform.values", {"branding": {"a": {"b": 1}}, "resources": {"cpuAllocationRatio": 5}, "gpu": {"x": 1}})],
        [
            (
                "talos.patches",
                [
                    {"machine": {"sysctls": {"a.b": "1"}}},
                    {"apiVersion": "v1alpha1", "kind": "VolumeConfig", "name": "EPHEMERAL"},
                ],
            )
        ],
        [("talos.version", "v1.13.6"), ("talos.kubernetes", "v1.33.12")],
        [("nodes.0.dataDisks", [{"byId": "/dev/disk/by-id/nvme-X"}]), ("storage.approvedDisks.cp1", ["nvme-X"])],
        [
            ("nodes.0.dataDisks", [{"serial": "A"}, {"serial": "B"}]),
            ("nodes.0.layout", "mirror"),
            ("storage.approvedDisks.cp1", ["A", "B"]),
        ],
        [("platform.bundles.enable", ["cozystack.linstor-gui"]), ("publishing.exposed", ["dashboard", "linstor-gui"])],
        [("cluster.endpoint", "https://k8s.example.org:6443"), ("talos.vip", GONE)],
        [
            ("network", {"podCIDR": "fd10::/48", "serviceCIDR": "fd11::/108", "joinCIDR": "fd12::/64"}),
            *[(f"nodes.{n}.address", f"fd00::{n + 1}") for n in range(3)],
            ("talos.vip", "fd00::10"),
        ],
    ],
)
def test_what_is_fine_is_not_reported(changes: list[tuple[str, Any]]) -> None:
    assert codes(judged(changed(good(), *changes))) == []


def test_a_partition_can_store_data_where_the_job_alone_looks_at_it() -> None:
    part = [("nodes.0.dataDisks", [{"byId": "nvme-X-part3"}]), ("storage.approvedDisks.cp1", ["nvme-X-part3"])]
    assert "STO-003" in codes(judged(changed(good(), *part)))
    assert "STO-003" not in codes(judged(changed(existing(), *part)))


def test_a_verdict_needs_nothing_but_the_site() -> None:
    assert not judge(site_of(good()), TODAY).blocking
