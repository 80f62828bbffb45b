"""What people are told at the end: addresses, the way in, places of credentials, versions, and pictures of it all."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cozystack_iac import summary, timeline
from cozystack_iac.settings import Site
from cozystack_iac.timeline import Took

NODES = [
    {
        "name": f"cp{n}",
        "role": "controlPlane",
        "address": f"10.0.0.{10 + n}",
        "installDisk": {"serial": f"SYS{n}"},
        "dataDisks": [{"serial": f"DATA{n}"}],
    }
    for n in (1, 2, 3)
]


def site(**more: Any) -> Site:
    base = {"cluster": {"name": "prod"}, "nodes": NODES, "talos": {"vip": "10.0.0.10"}}
    return Site.model_validate({**base, "publishing": {"host": "example.org"}, **more})


def test_addresses_are_those_that_are_published() -> None:
    found = summary.access_summary(site(publishing={"host": "example.org", "exposed": ["api", "vm-exportproxy"]}))

    assert found["vm-exportproxy"] == "https://vm-exportproxy.example.org"
    assert found["kubernetes"] == "https://10.0.0.10:6443"
    assert found["tenant kubeconfigs"] == "https://api.example.org:443"
    assert found["grafana"] == "https://grafana.example.org"
    assert "dashboard" not in found


def test_the_way_in_depends_on_single_sign_on() -> None:
    on, off = summary.access_summary(site()), summary.access_summary(site(access={"oidc": False}))

    assert on["keycloak"] == "https://keycloak.example.org"
    assert "cozystack-cluster-admin" in on["how to log in"]
    assert "keycloak-credentials" in on["login"]
    assert "keycloak" not in off
    assert off["login"] == "kubectl -n tenant-root get secret tenant-root -o jsonpath='{.data.token}' | base64 -d"


def test_every_credential_has_its_place_and_the_command_that_shows_it() -> None:
    places = summary.secret_places(site())

    assert places["Keycloak, user admin"].startswith("cozy-keycloak/keycloak-credentials, key password: kubectl -n ")
    assert "tenant-root/grafana-admin-password, key password" in places["Grafana, user admin"]
    assert "Grafana, user admin" not in summary.secret_places(site(tenant={"monitoring": False}))


def test_a_key_with_a_dot_is_escaped_as_jsonpath_wants_it() -> None:
    assert "'{.data.tls\\.key}'" in summary.Secret("x", "ns", "name", "tls.key").command


def test_an_existing_cluster_keeps_its_own_kubeconfig() -> None:
    found = summary.access_summary(site(cluster={"name": "k3s", "variant": "generic"}))

    assert "talosconfig" not in found
    assert found["kubeconfig"] == "the file set in cluster.access"
    assert "kubernetes" not in summary.versions(site(cluster={"name": "k3s", "variant": "generic"}), "1")


def test_versions_name_everything_that_this_stack_decides() -> None:
    found = summary.versions(site(), "0.1.0")

    assert set(found) == {"cozystack", "chart", "cozystack-iac", "talos", "kubernetes"}
    assert found["cozystack-iac"] == "0.1.0"
    assert all(found.values())


def test_a_check_that_is_skipped_leaves_a_line_among_the_overrides() -> None:
    skipped = site(
        publishing={"host": "example.org", "reachability": "skip"},
        allow=[{"guardrail": "RCH-002", "reason": "no way in from here"}],
    )

    assert summary.overrides(skipped) == [
        "RCH-002: no way in from here",
        "reachability was not checked: no way in from here",
    ]
    assert summary.overrides(site()) == []


def test_the_revision_follows_what_is_asked_for_and_not_how_the_run_behaves() -> None:
    base = summary.revision(site())

    assert summary.revision(site(tenant={"seaweedfs": False})) != base
    assert summary.revision(site(waits={"tenant": "5m"}, checks="offline")) == base


def test_the_page_holds_no_value_that_was_given_as_a_secret() -> None:
    auth = {"config": {"r.example.org": {"auth": {"username": "u", "password": "s3cret"}}}}

    assert "s3cret" not in summary.markdown(site(network={"registries": auth}), "1")


def test_the_page_is_one_and_complete() -> None:
    page = summary.markdown(site(allow=[{"guardrail": "NET-014", "reason": "agreed with the site"}]), "0.1.0")

    for text in ("https://dashboard.example.org", "How to log in", "base64 -d", "0.1.0", "agreed with the site"):
        assert text in page
    assert page.count("```") == 2


def test_the_topology_leads_from_people_to_every_machine() -> None:
    picture = summary.topology(site())

    assert 'names["*.example.org"]' in picture
    assert [f"outside{n} --> node{n}" in picture for n in range(3)] == [True] * 3
    assert [f"vip --- node{n}" in picture for n in range(3)] == [True] * 3
    assert "cp1<br/>control plane, 10.0.0.11<br/>data: 1 disk, single, at least 50GiB each" in picture


# The timeline -------------------------------------------------------------------------------------------------------

START = datetime(2026, 11, 30, 17, 0, 0, 700_000, tzinfo=UTC)
LINKS = {
    "PlatformReady": Took(started="2026-11-30T17:10:00Z", seconds=900.4),
    "NodeProbe": Took(started="2026-11-30T17:00:00Z", seconds=0.2),
    "EtcdBootstrap": Took(started="2026-11-29T09:00:00Z", seconds=50),
    "TalosUpgrade": None,
}


def test_the_timeline_is_of_this_run_in_the_order_things_started() -> None:
    assert list(timeline.since(LINKS, START)) == ["NodeProbe", "PlatformReady"]


def test_the_picture_shows_start_and_length_of_every_link() -> None:
    picture = timeline.markdown(timeline.since(LINKS, START))

    assert "NodeProbe (0.2 s) :2026-11-30T17:00:00, 1s" in picture
    assert "PlatformReady (900.4 s) :2026-11-30T17:10:00, 900s" in picture
    assert "EtcdBootstrap" not in picture


def test_without_any_link_there_is_no_picture() -> None:
    assert timeline.markdown({}) == ""


@pytest.mark.parametrize("name", ["NodeProbe", "ClusterMembership 2"])
def test_names_of_links_do_not_break_the_picture(name: str) -> None:
    line = timeline.markdown({name: Took(started="2026-11-30T17:00:00Z", seconds=1)}).splitlines()[4]

    assert line.count(":") == 1 + 2  # the separator, and the clock's two
