"""Certificates of the lab's control plane: what they name, and who accepts them."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lab import pki
from lab.machines.config import decode


def test_a_client_certificate_carries_user_and_groups() -> None:
    authority = pki.new_authority("ca")
    issued = x509.load_pem_x509_certificate(pki.issue_client(authority, "me", ["system:masters"]).crt.encode())

    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.crt.encode()))
    assert issued.subject.rfc4514_string() == "CN=me,O=system:masters"


def test_a_serving_certificate_names_addresses_as_addresses() -> None:
    issued = pki.issue_serving(pki.new_authority("ca"), "api", ["127.0.0.1", "kubernetes", "127.0.0.1"])
    names = x509.load_pem_x509_certificate(issued.crt.encode()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )

    assert [str(each) for each in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.value.get_values_for_type(x509.DNSName) == ["kubernetes"]


def authority_with_identifier(identifier: bytes) -> pki.Pair:
    """A CA as Go makes it: its subject key identifier is not the SHA-1 of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pki.Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), text.decode())


def test_a_certificate_points_at_its_issuer_by_the_identifier_the_issuer_carries() -> None:
    authority = authority_with_identifier(b"chosen by another tool")
    issued = x509.load_pem_x509_certificate(pki.issue_serving(authority, "api", ["127.0.0.1"]).crt.encode())

    pointer = issued.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert pointer.key_identifier == b"chosen by another tool"


async def test_openssl_accepts_a_server_signed_by_the_ca_of_a_talos_cluster(vectors: Path, tmp_path: Path) -> None:
    """`ssl` is what the product's clients verify with; a chain that only Go accepts would lock them out."""
    text = (vectors / "talos" / "configs" / "v1.13" / "controlplane.yaml").read_text()
    real = decode(text, 13).kubernetes_ca
    issued = pki.issue_serving(pki.Pair(real.crt, real.key), "api", ["127.0.0.1"])
    pair = tmp_path / "pair.pem"
    pair.write_text(issued.crt + issued.key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        verifying = ssl.create_default_context(cadata=real.crt)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=verifying)
        assert writer.get_extra_info("peercert")["subjectAltName"] == (("IP Address", "127.0.0.1"),)
        writer.close()


def test_a_key_never_shows_in_a_repr() -> None:
    authority = pki.new_authority("ca")
    assert authority.key not in repr(authority)
