"""What a Cozystack release consists of: Packages, their releases and dependencies, per configuration. Pure.

`releases/<version>.yaml` is the lab's own compact account of one release, one list for all configurations:

    enabled:   {platform variant: [package]}     optional packages that the variant's own overlay switches on
    packages:  - package, variant (default `default`), bundle (system | iaas | paas | naas)
                 platform: [variant]    only there; oidc: bool    only with OIDC on or off
                 optional: true         only when named in bundles.enabledPackages (with: X  only together with X)
                 switch: a.b            only when that platform value is true
                 needs: [package]       packages it depends on, in order
                 installs: {component: namespace | {ns, release, after: [component], privileged, pvc, crds, apis}}
    charts:    releases a chart creates: release, parent, when (key of the root Tenant's spec), needs, artifact, ...
    traits:    how the release works where releases differ: see `Traits`
    races:     {provider release: {Kind: [release]}}   the release renders Kind without depending on its provider

Package names are written without their `cozystack.` prefix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from cozystack_iac import go_yaml

PREFIX = "cozystack."
PLATFORM_PACKAGE = "cozystack.cozystack-platform"
PLATFORM_RELEASE = "cozy-system/cozystack-platform"
PLATFORM_VARIANTS = ("default", "isp-full", "isp-hosted", "isp-full-generic")
ROOT_TENANT_RELEASE = "tenant-root/tenant-root"
BUNDLES = ("system", "iaas", "paas", "naas")
_BUNDLES_ON: Mapping[str, frozenset[str]] = {
    "isp-full": frozenset(BUNDLES),
    "isp-full-generic": frozenset(BUNDLES),
    "isp-hosted": frozenset({"paas", "naas"}),  # as shipped up to 1.6: nothing of it can ever become ready
    "default": frozenset(),
}
_FOLDER = Path(__file__).parent / "releases"


@dataclass(frozen=True)
class Component:
    """One chart of a package. `release` and `namespace` name its HelmRelease, `after` components of the same package."""

    name: str
    release: str
    namespace: str
    after: tuple[str, ...] = ()
    privileged: bool = False
    uses_pvc: bool = False
    crds: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()

    @property
    def ref(self) -> str:
        return f"{self.namespace}/{self.release}"


@dataclass(frozen=True)
class Package:
    """A package in one of its variants, with the conditions under which the platform chart emits it."""

    name: str
    variant: str
    bundle: str
    needs: tuple[str, ...]
    components: tuple[Component, ...]
    platform: tuple[str, ...] = ()
    oidc: bool | None = None
    optional: bool = False
    together_with: str = ""
    switch: str = ""

    def emitted(self, choice: Choice) -> bool:
        if self.name in choice.disabled or self.bundle not in choice.bundles:
            return False
        if self.platform and choice.system_variant not in self.platform:
            return False
        if self.oidc is not None and self.oidc is not choice.oidc:
            return False
        if self.switch:
            return self.switch in choice.switches
        return not self.optional or bool({self.name, self.together_with} & choice.enabled)


@dataclass(frozen=True)
class Release:
    """A HelmRelease that the operator writes. `depends_on` holds `namespace/name`, in the operator's order."""

    package: Package
    component: Component
    depends_on: tuple[str, ...]

    @property
    def ref(self) -> str:
        return self.component.ref

    @property
    def artifact(self) -> str:
        return f"{self.package.name}-{self.package.variant}-{self.component.name}".replace(".", "-")


@dataclass(frozen=True)
class ChartRelease:
    """A HelmRelease that another release's chart creates; `when` names the root Tenant's switch for it."""

    ref: str
    parent: str
    artifact: str
    interval: str
    timeout: str = ""
    when: str = ""
    kind: str = ""
    needs: tuple[str, ...] = ()
    release_name: str = ""

    @property
    def namespace(self) -> str:
        return self.ref.split("/")[0]

    @property
    def name(self) -> str:
        return self.ref.split("/")[1]


@dataclass(frozen=True)
class Choice:
    """The effective choice: overlay of the platform variant with the Package's own values on top."""

    bundles: frozenset[str]
    system_variant: str
    oidc: bool = False
    enabled: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How a release works where releases differ. Every one is in the release's file, so that a new release decides each."""

    brings_namespace: bool
    """The installer chart has namespace cozy-system among its objects; otherwise its hook labels the one that is there."""
    retries: bool
    """A failed action of an operator's release is tried again; otherwise it is undone first."""
    kstatus: bool
    """A release waits for custom resources, too (helm-controller 1.5)."""
    older_apis: bool
    """Flux still serves the versions of its APIs that came before (Flux 2.7)."""
    guardrail: bool
    """An admission policy keeps what carries the no-delete label."""
    keycloak_inside: bool
    """The dashboard asks Keycloak inside the cluster unless it is told otherwise."""
    dashboard_needs_oidc: bool
    """Without OIDC the dashboard's token proxy is restarted before it listens."""
    renders: frozenset[str]
    """Keys of `_cluster` that not every release renders."""


