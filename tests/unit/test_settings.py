"""The models: spellings, defaults, effective values."""

from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from cozystack_iac.settings import Node, Site, Talos
from cozystack_iac.settings.base import duration_text, parse_duration, parse_size, size_text
from cozystack_iac.settings.paths import config_set, spelled
from cozystack_iac.settings.run import Allow
from tests.sites import GONE, changed, good, site_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1h", 3600), ("2h1m5s", 7265), ("168h", 604800)]
)
def test_a_duration_is_read_and_written_back(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert parse_duration(duration_text(parse_duration(text))) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value", ["", "20", "0s", "-5m", "1d", "5 m", 20, None, True, "169h", "٣m", "m", [], "9" * 30 + "s"]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [("50GiB", 50 * 1024**3), ("1.5TB", 1_500_000_000_000), ("4 KiB", 4096), (512, 512), ("7B", 7)],
)
def test_a_size_is_read_as_bytes(value: object, size_bytes: int) -> None:
    assert parse_size(value) == size_bytes


@pytest.mark.parametrize("value", ["", "50", "50G", "-1GiB", 0, -1, True, "0GiB", None, "1e3GiB", "５GiB", [5]])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(value)


@pytest.mark.parametrize(("size_bytes", "text"), [(50 * 1024**3, "50GiB"), (1024, "1KiB"), (1000, "1000B")])
def test_a_size_is_written_in_the_largest_unit_that_is_exact(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (("nodes", 1, "address"), "cozystack:nodes[1].address"),
        (("storage", "approvedDisks", "cp1", 0), "cozystack:storage.approvedDisks.cp1[0]"),
        (("network", "registries", "mirrors", "docker.io"), 'cozystack:network.registries.mirrors["docker.io"]'),
        ((3, "address"), "[3].address"),
    ],
)
def test_a_place_is_spelled_as_pulumi_reads_it(steps: tuple[str | int, ...], path: str) -> None:
    assert spelled(steps) == path


def test_a_command_is_quoted_for_the_shell() -> None:
    assert config_set("cozystack:nodes[0].name", "a b") == "pulumi config set --path 'cozystack:nodes[0].name' 'a b'"


def test_there_is_no_command_for_an_inventory_file() -> None:
    assert config_set("sites/prod.nodes.yaml: [0].name", "cp1") is None


def test_models_are_frozen() -> None:
    site = site_of(good())
    with pytest.raises(ValidationError):
        site.cluster.name = "other"  # type: ignore[misc]


def test_python_names_work_in_python() -> None:
    site = Site.model_validate({"network": {"pod_cidr": "10.1.0.0/16"}})
    assert site.network.pod_cidr == "10.1.0.0/16"


@pytest.mark.parametrize(
    ("changes", "endpoint"),
    [
        ((), "https://10.0.0.10:6443"),
        ((("talos.vip", GONE),), "https://10.0.0.11:6443"),
        ((("cluster.endpoint", "https://k8s.example.org:443"),), "https://k8s.example.org:443"),
        ((("talos.vip", "fd00::10"),), "https://[fd00::10]:6443"),
        ((("talos.vip", GONE), ("nodes.0.internalAddress", "10.9.0.1")), "https://10.9.0.1:6443"),
    ],
)
def test_the_endpoint_follows_vip_and_first_control_plane(changes: tuple[tuple[str, Any], ...], endpoint: str) -> None:
    assert site_of(changed(good(), *changes)).endpoint == endpoint


@pytest.mark.parametrize(
    ("variant", "platform"), [("talos", "isp-full"), ("generic", "isp-full-generic"), ("hosted", "isp-hosted")]
)
def test_the_platform_variant_follows_the_cluster(variant: str, platform: str) -> None:
    assert site_of(changed(good(), ("cluster.variant", variant))).platform_variant == platform


def test_the_platform_variant_can_be_overridden() -> None:
    assert site_of(changed(good(), ("platform.variant", "default"))).platform_variant == "default"


@pytest.mark.parametrize(
    ("release", "talos"),
    [("1.3.0", "v1.12.6"), ("1.3.6", "v1.12.7"), ("1.5.4", "v1.13.0"), ("v1.6.2", "v1.13.6"), ("0.9.9", "")],
)
def test_the_talos_version_follows_the_release(release: str, talos: str) -> None:
    assert site_of(changed(good(), ("cluster.cozystack", release))).talos_version == talos


def test_an_image_may_be_plain_text() -> None:
    image = site_of(changed(good(), ("talos.image", "registry.example.org/talos:v1.13.6"))).talos.image
    assert image.reference == "registry.example.org/talos:v1.13.6"
    assert not image.pinned


