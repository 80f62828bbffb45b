"""Machine configurations as this program and Talos' own generator make them together, for every Talos minor."""

from collections.abc import Mapping
from typing import Any

from cozystack_iac import yaml_text as text
from cozystack_iac.settings import Node, Site
from cozystack_iac.talos import documents
from lab.plugins.talos import contracts, generate, merge, secrets
from lab.talos import RELEASES


def site_on(minor: int, **changes: Any) -> Site:
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
        "talos": {"version": RELEASES[minor], "vip": "10.0.0.10", "nameservers": ["10.0.0.1"], "reach": "public"},
        "network": {"nodeCIDR": "10.0.0.0/24"},
        "publishing": {"host": "example.org"},
    }
    return Site.model_validate(given_ | changes)


def base_for(bundle: secrets.Bundle, site: Site, node: Node) -> tuple[text.Document, ...]:
    request = contracts.Request(
        cluster=site.cluster.name,
        endpoint=site.endpoint,
        machine_type="controlplane" if node.is_control_plane else "worker",
        minor=documents.minor_of(site.talos_version),
        kubernetes="1.33.12",
        installer="ghcr.io/siderolabs/installer:v1.13.0",
    )
    return generate.generate(bundle, request)


def merged_for(bundle: secrets.Bundle, site: Site, node: Node) -> dict[str, Mapping[str, Any]]:
    minor = documents.minor_of(site.talos_version)
    patched = merge.patch(base_for(bundle, site, node), documents.config_patches(site, node), max(13, minor))
    return {f"{one.get('kind', '')}/{one.get('name', '')}": one for one in patched}
