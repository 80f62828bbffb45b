"""Which way a probe of this workstation goes: straight, or through the proxy that its environment names. Pure.

Programs disagree about details; this follows what most of them share (curl, Go): `no_proxy` holds domains, addresses and
networks, lower-case variables win, loopback is never proxied. Connections to the cluster's own API never look here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from urllib.parse import unquote, urlsplit

from cozystack_iac.reachability.names import Address

_DEFAULT_PORTS = {"http": 80, "https": 443}


class BadProxy(ValueError):
    """The environment names a proxy that cannot be used; the text says why, without credentials."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that is asked to CONNECT. `authorization` is the value of its header."""

    host: str
    port: int
    tls: bool = False
    authorization: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def choose(name: str, address: Address | None, port: int, environ: Mapping[str, str]) -> tuple[Proxy | None, str]:
    """The proxy for `name` at `address`, and which variable says so; None for straight ahead. Raises BadProxy.

    An exclusion of either the name or the address is enough: people write down one of them and mean both. Without an address
    it is the proxy that resolves the name.
    """
    variable = next((v for v in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY") if environ.get(v)), "")
    if not variable or (address is not None and address.is_loopback):
        return None, ""
    for excluding in ("no_proxy", "NO_PROXY"):
        if excluded(name, address, port, environ.get(excluding, "")):
            return None, excluding
    return parse(environ[variable], variable), variable


def parse(text: str, variable: str) -> Proxy:
    """`http://user:password@proxy.corp:3128`, or only `proxy.corp:3128`. Raises BadProxy."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        raise BadProxy(f"{variable} is not a valid proxy URL") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise BadProxy(f"{variable} is a {parts.scheme} proxy, but only http and https proxies are supported here")
    if not parts.hostname:
        raise BadProxy(f"{variable} has no host")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {b64encode(pair.encode()).decode()}"
    return Proxy(parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "https", authorization)


def excluded(name: str, address: Address | None, port: int, no_proxy: str) -> bool:
    """Whether an entry of `no_proxy` stands for the name, one of its parents, the address, or a network it lies in."""
    return any(_stands_for(entry.strip().lower(), name.lower(), address, port) for entry in no_proxy.split(","))


def _stands_for(entry: str, name: str, address: Address | None, port: int) -> bool:
    if entry == "*":
        return True
    if not entry:
        return False
    try:
        network = ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        host, _, wanted = entry.rpartition(":")
        if host and wanted.isdigit():
            return int(wanted) == port and _stands_for(host.strip("[]"), name, address, port)
        domain = entry.removeprefix("*").lstrip(".")
        return bool(domain) and (name == domain or name.endswith(f".{domain}"))
    return address is not None and address.version == network.version and address in network
