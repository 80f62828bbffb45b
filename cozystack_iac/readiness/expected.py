"""Which releases have to exist: derived from Packages and PackageSources in the cluster, never from a list of ours.

The operator writes one HelmRelease per installable component of a package's chosen variant; charts add a few. Knowing
the set is what keeps an empty or half-written platform from looking ready.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from cozystack_iac.readiness.graph import Expected
from cozystack_iac.readiness.phases import REJECTIONS, Condition, HelmRelease, Item, Phase, ReleaseId, source_item
from cozystack_iac.readiness.verdicts import QueryFailed

PLATFORM = "cozystack.cozystack-platform"
ROOT_TENANT = ReleaseId("tenant-root", "tenant-root")

# Plausibility only. isp-full has 84 to 92 releases with every bundle, isp-hosted 24 (54 to 61 with the system bundle);
# bundles can be disabled, so the floor is about half. The variant "default" installs nothing besides the platform.
FLOORS: Mapping[str, int] = {"isp-full": 40, "isp-full-generic": 40, "isp-hosted": 12, "default": 1}

# Releases that charts create. Parent release -> (child, key of the root tenant's spec that asks for it, or None).
_BY_CHARTS: Mapping[ReleaseId, tuple[tuple[ReleaseId, str | None], ...]] = {
    ReleaseId("cozy-system", "cozystack-basics"): ((ROOT_TENANT, None),),
    ReleaseId("cozy-vertical-pod-autoscaler", "vertical-pod-autoscaler"): (
        (ReleaseId("cozy-vpa-for-vpa", "vpa-for-vpa"), None),
    ),
    ROOT_TENANT: (
        (ReleaseId("tenant-root", "info"), None),
        *((ReleaseId("tenant-root", k), k) for k in ("etcd", "ingress", "monitoring", "seaweedfs", "gateway")),
    ),
    ReleaseId("tenant-root", "ingress"): ((ReleaseId("tenant-root", "ingress-nginx-system"), None),),
    ReleaseId("tenant-root", "monitoring"): ((ReleaseId("tenant-root", "monitoring-system"), None),),
    ReleaseId("tenant-root", "seaweedfs"): ((ReleaseId("tenant-root", "seaweedfs-system"), None),),
}


# The root tenant's namespace also holds applications of people, so its modules are known by name. seaweedfs-db: from 1.5.
_MODULES = frozenset(
    {c for children in _BY_CHARTS.values() for c, _ in children} | {ReleaseId("tenant-root", "seaweedfs-db")}
)


@dataclass(frozen=True)
class Component:
    """A part of a package's variant; `release` is None when it is a library that nothing installs."""

    name: str
    release: ReleaseId | None
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    depends_on: tuple[str, ...]
    components: tuple[Component, ...]


@dataclass(frozen=True)
class PackageSource:
    """What a package can be: its variants by name."""

    name: str
    variants: Mapping[str, Variant]

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> PackageSource:
        """From the object as the API returns it; ValueError when it cannot be read."""
        try:
            variants = {str(v["name"]): _variant(v) for v in (obj.get("spec") or {}).get("variants") or ()}
            return cls(str(obj["metadata"]["name"]), variants)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a PackageSource cannot be read: {error!r}") from error


def _variant(obj: Mapping[str, Any]) -> Variant:
    components = []
    for component in obj.get("components") or ():
        install, name = component.get("install"), str(component["name"])
        # The operator refuses a component without a namespace; the package's own condition tells.
        installed = install is not None and bool(install.get("namespace"))
        release = ReleaseId(str(install["namespace"]), str(install.get("releaseName") or name)) if installed else None
        components.append(Component(name, release, tuple((install or {}).get("dependsOn") or ())))
    return Variant(tuple(obj.get("dependsOn") or ()), tuple(components))


