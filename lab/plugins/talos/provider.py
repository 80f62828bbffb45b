"""The provider: resources Secrets and Kubeconfig, functions for machine and client configuration.

Beyond the official plugin it also generates contract 1.14 (whose library the official 0.8.1 does not have). It does not
write documentation comments (arguments ``docs`` and ``examples`` are accepted and ignored).
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from pulumi.provider.experimental.provider import (
    CheckFailure,
    CheckRequest,
    CheckResponse,
    CreateRequest,
    CreateResponse,
    DeleteRequest,
    DiffRequest,
    DiffResponse,
    InvokeRequest,
    InvokeResponse,
    Provider,
    ReadRequest,
    ReadResponse,
    UpdateRequest,
    UpdateResponse,
)

from cozystack_iac import yaml_text as text
from lab.plugins.serve import difference, token
from lab.plugins.talos import arguments, clientconfig, contracts, generate, machine, merge, secrets
from lab.plugins.values import UNKNOWN, Properties, Secret, changed, plain_all, wire, wire_all
from lab.talos import RELEASES

SECRETS = "talos:machine/secrets:Secrets"
KUBECONFIG = "talos:cluster/kubeconfig:Kubeconfig"
MACHINE_CONFIGURATION = "talos:machine/getConfiguration:getConfiguration"
CLIENT_CONFIGURATION = "talos:client/getConfiguration:getConfiguration"

# The official 0.8.1 is built on Talos machinery 1.13.0.
MACHINERY = "v1.13.0"
DEFAULT_KUBERNETES = "1.36.2"
SECRETS_ID = "machine_secrets"
IMPORTED_VERSION = "v1.3"  # what the official plugin writes for imported secrets
CLIENT_RENEWAL = timedelta(days=30)
KUBECONFIG_RENEWAL = "720h"
KUBECONFIG_TIMEOUT_S = 600.0
_KUBECONFIG_INPUTS = ("certificateRenewalDuration", "clientConfiguration", "endpoint", "node", "timeouts")


class TalosProvider(Provider):
    """Dispatches by type token; each resource's behaviour is in the functions below."""

    async def check(self, request: CheckRequest) -> CheckResponse:
        """Refuse a Kubeconfig without what it needs; unknown values are let through."""
        given = plain_all(request.new_inputs)
        failures = []
        if token(request.urn) == KUBECONFIG:
            try:
                if given.get("node") is not UNKNOWN:
                    arguments.required(given, "node")
                if not _has_unknown(given.get("clientConfiguration")):
                    arguments.access(given)
            except arguments.BadArgument as error:
                failures.append(CheckFailure("", str(error)))
        elif token(request.urn) != SECRETS:
            failures.append(CheckFailure("", f"the lab's stand-in for the talos plugin has no {token(request.urn)}"))
        return CheckResponse(wire_all(request.new_inputs), failures)

    async def diff(self, request: DiffRequest) -> DiffResponse:
        """Inputs decide, and a client certificate that is about to expire."""
        names = ("talosVersion",) if token(request.urn) == SECRETS else _KUBECONFIG_INPUTS
        # What the program leaves to the plugin is no change.
        given = tuple(name for name in names if name in request.new_inputs)
        found = changed(request.old_state, request.new_inputs, given)
        if not found and _renewal_due(token(request.urn), plain_all(request.old_state)):
            found = ["clientConfiguration" if token(request.urn) == SECRETS else "kubeconfigRaw"]
        return difference(found)

    async def create(self, request: CreateRequest) -> CreateResponse:
        """Make secrets, or fetch a kubeconfig."""
        if token(request.urn) == SECRETS:
            # The RSA key takes a second: other resources go on meanwhile.
            made = await asyncio.to_thread(_new_secrets, request.properties, preview=request.preview)
            return CreateResponse(SECRETS_ID, made)
        if request.preview:
            outputs = wire_all({"kubeconfigRaw": UNKNOWN, "kubernetesClientConfiguration": UNKNOWN})
            return CreateResponse("", _kubeconfig_inputs(request.properties) | outputs)
        name, properties = await _fetch_kubeconfig(request.properties, request.timeout, "create")
        return CreateResponse(name, properties)

    async def update(self, request: UpdateRequest) -> UpdateResponse:
        """Keep what exists; renew a client certificate or kubeconfig only when it is about to expire."""
        due = _renewal_due(token(request.urn), plain_all(request.olds))
        if token(request.urn) == SECRETS:
            kept = dict(request.olds) | {key: request.news[key] for key in ("talosVersion",) if key in request.news}
            if due:
                kept["clientConfiguration"] = wire(UNKNOWN if request.preview else _renewed(plain_all(request.olds)))
            return UpdateResponse(wire_all(kept))
        if due and not request.preview:
            _, properties = await _fetch_kubeconfig(request.news, request.timeout, "update")
            return UpdateResponse(properties)
        names = ("kubeconfigRaw", "kubernetesClientConfiguration")
        kept = wire_all(dict.fromkeys(names, UNKNOWN)) if due else {name: request.olds[name] for name in names}
        return UpdateResponse(_kubeconfig_inputs(request.news) | kept)

    async def read(self, request: ReadRequest) -> ReadResponse:
        """Return the state unchanged, as the official plugin does; an import of Secrets reads a secrets file."""
        if token(request.urn) == SECRETS and not request.properties:
            (data,) = text.parse(await asyncio.to_thread(Path(request.resource_id).read_text))
            properties = wire_all(_secrets_outputs(secrets.from_file(data), IMPORTED_VERSION))
            return ReadResponse(SECRETS_ID, properties, wire_all({"talosVersion": IMPORTED_VERSION}))
        return ReadResponse(request.resource_id, dict(request.properties), dict(request.inputs))

    async def delete(self, request: DeleteRequest) -> None:
        """Nothing exists outside the state."""

    async def invoke(self, request: InvokeRequest) -> InvokeResponse:
        """Answer a function; a bad argument is a failure in the official plugin's words."""
        functions = {MACHINE_CONFIGURATION: machine_configuration, CLIENT_CONFIGURATION: client_configuration}
        function = functions.get(request.tok)
        if function is None:
            reason = f"the lab's stand-in for the talos plugin has no {request.tok}"
            return InvokeResponse(failures=[CheckFailure("", reason)])
        try:
            result = function(plain_all(request.args))
        except (arguments.BadArgument, contracts.UnknownContract, merge.Refused, text.BadYaml) as error:
            return InvokeResponse(failures=[CheckFailure("", str(error))])
        secret = any(value.contains_secret() for value in request.args.values())
        return InvokeResponse({key: _marked(key, value, secret=secret) for key, value in result.items()})


