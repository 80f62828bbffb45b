"""What a certificate that a server showed is worth to people in a browser. Pure; reported honestly, decides nothing.

An ACME certificate may still be on its way while the platform is well, so none of these stops an install.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from cryptography import x509
from cryptography.x509.oid import NameOID

INGRESS_PLACEHOLDER = "Kubernetes Ingress Controller Fake Certificate"  # ingress-nginx, while it has none for a host


@dataclass(frozen=True)
class Served:
    """A server's certificate. `distrust`: why this workstation does not accept it, as its TLS library words it; else ""."""

    names: frozenset[str]
    subject: str
    issuer: str
    self_signed: bool
    ends: datetime
    fingerprint: str
    distrust: str = ""


class Trust(StrEnum):
    """What a browser makes of it."""

    TRUSTED = "trusted"
    STAGING = "staging"
    PLACEHOLDER = "not issued yet"
    SELF_SIGNED = "self-signed"
    PRIVATE = "private CA"
    EXPIRED = "expired"
    MISNAMED = "wrong name"


@dataclass(frozen=True)
class TrustStanding:
    """One name's certificate in words for a person."""

    trust: Trust
    words: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return self.trust is Trust.TRUSTED

    def __str__(self) -> str:
        return f"{self.trust.value}: {self.words}"


def read(der: bytes, distrust: str = "") -> Served:
    """The certificate as its server sent it. Raises ValueError for what is none."""
    found = x509.load_der_x509_certificate(der)
    try:
        given = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset(name.lower() for name in given.get_values_for_type(x509.DNSName))
    except x509.ExtensionNotFound:
        names = frozenset()
    return Served(
        names=names,
        subject=_common(found.subject),
        issuer=_common(found.issuer),
        self_signed=found.issuer == found.subject,
        ends=found.not_valid_after_utc,
        fingerprint=hashlib.sha256(der).hexdigest(),
        distrust=distrust,
    )


def judge_trust(name: str, served: Served, now: datetime) -> TrustStanding:
    """What `served` is worth as the certificate of `name`."""
    ends = f"{served.ends:%Y-%m-%d}"
    look = "kubectl get certificates,orders,challenges -A"
    if INGRESS_PLACEHOLDER in (served.subject, served.issuer):
        words = "the ingress serves its placeholder certificate: no certificate has been issued for this name yet"
        return TrustStanding(Trust.PLACEHOLDER, words, look)
    if served.ends <= now:
        return TrustStanding(Trust.EXPIRED, f"expired on {ends} (issued by {served.issuer})", look)
    if not covers(served.names, name):
        shown = ", ".join(sorted(served.names)[:3]) or "no name"
        return TrustStanding(Trust.MISNAMED, f"it is issued for {shown} (issuer: {served.issuer})", look)
    if "staging" in served.issuer.lower():
        words = f"issued by {served.issuer}, a staging CA that browsers do not trust; valid until {ends}"
        return TrustStanding(Trust.STAGING, words, "set publishing.certificates.issuer to letsencrypt-prod")
    if served.self_signed:
        return TrustStanding(Trust.SELF_SIGNED, f"self-signed, so browsers show a warning; valid until {ends}", look)
    if served.distrust:
        words = (
            f"issued by {served.issuer}, which this workstation does not trust ({served.distrust}); valid until {ends}"
        )
        return TrustStanding(Trust.PRIVATE, words, "distribute that CA certificate to users, or use a public issuer")
    return TrustStanding(Trust.TRUSTED, f"issued by {served.issuer}, valid until {ends}")


def covers(names: frozenset[str], name: str) -> bool:
    """Whether one of `names` stands for `name`; `*` stands for exactly one label."""
    wanted = name.lower().rstrip(".")
    return wanted in names or f"*.{wanted.partition('.')[2]}" in names


def _common(name: x509.Name) -> str:
    """The common name, else all there is."""
    found = [str(a.value) for a in name.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return found[0] if found else name.rfc4514_string() or "nobody"
