"""Certificates of the lab's control plane: one throw-away authority per `lab up`, and what it or a cluster's own CA signs.

Pure: PEM in, PEM out. Keys are ECDSA P-256, as Kubernetes components use; machine certificates live in `lab.machines`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=30)
CLOCK_SLACK = timedelta(hours=1)  # a certificate must be valid for a peer whose clock is a little behind

CaKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True)
class Pair:
    """A certificate (or a bare public key) and its private key, both PEM. The key never shows in a repr."""

    crt: str
    key: str = field(repr=False)


def new_authority(name: str) -> Pair:
    """A self-signed certificate authority called `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _pem_key(key))


def issue_client(authority: Pair, name: str, groups: Iterable[str] = ()) -> Pair:
    """A client certificate as Kubernetes reads it: the user is the common name, the groups are the organizations."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return _issue(
        authority, [*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)], (), ExtendedKeyUsageOID.CLIENT_AUTH
    )


def issue_serving(authority: Pair, name: str, hosts: Iterable[str], *, ends_in: timedelta = VALIDITY) -> Pair:
    """A serving certificate for `hosts` (DNS names and IP addresses, duplicates welcome). A negative `ends_in` has ended."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    return _issue(authority, attributes, tuple(dict.fromkeys(hosts)), ExtendedKeyUsageOID.SERVER_AUTH, ends_in)


def new_signing_key() -> Pair:
    """The key service-account tokens are signed with; `crt` holds the public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return Pair(public.decode(), _pem_key(key))


def _issue(
    authority: Pair,
    attributes: list[x509.NameAttribute[str]],
    hosts: tuple[str, ...],
    purpose: x509.ObjectIdentifier,
    ends_in: timedelta = VALIDITY,
) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.crt.encode())
    issuer_key = _load_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(x509.Name(attributes), issuer.subject, key.public_key(), ends_in)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(_authority_key_identifier(issuer), critical=False)
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
    digest = None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Pair(_pem(builder.sign(issuer_key, digest)), _pem_key(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, ends_in: timedelta = VALIDITY
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + ends_in) - CLOCK_SLACK)
        .not_valid_after(now + ends_in)
    )


def _authority_key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The identifier the issuer itself carries: Go computes it otherwise than OpenSSL, and OpenSSL insists that both agree."""
    try:
        known = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(_load_public(issuer))
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _load_public(issuer: x509.Certificate) -> CertificateIssuerPublicKeyTypes:
    key = issuer.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        raise ValueError(
            f"a CA certificate with a key of type {type(key).__name__} cannot sign Kubernetes certificates"
        )
    return key


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _load_key(pem: str) -> CaKey:
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey):
        raise ValueError(f"a CA key of type {type(key).__name__} cannot sign Kubernetes certificates")
    return key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
