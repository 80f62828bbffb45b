"""Every value of a site that uses every key, replaced by every nasty text and thing: a verdict comes out."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from cozystack_iac.findings import table
from tests.matrix import sampled
from tests.sites import changed, good, judged

NASTY: list[Any] = [
    *(
        "",
        " ",
        "\x00\n",
        "%",
        "[",
        "[::1]:6443",
        "::ffff:0:0",
        "fe80::1%",
        "0.0.0.0/0",
        "10.0.0.0/-1",
        "//",
        "..",
        "-",
        "*.",
    ),
    *(
        "https://[",
        "https://a:b:c",
        "https://:443",
        "a" * 100_000,
        "é" * 64,
        "v1.13.6-" + "9" * 60,
        "٣",
        "\ud800",
        "`|",
    ),
    *(
        "oci://a:b@c",
        "-----BEGIN CERTIFICATE-----",
        "10.0.0.1-::1",
        "r|",
        0,
        2**80,
        float("nan"),
        True,
        [],
        {"": ""},
        [None],
    ),
    *({"secure": "x"}, {"secure": 1}, {"file": ".."}),
]


def everything() -> dict[str, Any]:
    """A site that gives every key."""
    patch = {"machine": {"files": [{"path": "/var/x", "op": "create"}], "kernel": {"modules": [{"name": "nbd"}]}}}
    document = {"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens9"}
    dns01 = {"provider": "rfc2136", "nameserver": "ns1:53", "tsigKeyName": "k", "tsigAlgorithm": "a", "secretName": "s"}
    return changed(
        good(),
        ("cluster.endpoint", "https://10.0.0.10:6443"),
        ("cluster.domain", "cozy.local"),
        ("cluster.access", {"kubeconfig": "k", "context": "c", "identity": "i"}),
        ("nodes.0.internalAddress", "10.0.0.11"),
        ("nodes.0.publicAddress", "198.51.100.1"),
        ("nodes.0.maintenanceAddress", "10.0.0.99"),
        ("nodes.0.addresses", ["10.0.0.11/24"]),
        ("nodes.0.gateway", "10.0.0.1"),
        ("nodes.0.vips", [{"address": "10.0.0.9", "link": "ens9"}]),
        ("nodes.0.labels", {"a": "b"}),
        ("nodes.0.zone", "a"),
        ("nodes.0.image", "a/b:v1.13.6"),
        ("nodes.0.extraSans", ["a.b"]),
        ("nodes.0.kernelModules", ["nbd"]),
        ("nodes.0.sysctls", {"a.b": "1"}),
        ("nodes.0.patches", [document, patch]),
        ("nodes.0.reset", {"approved": True, "reason": "r"}),
        ("nodes.1.installDisk", {"wwid": "w", "serial": "s", "byId": "b", "selector": "s"}),
        ("talos.version", "v1.13.6"),
        ("talos.kubernetes", "v1.33.12"),
        ("talos.image", {"reference": "a/b:v1.13.6", "profile": "p", "fromRelease": False}),
        ("talos.extraSans", ["a.b"]),
        ("talos.extensions", ["drbd", "zfs"]),
        ("talos.lvmFilter", ["r|x|"]),
        ("talos.nameservers", ["10.0.0.1"]),
        ("talos.timeServers", ["t"]),
        ("talos.etcdQuota", "8GiB"),
        ("talos.patches", [document, patch]),
        ("network.podCIDR", "10.244.0.0/16"),
        ("network.podGateway", "10.244.0.1"),
        ("network.serviceCIDR", "10.96.0.0/16"),
        ("network.joinCIDR", "100.64.0.0/16"),
        ("network.nodeMask", 24),
        ("network.loadBalancerPools", ["10.0.0.192/27"]),
        ("network.reserved", ["192.168.0.0/16"]),
        ("network.kubespan", True),
        ("network.masterNodes", ["10.0.0.11"]),
        ("network.apiServerHost", "127.0.0.1"),
        ("network.apiServerPort", 7445),
        ("network.registries.mirrors", {"docker.io": {"endpoints": ["https://m"], "overridePath": True}}),
        ("network.registries.config", {"m": {"auth": {"username": "u", "password": "p"}, "tls": {}}}),
        ("network.proxy", {"http": "http://p:1", "https": "http://p:1", "noProxy": ["a.b"], "trustedRoots": "x"}),
        ("storage.replicas", 3),
        ("storage.minimumSize", "50GiB"),
        ("storage.jobImage", "a/b:c"),
        ("platform", {"variant": "isp-full", "chart": "oci://a/b", "values": {"branding": {"a": 1}}}),
        ("platform.bundles", {"iaas": True, "enable": ["cozystack.hami"], "disable": ["cozystack.x"]}),
        ("publishing.exposed", ["api", "dashboard"]),
        ("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50"]}),
        ("publishing.loadBalancerClass", "x"),
        ("publishing.provider", "oci"),
        ("publishing.certificates", {"solver": "dns01", "issuer": "i", "dns01": dns01, "wildcardSecretName": "w"}),
        ("publishing.apiServerEndpoint", "https://api.x:443"),
        ("access", {"oidc": True, "keycloakInternalUrl": "http://k.svc:8080/x", "kubeconfigFile": "f"}),
        ("tenant", {"ingress": True, "gateway": True}),
        ("waits", {"linstor": "20m", "platform": "60m"}),
        ("allow", [{"guardrail": "STO-012", "reason": "r", "until": "2027-01-31"}]),
        ("lab", {"httpsPort": 8443}),
        ("checks", "live"),
        ("protect", True),
    )


def places(tree: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a tree below its root, leaves and branches."""
    if steps:
        yield steps
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, value in entries:
        yield from places(value, (*steps, step))


def with_value(tree: Any, steps: tuple[str | int, ...], value: object) -> Any:
    result = copy.deepcopy(tree)
    place = result
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    return result


@pytest.mark.parametrize("number", range(len(NASTY)))
def test_a_nasty_value_anywhere_gives_a_verdict(number: int) -> None:
    everywhere = list(places(everything()))
    chosen = sampled(everywhere, len(everywhere) // 4, seed=number)  # each value at other places
    spoiled = (with_value(everything(), steps, NASTY[number]) for steps in chosen)
    assert all(table(judged(raw)).encode("utf-8", "replace") for raw in spoiled)


@pytest.mark.parametrize("value", ["a" * 100_000, "a." * 50_000, "1" * 100_000, "/-" * 50_000, "::" * 50_000])
def test_nothing_that_is_long_is_printed_in_full(value: str) -> None:
    spoiled = (with_value(everything(), steps, value) for steps in places(everything()))
    assert max(len(table(judged(raw))) for raw in spoiled) < 30_000
