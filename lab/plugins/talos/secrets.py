"""A cluster's secrets as Talos makes them: certificate authorities, tokens, the service account key.

Certificates and keys are base64 of PEM throughout, as in a secrets file, in machine configuration and in the official
plugin's outputs.
"""

from __future__ import annotations

import base64
import secrets as entropy
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(hours=87_600)
CLIENT_LIFE = timedelta(hours=8_760)
SERVICE_ACCOUNT_BITS = 4096
ADMIN_ROLE = "os:admin"

CaKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_TOKEN_ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, each base64 of PEM."""

    cert: str
    key: str


@dataclass(frozen=True)
class Bundle:
    """All secrets of one cluster. ``cluster_id`` and the certificates are public, everything else is not."""

    cluster_id: str
    cluster_secret: str
    bootstrap_token: str
    secretbox_secret: str
    trustd_token: str
    etcd: Pair
    kubernetes: Pair
    aggregator: Pair
    service_account_key: str
    os: Pair


class NotABundle(ValueError):
    """Something a cluster's secrets need is missing; the message names it."""


def generate(now: datetime | None = None) -> Bundle:
    """Make fresh secrets; takes about a second, nearly all of it for the RSA key."""
    now = now or datetime.now(UTC)
    return Bundle(
        cluster_id=base64.urlsafe_b64encode(entropy.token_bytes(32)).decode(),
        cluster_secret=_b64(entropy.token_bytes(32)),
        bootstrap_token=_token(),
        secretbox_secret=_b64(entropy.token_bytes(32)),
        trustd_token=_token(),
        etcd=_authority("etcd", ec.generate_private_key(ec.SECP256R1()), now),
        kubernetes=_authority("kubernetes", ec.generate_private_key(ec.SECP256R1()), now),
        aggregator=_authority(None, ec.generate_private_key(ec.SECP256R1()), now),
        service_account_key=_b64(_service_account_pem()),
        os=_authority("talos", ed25519.Ed25519PrivateKey.generate(), now),
    )


def client(os_ca: Pair, role: str = ADMIN_ROLE, now: datetime | None = None) -> Pair:
    """Issue a client certificate for the Talos API; the role is the certificate's organization."""
    now = now or datetime.now(UTC)
    authority = x509.load_pem_x509_certificate(base64.b64decode(os_ca.cert))
    key = ed25519.Ed25519PrivateKey.generate()
    certificate = (
        _certificate(_name(role), authority.subject, key.public_key(), now, CLIENT_LIFE)
        .add_extension(_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(_authority_key(authority), critical=False)
        .sign(load_ed25519(os_ca.key), None)
    )
    return Pair(_b64(certificate.public_bytes(serialization.Encoding.PEM)), _b64(_key_pem(key)))


def load_ed25519(key: str) -> ed25519.Ed25519PrivateKey:
    """Read a Talos key: PKCS#8 below the header ``ED25519 PRIVATE KEY``, which no library but Talos' knows."""
    pem = base64.b64decode(key).replace(b"ED25519 PRIVATE KEY", b"PRIVATE KEY")
    loaded = serialization.load_pem_private_key(pem, None)
    if not isinstance(loaded, ed25519.Ed25519PrivateKey):
        raise NotABundle("the key of the Talos API's certificate authority is not an Ed25519 key")
    return loaded


def pem(encoded: str) -> str:
    """Return the PEM text inside a base64 value."""
    return base64.b64decode(encoded).decode()


def from_file(data: Mapping[str, Any]) -> Bundle:
    """Read a parsed secrets file (``talosctl gen secrets``); raise NotABundle."""
    return _read(data, ("bootstraptoken", "secretboxencryptionsecret"), ("k8saggregator", "k8sserviceaccount"), "crt")


def from_properties(data: Mapping[str, Any]) -> Bundle:
    """Read the ``machineSecrets`` property; raise NotABundle."""
    return _read(data, ("bootstrapToken", "secretboxEncryptionSecret"), ("k8sAggregator", "k8sServiceaccount"), "cert")


def _read(data: Mapping[str, Any], tokens: tuple[str, str], names: tuple[str, str], cert: str) -> Bundle:
    def at(*path: str) -> str:
        value: Any = data
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        if not isinstance(value, str) or not value:
            raise NotABundle(".".join(path))
        return value

    def pair(name: str) -> Pair:
        return Pair(at("certs", name, cert), at("certs", name, "key"))

    aggregator, service_account = names
    return Bundle(
        cluster_id=at("cluster", "id"),
        cluster_secret=at("cluster", "secret"),
        bootstrap_token=at("secrets", tokens[0]),
        secretbox_secret=at("secrets", tokens[1]),
        trustd_token=at("trustdinfo", "token"),
        etcd=pair("etcd"),
        kubernetes=pair("k8s"),
        aggregator=pair(aggregator),
        service_account_key=at("certs", service_account, "key"),
        os=pair("os"),
    )


def _token() -> str:
    def letters(count: int) -> str:
        return "".join(entropy.choice(_TOKEN_ALPHABET) for _ in range(count))

    return f"{letters(6)}.{letters(16)}"


def _service_account_pem() -> bytes:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=SERVICE_ACCOUNT_BITS)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _authority(organization: str | None, key: CaKey, now: datetime) -> Pair:
    name = _name(organization)
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _certificate(name, name, key.public_key(), now, CA_LIFE)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return Pair(_b64(certificate.public_bytes(serialization.Encoding.PEM)), _b64(_key_pem(key)))


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number() >> 32)  # Talos uses 128 bits
        .not_valid_before(now)
        .not_valid_after(now + life)
    )


def _name(organization: str | None) -> x509.Name:
    # The aggregator's authority has an empty name.
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else [])


def _usage(*, signs: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_key(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    known = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _key_pem(key: CaKey) -> bytes:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return plain.replace(b" PRIVATE KEY", b" ED25519 PRIVATE KEY")
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