def machine_configuration(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``machine.getConfiguration``; raise BadArgument, UnknownContract or merge.Refused."""
    version = given.get("talosVersion") or MACHINERY
    minor = contracts.contract(version)
    machine_type = arguments.required(given, "machineType")
    if machine_type not in ("controlplane", "worker"):
        raise arguments.BadArgument(
            '[AttributeName("machine_type")] Invalid Attribute Value Match: Attribute machine_type value must be one '
            f'of: ["controlplane" "worker"], got: "{machine_type}"'
        )
    request = contracts.Request(
        cluster=arguments.required(given, "clusterName"),
        endpoint=arguments.required(given, "clusterEndpoint"),
        machine_type="controlplane" if machine_type == "controlplane" else "worker",
        minor=minor,
        kubernetes=given.get("kubernetesVersion") or DEFAULT_KUBERNETES,
        installer=f"{contracts.INSTALLER_IMAGE}:{MACHINERY if minor < 14 else RELEASES[minor]}",
    )
    documents = generate.generate(arguments.bundle(given), request)
    merged = merge.patch(documents, given.get("configPatches") or [], machinery=max(13, minor))
    return dict(given) | {"id": request.cluster, "machineConfiguration": text.emit(merged)}


def client_configuration(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``client.getConfiguration``; raise BadArgument."""
    name = arguments.required(given, "clusterName")
    endpoints, nodes = given.get("endpoints") or [], given.get("nodes") or []
    config = clientconfig.talosconfig(name, arguments.access(given), endpoints, nodes)
    return dict(given) | {"id": name, "talosConfig": config}


def _marked(key: str, value: Any, *, secret: bool) -> Any:
    return wire(Secret(value) if secret and key in ("machineConfiguration", "talosConfig") else value)


def _has_unknown(value: Any) -> bool:
    return value is UNKNOWN or (isinstance(value, Mapping) and any(_has_unknown(item) for item in value.values()))


def _new_secrets(given: Properties, *, preview: bool) -> dict[str, Any]:
    version = plain_all(given).get("talosVersion", MACHINERY)
    if preview:
        return wire_all({"talosVersion": version, "machineSecrets": UNKNOWN, "clientConfiguration": UNKNOWN})
    return wire_all(_secrets_outputs(secrets.generate(), version))


def _secrets_outputs(bundle: secrets.Bundle, version: Any) -> dict[str, Any]:
    def pair(one: secrets.Pair) -> dict[str, Any]:
        return {"cert": one.cert, "key": Secret(one.key)}

    return {
        "talosVersion": version,
        "clientConfiguration": _client_configuration(bundle.os),
        "machineSecrets": {
            "certs": {
                "etcd": pair(bundle.etcd),
                "k8s": pair(bundle.kubernetes),
                "k8sAggregator": pair(bundle.aggregator),
                "k8sServiceaccount": {"key": Secret(bundle.service_account_key)},
                "os": pair(bundle.os),
            },
            "cluster": {"id": bundle.cluster_id, "secret": Secret(bundle.cluster_secret)},
            "secrets": {
                "bootstrapToken": Secret(bundle.bootstrap_token),
                "secretboxEncryptionSecret": Secret(bundle.secretbox_secret),
            },
            "trustdinfo": {"token": Secret(bundle.trustd_token)},
        },
    }


def _client_configuration(os_ca: secrets.Pair) -> dict[str, Any]:
    issued = secrets.client(os_ca)
    return {"caCertificate": os_ca.cert, "clientCertificate": issued.cert, "clientKey": Secret(issued.key)}


def _renewed(state: Mapping[str, Any]) -> dict[str, Any]:
    return _client_configuration(arguments.bundle(state).os)


def _renewal_due(kind: str, state: Mapping[str, Any]) -> bool:
    """Whether the client certificate in the state runs out within the renewal time."""
    source = "clientConfiguration" if kind == SECRETS else "kubernetesClientConfiguration"
    certificate = (state.get(source) or {}).get("clientCertificate")
    if not isinstance(certificate, str):
        return False
    before = CLIENT_RENEWAL
    if kind == KUBECONFIG:
        before = timedelta(seconds=arguments.duration_s(state.get("certificateRenewalDuration") or KUBECONFIG_RENEWAL))
    expires = x509.load_pem_x509_certificate(base64.b64decode(certificate)).not_valid_after_utc
    return expires < datetime.now(UTC) + before


def _kubeconfig_inputs(given: Properties) -> dict[str, Any]:
    """Return the inputs as outputs: defaults filled in, the client key marked secret."""
    inputs = {key: wire(given[key]) for key in _KUBECONFIG_INPUTS if key in given}
    inputs.setdefault("certificateRenewalDuration", wire(KUBECONFIG_RENEWAL))
    inputs.setdefault("endpoint", inputs["node"])
    client = inputs["clientConfiguration"]
    if isinstance(client.value, Mapping) and "clientKey" in client.value:
        inputs["clientConfiguration"] = client.with_value(
            dict(client.value) | {"clientKey": client.value["clientKey"].with_secret(True)}
        )
    return inputs


async def _fetch_kubeconfig(given: Properties, timeout_s: float, operation: str) -> tuple[str, dict[str, Any]]:
    inputs = _kubeconfig_inputs(given)
    known = plain_all(inputs)
    own = (known.get("timeouts") or {}).get(operation)
    deadline_s = timeout_s or (arguments.duration_s(own) if own else KUBECONFIG_TIMEOUT_S)
    target = machine.Target(known["node"], known["endpoint"])
    kubeconfig = await machine.kubeconfig(target, arguments.access(known), deadline_s)
    name, parts = arguments.kubeconfig_parts(kubeconfig)
    configuration = parts | {"clientKey": Secret(parts["clientKey"])}
    outputs = {"kubeconfigRaw": Secret(kubeconfig), "kubernetesClientConfiguration": configuration}
    return name, inputs | wire_all(outputs)
