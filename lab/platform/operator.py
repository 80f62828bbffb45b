"""The simulated Cozystack operator: its own start, then Packages into HelmReleases, as event-driven as the real one.

A Package becomes ready when everything it needs is ready; ready means that its HelmReleases were written, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cozystack_iac.kube.client import Object, Ref
from lab.platform import catalogue, crds, objects, rendered
from lab.platform.catalogue import PLATFORM_PACKAGE, PLATFORM_VARIANTS, Package
from lab.platform.context import Platform
from lab.platform.hub import Store
from lab.platform.objects import SYSTEM, kind_ref
from lab.platform.timing import (
    ARTIFACT_BUILD_S,
    FLUX_INSTALLED_S,
    OCI_PULL_S,
    OPERATOR_CRDS_S,
)

LEASE = "cozystack-operator.cozystack.io"
RENEWAL_S = 2.0  # controller-runtime's retry period
RENEWAL_WALL_S = 0.2  # nobody needs it oftener
REVISION = "latest@sha256:" + "5ca1ab1e" * 8
FLUX_CONTAINERS = (
    "source-controller",
    "kustomize-controller",
    "helm-controller",
    "notification-controller",
    "source-watcher",
)


class Operator:
    """Runs from the moment a pod of Deployment cozy-system/cozystack-operator runs."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._hub = platform.hub
        self._store = Store()  # replaced by the watched one once the CRD exists
        self._dirty = asyncio.Event()
        self._ready: dict[str, int] = {}  # package -> generation at which its releases were written
        self._written: dict[str, tuple[int, str]] = {}  # package -> (generation, status text) last written

    async def run(self) -> None:
        await self._pod_runs()
        self._hub.spawn(self._lead(), name="operator's lease")
        await self._start()
        self._store = self._hub.store(kind_ref("Package"))
        self._store.on(lambda _before, _after: self._dirty.set())
        await self._store.synced.wait()
        while True:
            self._dirty.clear()
            if not await self._reconcile():
                await self._dirty.wait()

    async def _pod_runs(self) -> None:
        pods = self._hub.store(kind_ref("Pod", SYSTEM), "app=cozystack-operator")
        while True:
            change = pods.next_change()
            if any((pod.get("status") or {}).get("phase") == "Running" for pod in pods.objects.values()):
                break
            await change
        self._platform.world.log.record("operator", "running")

    async def _lead(self) -> None:
        """The lease of the real one's leader election, renewed for as long as it works."""
        lease = kind_ref("Lease", SYSTEM, LEASE)
        spec = {"holderIdentity": "operator", "leaseDurationSeconds": 15, "renewTime": _micro_time()}
        await self._hub.ensure(objects.new("Lease", LEASE, SYSTEM, spec=spec))
        while True:
            await asyncio.sleep(max(self._platform.world.clock.wall(RENEWAL_S), RENEWAL_WALL_S))
            await self._hub.patch(lease, {"spec": {"renewTime": _micro_time()}})

    async def _start(self) -> None:
        """CRDs, Flux, the platform's source and PackageSource: the order and the budgets of the real operator's start."""
        platform, hub = self._platform, self._hub
        await install_crds(platform, crds.OPERATOR)
        await platform.sleep(OPERATOR_CRDS_S)
        platform.world.log.record("operator", "crds established")
        await hub.ensure(objects.namespace("cozy-fluxcd", privileged=True))
        flux = objects.deployment("flux", "cozy-fluxcd", containers=FLUX_CONTAINERS, host_network=True)
        await asyncio.gather(install_crds(platform, crds.FLUX), hub.ensure(flux))
        await platform.sleep(FLUX_INSTALLED_S)
        platform.world.log.record("operator", "flux installed")
        await self._source("cozystack-platform")
        source = await hub.ensure(objects.platform_source())
        await source_ready(platform, source, len(PLATFORM_VARIANTS), ",".join(PLATFORM_VARIANTS))
        platform.world.log.record("operator", "platform source written")

    async def _source(self, name: str) -> None:
        await self._hub.ensure(objects.oci_repository(name))
        await self._platform.sleep(OCI_PULL_S)
        await self._hub.status(kind_ref("OCIRepository", SYSTEM, name), objects.stored_artifact(REVISION))

    # Packages -------------------------------------------------------------------------------------------------------

    def unready(self) -> str | None:
        """A Package that has not written its releases yet, as a wait names it."""
        for obj in self._store.objects.values():
            name = obj["metadata"]["name"]
            if name != PLATFORM_PACKAGE and self._ready.get(name) != obj["metadata"]["generation"]:
                return f"Package/{name}"
        return None

    async def _reconcile(self) -> bool:
        """One wave: every package that can go on does. True when there was something to do."""
        found = {obj["metadata"]["name"]: obj for obj in self._store.objects.values() if not _deleting(obj)}
        for gone in self._ready.keys() - found.keys():
            del self._ready[gone]
            self._written.pop(gone, None)
        platform_package = found.pop(PLATFORM_PACKAGE, None)
        todo = []
        if platform_package is not None and self._stale(platform_package):
            todo.append(self._platform_package(platform_package))
        emitted = self._emitted(found)
        ready_before = set(self._ready)
        for name, obj in found.items():
            if self._stale(obj):
                todo.append(self._package(name, obj, emitted, ready_before))
        if not todo:
            return False
        results = await asyncio.gather(*todo)
        if any(results):
            await self._platform.sleep(self._platform.package_wave_s)
        return any(results)

    def _stale(self, obj: Object) -> bool:
        return bool(self._ready.get(obj["metadata"]["name"]) != obj["metadata"]["generation"])

    def _emitted(self, found: Mapping[str, Object]) -> dict[str, Package]:
        """The catalogue's account of each Package object, without the components the object disables."""
        sources = self._platform.known.sources()
        emitted = {}
        for name, obj in found.items():
            spec = obj.get("spec") or {}
            variant = spec.get("variant") or "default"
            chosen = next((p for p in sources.get(name, ()) if p.variant == variant), None)
            if chosen is not None:
                switches = spec.get("components") or {}
                on = tuple(c for c in chosen.components if (switches.get(c.name) or {}).get("enabled") is not False)
                emitted[name] = replace(chosen, components=on)
        return emitted

    async def _package(self, name: str, obj: Object, emitted: Mapping[str, Package], ready: set[str]) -> bool:
        """True when the package became ready in this wave."""
        if name not in emitted:
            known = name in self._platform.known.sources()
            variant = (obj.get("spec") or {}).get("variant") or "default"
            reason, text = (
                ("VariantNotFound", f"Variant {variant} not found in PackageSource {name}")
                if known
                else ("PackageSourceNotFound", f"PackageSource {name} not found")
            )
            await self._say(obj, "False", reason, text, {})
            return False
        package = emitted[name]
        ignored = set((obj.get("spec") or {}).get("ignoreDependencies") or ())
        needs = {need: {"ready": need in ready} for need in package.needs if need not in ignored}
        await self._namespaces([package])
        if not all(need["ready"] for need in needs.values()):
            await self._say(obj, "False", "DependenciesNotReady", "One or more dependencies are not ready", needs)
            return False
        count = await self._releases(obj, package, emitted)
        text = f"reconciliation succeeded, generated {count} helmrelease(s)"
        self._ready[name] = obj["metadata"]["generation"]
        await self._say(obj, "True", "ReconciliationSucceeded", text, needs)
        self._platform.world.log.record(f"package {name}", "ready")
        return True

    async def _releases(self, obj: Object, package: Package, emitted: Mapping[str, Package]) -> int:
        written = list(catalogue.releases(package, emitted))
        for item in written:
            override = self._platform.override(item.ref)
            body = objects.release(
                item, obj, self._platform.known.traits, suspended=override is not None and override.suspended
            )
            await self._write_release(body)
        wanted = {item.ref for item in written}
        for release in self._hub.store(kind_ref("HelmRelease")).objects.values():
            meta = release["metadata"]
            if (meta.get("labels") or {}).get("cozystack.io/package") != package.name:
                continue
            if f"{meta['namespace']}/{meta['name']}" not in wanted:
                await self._hub.delete(objects.ref_of({**release, "kind": "HelmRelease"}))
        return len(written)

    async def _write_release(self, body: Object) -> None:
        """Create, or bring the spec up to date; `suspend` on an existing object belongs to people."""
        current = await self._hub.ensure(body)
        spec = dict(current.get("spec") or {})
        kept = {"suspend": spec.pop("suspend")} if "suspend" in spec else {}
        wanted = {key: value for key, value in body["spec"].items() if key != "suspend"}
        if spec != wanted:
            await self._hub.patch(objects.ref_of(body), {"spec": _replacement(spec, wanted) | kept})

    async def _platform_package(self, obj: Object) -> bool:
        """The Package a user writes: one HelmRelease, whose chart renders everything else."""
        spec = obj.get("spec") or {}
        variant = str(spec.get("variant") or "default")
        if variant not in PLATFORM_VARIANTS:
            text = f"Variant {variant} not found in PackageSource {PLATFORM_PACKAGE}"
            await self._say(obj, "False", "VariantNotFound", text, {})
            self._ready[PLATFORM_PACKAGE] = obj["metadata"]["generation"]
            return False
        component = (spec.get("components") or {}).get("platform") or {}
        values = component.get("values")
        self._platform.values = values or {}
        self._platform.choice = self._platform.known.choice(variant, values or {})
        artifact = objects.external_artifact(f"cozystack-cozystack-platform-{variant}-platform")
        await self._hub.ensure(artifact)
        body = objects.platform_release(obj, variant, values, self._platform.known.traits)
        if component.get("enabled") is not False:
            await self._write_release(body)
        self._ready[PLATFORM_PACKAGE] = obj["metadata"]["generation"]
        await self._say(
            obj, "True", "ReconciliationSucceeded", "reconciliation succeeded, generated 1 helmrelease(s)", {}
        )
        self._platform.world.log.record(f"package {PLATFORM_PACKAGE}", "ready")
        return True

    async def _namespaces(self, packages: list[Package]) -> None:
        for name, privileged in objects.namespaces(packages).items():
            await ensure_namespace(self._platform, name, privileged=privileged)

    async def _say(self, obj: Object, status: str, reason: str, message: str, dependencies: Mapping[str, Any]) -> None:
        """Write the status unless it says so already."""
        name, generation = obj["metadata"]["name"], obj["metadata"]["generation"]
        said = (generation, f"{status} {reason} {message} {sorted(dependencies.items())}")
        if self._written.get(name) == said:
            return
        self._written[name] = said
        await self._hub.status(
            kind_ref("Package", name=name),
            {
                "conditions": [objects.condition("Ready", status, reason, message)],
                "dependencies": dict(dependencies) or None,
            },
        )

    # The platform chart ---------------------------------------------------------------------------------------------

    async def emit(self) -> None:
        """What the platform chart renders: values Secret, copy of the source, PackageSources, Packages."""
        platform = self._platform
        if platform.choice is None:
            return
        await self._render_values()
        await self._source("cozystack-packages")
        sources = platform.known.sources()
        await asyncio.gather(*(self._package_source(name, variants) for name, variants in sources.items()))
        await platform.sleep(ARTIFACT_BUILD_S)
        chosen = platform.known.emitted(platform.choice)
        await asyncio.gather(*(self._emit_package(package) for package in chosen))
        platform.world.log.record("operator", "packages written", count=len(chosen))

    async def _emit_package(self, package: Package) -> None:
        current = await self._hub.ensure(objects.package(package))
        if (current.get("spec") or {}).get("variant") != package.variant:
            await self._hub.patch(kind_ref("Package", name=package.name), {"spec": {"variant": package.variant}})

    async def _package_source(self, name: str, variants: tuple[Package, ...]) -> None:
        created = await self._hub.create(objects.package_source(name, variants))
        if created is not None:
            artifacts = sum(len(variant.components) for variant in variants)
            await source_ready(self._platform, created, artifacts, ",".join(v.variant for v in variants))

    async def _render_values(self) -> None:
        platform = self._platform
        variant = platform.choice.system_variant if platform.choice is not None else ""
        legacy = self._hub.store(kind_ref("ConfigMap", SYSTEM))
        await legacy.synced.wait()
        overruling = (legacy.get(rendered.LEGACY, SYSTEM) or {}).get("data") or {}
        secret = rendered.secret(rendered.cluster(platform.known.traits, variant, platform.values, overruling))
        version = objects.new("ConfigMap", "cozystack-version", SYSTEM, labels={objects.NO_DELETE: "true"})
        await asyncio.gather(self._hub.apply(secret), self._hub.ensure(version))
        if platform.known.traits.guardrail and platform.world.scenario.platform.options.get("guardrail", True):
            for obj in _guardrail():
                await self._hub.ensure(obj)


