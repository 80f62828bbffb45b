"""Why a certificate is not there: from the Certificate down to the challenge that its authority waits for. Pure.

cert-manager makes a chain of objects, each the owner of the next: Certificate, CertificateRequest, Order, Challenge. The
Certificate itself only ever says that it is being issued; the reason stands at the end of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cozystack_iac.diagnosis.signs import Kind, Sign, name_of, said, unready

Object = Mapping[str, Any]
ENDED_WELL = frozenset({"valid", "ready"})


@dataclass(frozen=True)
class Issuers:
    """Everything cert-manager wrote, by kind."""

    certificates: Sequence[Object] = ()
    requests: Sequence[Object] = ()
    orders: Sequence[Object] = ()
    challenges: Sequence[Object] = ()
    issuers: Sequence[Object] = ()


@dataclass(frozen=True)
class Pending:
    """A certificate that is not there. `chain`: signs, the deepest first; `since`: when it was asked for (RFC 3339)."""

    subject: str
    names: tuple[str, ...]
    since: str
    chain: tuple[Sign, ...] = field(default=())


def pending(all_: Issuers) -> Iterator[Pending]:
    """Every certificate that is not ready, each with what holds it up."""
    for certificate in all_.certificates:
        own = tuple(unready(Kind.CERTIFICATE, [certificate]))
        if not own:
            continue
        spec = certificate.get("spec") or {}
        failed = tuple(_failure(certificate))
        chain = (*_below(certificate, all_), *_issuer(certificate, all_.issuers), *failed, *own)
        names = tuple(map(str, spec.get("dnsNames") or ()))
        yield Pending(name_of(certificate), names, _since(certificate), chain)


def _since(certificate: Object) -> str:
    """When this issuance began. A failed attempt does not start the clock anew."""
    conditions = (certificate.get("status") or {}).get("conditions") or ()
    ready = [str(c.get("lastTransitionTime") or "") for c in conditions if c.get("type") == "Ready"]
    return next(filter(None, ready), str((certificate.get("metadata") or {}).get("creationTimestamp") or ""))


def _failure(certificate: Object) -> Iterator[Sign]:
    for c in (certificate.get("status") or {}).get("conditions") or ():
        if c.get("type") == "Issuing" and c.get("status") == "False" and c.get("reason") == "Failed":
            yield Sign(Kind.CERTIFICATE, name_of(certificate), "Failed", said(c.get("message")))


def _below(certificate: Object, all_: Issuers) -> Iterator[Sign]:
    requests = _owned(all_.requests, certificate)
    orders = [order for request in requests for order in _owned(all_.orders, request)]
    challenges = [challenge for order in orders for challenge in _owned(all_.challenges, order)]
    yield from challenge_signs(challenges)
    yield from order_signs(orders)
    for request in requests:
        yield from unready(Kind.CERTIFICATE, [request], prefix="request ")


def challenge_signs(challenges: Iterable[Object]) -> Iterator[Sign]:
    """Challenges that are not won. `subject` names the host: it is what a person looks up."""
    for challenge in challenges:
        status, spec = challenge.get("status") or {}, challenge.get("spec") or {}
        state = str(status.get("state") or "new")
        if state not in ENDED_WELL:
            why = status.get("reason") or ("presented" if status.get("presented") else "not presented yet")
            yield Sign(Kind.CHALLENGE, name_of(challenge), state, said(f"{spec.get('dnsName', '?')}: {why}"))


def order_signs(orders: Iterable[Object]) -> Iterator[Sign]:
    for order in orders:
        status = order.get("status") or {}
        state = str(status.get("state") or "new")
        if state not in ENDED_WELL:
            yield Sign(Kind.ORDER, name_of(order), state, said(status.get("reason")))


def _issuer(certificate: Object, issuers: Iterable[Object]) -> Iterator[Sign]:
    ref = (certificate.get("spec") or {}).get("issuerRef") or {}
    named = [i for i in issuers if (i.get("metadata") or {}).get("name") == ref.get("name")]
    if named:
        yield from unready(Kind.ISSUER, named)
    elif ref.get("kind") == "ClusterIssuer":
        yield Sign(Kind.ISSUER, str(ref.get("name")), "NotFound", "the ClusterIssuer does not exist")


def _owned(objects: Iterable[Object], owner: Object) -> list[Object]:
    """Objects of `owner`, the newest first; by reference, and by cert-manager's way of naming where there is none."""
    meta = owner.get("metadata") or {}
    found = []
    for obj in objects:
        own = obj.get("metadata") or {}
        if own.get("namespace") != meta.get("namespace"):
            continue
        owners = own.get("ownerReferences") or ()
        by_reference = any(o.get("uid") == meta.get("uid") or o.get("name") == meta.get("name") for o in owners)
        if by_reference or (not owners and str(own.get("name", "")).startswith(f"{meta.get('name')}-")):
            found.append(obj)
    return sorted(found, key=lambda o: str((o.get("metadata") or {}).get("creationTimestamp") or ""), reverse=True)
