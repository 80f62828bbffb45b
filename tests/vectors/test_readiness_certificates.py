"""Recorded status of certificates, their orders and challenges, issuers and aggregated APIs: what a person would say of each."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac import diagnosis
from cozystack_iac.diagnosis import signs
from cozystack_iac.diagnosis.issuance import Issuers, pending
from cozystack_iac.diagnosis.signs import Kind
from tests.asked import condition, named, status

KINDS = frozenset({"Certificate", "CertificateRequest", "Order", "Challenge", "ClusterIssuer", "APIService"})
FILLED = {
    "host": "dashboard.example.org",
    "ip": "203.0.113.7",
    "ns": "cozy-x",
    "order": "web-1-7",
    "token": "t",
    "cluster_ip": "10.96.0.9",
}

# What the last recorded step means: the id of the known failure, None for nothing wrong, "" for nothing known.
MEANT: dict[str, str | None] = {
    "cert-success": None,
    "cert-selfsigned-success": None,
    "cert-failed-backoff": "",  # tried again after an hour: the new attempt has not failed yet
    "cr-acme-success": None,
    "cr-acme-failed": "acme-failed",
    "order-success": None,
    "order-invalid": "acme-failed",
    "order-rate-limited": "acme-rate-limited",
    "challenge-success": None,
    "challenge-pending-refused": "acme-refused",
    "challenge-pending-timeout": "acme-unreachable",
    "challenge-pending-nxdomain": "acme-name",
    "challenge-pending-wrong-backend": "acme-wrong-backend",
    "challenge-invalid": "acme-unreachable",
    "clusterissuer-success": None,
    "clusterissuer-no-network": "acme-issuer",
    "apiservice-success": None,
    "apiservice-down": None,
    "apiservice-endpoints-unreachable": "pod-network-closed",
}


def sequences(vectors: Path) -> dict[str, dict[str, Any]]:
    recorded = json.loads((vectors / "cozystack" / "conditions.json").read_text())["sequences"]
    return {each["id"]: each for each in recorded if each["kind"] in KINDS}


def filled(value: Any, more: dict[str, str]) -> Any:
    text = json.dumps(value)
    return json.loads(re.sub(r"\{(\w+)\}", lambda m: json.dumps((FILLED | more).get(m[1], m[1]))[1:-1], text))


def last_step(sequence: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, str] = {key: str(sequence[key]) for key in ("detail", "error") if key in sequence}
    return dict(filled(filled(sequence["steps"][-1], more | {"state": "invalid", "reason": ""}), more))


def issuers(kind: str, step: dict[str, Any]) -> Issuers:
    """The recorded object in the chain it would stand in, everything else as it is while nothing has gone wrong yet."""
    recorded = {**status(*(step.get("conditions") or ())), **(step.get("status") or {})}
    spec = {"dnsNames": [FILLED["host"]], "issuerRef": {"name": "letsencrypt-prod", "kind": "ClusterIssuer"}}
    waits = status(condition("Ready", "False", "DoesNotExist", "Issuing certificate as Secret does not exist"))
    good = status(condition("Ready", "True", "ACMEAccountRegistered"))

    def own(which: str, otherwise: dict[str, Any]) -> dict[str, Any]:
        return recorded if kind == which else otherwise

    return Issuers(
        [named("cozy-x", "web", spec=spec, status=own("Certificate", waits))],
        [named("cozy-x", "web-1", status=own("CertificateRequest", {}))],
        [named("cozy-x", "web-1-7", status=own("Order", {"state": "pending"}))]
        if kind in ("Order", "Challenge")
        else [],
        [named("cozy-x", "web-1-7-9", spec={"dnsName": FILLED["host"]}, status=recorded)]
        if kind == "Challenge" and not step.get("gone")
        else [],
        [named("", "letsencrypt-prod", status=own("ClusterIssuer", good))],
    )


def test_every_recorded_sequence_has_its_meaning(vectors: Path) -> None:
    assert set(sequences(vectors)) == set(MEANT)


@pytest.mark.parametrize("name", sorted(n for n in MEANT if not n.startswith("apiservice")))
def test_the_recorded_end_means_what_a_person_would_say(name: str, vectors: Path) -> None:
    sequence = sequences(vectors)[name]
    found = list(pending(issuers(sequence["kind"], last_step(sequence))))
    known = diagnosis.explain_sign(*(sign for each in found for sign in each.chain))

    assert (known.id if known else "") == (MEANT[name] or "")
    assert bool(found) is not (sequence["kind"] == "Certificate" and MEANT[name] is None)


@pytest.mark.parametrize("name", sorted(n for n in MEANT if n.startswith("apiservice")))
def test_an_aggregated_api_is_known_by_its_condition(name: str, vectors: Path) -> None:
    step = last_step(sequences(vectors)[name])
    api = named("", "v1alpha1.apps.cozystack.io", status=status(*step["conditions"]))
    found = tuple(signs.unready(Kind.API, [api], want="Available"))
    known = diagnosis.explain_sign(*found)

    assert (known.id if known else None) == MEANT[name]


def test_a_failed_attempt_is_said_while_the_certificate_waits_for_the_next(vectors: Path) -> None:
    steps = sequences(vectors)["cert-failed-backoff"]["steps"]
    failed = filled(steps[1], {"state": "errored", "reason": "429 rateLimited"})
    [found] = pending(issuers("Certificate", failed))
    known = diagnosis.explain_sign(*found.chain)

    assert known is not None
    assert known.id == "acme-rate-limited"
