"""Helm as far as the product uses it: releases of the installer chart, kept in Secrets, hooks first.

The chart's templates are Go; what they render for each variant and release is written down here once more.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cozystack_iac.kube.client import Conflict, Object
from lab.memory.api import MemoryApi
from lab.memory.jobs import ended
from lab.platform import catalogue
from lab.platform.installer import LABELER
from lab.platform.objects import NO_DELETE, new
from lab.world import World

SYSTEM = "cozy-system"
OPERATOR = "cozystack-operator"
_STATE = "helm.sh/release.v1"


class HelmFailed(Exception):
    """Helm ended with an error; the text is Helm's."""


class Helm:
    """Installs charts into a cluster in memory."""

    def __init__(self, api: MemoryApi, world: World) -> None:
        self._api, self._world = api, world

    async def install(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One release from the plugin's inputs; returns its outputs. Raises HelmFailed."""
        name, namespace = str(inputs["name"]), str(inputs.get("namespace") or "default")
        values: Mapping[str, Any] = inputs.get("values") or {}
        release = f"{namespace}/{name}"
        spaces = self._api.of("namespaces")
        if ("", namespace) not in spaces and inputs.get("createNamespace"):
            self._create(new("Namespace", namespace, labels={"name": namespace}))
        if ("", namespace) not in spaces:
            raise HelmFailed(f'create: failed to create: namespaces "{namespace}" not found')
        last, status = max(self._history(name, namespace), default=(0, ""))
        if last and not (inputs.get("replace") and status in ("failed", "uninstalled")):
            raise HelmFailed("cannot re-use a name that is still in use")
        objects = list(self._objects(name, values))
        for body in objects:
            self._claim(body, name, namespace)
        number = last + 1
        self._restate(name, namespace, last, "superseded")
        self._record(name, namespace, number, "pending-install", values)
        self._world.log.record(f"helm {release}", "pending-install")
        try:
            await self._hook(name)
        except HelmFailed as error:
            self._record(name, namespace, number, "failed", values, f'Release "{name}" failed: {error}')
            raise
        for body in objects:
            self._create(_owned(body, name, namespace))
        self._record(name, namespace, number, "deployed", values)
        self._world.log.record(f"helm {release}", "deployed")
        return {"status": {"status": "deployed", "name": name, "namespace": namespace, "revision": number}}

    def upgrade(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """New values for a release that is there."""
        name, namespace = str(inputs["name"]), str(inputs.get("namespace") or "default")
        values: Mapping[str, Any] = inputs.get("values") or {}
        last, status = max(self._history(name, namespace), default=(0, ""))
        if not last:
            raise HelmFailed(f'"{name}" has no deployed releases')
        if status.startswith("pending"):
            raise HelmFailed("another operation (install/upgrade/rollback) is in progress")
        for body in self._objects(name, values):
            self._api.apply(self._target(body), _owned(body, name, namespace), manager="helm", force=True)
        self._restate(name, namespace, last, "superseded")
        self._record(name, namespace, last + 1, "deployed", values)
        self._world.log.record(f"helm {namespace}/{name}", "upgraded")
        return {"status": {"status": "deployed", "name": name, "namespace": namespace, "revision": last + 1}}

    def uninstall(self, name: str, namespace: str) -> None:
        for (where, secret), obj in list(self._api.of("secrets").items()):
            if where == namespace and (obj["metadata"].get("labels") or {}).get("name") == name:
                self._api.delete(self._api.target("v1", "secrets", where, secret))
        for kind, obj in list(self._api.everything()):
            marks = obj["metadata"].get("annotations") or {}
            mine = marks.get("meta.helm.sh/release-name") == name
            if mine and marks.get("helm.sh/resource-policy") != "keep":
                meta = obj["metadata"]
                version = kind.api_version(kind.versions[0])
                self._api.delete(self._api.target(version, kind.plural, meta.get("namespace", ""), meta["name"]))
        self._world.log.record(f"helm {namespace}/{name}", "uninstalled")

    # ------------------------------------------------------------------------------------------------------------------

    def _history(self, name: str, namespace: str) -> Iterator[tuple[int, str]]:
        """Revisions of a release and their status."""
        for (where, _), obj in self._api.of("secrets").items():
            labels = obj["metadata"].get("labels") or {}
            if where == namespace and labels.get("owner") == "helm" and labels.get("name") == name:
                yield int(labels.get("version", "0")), labels.get("status", "")

    def _restate(self, name: str, namespace: str, number: int, status: str) -> None:
        """A later revision changes what is said of an earlier one; its content is of no further interest here."""
        if number:
            self._record(name, namespace, number, status, {})

    def _record(
        self,
        name: str,
        namespace: str,
        number: int,
        status: str,
        values: Mapping[str, Any],
        description: str = "Install complete",
    ) -> None:
        """The Secret in which Helm keeps one revision of a release."""
        content = {
            "name": name,
            "namespace": namespace,
            "version": number,
            "info": {"status": status, "description": description},
            "chart": {"metadata": {"name": name, "version": self._world.scenario.cozystack}},
            "config": dict(values),
        }
        packed = base64.b64encode(gzip.compress(json.dumps(content).encode())).decode()
        labels = {"owner": "helm", "name": name, "status": status, "version": str(number)}
        labels["createdAt"] = str(int(time.time()))
        secret = f"sh.helm.release.v1.{name}.v{number}"
        body = new("Secret", secret, namespace, labels=labels, type=_STATE, stringData={"release": packed})
        target = self._api.target("v1", "secrets", namespace, body["metadata"]["name"])
        self._api.apply(target, body, manager="helm", force=True)

    def _claim(self, body: Object, name: str, namespace: str) -> None:
        """Helm refuses to take over what exists without its marks, or with those of another release."""
        meta = body["metadata"]
        target = self._target(body)
        found = self._api.all(target.kind).get(target.key)
        if found is None:
            return
        marks = found["metadata"].get("annotations") or {}
        owner = (marks.get("meta.helm.sh/release-namespace"), marks.get("meta.helm.sh/release-name"))
        if owner != (namespace, name):
            text = f'{body["kind"]} "{meta["name"]}" in namespace "{meta.get("namespace", "")}" exists and cannot be imported'
            raise HelmFailed(
                f"Unable to continue with install: {text} into the current release: invalid ownership metadata"
            )

    async def _hook(self, name: str) -> None:
        """The labeler runs before anything else, and leaves nothing behind."""
        traits = catalogue.load(self._world.scenario.cozystack).traits
        if name != "cozy-installer" or traits.brings_namespace:
            return
        if ("", SYSTEM) not in self._api.of("namespaces"):
            raise HelmFailed(f'failed pre-install: job {LABELER} failed: namespaces "{SYSTEM}" not found')
        labels = ["cozystack.io/system=true", *([f"{NO_DELETE}=true"] if traits.guardrail else [])]
        words = ["kubectl", "label", "namespace", SYSTEM, *labels, "pod-security.kubernetes.io/enforce=privileged"]
        pod = {"hostNetwork": True, "restartPolicy": "OnFailure", "containers": [{"name": "kubectl", "args": words}]}
        self._create(new("Job", LABELER, "kube-system", spec={"backoffLimit": 6, "template": {"spec": pod}}))
        key = ("kube-system", LABELER)
        while not ended(self._api.of("jobs", "batch")[key]):
            await asyncio.sleep(0.005)
        self._api.delete(self._api.target("batch/v1", "jobs", *key))

    def _objects(self, name: str, values: Mapping[str, Any]) -> Iterator[Object]:
        if name != "cozy-installer":
            return
        operator = values.get("cozystackOperator") or {}
        variant = operator.get("variant", "talos")
        if variant not in ("talos", "generic", "hosted"):
            raise HelmFailed(f'Invalid cozystackOperator.variant "{variant}": must be one of talos, generic, hosted')
        if catalogue.load(self._world.scenario.cozystack).traits.brings_namespace:
            labels = {"cozystack.io/system": "true", "pod-security.kubernetes.io/enforce": "privileged"}
            yield new("Namespace", SYSTEM, labels=labels, annotations={"helm.sh/resource-policy": "keep"})
        yield new("ServiceAccount", "cozystack", SYSTEM)
        labels = {"app": OPERATOR}
        pod = {"hostNetwork": True, "containers": [{"name": OPERATOR, "env": _api_server(variant, values)}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        yield new("Deployment", OPERATOR, SYSTEM, spec=spec)

    def _create(self, body: Object) -> None:
        try:
            self._api.create(self._target(body), body, manager="helm")
        except Conflict:
            target = self._target(body)
            self._api.apply(target, body, manager="helm", force=True)

    def _target(self, body: Object) -> Any:
        meta = body["metadata"]
        kind = next(
            k
            for k in self._api.kinds.values()
            if body["apiVersion"] in map(k.api_version, k.versions) and k.name == body["kind"]
        )
        return self._api.target(body["apiVersion"], kind.plural, meta.get("namespace", ""), meta["name"])


def _owned(body: Object, name: str, namespace: str) -> Object:
    meta = body["metadata"]
    marks = {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace}
    labels = {**(meta.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    return {**body, "metadata": {**meta, "labels": labels, "annotations": {**(meta.get("annotations") or {}), **marks}}}


def _api_server(variant: str, values: Mapping[str, Any]) -> list[dict[str, str]]:
    if variant == "hosted":
        return []
    host, port = "localhost", "7445"
    if variant == "generic":
        given = values.get("cozystack") or {}
        host, port = str(given.get("apiServerHost") or ""), str(given.get("apiServerPort") or "6443")
        if not host:
            raise HelmFailed("execution error: cozystack.apiServerHost is required in generic mode")
    return [{"name": "KUBERNETES_SERVICE_HOST", "value": host}, {"name": "KUBERNETES_SERVICE_PORT", "value": port}]