async def install_crds(platform: Platform, names: tuple[str, ...]) -> None:
    """Create these CRDs and wait until each is established."""

    async def one(name: str) -> None:
        created = await platform.hub.create(crds.definition(name, platform.known.traits))
        while created is not None:
            current = await platform.hub.kube.get(kind_ref("CustomResourceDefinition", name=name))
            conditions = {c["type"]: c["status"] for c in (current.get("status") or {}).get("conditions") or ()}
            if conditions.get("Established") == "True":
                return
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one(name) for name in names))
    platform.hub.kinds_appeared()


async def ensure_namespace(platform: Platform, name: str, *, privileged: bool = False) -> None:
    """Create or label a namespace; each is looked at once, and again only to make it privileged."""
    known = platform.namespaces
    if known.get(name) is True or (name in known and not privileged):
        return
    known[name] = privileged
    wanted = objects.namespace(name, privileged=privileged)
    if await platform.hub.create(wanted) is None:
        labels = wanted["metadata"].get("labels") or {}
        await platform.hub.patch(Ref("v1", "namespaces", name=name), {"metadata": {"labels": labels}})


async def source_ready(platform: Platform, source: Object, artifacts: int, variants: str) -> None:
    text = f"reconciliation succeeded, generated {artifacts} artifact(s)"
    ready = objects.condition("Ready", "True", "Succeeded", text, source["metadata"]["generation"])
    await platform.hub.status(objects.ref_of(source), {"conditions": [ready], "variants": variants})


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _replacement(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch that turns `old` into `new`."""
    patch: dict[str, Any] = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[key] = _replacement(before, value)
        else:
            patch[key] = value
    return patch


def _guardrail() -> tuple[Object, Object]:
    """The real admission policy: nothing that carries the no-delete label can be deleted."""
    name = "cozystack-no-delete-guardrail"
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["*"], "scope": "*"}
    policy = objects.new(
        "ValidatingAdmissionPolicy",
        name,
        spec={
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [rule],
                "objectSelector": {"matchLabels": {objects.NO_DELETE: "true"}},
            },
            "validations": [
                {
                    "expression": "false",
                    "message": f"Deletion blocked: object carries {objects.NO_DELETE}=true. "
                    "Remove the label first if this is really meant.",
                }
            ],
        },
    )
    binding = objects.new(
        "ValidatingAdmissionPolicyBinding", name, spec={"policyName": name, "validationActions": ["Deny"]}
    )
    return policy, binding
