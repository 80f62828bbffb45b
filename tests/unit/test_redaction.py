"""No key material in what is handed to others, whatever it is wrapped in; and what a person needs stays."""

import base64
import json
import secrets

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cozystack_iac.redaction import clean, clean_object

PEM = (
    Ed25519PrivateKey.generate()
    .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    .decode()
)
BODY = PEM.splitlines()[1]
BLOB = base64.b64encode(secrets.token_bytes(32)).decode()
JWT = ".".join(base64.urlsafe_b64encode(secrets.token_bytes(n)).decode().rstrip("=") for n in (30, 60, 32))
JWT = "eyJhbGciOiJSUzI1NiJ9." + JWT.partition(".")[2]
WORD = "hunter2-Canary"
BOOTSTRAP = "abc123.0123456789abcdef"


WRAPPED = (
    (f"key:\n{PEM}", BODY),
    (json.dumps({"key": PEM}), BODY),
    (f"log cut off:\n{PEM.rpartition('-----END')[0]}", BODY),
    (f"{BODY}\n-----END PRIVATE KEY-----\nand so on", BODY),
    (f"client-key-data: {base64.b64encode(PEM.encode()).decode()}", base64.b64encode(PEM.encode()).decode()[20:60]),
    (f"sent token {JWT} to the server", JWT.split(".")[1]),
    (f"Authorization: Bearer {WORD}", WORD),
    (f'headers: {{"authorization": "Basic {WORD}"}}', WORD),
    (f"pulling https://robot:{WORD}@registry.example.org/x failed", WORD),
    (f"fetch https://ghp_{WORD}abcdefgh@example.org/x.git", WORD),
    (f"password: {WORD}", WORD),
    (f'{{"clientSecret":"{WORD}","id":1}}', WORD),
    (f"DB_PASSWORD='{WORD}'", WORD),
    (f'msg="login" token="{WORD} with spaces"', WORD),
    (f"--keycloak-password {WORD} --verbose", WORD),
    (f"exec: oauth2-proxy --client-secret={WORD}", WORD),
    (f"secretboxEncryptionSecret: {BLOB}", BLOB),
    (f"the cluster's secret is {BLOB} indeed", BLOB),
    (f"machine token {BOOTSTRAP}", BOOTSTRAP),
    ("kind: Secret\nmetadata:\n  name: x\ndata:\n  a: c2hvcnQ=\n  b: Y2FuYXJ5\ntype: Opaque", "Y2FuYXJ5"),
    ('{"kind":"Secret","data":{"a":"Y2FuYXJ5"},"type":"Opaque"}', "Y2FuYXJ5"),
    (json.dumps({"log": json.dumps({"client_secret": WORD})}), WORD),
    (json.dumps({"log": json.dumps({"kind": "Secret", "data": {"a": "Y2FuYXJ5"}})}), "Y2FuYXJ5"),
    (json.dumps({"log": "kind: Secret\ndata:\n  a: c2hvcnQ=\n  b: Y2FuYXJ5\ntype: Opaque"}), "Y2FuYXJ5"),
    ("key AKIAIOSFODNN7EXAMPLE was refused", "AKIAIOSFODNN7EXAMPLE"),
)


# The secrets are made anew for every run, so they cannot be part of a test's name.
@pytest.mark.parametrize(("text", "canary"), WRAPPED, ids=[f"{n}" for n in range(len(WRAPPED))])
def test_key_material_is_taken_out_by_its_shape(text: str, canary: str) -> None:
    assert canary in text
    assert canary not in clean(text)


@pytest.mark.parametrize(
    "text",
    [
        "Helm install failed for release cozy-x/x with chart x@1.2.3: timeout waiting for: [Deployment/cozy-x/x]",
        'secrets "dashboard-web-tls" not found',
        "could not resolve Secret chart values reference 'cozy-x/cozystack-values' with key 'values.yaml'",
        "secretName: dashboard-web-tls",
        "image ghcr.io/cozystack/cozystack/kubeovn:v1.6.2@sha256:" + "0a1b2c3d" * 8,
        "Waiting for HTTP-01 challenge propagation: failed to perform self check GET request 'http://dashboard.example.org/x'",
        "dial tcp 10.0.0.11:80: connect: connection refused",
        "x509: certificate is valid for cp1, not cert-manager-webhook.cozy-cert-manager.svc",
        "no matches for kind MonitoringStackConfigurationTemplate42 in version operator.victoriametrics.com/v1beta1",
        "pod 5b2ff8d4-8c1e-4a3f-9d1e-0d6d5d6a7b8c on node cp1 was OOMKilled",
        "failed calling webhook vpostgresqlclusterdefaulting.k8s.enterprisedb.io: no endpoints available",
    ],
)
def test_what_a_person_needs_stays_word_for_word(text: str) -> None:
    assert clean(text) == text


def test_objects_lose_what_their_kind_or_a_key_gives_away() -> None:
    kept = clean_object(
        {
            "kind": "Secret",
            "metadata": {"name": "x", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": WORD}},
            "data": {"short": "Y2FuYXJ5"},
            "env": [{"name": "DB_PASSWORD", "value": WORD}, {"name": "LEVEL", "value": "debug"}],
            "auth": {"password": WORD, "passwordRef": {"name": "y"}},
            "raw": WORD.encode(),
        }
    )

    assert "Y2FuYXJ5" not in str(kept)
    assert WORD not in str(kept)
    assert kept["metadata"]["name"] == "x"
    assert kept["env"][1] == {"name": "LEVEL", "value": "debug"}
    assert kept["auth"]["passwordRef"] == {"name": "y"}
