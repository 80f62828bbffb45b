"""Certificates as Talos issues them, and the TLS contexts of a simulated machine.

Ed25519, TLS 1.3 only, ALPN h2, no session tickets: friendlier settings would hide the one bug no real node forgives.
Known difference: a client certificate without clientAuth is refused with the alert `unsupported certificate`, where a
real node says `bad certificate`; OpenSSL does not let a server choose.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MAINTENANCE_CN = "maintenance-service.talos.dev"
LIFETIME = timedelta(hours=24)  # of every API server certificate
ADMIN_LIFETIME = timedelta(days=365)  # of the admin certificate in a kubeconfig
_SKEW = timedelta(minutes=5)
_IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # quicker, and no key touches a disk

Key = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Issued:
    """A certificate with its private key, both PEM."""

    crt: str
    key: str = field(repr=False)


def plain(pem: str) -> str:
    """A private key with the PEM header everybody reads; Talos writes `ED25519 PRIVATE KEY` around PKCS#8."""
    return pem.replace("ED25519 PRIVATE KEY", "PRIVATE KEY")


def load_key(pem: str) -> Key:
    """A private key as Talos writes it. Raises ValueError."""
    key = load_pem_private_key(plain(pem).encode(), None)
    if not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("the key is neither Ed25519, ECDSA nor RSA")
    return key


def new_ca(organization: str | None, key: Key | None = None) -> Issued:
    """A self-signed CA; without organization its subject is empty, as that of the maintenance service.

    Its key is Ed25519 as for the Talos API, unless one is given (Kubernetes and etcd use ECDSA P-256).
    """
    key = key or ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else [])
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(name, name, key, timedelta(days=3650))
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Issued(_pem(builder.sign(key, _digest(key))), _key_pem(key))


def maintenance_certificate(ca: Issued, sans: Iterable[str], behind: timedelta = timedelta(0)) -> Issued:
    """`behind`: how wrong the clock is by which the certificate is dated."""
    return _server(ca, MAINTENANCE_CN, sans, behind)


def api_certificate(ca: Issued, hostname: str, sans: Iterable[str], behind: timedelta = timedelta(0)) -> Issued:
    """The apid certificate of a configured machine, signed by machine.ca."""
    return _server(ca, hostname, sans, behind)


def client_certificate(ca: Issued, role: str) -> Issued:
    """A Talos API client certificate: the role, like `os:admin`, is its organization."""
    return _client(ca, x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, role)]), ADMIN_LIFETIME)


def kubernetes_admin(ca: Issued) -> Issued:
    """The admin certificate of a kubeconfig: organization system:masters, common name admin."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
            x509.NameAttribute(NameOID.COMMON_NAME, "admin"),
        ]
    )
    return _client(ca, subject, ADMIN_LIFETIME, ec.generate_private_key(ec.SECP256R1()))


def maintenance_context(server: Issued) -> ssl.SSLContext:
    """No client certificate is asked for, and one that is offered is not looked at."""
    return _context(server)


def secure_context(server: Issued, accepted: Iterable[str]) -> ssl.SSLContext:
    """A client certificate of one of the accepted CAs is required. The alert arrives with the client's first read."""
    context = _context(server)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata="\n".join(accepted))
    return context


def _context(server: Issued) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.set_alpn_protocols(["h2"])
    renew(context, server)
    return context


def renew(context: ssl.SSLContext, server: Issued) -> None:
    """Connections made from now on see this certificate."""
    with tempfile.NamedTemporaryFile(
        "w", dir=_IN_MEMORY, suffix=".pem"
    ) as file:  # ssl reads certificates from files only
        file.write(server.key + server.crt)
        file.flush()
        context.load_cert_chain(file.name)


def _server(ca: Issued, name: str, sans: Iterable[str], behind: timedelta) -> Issued:
    key = ed25519.Ed25519PrivateKey.generate()
    builder = _signed_by(ca, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, LIFETIME, behind)
    names = [_san(san) for san in dict.fromkeys(sans)]
    builder = (
        builder.add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _sign(builder, ca, key)


def _client(ca: Issued, subject: x509.Name, lifetime: timedelta, key: Key | None = None) -> Issued:
    key = key or ed25519.Ed25519PrivateKey.generate()
    builder = (
        _signed_by(ca, subject, key, lifetime)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    return _sign(builder, ca, key)


def _signed_by(
    ca: Issued, subject: x509.Name, key: Key, lifetime: timedelta, behind: timedelta = timedelta(0)
) -> x509.CertificateBuilder:
    issuer = x509.load_pem_x509_certificate(ca.crt.encode())
    builder = _builder(subject, issuer.subject, key, lifetime, behind)
    return builder.add_extension(_authority(issuer), critical=False)


def _authority(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(_public(issuer))
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _public(issuer: x509.Certificate) -> ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
    key = issuer.public_key()
    if not isinstance(key, ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise ValueError("the CA's key is neither Ed25519, ECDSA nor RSA")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, lifetime: timedelta, behind: timedelta = timedelta(0)
) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - behind
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
    )


def _sign(builder: x509.CertificateBuilder, ca: Issued, key: Key) -> Issued:
    issuer = load_key(ca.key)
    return Issued(_pem(builder.sign(issuer, _digest(issuer))), _key_pem(key))


def _digest(key: Key) -> SHA256 | None:
    """Ed25519 brings its own hash."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _san(value: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(value))
    except ValueError:
        return x509.DNSName(value)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: Key) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
