"""What a probe of the platform's public names at its addresses proves: pure mapping of outcomes, no sockets.

Only addresses are asked here; where the names lead is the question of `names`, and who is to blame that of `causes`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from cozystack_iac import published
from cozystack_iac.reachability.names import Address
from cozystack_iac.reachability.served import Served


@dataclass(frozen=True)
class Endpoint:
    """One name at one address. `passthrough`: TLS ends at the Kubernetes API server, so its own CA has to sign.

    `by_name`: a proxy is given the name and finds the address itself, as it does for browsers.
    """

    name: str
    address: Address
    port: int = 443  # the API is behind the ingress too: 443, never 6443
    passthrough: bool = False
    by_name: bool = False

    def __str__(self) -> str:
        port = "" if self.port == 443 else f":{self.port}"
        return f"https://{self.name}{port} at {self.address}"


class Failure(StrEnum):
    """Where a connection ended before there was an HTTP answer."""

    PROXY = "stopped by the proxy"
    REFUSED = "refused"
    UNREACHABLE = "no route"
    TIMEOUT = "timed out"
    CLOSED = "closed without a response"
    HANDSHAKE = "TLS handshake failed"
    CERTIFICATE = "certificate not accepted"


@dataclass(frozen=True)
class Outcome:
    """What one probe saw: an HTTP status, or a failure, and its detail as the library words it.

    `location` is the host a redirect leads to, `way` the proxy that was asked, "" for straight ahead.
    """

    status: int | None = None
    failure: Failure | None = None
    detail: str = ""
    location: str = ""
    served: Served | None = None
    way: str = ""


def targets(host: str, exposed: Collection[str], addresses: Sequence[str], port: int) -> list[Endpoint]:
    """Every exposed service that is looked at from outside, at every address."""
    return [
        Endpoint(published.name(service, host), ip_address(address), port, passthrough=service == published.API)
        for service in published.probed(exposed)
        for address in addresses
    ]


class Reach(StrEnum):
    """What an outcome proves."""

    REACHED = "reached"
    STARTING = "starting"  # the ingress answers, what is behind it does not yet
    ABSENT = "not routed"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TLS = "TLS"
    MISNAMED = "certificate without the name"
    PROXY = "intercepted"
    BROKEN = "broken"


@dataclass(frozen=True)
class EndpointStanding:
    """One target's standing, in words for a person."""

    target: Endpoint
    reach: Reach
    words: str
    means: str = ""
    remedy: str = ""
    served: Served | None = None

    @property
    def ok(self) -> bool:
        return self.reach is Reach.REACHED


# 401 and 403 come from the login proxy or from the API server without credentials: somebody is at home.
_ALIVE = frozenset({200, 301, 302, 303, 307, 308, 401, 403})
_STARTING = frozenset({502, 503, 504})
_CDN = range(520, 531)  # Cloudflare's own codes, 530 included

_NAT = (
    "a firewall or the load balancer blocks the traffic, or the external addresses are on no interface "
    "(1:1 NAT needs the internal ones)"
)


def judge_endpoint(target: Endpoint, outcome: Outcome) -> EndpointStanding:
    """What `outcome` proves about `target`. Total: every outcome has its meaning."""
    through = f" through the proxy {outcome.way}" if outcome.way else ""
    if outcome.failure is not None:
        words = f"{outcome.failure.value}: {outcome.detail}" if outcome.detail else outcome.failure.value
        reach, means, remedy = _unanswered(target, outcome)
        return EndpointStanding(target, reach, words + through, means, remedy, outcome.served)
    redirect = f" to {outcome.location}" if outcome.location else ""
    words = "no HTTP response" if outcome.status is None else f"HTTP {outcome.status}{redirect}"
    reach, means, remedy = _answered(target, outcome.status)
    return EndpointStanding(target, reach, words + through, means, remedy, outcome.served)


def look_at(target: Endpoint) -> str:
    """Where a person looks when the ingress answers for `target` and what is behind it does not."""
    if target.passthrough:
        return "check `kubectl -n default get ingress kubernetes` and `kubectl -n tenant-root get pods`"
    return "check `kubectl -n cozy-dashboard get pods,ingress`"


_Meaning = tuple[Reach, str, str]


def _answered(target: Endpoint, status: int | None) -> _Meaning:
    if status is None:
        return Reach.BROKEN, "the port does not speak HTTP", look_at(target)
    if status in _ALIVE:
        return Reach.REACHED, "", ""
    if status in _STARTING:
        return Reach.STARTING, "the ingress responds, but its backend does not", look_at(target)
    if status in _CDN:
        means = "a CDN in front cannot reach the platform, or rejects its certificate"
        return Reach.PROXY, means, "let the CDN pass traffic through unchanged until the certificates are issued"
    if status == 404:
        means = f"the ingress responds, but does not know {target.name}"
        return Reach.ABSENT, means, "check publishing.host, publishing.exposed and `kubectl get ingress -A`"
    return Reach.BROKEN, "the name is served, but the response is not the expected one", look_at(target)


def _unanswered(target: Endpoint, outcome: Outcome) -> _Meaning:
    match outcome.failure:
        case Failure.PROXY:
            means = "this workstation's proxy closed the connection, so nothing is known about the platform"
            remedy = (
                f"allow CONNECT to {target.address}:{target.port} in the proxy, or add {target.address} to NO_PROXY"
            )
            return Reach.UNREACHABLE, means, remedy
        case Failure.REFUSED:
            means = "the host responds, but nothing listens on the port: there is no root ingress, or " + _NAT
            remedy = "check `kubectl -n tenant-root get svc root-ingress-controller` and publishing.externalIPs"
            return Reach.REFUSED, means, remedy
        case Failure.UNREACHABLE | Failure.TIMEOUT:
            remedy = f"open port {target.port} to {target.address}"
            return Reach.UNREACHABLE, "packets do not arrive: " + _NAT, remedy
        case Failure.CERTIFICATE if target.passthrough:
            return _foreign_certificate(target, outcome.detail)
        case Failure.CLOSED:
            means = (
                "the connection is accepted and then closed, as a proxy does that expects or adds the PROXY protocol"
            )
            return Reach.TLS, means, "check publishing.proxyProtocol and the load balancer"
        case _:
            means = "the port does not speak TLS the way the ingress does"
            return Reach.TLS, means, "check what listens there; a proxy in between is likely"


def _foreign_certificate(target: Endpoint, detail: str) -> _Meaning:
    if re.search(r"hostname mismatch|doesn't match|not valid for", detail, re.IGNORECASE):
        means = f"the Kubernetes API responds, but its certificate does not include {target.name}"
        return Reach.MISNAMED, means, f"add {target.name} to the certificate SANs (talos.extraSans)"
    means = (
        "the certificate is not signed by this cluster's CA: either the ingress terminates TLS itself, "
        "or another cluster responds"
    )
    return Reach.TLS, means, look_at(target)
