"""Names and addresses for certificates. What is missing here can no longer be reached after the first configuration."""

from __future__ import annotations

from cozystack_iac.settings.site import host_of
from cozystack_iac.talos.documents.subject import Subject

LOOPBACK = ("127.0.0.1", "localhost")


def machine(subject: Subject) -> list[str]:
    """For apid: every way to this machine, also through 1:1 NAT, whose public address is on no interface."""
    site, node = subject.site, subject.node
    return _once(
        *LOOPBACK,
        node.address,
        node.internal,
        node.public_address,
        *(address for address, _ in subject.vips),
        site.talos.vip,
        site.api_host,
        *site.talos.extra_sans,
        *node.extra_sans,
    )


def api_server(subject: Subject) -> list[str]:
    """For kube-apiserver: the same, every control plane's addresses (a load balancer hides which one answers), and the
    public name under which the ingress passes TLS through.

    Up to 1.11 the generated configuration holds the endpoint's host already, and lists are appended.
    """
    site = subject.site
    others = [address for node in site.control_planes for address in (node.internal, node.public_address)]
    public = host_of(site.api_server_endpoint) if site.publishing.host or site.publishing.api_server_endpoint else None
    names = _once(*machine(subject), *others, public)
    generated = host_of(site.endpoint) if subject.minor < 12 else None
    return [name for name in names if name != generated]


def _once(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name))
