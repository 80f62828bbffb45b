"""One machine of one site, as the documents see it: Talos minor, link, image, and the addresses that matter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface, ip_network
from typing import Any

from cozystack_iac import releases
from cozystack_iac.settings import Node, Site

MULTIDOC_NETWORK = 12  # first minor with network documents (contract MultidocNetworkConfigSupported)
MULTIDOC_ALL = 14  # first minor whose generated base has nearly everything in documents of its own


class UnsupportedTalos(ValueError):
    """The site's Talos version is none that documents are known for; the message names it."""


@dataclass(frozen=True)
class Subject:
    """A machine, with everything optional decided; `link` and `image` are None where nobody knows them."""

    site: Site
    node: Node
    minor: int
    link: str | None
    image: str | None

    @classmethod
    def of(cls, site: Site, node: Node) -> Subject:
        """Decide what the stack file leaves open. Raises UnsupportedTalos."""
        return cls(site, node, minor_of(site.talos_version), node.link, node.image or site.installer_image or None)

    @property
    def control_plane(self) -> bool:
        """Whether the machine runs etcd and the API server."""
        return self.node.is_control_plane

    @cached_property
    def vips(self) -> tuple[tuple[str, str | None], ...]:
        """Virtual addresses this machine may carry, each with its link (None: unknown). The VIP is on EVERY control plane."""
        shared = self.site.talos.vip
        own = [(shared, self.link)] if shared and self.control_plane else []
        own += [(vip.address, vip.link or self.link) for vip in self.node.vips if vip.address]
        return tuple(dict(own).items())

    @cached_property
    def subnets(self) -> tuple[str, ...]:
        """Where the machine's own address lies, then every virtual address of the site as an exclusion.

        Without exclusions the kubelet gets two node addresses (siderolabs/talos#4318) and etcd advertises the virtual one
        (#12410). Empty when the machine's address cannot be read: Talos then chooses by itself.
        """
        network = self._network()
        if network is None:
            return ()
        excluded = [f"!{one}" for one in _hosts(self.site.virtual_addresses)]
        return (str(network), *dict.fromkeys(excluded))

    def _network(self) -> IPv4Network | IPv6Network | None:
        try:
            own = ip_address(self.node.internal)
            given = [ip_network(self.site.network.node_cidr, strict=False)] if self.site.network.node_cidr else []
            given += [ip_interface(address).network for address in self.node.addresses]
        except ValueError:
            return None
        return next((network for network in given if own in network), ip_network(own))


def minor_of(version: str) -> int:
    """The minor of `v1.13.6`. Raises UnsupportedTalos."""
    match = re.fullmatch(r"v?1\.(\d+)(?:\.\d+(?:-[\w.]+)?)?", version, re.ASCII)
    if match is None or int(match[1]) not in releases.TALOS_MINORS:
        raise UnsupportedTalos(
            f"Talos {version or 'of unknown version'} is not supported; use {releases.TALOS_VERSIONS}"
        )
    return int(match[1])


def document(kind: str, **fields: Any) -> dict[str, Any]:
    """A document of its own: kind and fields at the top level; Talos documents have neither metadata nor spec."""
    return {"apiVersion": "v1alpha1", "kind": kind} | fields


def delete(kind: str, **head: str) -> dict[str, Any]:
    """A patch that removes a generated document. Only for documents that are surely there: 1.13 crashes otherwise."""
    return document(kind, **head) | {"$patch": "delete"}


def _hosts(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        try:
            yield str(ip_network(ip_address(address)))
        except ValueError:
            continue  # not an address: a finding of the rules
