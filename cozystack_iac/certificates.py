"""How long client certificates still hold: what a plan says before somebody is locked out. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import datetime, timedelta

from cryptography import x509

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule

RENEWED_BEFORE = timedelta(days=30)  # the Talos plugin's default: an update renews what ends within this time
WARNED_BEFORE = timedelta(days=60)  # earlier than that, or nobody would ever see the warning

CRT_020 = Rule(
    "CRT-020",
    WARNING,
    title="Client certificates do not expire soon",
    why="once the certificate expires, nobody can use it to log in, and copies that were handed out are not renewed",
    remedy="run `pulumi up` within the last 30 days of the certificate to renew it, then distribute the new file",
)
CRT_021 = Rule(
    "CRT-021",
    ERROR,
    title="Client certificates are valid",
    why="no machine and no API server accepts an expired certificate",
    remedy="run `pulumi refresh`, then `pulumi up`: this renews the certificate from the cluster's secrets",
)


def judge_expiry(subject: str, certificate: str | bytes | None, path: str, now: datetime) -> Iterator[Finding]:
    """Findings about one client certificate: PEM, or base64 of PEM. `subject` names it for people, `path` its resource.

    What is no certificate says nothing here; whoever uses it will.
    """
    end = ends(certificate)
    if end is None:
        return
    left = end - now
    if left <= timedelta(0):
        yield CRT_021.at(
            path,
            problem=f"{subject} expired on {end:%Y-%m-%d}",
            fix="run `pulumi refresh`, then `pulumi up`: this renews it from the cluster's secrets",
        )
    elif left < WARNED_BEFORE:
        start = end - RENEWED_BEFORE
        yield CRT_020.at(
            path,
            problem=f"{subject} expires on {end:%Y-%m-%d}, in {left.days} days",
            fix=f"run `pulumi up` between {start:%Y-%m-%d} and {end:%Y-%m-%d} to renew it, then distribute "
            "the new file",
        )


def ends(certificate: str | bytes | None) -> datetime | None:
    """When a certificate ends (UTC), given as PEM or base64 of PEM; None when it is none."""
    try:
        data = certificate.encode() if isinstance(certificate, str) else certificate or b""
        pem = data if data.lstrip().startswith(b"-----BEGIN") else base64.b64decode(data, validate=True)
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except (ValueError, binascii.Error):
        return None
