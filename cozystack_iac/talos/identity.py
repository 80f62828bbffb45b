"""Who we are to a machine: nobody (maintenance mode), or the holder of a client certificate of its cluster.

Key material stays in memory; the one moment OpenSSL needs it as a file, it is a private one that is gone right after.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Self

from cryptography import x509

_TALOS_KEY, _KEY = "ED25519 PRIVATE KEY", "PRIVATE KEY"  # Talos' own PEM header around plain PKCS#8


@dataclass(frozen=True)
class Identity:
    """A client certificate with its key, and the CA that the machines must be signed by. All PEM text."""

    ca: str
    certificate: str
    key: str = field(repr=False)

    @classmethod
    def from_client_configuration(cls, configuration: Mapping[str, str]) -> Self:
        """From `{caCertificate, clientCertificate, clientKey}` as Talos' secrets give them: base64 of PEM.

        Raises ValueError when a part is missing or unusable; the message holds no secret.
        """
        names = ("caCertificate", "clientCertificate", "clientKey")
        missing = [name for name in names if not configuration.get(name)]
        if missing:
            raise ValueError(f"the client configuration is missing {', '.join(missing)}")
        ca, certificate, key = (_pem(name, configuration[name]) for name in names)
        return cls._checked(ca, certificate, key)

    @classmethod
    def if_any(cls, configuration: Mapping[str, str]) -> Self | None:
        """Who we are to a machine that this cluster configured; None as long as the cluster has no secrets."""
        try:
            return cls.from_client_configuration(configuration)
        except ValueError:
            return None

    @classmethod
    def _checked(cls, ca: str, certificate: str, key: str) -> Self:
        identity = cls(ca, certificate, key.replace(_TALOS_KEY, _KEY))
        try:
            _ = identity.context, identity.expires
        except (ssl.SSLError, ValueError):
            raise ValueError("the client certificate, its key or its CA is not usable") from None
        return identity

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Mutual TLS as Talos wants it; the server must be signed by our CA and carry the address we dialled."""
        context = _context()
        context.load_verify_locations(cadata=self.ca)
        # OpenSSL reads a certificate chain from files only. mkstemp makes it 0600; it lives for two system calls.
        handle, path = tempfile.mkstemp(prefix="client-", suffix=".pem")
        try:
            os.write(handle, f"{self.certificate.strip()}\n{self.key.strip()}\n".encode())
            context.load_cert_chain(path)
        finally:
            os.close(handle)
            os.unlink(path)  # noqa: PTH108 - beside os.write, on a descriptor
        return context

    @cached_property
    def expires(self) -> datetime:
        """When the client certificate ends (UTC). Talos makes them for a year."""
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc

    def signed_it(self, der: bytes) -> bool:
        """Whether our CA's name and key are on this certificate, whatever its dates and names."""
        try:
            ca = x509.load_pem_x509_certificate(self.ca.encode())
            x509.load_der_x509_certificate(der).verify_directly_issued_by(ca)
        except Exception:  # noqa: BLE001 - any doubt about a signature is a no
            return False
        return True


def anonymous() -> ssl.SSLContext:
    """Maintenance mode: no client certificate, and nothing a context could verify. The caller judges the peer."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # apid speaks nothing older
    context.set_alpn_protocols(["h2"])  # without it apid hangs up after the handshake without a word
    return context


def _pem(name: str, text: str) -> str:
    if text.lstrip().startswith("-----BEGIN"):
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"{name} is neither PEM nor base64-encoded PEM") from None
