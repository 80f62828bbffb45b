"""What a probe of the platform's public names proves: pure mapping of outcomes, no sockets.

Two questions are kept apart: does the platform answer at the configured addresses (routing, ingress, certificates), and
does its name lead there (DNS). Addresses decide; DNS is reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class Target:
    """One name at one address. `passthrough`: TLS ends at the Kubernetes API server, so its own CA has to sign."""

    name: str
    address: Address
    port: int = 443  # the API is behind the ingress too: 443, never 6443
    passthrough: bool = False

    def __str__(self) -> str:
        port = "" if self.port == 443 else f":{self.port}"
        return f"https://{self.name}{port} at {self.address}"


class Failure(StrEnum):
    """Where a connection ended before there was an HTTP answer."""

    REFUSED = "refused"
    UNREACHABLE = "no route"
    TIMEOUT = "no answer in time"
    CLOSED = "closed without an answer"
    HANDSHAKE = "TLS handshake failed"
    CERTIFICATE = "certificate not accepted"


@dataclass(frozen=True)
class Outcome:
    """What one probe saw: an HTTP status, or a failure, and its detail as the library words it."""

    status: int | None = None
    failure: Failure | None = None
    detail: str = ""


class Reach(StrEnum):
    """What an outcome proves."""

    REACHED = "reached"
    STARTING = "starting"  # the ingress answers, what is behind it does not yet
    ABSENT = "not routed"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TLS = "TLS"
    PROXY = "intercepted"
    BROKEN = "broken"


@dataclass(frozen=True)
class Standing:
    """One target's standing, in words for a person."""

    target: Target
    reach: Reach
    words: str
    means: str = ""
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return self.reach is Reach.REACHED


# 401 and 403 come from the login proxy or from the API server without credentials: somebody is at home.
_ALIVE = frozenset({200, 301, 302, 303, 307, 308, 401, 403})
_STARTING = frozenset({502, 503, 504})
_CDN = range(520, 531)  # Cloudflare's own codes, 530 included

_NAT = "a firewall, the load balancer, or external addresses that are on no interface (1:1 NAT needs the internal ones)"


def judge(target: Target, outcome: Outcome) -> Standing:
    """What `outcome` proves about `target`."""
    if outcome.failure is not None:
        return _unanswered(target, outcome.failure, outcome.detail)
    status = outcome.status
    if status is None:
        return Standing(target, Reach.BROKEN, "no HTTP answer", "what answers is no web server", _look_at(target))
    words = f"HTTP {status}"
    if status in _ALIVE:
        return Standing(target, Reach.REACHED, words)
    if status in _STARTING:
        return Standing(target, Reach.STARTING, words, "the ingress answers, its backend does not", _look_at(target))
    if status in _CDN:
        means = "a CDN in front cannot reach the platform, or does not accept its certificate"
        return Standing(
            target, Reach.PROXY, words, means, "let the CDN pass traffic through until certificates are issued"
        )
    if status == 404:
        means = f"the ingress answers but does not know {target.name}"
        return Standing(target, Reach.ABSENT, words, means, "check publishing.host and publishing.exposed")
    return Standing(target, Reach.BROKEN, words, "the name is served, but not as expected", _look_at(target))


def _look_at(target: Target) -> str:
    if target.passthrough:
        return "kubectl -n default get ingress kubernetes, and the root ingress: kubectl -n tenant-root get pods"
    return "kubectl -n cozy-dashboard get pods,ingress"


def _unanswered(target: Target, failure: Failure, detail: str) -> Standing:
    words = f"{failure.value}: {detail}" if detail else failure.value
    match failure:
        case Failure.REFUSED:
            means = "the address answers, nothing listens there: no root ingress, or " + _NAT
            remedy = "kubectl -n tenant-root get svc root-ingress-controller; check publishing.externalIPs"
            return Standing(target, Reach.REFUSED, words, means, remedy)
        case Failure.UNREACHABLE | Failure.TIMEOUT:
            means = "packets do not arrive: " + _NAT
            return Standing(target, Reach.UNREACHABLE, words, means, f"open port {target.port} to {target.address}")
        case Failure.CERTIFICATE if target.passthrough:
            return _foreign_certificate(target, words, detail)
        case Failure.CLOSED:
            means = "the connection is accepted and dropped: a proxy that expects or adds the PROXY protocol does that"
            return Standing(target, Reach.TLS, words, means, "check publishing.proxyProtocol and the load balancer")
        case _:
            means = "what answers at the port does not speak TLS as the ingress does"
            return Standing(target, Reach.TLS, words, means, "check what listens there; a proxy in between is likely")


def _foreign_certificate(target: Target, words: str, detail: str) -> Standing:
    if re.search(r"hostname mismatch|doesn't match|not valid for", detail, re.IGNORECASE):
        means = f"the Kubernetes API answers, but its certificate does not name {target.name}"
        return Standing(
            target, Reach.TLS, words, means, f"add {target.name} to the certificate names (talos.extraSans)"
        )
    means = (
        "the certificate is not signed by this cluster's CA: the ingress ends TLS itself, or another cluster answers"
    )
    return Standing(target, Reach.TLS, words, means, _look_at(target))


class Dns(StrEnum):
    """What the name's resolution is worth."""

    RESOLVED = "resolved"
    FILTERED = "filtered"
    ELSEWHERE = "elsewhere"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Lookup:
    """What one resolver said: addresses, possibly none (NXDOMAIN and an empty answer alike); `error`: it said nothing."""

    addresses: frozenset[Address] = frozenset()
    error: str = ""


@dataclass(frozen=True)
class DnsStanding:
    name: str
    dns: Dns
    words: str
    remedy: str = ""


_EMBEDDED = re.compile(r"(?:^|[.-])(\d{1,3}(?:[.-]\d{1,3}){3})\.(?:[a-z0-9-]+\.)*(?:nip\.io|sslip\.io)$")


def embedded_address(name: str) -> Address | None:
    """The address that a name of a wildcard DNS service carries in itself (`dashboard.192-168-1-50.nip.io`)."""
    match = _EMBEDDED.search(name.lower().rstrip("."))
    if not match:
        return None
    try:
        return ip_address(match[1].replace("-", "."))
    except ValueError:
        return None


def judge_dns(name: str, here: Lookup, others: Iterable[Lookup], accepted: Collection[Address]) -> DnsStanding:
    """Whether `name` leads to one of `accepted`, seen from this workstation (`here`) and from other resolvers.

    A resolver that drops private addresses (rebinding protection) is not a name that still has to spread.
    """
    if here.error:
        return DnsStanding(name, Dns.UNKNOWN, f"the resolver did not answer: {here.error}", "check the network here")
    if here.addresses & set(accepted):
        return DnsStanding(name, Dns.RESOLVED, _list(here.addresses))
    if here.addresses:
        words = f"leads to {_list(here.addresses)}, not to {_list(accepted)}"
        return DnsStanding(
            name, Dns.ELSEWHERE, words, f"let {name} point to {_list(accepted)}, unless a NAT is between"
        )
    carried = embedded_address(name)
    seen = {a for other in others for a in other.addresses} | ({carried} if carried else set())
    if seen:
        words = f"this workstation's resolver drops the answer {_list(seen)} (protection against DNS rebinding)"
        private = "add the name to the hosts file, allow it in the resolver, or use another resolver"
        return DnsStanding(name, Dns.FILTERED, words, private)
    return DnsStanding(name, Dns.ABSENT, "does not exist", f"create a record for {name} with {_list(accepted)}")


def _list(addresses: Iterable[Address]) -> str:
    return ", ".join(sorted(map(str, addresses))) or "nothing"