@dataclass(frozen=True)
class Catalogue:
    """One Cozystack release."""

    version: str
    traits: Traits
    packages: tuple[Package, ...]
    charts: tuple[ChartRelease, ...]
    races: Mapping[str, str] = field(default_factory=dict)  # user release name -> provider `namespace/name`
    race_kinds: Mapping[str, str] = field(default_factory=dict)  # user release name -> kind it renders
    enabled: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def choice(self, platform_variant: str, values: Mapping[str, Any]) -> Choice:
        """What the platform chart decides from its values (`spec.components.platform.values` of the Package)."""
        bundles = _mapping(values, "bundles")
        on = set(_BUNDLES_ON.get(platform_variant, frozenset()))
        for bundle in BUNDLES:
            switch = _mapping(bundles, bundle).get("enabled")
            if switch is not None:
                (on.add if switch else on.discard)(bundle)
        named = bundles.get("enabledPackages")
        enabled = self.enabled.get(platform_variant, frozenset()) if named is None else frozenset(map(str, named))
        return Choice(
            bundles=frozenset(on),
            system_variant=str(_mapping(bundles, "system").get("variant") or platform_variant),
            oidc=_mapping(_mapping(values, "authentication"), "oidc").get("enabled") is True,
            enabled=enabled,
            disabled=frozenset(map(str, bundles.get("disabledPackages") or ())),
            switches=frozenset(p.switch for p in self.packages if p.switch and _value(values, p.switch) is True),
        )

    def emitted(self, choice: Choice) -> tuple[Package, ...]:
        """The Packages that the platform chart renders."""
        return tuple(package for package in self.packages if package.emitted(choice))

    def sources(self) -> dict[str, tuple[Package, ...]]:
        """Every PackageSource with its variants, whether a Package uses it or not."""
        found: dict[str, tuple[Package, ...]] = {}
        for package in self.packages:
            found[package.name] = (*found.get(package.name, ()), package)
        return found


def installable(packages: Iterator[Package] | tuple[Package, ...]) -> set[str]:
    """Names of packages that can become ready: everything they need, transitively, is there."""
    wanted = {package.name: package for package in packages}
    ready: set[str] = set()
    while True:
        more = {name for name, p in wanted.items() if name not in ready and all(need in ready for need in p.needs)}
        if not more:
            return ready
        ready |= more


def releases(package: Package, emitted: Mapping[str, Package]) -> Iterator[Release]:
    """The HelmReleases of one package: own components' `after` first, then every release of every package it needs."""
    by_name = {component.name: component.ref for component in package.components}
    needed = [c.ref for need in package.needs if need in emitted for c in emitted[need].components]
    for component in package.components:
        yield Release(package, component, (*(by_name[name] for name in component.after), *needed))


@lru_cache(maxsize=8)
def load(version: str) -> Catalogue:
    """The catalogue of one release. Raises FileNotFoundError naming the known ones."""
    path = _FOLDER / f"{version}.yaml"
    if not path.exists():
        raise FileNotFoundError(f"the lab knows Cozystack {', '.join(known())}, not {version}")
    raw = go_yaml.load(path.read_text(encoding="utf-8"))
    charts = tuple(_chart(entry) for entry in raw["charts"])
    races: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for provider, users in (raw.get("races") or {}).items():
        for kind, names in users.items():
            races.update(dict.fromkeys(names, provider))
            kinds.update(dict.fromkeys(names, kind))
    enabled = {variant: frozenset(map(_full, names)) for variant, names in (raw.get("enabled") or {}).items()}
    traits = Traits(**{**raw["traits"], "renders": frozenset(raw["traits"]["renders"])})
    return Catalogue(
        version, traits, tuple(_package(entry) for entry in raw["packages"]), charts, races, kinds, enabled
    )


def known() -> list[str]:
    """Versions with a data file, the oldest first."""
    return sorted((path.stem for path in _FOLDER.glob("*.yaml")), key=Version)


def _package(entry: Mapping[str, Any]) -> Package:
    return Package(
        name=_full(entry["package"]),
        variant=entry.get("variant", "default"),
        bundle=entry["bundle"],
        needs=tuple(map(_full, entry.get("needs") or ())),
        components=tuple(_component(name, body) for name, body in entry["installs"].items()),
        platform=tuple(entry.get("platform") or ()),
        oidc=entry.get("oidc"),
        optional=entry.get("optional", False),
        together_with=_full(entry["with"]) if "with" in entry else "",
        switch=entry.get("switch", ""),
    )


def _component(name: str, body: str | Mapping[str, Any]) -> Component:
    if isinstance(body, str):
        return Component(name, name, body)
    crds = [f"{plural}.{group}" for group, plurals in (body.get("crds") or {}).items() for plural in plurals]
    return Component(
        name=name,
        release=body.get("release", name),
        namespace=body["ns"],
        after=tuple(body.get("after") or ()),
        privileged=body.get("privileged", False),
        uses_pvc=body.get("pvc", False),
        crds=tuple(crds),
        apis=tuple(body.get("apis") or ()),
    )


def _chart(entry: Mapping[str, Any]) -> ChartRelease:
    return ChartRelease(
        ref=entry["release"],
        parent=entry["parent"],
        artifact=entry["artifact"],
        interval=entry["interval"],
        timeout=entry.get("timeout", ""),
        when=entry.get("when", ""),
        kind=entry.get("kind", ""),
        needs=tuple(entry.get("needs") or ()),
        release_name=entry.get("releaseName", ""),
    )


def _full(name: str) -> str:
    return name if name.startswith(PREFIX) else PREFIX + name


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def _value(values: Mapping[str, Any], path: str) -> Any:
    found: Any = values
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
