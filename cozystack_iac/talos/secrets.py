"""The shapes in which Talos' secrets travel between the resources of the Talos plugin. Pure."""

from __future__ import annotations

from typing import Any


def machine_secrets(given: Any) -> dict[str, Any]:
    """The `machine_secrets` output of `talos.machine.Secrets` as the argument of `getConfiguration`.

    The SDK hands outputs on with snake_case keys, and the plugin then misses every one of them (pulumiverse/pulumi-talos
    103, 200, 251); so the shape is spelled out here, once. Accepts the SDK's output objects and plain dictionaries.
    """
    certs = _part(given, "certs")
    return {
        "certs": {
            "etcd": _pair(_part(certs, "etcd")),
            "k8s": _pair(_part(certs, "k8s")),
            "k8sAggregator": _pair(_part(certs, "k8s_aggregator", "k8sAggregator")),
            "k8sServiceaccount": {"key": _part(_part(certs, "k8s_serviceaccount", "k8sServiceaccount"), "key")},
            "os": _pair(_part(certs, "os")),
        },
        "cluster": {name: _part(_part(given, "cluster"), name) for name in ("id", "secret")},
        "secrets": _kubernetes(_part(given, "secrets")),
        "trustdinfo": {"token": _part(_part(given, "trustdinfo"), "token")},
    }


def client_configuration(given: Any) -> dict[str, str]:
    """The `client_configuration` output of `talos.machine.Secrets` with the plugin's own keys."""
    return {
        "caCertificate": _part(given, "ca_certificate", "caCertificate"),
        "clientCertificate": _part(given, "client_certificate", "clientCertificate"),
        "clientKey": _part(given, "client_key", "clientKey"),
    }


def _kubernetes(secrets: Any) -> dict[str, Any]:
    found = {
        "bootstrapToken": _part(secrets, "bootstrap_token", "bootstrapToken"),
        "secretboxEncryptionSecret": _part(secrets, "secretbox_encryption_secret", "secretboxEncryptionSecret"),
        # Only clusters born before Talos 1.3 have this one.
        "aescbcEncryptionSecret": _optional(secrets, "aescbc_encryption_secret", "aescbcEncryptionSecret"),
    }
    return {name: value for name, value in found.items() if value is not None}


def _pair(certificate: Any) -> dict[str, Any]:
    return {"cert": _part(certificate, "cert"), "key": _part(certificate, "key")}


def _part(given: Any, *names: str) -> Any:
    value = _optional(given, *names)
    if value is None:
        raise KeyError(f"the machine secrets do not contain {names[-1]}")
    return value


def _optional(given: Any, *names: str) -> Any:
    found = (_read(given, name) for name in names)
    return next((value for value in found if value is not None), None)


def _read(given: Any, name: str) -> Any:
    # The SDK's output classes are dictionaries too, but warn on the console when they are read as such.
    return given.get(name) if type(given) is dict else getattr(given, name, None)
