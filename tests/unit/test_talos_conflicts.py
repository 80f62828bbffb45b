"""Findings about machine configurations, and the diff that reviewers read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cozystack_iac import releases
from cozystack_iac.findings import Severity
from cozystack_iac.settings import Site
from cozystack_iac.talos import documents
from cozystack_iac.talos.documents import conflicts
from cozystack_iac.talos.documents.diff import HIDDEN, Documents, changes, needs_reboot
from cozystack_iac.talos.documents.leaves import flatten
from cozystack_iac.talos.plan import as_text


def _site(version: str = "v1.13.6", **changes: Any) -> Site:
    node = {
        "name": "cp1",
        "role": "controlPlane",
        "address": "10.0.0.11",
        "link": "ens5",
        "installDisk": {"serial": "S1"},
    }
    talos = {"version": version, "vip": "10.0.0.10"} | changes.pop("talos", {})
    nodes = [node | changes.pop("node", {})]
    given_ = {"cluster": {"name": "prod"}, "nodes": nodes, "publishing": {"host": "example.org"}, "talos": talos}
    return Site.model_validate(given_ | changes)


def _codes(site: Site) -> list[str]:
    return [finding.code for finding in conflicts.findings(site)]


def test_a_plain_site_has_no_finding() -> None:
    for minor in releases.TALOS_MINORS:
        assert _codes(_site(f"v1.{minor}.0")) == []


PATCH_CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("v1.11.6", {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens6"}, ["MCF-003"]),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "SysctlConfig", "params": {"vm.swappiness": "1"}}, ["MCF-003"]),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "LinkConfig", "metadata": {"name": "x"}, "spec": {}}, ["MCF-003"]),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "SomethingNew", "name": "x"}, []),
    ("v1.13.6", {"machine": {"network": {"hostname": "cp1"}}}, ["MCF-004"]),
    ("v1.11.6", {"machine": {"network": {"hostname": "cp1"}}}, []),
    ("v1.11.6", {"machine": {"network": {"hostname": "other"}}}, ["MCF-010"]),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "HostnameConfig", "hostname": "other"}, ["MCF-010"]),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "HostnameConfig", "auto": "stable"}, ["MCF-005"]),
    ("v1.14.0", {"machine": {"install": {"disk": "/dev/vda"}}}, ["MCF-004"]),
    ("v1.14.0", {"machine": {"kubelet": {"extraConfig": {"maxPods": 250}}}}, ["MCF-004"]),
    ("v1.14.0", {"cluster": {"network": {"cni": {"name": "none"}}}}, ["MCF-004"]),
    ("v1.13.6", {"machine": {"kubelet": {"extraConfig": {"maxPods": 250}}}}, ["MCF-005"]),
    ("v1.13.6", {"machine": {"kubelet": {"extraConfig": {"maxPods": 512}}}}, []),
    ("v1.13.6", {"machine": {"kubelet": {"extraConfig": {"podsPerCore": 4}}}}, []),
    ("v1.13.6", {"cluster": {"proxy": {"disabled": False}}}, ["MCF-005"]),
    ("v1.13.6", {"cluster": {"network": {"podSubnets": ["10.9.0.0/16"]}}}, ["MCF-005"]),
    ("v1.13.6", {"cluster": {"controllerManager": {"extraArgs": {"allocate-node-cidrs": True}}}}, []),
    ("v1.13.6", {"machine": {"certSANs": ["extra.example.org"]}}, []),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens9", "$patch": "delete"}, ["MCF-006"]),
    ("v1.14.0", {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens9", "$patch": "delete"}, []),
    ("v1.13.6", {"apiVersion": "v1alpha1", "kind": "HostnameConfig", "$patch": "delete"}, []),
]


@pytest.mark.parametrize(("version", "patch", "codes"), PATCH_CASES)
def test_user_patches(version: str, patch: dict[str, Any], codes: list[str]) -> None:
    assert _codes(_site(version, talos={"patches": [patch]})) == codes
    assert _codes(_site(version, node={"patches": [patch]})) == codes


def test_findings_name_the_place_of_the_patch() -> None:
    patch = {"cluster": {"proxy": {"disabled": False}}}
    (finding,) = conflicts.findings(_site(node={"patches": [{}, patch]}))
    assert finding.path == "cozystack:nodes[0].patches[1]"
    assert finding.severity is Severity.WARNING
    assert "cluster.proxy.disabled is changed from true to false on cp1" in finding.problem


def test_name_servers_in_two_forms() -> None:
    patch = {"machine": {"network": {"nameservers": ["10.0.0.1"]}}}
    assert _codes(_site(talos={"patches": [patch]})) == []
    assert _codes(_site(talos={"patches": [patch], "nameservers": ["10.0.0.2"]})) == ["MCF-004"]


def test_a_virtual_address_needs_a_link_that_somebody_knows() -> None:
    site = _site(node={"link": None})
    (finding,) = conflicts.findings(site)
    assert finding.code == "MCF-001" and "10.0.0.10" in finding.problem and finding.severity is Severity.ERROR
    assert _codes(_site()) == []
    assert _codes(_site(node={"link": None, "addresses": ["10.0.0.11/24"]}, talos={"vip": None})) == ["MCF-001"]


def test_an_expression_for_the_install_disk_needs_1_14() -> None:
    disk = {"installDisk": {"selector": "system_disk"}}
    assert _codes(_site("v1.13.6", node=disk)) == ["MCF-002"]
    assert _codes(_site("v1.14.0", node=disk)) == []


def test_two_virtual_addresses_on_one_interface_need_1_12() -> None:
    vips = {"vips": [{"address": "10.0.0.9"}]}
    assert _codes(_site("v1.11.6", node=vips)) == ["MCF-007"]
    assert _codes(_site("v1.12.7", node=vips)) == []
    assert _codes(_site("v1.11.6", node={"vips": [{"address": "10.0.0.9", "link": "ens6"}]})) == []


def test_an_unread_profile_leaves_no_image() -> None:
    profile = {"image": {"fromRelease": False, "profile": "installer.yaml"}}
    assert _codes(_site(talos=profile)) == ["MCF-008"]
    read = _site(talos=profile)
    read.pinned_by("v1.13.6")
    assert _codes(read) == []


def test_an_unknown_talos_is_one_finding() -> None:
    assert _codes(_site("v1.99.0")) == ["MCF-009"]


def test_existing_clusters_are_not_judged() -> None:
    assert _codes(_site("v1.99.0", cluster={"name": "prod", "variant": "generic"})) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["delete", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["machine", "cluster", "network", "hostname", "$patch", "kind", "name", "install"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["machine", "cluster", "kind", "name", "$patch", "apiVersion"]), JSON))
def test_whatever_a_patch_holds_there_is_no_traceback(patch: dict[str, Any]) -> None:
    for version in ("v1.11.6", "v1.14.0"):
        site = _site(version, talos={"patches": [patch]})
        assert all(finding.path for finding in conflicts.findings(site))


# The diff ---------------------------------------------------------------------------------------------------------------


def redacted_diff(old: Documents, new: Documents) -> str:
    return as_text(changes(old, new), {})


def _documents(site: Site) -> dict[str, tuple[documents.Document, ...]]:
    return {node.name: documents.patches(site, node) for node in site.nodes}


def test_the_diff_says_what_changes_where_and_whether_it_reboots() -> None:
    old = _documents(_site())
    new = _documents(
        _site(talos={"sysctls": {"vm.nr_hugepages": "8"}, "nameservers": ["10.0.0.1"], "extraSans": ["a"]})
    )
    assert redacted_diff(old, new).splitlines() == [
        "cp1  needs no reboot",
        "  + machine.sysctls.vm.nr_hugepages: 8",
        "  ~ machine.certSANs: +a",
        "  ~ cluster.apiServer.certSANs: +a",
        "  + ResolverConfig: nameservers[10.0.0.1]",
    ]


def test_a_changed_file_takes_a_reboot_and_is_not_printed_whole() -> None:
    old, new = _documents(_site()), _documents(_site(talos={"lvmFilter": ["r|^/dev/drbd.*|"]}))
    assert redacted_diff(old, new).splitlines() == [
        "cp1  needs a reboot",
        "  ~ machine.files[/etc/lvm/lvm.conf].content: (7 lines) -> (7 lines)",
    ]


def test_nothing_changed_is_an_empty_diff() -> None:
    assert redacted_diff(_documents(_site()), _documents(_site())) == ""


def test_new_and_removed_machines() -> None:
    site = _documents(_site())
    assert redacted_diff({}, site).splitlines()[0] == "cp1  new machine: it is installed and then rebooted"
    assert "  + HostnameConfig: hostname: cp1" in redacted_diff({}, site)
    assert redacted_diff(site, {}) == "cp1  removed from the inventory"


@pytest.mark.parametrize(
    "place",
    [
        {"machine": {"token": "CANARY"}},
        {"machine": {"ca": {"key": "CANARY"}}},
        {"machine": {"registries": {"config": {"r": {"auth": {"password": "CANARY"}}}}}},
        {"cluster": {"secretboxEncryptionSecret": "CANARY"}},
        {"cluster": {"etcd": {"ca": {"crt": "x", "key": "CANARY"}}}},
        {"machine": {"files": [{"path": "/var/x", "content": "-----BEGIN RSA PRIVATE KEY-----CANARY"}]}},
        {"machine": {"env": {"https_proxy": "http://user:CANARY@proxy:3128"}}},
        {"machine": {"systemDiskEncryption": {"state": {"keys": [{"static": {"passphrase": "CANARY"}}]}}}},
        {"apiVersion": "v1alpha1", "kind": "RegistryAuthConfig", "name": "r", "username": "u", "password": "CANARY"},
        {"apiVersion": "v1alpha1", "kind": "WireguardConfig", "name": "wg0", "privateKey": "CANARY"},
        {"apiVersion": "v1alpha1", "kind": "DiscoveryIdentityConfig", "clusterID": "i", "clusterSecret": "CANARY"},
        {
            "apiVersion": "v1alpha1",
            "kind": "KubeServiceAccountConfig",
            "issuer": {"privateKey": "CANARY", "issuerURL": "u"},
        },
    ],
)
def test_secrets_are_never_in_a_diff(place: dict[str, Any]) -> None:
    other = _replaced(place, "OTHER")
    for old, new in (([], [place]), ([place], []), ([place], [other]), ([other], [place])):
        written = redacted_diff({"n": old}, {"n": new})
        assert "CANARY" not in written and "OTHER" not in written
        assert HIDDEN in written
    assert "CANARY" not in redacted_diff({}, {"n": [place]})


def _replaced(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, text) for item in value]
    return value.replace("CANARY", text) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("old", "new", "reboot"),
    [
        ({"machine": {"kubelet": {"image": "a"}}}, {"machine": {"kubelet": {"image": "b"}}}, False),
        ({"machine": {"install": {"image": "a"}}}, {"machine": {"install": {"image": "b"}}}, False),
        ({"cluster": {"proxy": {"disabled": True}}}, {"cluster": {"proxy": {"disabled": False}}}, False),
        ({"machine": {"env": {"a": "1"}}}, {"machine": {"env": {"a": "2"}}}, True),
        ({"machine": {"features": {"rbac": True}}}, {"machine": {"features": {"rbac": False}}}, True),
        ({"machine": {"sysctls": {"a": 1}}}, {"machine": {"sysctls": {"a": True}}}, False),
        ({"machine": {"udev": {"rules": ["a"]}}}, {"machine": {}}, True),
        ({"kind": "LinkConfig", "name": "a", "mtu": 1}, {"kind": "LinkConfig", "name": "a", "mtu": 2}, False),
    ],
)
def test_what_takes_a_reboot(old: dict[str, Any], new: dict[str, Any], reboot: bool) -> None:
    assert needs_reboot([old], [new]) is reboot
    assert redacted_diff({"n": [old]}, {"n": [new]}) != ""


def test_list_order_is_a_change_and_elements_are_matched_by_name() -> None:
    one, two = {"name": "a", "x": 1}, {"name": "b", "x": 2}
    same = redacted_diff(
        {"n": [{"machine": {"kernel": {"modules": [one, two]}}}]},
        {"n": [{"machine": {"kernel": {"modules": [two, one]}}}]},
    )
    assert same == ""
    order = redacted_diff(
        {"n": [{"machine": {"certSANs": ["a", "b"]}}]}, {"n": [{"machine": {"certSANs": ["b", "a"]}}]}
    )
    assert "only the order" in order


@given(
    st.dictionaries(st.sampled_from(["machine", "cluster"]), JSON), st.dictionaries(st.sampled_from(["machine"]), JSON)
)
def test_a_diff_is_empty_exactly_when_nothing_differs(old: dict[str, Any], new: dict[str, Any]) -> None:
    written = redacted_diff({"n": [old]}, {"n": [new]})
    assert (written == "") == (_typed(flatten([old])) == _typed(flatten([new])))


def _typed(leaves: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], tuple[str, Any]]:
    return {path: (type(value).__name__, value) for path, value in leaves.items()}
