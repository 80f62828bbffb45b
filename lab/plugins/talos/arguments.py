"""Reading the plugin's arguments, with the official plugin's words for what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cozystack_iac import yaml_text as text
from lab.plugins.talos import secrets
from lab.plugins.talos.clientconfig import Access

_ACCESS = ("caCertificate", "clientCertificate", "clientKey")


class BadArgument(ValueError):
    """An argument is missing or unusable; the message is what the official plugin says."""


def access(arguments: Mapping[str, Any]) -> Access:
    """Read ``clientConfiguration``; keys in snake_case count as missing, as they do officially."""
    given = _mapping(arguments, "clientConfiguration")
    ca, cert, key = (_required(given, ("clientConfiguration", name)) for name in _ACCESS)
    return Access(ca, cert, key)


def bundle(arguments: Mapping[str, Any]) -> secrets.Bundle:
    """Read ``machineSecrets``."""
    given = _mapping(arguments, "machineSecrets")
    try:
        return secrets.from_properties(given)
    except secrets.NotABundle as error:
        raise _missing(("machineSecrets", *str(error).split("."))) from error


def required(arguments: Mapping[str, Any], name: str) -> str:
    """Read a text argument that must be there."""
    return _required(arguments, (name,))


def kubeconfig_parts(kubeconfig: str) -> tuple[str, dict[str, str]]:
    """Return the current context's cluster name and the ``kubernetesClientConfiguration`` of a kubeconfig."""
    try:
        (data,) = text.parse(kubeconfig)
        contexts, clusters, users = (
            {entry["name"]: entry[kind] for entry in data[f"{kind}s"]} for kind in ("context", "cluster", "user")
        )
        context = contexts[data["current-context"]]
        cluster, user = clusters[context["cluster"]], users[context["user"]]
        return context["cluster"], {
            "host": cluster["server"],
            "caCertificate": cluster["certificate-authority-data"],
            "clientCertificate": user["client-certificate-data"],
            "clientKey": user["client-key-data"],
        }
    except (text.BadYaml, KeyError, TypeError, ValueError) as error:
        raise BadArgument("failed to parse kubeconfig: it has no complete current context") from error


def duration_s(value: str) -> float:
    """Return the seconds of a Go duration such as ``720h`` or ``1h30m``."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise BadArgument(f'time: invalid duration "{value}"')
    return sum(float(number) * units[unit] for number, unit in parts)


def _mapping(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = arguments.get(name)
    if not isinstance(value, Mapping):
        raise _missing((name,))
    return value


def _required(given: Mapping[str, Any], path: tuple[str, ...]) -> str:
    value = given.get(path[-1])
    if not isinstance(value, str):
        raise _missing(path)
    return value


def _missing(path: tuple[str, ...]) -> BadArgument:
    snake = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", step).lower() for step in path]
    where = ".".join(f'AttributeName("{step}")' for step in snake)
    dotted = ".".join(snake)
    return BadArgument(
        f"[{where}] Missing Configuration for Required Attribute: Must set a configuration value for the {dotted} "
        "attribute as the provider has marked it as required."
    )