@pytest.mark.parametrize(
    ("changes", "addresses"),
    [
        ((), ("10.0.0.11", "10.0.0.12", "10.0.0.13")),
        ((("nodes.1.publicAddress", "203.0.113.2"), ("publishing.externalIPs.strategy", "external")), ("203.0.113.2",)),
        ((("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50"]}),), ("10.0.0.50",)),
        ((("publishing.loadBalancer", True),), ()),
    ],
)
def test_external_addresses_follow_the_strategy(
    changes: tuple[tuple[str, Any], ...], addresses: tuple[str, ...]
) -> None:
    assert site_of(changed(good(), *changes)).external_ips == addresses


@pytest.mark.parametrize(("count", "replicas"), [(1, 1), (2, 2), (3, 3)])
def test_replicas_follow_the_number_of_storage_nodes(count: int, replicas: int) -> None:
    site = site_of(good())
    fewer = Site(nodes=site.nodes[:count])
    assert fewer.replicas == replicas


def test_replicas_stay_at_three_on_larger_sites() -> None:
    nodes = site_of(good()).nodes
    assert Site(nodes=(*nodes, *nodes[:2])).replicas == 3


@pytest.mark.parametrize(
    ("changes", "gateway"),
    [
        ((), "10.244.0.1"),
        ((("network.podCIDR", "banana"),), ""),
        ((("network.podGateway", "10.244.0.9"),), "10.244.0.9"),
    ],
)
def test_the_pod_gateway_is_the_first_address(changes: tuple[tuple[str, Any], ...], gateway: str) -> None:
    assert site_of(changed(good(), *changes)).pod_gateway == gateway


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ((), ("127.0.0.1", 7445)),
        ((("platform.prism", False),), ("10.0.0.10", 6443)),
        ((("network.apiServerHost", "10.0.0.9"),), ("10.0.0.9", 6443)),
        ((("network.apiServerHost", "10.0.0.9"), ("network.apiServerPort", 8443)), ("10.0.0.9", 8443)),
    ],
)
def test_the_operator_finds_the_api_server(changes: tuple[tuple[str, Any], ...], answer: tuple[str, int]) -> None:
    assert site_of(changed(good(), ("cluster.variant", "generic"), *changes)).apiserver_for_operator == answer


def test_the_public_api_endpoint_is_the_ingress() -> None:
    assert site_of(good()).api_server_endpoint == "https://api.cluster.example.org:443"
    assert (
        site_of(changed(good(), ("lab", {"httpsPort": 8443}))).api_server_endpoint
        == "https://api.cluster.example.org:8443"
    )


@pytest.mark.parametrize(
    "value", ["2027-01-31", date(2027, 1, 31), "2027-01-31T00:00:00Z", "2027-01-31 00:00:00 +0000 UTC"]
)
def test_a_date_may_come_from_yaml_or_json(value: object) -> None:
    assert Allow.model_validate({"guardrail": "STO-012", "reason": "x", "until": value}).until == date(2027, 1, 31)


def test_credentials_do_not_show() -> None:
    auth = {"username": "joe", "password": "canary-4711"}
    site = site_of(changed(good(), ("network.registries.config", {"r.example.org": {"auth": auth}})))
    config = site.network.registries.config["r.example.org"]
    assert config.auth is not None
    assert config.auth.password.get_secret_value() == "canary-4711"
    assert "canary-4711" not in f"{site!r} {site} {site.model_dump_json()}"


def test_a_site_made_in_python_knows_what_was_given() -> None:
    site = Site.model_validate({"network": {"podCIDR": "10.1.0.0/16"}, "nodes": [{"name": "cp1"}]})
    assert site.given("network", "podCIDR")
    assert site.given("nodes", 0, "name")
    assert not site.given("network", "serviceCIDR")
    assert not site.given("nodes", 1, "name")
    assert site.where("network", "serviceCIDR") == "cozystack:network.serviceCIDR"


def test_a_pinned_key_is_32_bytes_in_base64() -> None:
    pin = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
    assert Node.model_validate({"fingerprint": pin}).fingerprint == pin


@pytest.mark.parametrize("pin", ["", "AAAA", "not base64!", "ü", 5])
def test_anything_else_is_no_key(pin: object) -> None:
    with pytest.raises(ValidationError, match="fingerprint"):
        Node.model_validate({"fingerprint": pin})


@pytest.mark.parametrize("batch", [0, -1, "3", True, 1.5])
def test_a_batch_of_workers_is_a_whole_number_of_at_least_one(batch: object) -> None:
    with pytest.raises(ValidationError):
        Talos.model_validate({"batch": batch})
