"""Secrets, generated configuration and talosconfig of the talos stand-in, against what Talos itself writes."""

import base64
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from cozystack_iac import yaml_text as text
from lab.plugins.talos import clientconfig, contracts, generate, secrets

# What configs/ of the vectors was generated with.
RELEASES = {
    10: ("v1.10.9", "1.33.6"),
    11: ("v1.11.6", "1.34.1"),
    12: ("v1.12.11", "1.35.4"),
    13: ("v1.13.9", "1.36.3"),
    14: ("v1.14.0-rc.1", "1.37.0-rc.0"),
}


@pytest.fixture(scope="module")
def fresh() -> secrets.Bundle:
    return secrets.generate()


@pytest.mark.parametrize("machine_type", ["controlplane", "worker"])
@pytest.mark.parametrize("minor", sorted(RELEASES))
def test_generated_configuration_equals_talosctl_gen_config(
    vectors: Path, minor: int, machine_type: contracts.MachineType
) -> None:
    configs = vectors / "talos" / "configs"
    (recorded,) = text.parse((configs / "secrets.yaml").read_text())
    release, kubernetes = RELEASES[minor]
    installer = f"{contracts.INSTALLER_IMAGE}:{release}"
    request = contracts.Request("lab", "https://10.0.0.10:6443", machine_type, minor, kubernetes, installer)
    documents = generate.generate(secrets.from_file(recorded), request)
    assert list(documents) == list(text.parse((configs / f"v1.{minor}" / f"{machine_type}.yaml").read_text()))


@pytest.mark.parametrize("minor", sorted(RELEASES))
def test_no_key_of_an_authority_is_on_a_worker(fresh: secrets.Bundle, minor: int) -> None:
    request = contracts.Request("lab", "https://10.0.0.10:6443", "worker", minor, "1.36.2", "installer")
    written = text.emit(generate.generate(fresh, request))
    for pair in (fresh.os, fresh.kubernetes, fresh.aggregator, fresh.etcd):
        assert pair.key not in written
        assert secrets.pem(pair.key).splitlines()[1] not in written
    assert fresh.service_account_key not in written
    assert fresh.secretbox_secret not in written


@pytest.mark.parametrize("version", ["v1.9", "v1.99.0", "1", "", "v2.13", "latest"])
def test_an_unknown_contract_is_refused(version: str) -> None:
    with pytest.raises(contracts.UnknownContract):
        contracts.contract(version)


@pytest.mark.parametrize("version", ["v1.12", "1.12", "v1.12.6", "1.12.1", "v1.12.0-rc.1"])
def test_a_contract_is_the_minor_of_a_version(version: str) -> None:
    assert contracts.contract(version) == 12


def test_authorities_have_the_shape_that_talos_gives_them(fresh: secrets.Bundle) -> None:
    names = {"os": "talos", "kubernetes": "kubernetes", "etcd": "etcd", "aggregator": None}
    for field, organization in names.items():
        pair: secrets.Pair = getattr(fresh, field)
        certificate = x509.load_pem_x509_certificate(base64.b64decode(pair.cert))
        assert [a.value for a in certificate.subject] == ([organization] if organization else [])
        certificate.verify_directly_issued_by(certificate)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert usage.critical and usage.value.key_cert_sign and usage.value.digital_signature
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert 3640 < (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days < 3660
        assert certificate.serial_number.bit_length() <= 128
        header = secrets.pem(pair.key).splitlines()[0]
        assert header == f"-----BEGIN {'ED25519' if field == 'os' else 'EC'} PRIVATE KEY-----"
    key = serialization.load_pem_private_key(base64.b64decode(fresh.service_account_key), None)
    assert isinstance(key, rsa.RSAPrivateKey) and key.key_size == 4096
    assert b"BEGIN RSA PRIVATE KEY" in base64.b64decode(fresh.service_account_key)
    etcd = x509.load_pem_x509_certificate(base64.b64decode(fresh.etcd.cert))
    assert isinstance(etcd.public_key(), ec.EllipticCurvePublicKey)
    assert isinstance(etcd.signature_hash_algorithm, hashes.SHA256)


def test_a_client_certificate_is_issued_by_the_machines_authority(fresh: secrets.Bundle) -> None:
    pair = secrets.client(fresh.os, role="os:reader")
    certificate = x509.load_pem_x509_certificate(base64.b64decode(pair.cert))
    authority = x509.load_pem_x509_certificate(base64.b64decode(fresh.os.cert))
    certificate.verify_directly_issued_by(authority)
    assert [a.value for a in certificate.subject] == ["os:reader"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 365
    assert secrets.load_ed25519(pair.key).public_key() == certificate.public_key()


def test_tokens_have_the_form_of_kubernetes_bootstrap_tokens(fresh: secrets.Bundle) -> None:
    for token in (fresh.bootstrap_token, fresh.trustd_token):
        head, _, tail = token.partition(".")
        assert (len(head), len(tail)) == (6, 16)
        assert token.replace(".", "").isalnum() and token == token.lower()
    assert len(base64.urlsafe_b64decode(fresh.cluster_id)) == 32
    assert len({fresh.cluster_secret, fresh.secretbox_secret, fresh.cluster_id}) == 3


def test_an_incomplete_secrets_file_names_what_is_missing() -> None:
    with pytest.raises(secrets.NotABundle, match=r"^cluster\.secret$"):
        secrets.from_file({"cluster": {"id": "x"}})


def test_talosconfig_equals_talosctl_gen_config(vectors: Path) -> None:
    (recorded,) = text.parse((vectors / "talos" / "configs" / "v1.13" / "talosconfig").read_text())
    context = recorded["contexts"]["lab"]
    access = clientconfig.Access(context["ca"], context["crt"], context["key"])
    assert text.parse(clientconfig.talosconfig("lab", access, context["endpoints"])) == (recorded,)