@dataclass(frozen=True)
class Package:
    """What was chosen of a package. `ready` only means that its HelmReleases were written."""

    name: str
    variant: str = "default"
    disabled: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    ready: Condition | None = None

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Package:
        """From the object as the API returns it; ValueError when it cannot be read."""
        try:
            spec, status = obj.get("spec") or {}, obj.get("status") or {}
            components: Mapping[str, Any] = spec.get("components") or {}
            conditions = {str(c["type"]): c for c in status.get("conditions") or ()}
            ready = conditions.get("Ready")
            return cls(
                name=str(obj["metadata"]["name"]),
                variant=str(spec.get("variant") or "default"),
                disabled=frozenset(k for k, v in components.items() if (v or {}).get("enabled") is False),
                ignored=frozenset(spec.get("ignoreDependencies") or ()),
                ready=Condition.parse(ready) if ready else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a Package cannot be read: {error!r}") from error


def belongs(release: Mapping[str, Any], expected: Collection[ReleaseId]) -> bool:
    """Whether a HelmRelease object is part of the platform: expected, written by the operator, or a module of the root tenant.

    Applications of other tenants are their owners' business: the platform is ready while one of them is broken.
    """
    meta = release.get("metadata") or {}
    key = ReleaseId(str(meta.get("namespace", "")), str(meta.get("name", "")))
    if key in expected or "cozystack.io/package" in (meta.get("labels") or {}):
        return True
    return key in _MODULES


def expected_releases(
    packages: Iterable[Package],
    sources: Iterable[PackageSource],
    tenant: Mapping[str, Any],
    platform_variant: str,
) -> Expected:
    """What has to exist, and which packages have not written their part yet.

    `tenant`: spec of the root tenant (values of its HelmRelease), empty while there is none.
    """
    known, by_name = {s.name: s for s in sources}, {p.name: p for p in packages}
    releases: dict[ReleaseId, str] = {}
    items: list[Item] = []
    for package in by_name.values():
        subject = f"Package {package.name}"
        source = known.get(package.name)
        variant = source.variants.get(package.variant) if source else None
        for component in variant.components if variant else ():
            if component.release and component.name not in package.disabled:
                releases[component.release] = subject
        if package.ready is None or package.ready.status != "True":
            items.append(_unwritten(package, source, variant, by_name))
    if PLATFORM not in by_name:
        items.append(Item(f"Package {PLATFORM}", Phase.MISSING, "PlatformMissing", "nothing requests the platform"))
    items += _absent(items, by_name)
    releases |= _by_charts(releases, tenant)
    return Expected(releases, tuple(items), FLOORS.get(platform_variant, FLOORS["default"]))


def _unwritten(
    package: Package, source: PackageSource | None, variant: Variant | None, packages: Mapping[str, Package]
) -> Item:
    subject, ready = f"Package {package.name}", package.ready
    if source is None:
        reason, phase = "PackageSourceNotFound", Phase.FETCHING
    elif variant is None:
        reason, phase = "VariantNotFound", Phase.REJECTED
    elif ready is None:
        reason, phase = "", Phase.STARTING
    elif ready.reason in REJECTIONS:
        reason, phase = ready.reason, Phase.REJECTED
    elif ready.reason == "DependenciesNotReady":
        reason, phase = ready.reason, Phase.WAITING
    else:
        reason, phase = ready.reason, Phase.FAILING
    message = ready.message if ready else ""
    if reason == "VariantNotFound" and not message:
        message = f"variant {package.variant} is not in the PackageSource"
    wanted = (d for d in (variant.depends_on if variant else ()) if d not in package.ignored)
    waits = {d for d in wanted if d not in packages or not _is_written(packages[d])}
    return Item(subject, phase, reason, message, frozenset(f"Package {d}" for d in waits))


def _is_written(package: Package) -> bool:
    return package.ready is not None and package.ready.status == "True"


def _absent(items: Iterable[Item], packages: Mapping[str, Package]) -> list[Item]:
    """Packages that others wait for and that do not exist: nothing will ever create them."""
    waiting: dict[str, list[str]] = {}
    for item in items:
        for subject in item.waits_for:
            if subject.removeprefix("Package ") not in packages:
                waiting.setdefault(subject, []).append(item.subject.removeprefix("Package "))
    return [
        Item(subject, Phase.MISSING, "PackageMissing", f"needed by {', '.join(sorted(names))}")
        for subject, names in waiting.items()
    ]


def _by_charts(releases: Mapping[ReleaseId, str], tenant: Mapping[str, Any]) -> dict[ReleaseId, str]:
    """Children, and children of children, of the given releases."""
    found: dict[ReleaseId, str] = {}
    queue = list(releases)
    while queue:
        parent = queue.pop()
        for child, key in _BY_CHARTS.get(parent, ()):
            if key is None or tenant.get(key) is True:
                found[child] = str(parent)
                queue.append(child)
    return found


class Reading:
    """Reads releases, each object once: of a thousand, one or two have changed since the last look."""

    def __init__(self) -> None:
        self._known: dict[ReleaseId, tuple[Mapping[str, Any], HelmRelease]] = {}

    def __call__(self, obj: Mapping[str, Any]) -> HelmRelease:
        """As `Release.parse`."""
        meta = obj.get("metadata") or {}
        key = ReleaseId(str(meta.get("namespace")), str(meta.get("name")))
        known = self._known.get(key)
        if known is None or known[0] is not obj:  # a watch keeps the very objects that it was not told to change
            known = self._known[key] = obj, HelmRelease.parse(obj)
        return known[1]


@dataclass(frozen=True)
class ClusterObjects:
    """Objects of the kinds as the API returned them; `repositories` (OCIRepository) only explain."""

    releases: Collection[Mapping[str, Any]]
    packages: Collection[Mapping[str, Any]]
    sources: Collection[Mapping[str, Any]]
    repositories: Collection[Mapping[str, Any]] = ()

    def read(
        self, platform_variant: str, parse: Callable[[Mapping[str, Any]], HelmRelease] = HelmRelease.parse
    ) -> tuple[Collection[HelmRelease], Expected] | QueryFailed:
        """What `assess` needs. One object without which the expected set is unknown makes the whole answer unknown."""
        try:
            root = next((r for r in self.releases if _is_root_tenant(r)), {})
            tenant = (root.get("spec") or {}).get("values") or {}
            packages, sources = map(Package.parse, self.packages), map(PackageSource.parse, self.sources)
            expected = expected_releases(packages, sources, tenant, platform_variant)
            mine = [parse(r) for r in self.releases if belongs(r, expected.releases.keys())]
            return mine, replace(expected, sources=self._sources())
        except ValueError as error:
            return QueryFailed(str(error))

    def _sources(self) -> dict[str, Item]:
        """Sources that say that they are not ready. A silent one explains nothing."""
        items: list[Item] = []
        for kind, objects in (("PackageSource", self.sources), ("OCIRepository", self.repositories)):
            for obj in objects:
                with suppress(ValueError):  # nor does one that cannot be read
                    items.append(source_item(kind, obj))
        return {i.subject: i for i in items if i.phase not in (Phase.READY, Phase.STARTING)}


def _is_root_tenant(release: Mapping[str, Any]) -> bool:
    meta = release.get("metadata") or {}
    return (meta.get("namespace"), meta.get("name")) == ROOT_TENANT
