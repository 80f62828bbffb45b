"""Host name, links, virtual addresses, name servers: one legacy section up to 1.11, documents from 1.12 on."""

from __future__ import annotations

from typing import Any

from cozystack_iac.talos.documents.subject import Subject, document


def legacy(subject: Subject) -> dict[str, Any]:
    """`machine.network` up to 1.11. An interface that is mentioned loses Talos' default DHCP, so it is asked for."""
    network: dict[str, Any] = {"hostname": subject.node.name}
    if subject.site.talos.nameservers:
        network["nameservers"] = list(subject.site.talos.nameservers)
    interfaces: dict[str, dict[str, Any]] = {}
    if subject.link and (subject.node.addresses or subject.vips):
        interfaces[subject.link] = {"interface": subject.link} | _legacy_addresses(subject)
    for address, link in subject.vips:
        # An interface carries one virtual address; a second one is a finding.
        if link:
            interfaces.setdefault(link, {"interface": link, "dhcp": True}).setdefault("vip", {"ip": address})
    if interfaces:
        network["interfaces"] = list(interfaces.values())
    return network


def _legacy_addresses(subject: Subject) -> dict[str, Any]:
    node = subject.node
    if not node.addresses:
        return {"dhcp": True}
    fields: dict[str, Any] = {"addresses": list(node.addresses)}
    if node.gateway:
        everything = "::/0" if ":" in node.gateway else "0.0.0.0/0"
        fields["routes"] = [{"network": everything, "gateway": node.gateway}]
    return fields


def documents(subject: Subject) -> list[dict[str, Any]]:
    """The documents from 1.12 on.

    The generated `HostnameConfig` says `auto: stable`, which a host name alone would contradict: it takes `auto: off`.
    A default route has no `destination`: Talos refuses 0.0.0.0/0 there.
    """
    site, node = subject.site, subject.node
    found = [document("HostnameConfig", auto="off", hostname=node.name)]
    if site.talos.nameservers:
        servers = [{"address": server} for server in site.talos.nameservers]
        found.append(document("ResolverConfig", nameservers=servers))
    if subject.link and node.addresses:
        routes = {"routes": [{"gateway": node.gateway}]} if node.gateway else {}
        addresses = [{"address": address} for address in node.addresses]
        found.append(document("LinkConfig", name=subject.link, addresses=addresses, **routes))
    # The link of a virtual address needs one of its own; asked for plainly rather than left to Talos' default.
    leased = dict.fromkeys(link for _, link in subject.vips if link and not (link == subject.link and node.addresses))
    found += [document("DHCPv4Config", name=link) for link in leased]
    found += [document("Layer2VIPConfig", name=address, link=link) for address, link in subject.vips if link]
    return found


def time_documents(subject: Subject) -> list[dict[str, Any]]:
    """Time servers from 1.12 on; before that they are in `machine.time`."""
    servers = list(subject.site.talos.time_servers)
    return [document("TimeSyncConfig", ntp={"servers": servers})] if servers else []


def proxy_environment(subject: Subject) -> dict[str, str]:
    """Variables for an HTTP proxy; what lives inside the cluster and between its machines is reached directly."""
    site, proxy = subject.site, subject.site.network.proxy
    if not (proxy.http or proxy.https):
        return {}
    network = site.network
    near = [
        *("127.0.0.1", "localhost"),
        *(network.pod_cidr, network.service_cidr, network.join_cidr),
        *([network.node_cidr] if network.node_cidr else [node.internal for node in site.nodes]),
        *(("." + site.cluster.domain, ".svc") if site.cluster.domain else (".svc",)),
        site.api_host,
        *proxy.no_proxy,
    ]
    given = {"http_proxy": proxy.http, "https_proxy": proxy.https}
    variables = {name: url for name, url in given.items() if url}
    return variables | {"no_proxy": ",".join(dict.fromkeys(item for item in near if item))}
