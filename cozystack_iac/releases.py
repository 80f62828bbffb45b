"""Facts per Cozystack release: one small table for rules, machine configs and the package builder.

Everything here was read from the release tags of github.com/cozystack/cozystack. A minor older than the table is refused: its
facts are not guessed. One that is newer is taken for its nearest known neighbour, and the rules say so.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Literal

TALOS_IMAGE = "ghcr.io/cozystack/cozystack/talos"  # packages/core/talos/hack/gen-profiles.sh
KUBERNETES = "v1.33.12"  # what the end-to-end tests of Cozystack 1.6 pin
KUBERNETES_MINIMUM = "1.33.10"  # older controller-managers crash on the aggregated tenant schema (cozystack#2863)
KEYCLOAK_INTERNAL_URL = "http://keycloak-http.cozy-keycloak.svc:8080/realms/cozy"  # chart default since 1.6.0

_VERSION = re.compile(r"^v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:-([0-9A-Za-z.-]{1,64}))?$", re.ASCII)


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version; a pre-release sorts before its release. Build metadata is not accepted."""

    major: int
    minor: int
    patch: int
    pre: str = ""

    @classmethod
    def parse(cls, text: str) -> "Version | None":
        """`1.6.2`, `v1.6.2` or `1.4.0-rc.1`; None for anything else, so that callers have to decide."""
        match = _VERSION.match(text)
        return cls(int(match[1]), int(match[2]), int(match[3]), match[4] or "") if match else None

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor."""
        return self.major, self.minor

    @property
    def order(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        """Sort key by the rules of semver.org: numeric identifiers first and by number, then texts."""
        identifiers = tuple(
            (False, int(part), "") if part.isascii() and part.isdigit() else (True, 0, part)
            for part in self.pre.split(".")
        )
        return self.major, self.minor, self.patch, not self.pre, identifiers

    def __lt__(self, other: "Version") -> bool:
        return self.order < other.order

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}{f'-{self.pre}' if self.pre else ''}"


def _version(text: str) -> Version:
    parsed = Version.parse(text)
    if parsed is None:
        raise ValueError(f"{text} is not a version")
    return parsed


# Talos pin by first release that carries it: packages/core/talos/images/talos/profiles/installer.yaml.
_TALOS_PINS: tuple[tuple[Version, str], ...] = tuple(
    (_version(since), talos)
    for since, talos in (("1.3.0", "v1.12.6"), ("1.3.2", "v1.12.7"), ("1.4.0", "v1.13.0"), ("1.6.0", "v1.13.6"))
)

# The newest patch of each minor whose tag was read.
LATEST: Mapping[tuple[int, int], Version] = {
    version.series: version for version in map(_version, ("1.3.6", "1.4.6", "1.5.4", "1.6.2"))
}

DEFAULT = "1.6.2"  # what a stack file gets that names no release

_NAMESPACE_MOVED = _version("1.4.0")
_OIDC_AT_INSTALL = _version("1.6.0")

# Keys of the platform component's values that not every release knows: (since, up to but without). A key that covers others
# stands for all below it. The rest is in `PLATFORM_ALWAYS`.
PLATFORM_KEYS: Mapping[str, tuple[Version, Version | None]] = {
    "publishing.exposure": (_version("1.4.0"), _version("1.5.0")),
    "publishing.proxyProtocol": (_version("1.4.0"), None),
    "publishing.proxyProtocolAcknowledgeUnclean": (_version("1.4.0"), None),
    "backupStorage": (_version("1.5.0"), None),
    "bundles.iaas.gpuOperatorVariant": (_version("1.5.0"), None),
    "gateway": (_version("1.5.0"), None),
    "gpu": (_version("1.5.0"), None),
    "publishing.certificates.dns01": (_version("1.5.0"), None),
    "publishing.certificates.wildcardSecretName": (_version("1.5.0"), None),
    "migrations.etcdAdoptSkipBackup": (_version("1.6.0"), None),
    "monitoring": (_version("1.6.0"), None),
    "publishing.certificates.wildcard": (_version("1.6.0"), None),
    "publishing.ingressNameAdmin": (_version("1.6.0"), None),
    "publishing.loadBalancerClass": (_version("1.6.0"), None),
}

# Keys of the platform component's values that every release knows. `branding` and `registries` are free maps.
PLATFORM_ALWAYS = frozenset(
    {
        "authentication.oidc.enabled",
        "authentication.oidc.insecureSkipVerify",
        "authentication.oidc.keycloakExtraRedirectUri",
        "authentication.oidc.keycloakInternalUrl",
        "branding",
        "bundles.disabledPackages",
        "bundles.enabledPackages",
        "bundles.iaas.enabled",
        "bundles.naas.enabled",
        "bundles.paas.enabled",
        "bundles.system.enabled",
        "bundles.system.variant",
        "migrations.enabled",
        "migrations.image",
        "migrations.targetVersion",
        "networking.clusterDomain",
        "networking.joinCIDR",
        "networking.kubeovn.MASTER_NODES",
        "networking.podCIDR",
        "networking.podGateway",
        "networking.serviceCIDR",
        "publishing.apiServerEndpoint",
        "publishing.certificates.issuerName",
        "publishing.certificates.solver",
        "publishing.exposedServices",
        "publishing.externalIPs",
        "publishing.host",
        "publishing.ingressName",
        "registries",
        "resources.cpuAllocationRatio",
        "resources.ephemeralStorageAllocationRatio",
        "resources.memoryAllocationRatio",
        "scheduling.globalAppTopologySpreadConstraints",
        "sourceRef.kind",
        "sourceRef.name",
        "sourceRef.namespace",
        "sourceRef.path",
    }
)

# Key of `_cluster` in Secret cozystack-values -> the platform value it renders, and the first minor that does.
RENDERED_KEYS: Mapping[str, tuple[str, tuple[int, int]]] = {
    "root-host": ("publishing.host", (1, 3)),
    "bundle-name": ("bundles.system.variant", (1, 3)),
    "solver": ("publishing.certificates.solver", (1, 3)),
    "issuer-name": ("publishing.certificates.issuerName", (1, 3)),
    "oidc-enabled": ("authentication.oidc.enabled", (1, 3)),
    "oidc-insecure-skip-verify": ("authentication.oidc.insecureSkipVerify", (1, 3)),
    "extra-keycloak-redirect-uri-for-dashboard": ("authentication.oidc.keycloakExtraRedirectUri", (1, 3)),
    "keycloak-internal-url": ("authentication.oidc.keycloakInternalUrl", (1, 3)),
    "expose-services": ("publishing.exposedServices", (1, 3)),
    "expose-ingress": ("publishing.ingressName", (1, 3)),
    "expose-external-ips": ("publishing.externalIPs", (1, 3)),
    "cluster-domain": ("networking.clusterDomain", (1, 3)),
    "api-server-endpoint": ("publishing.apiServerEndpoint", (1, 3)),
    "cpu-allocation-ratio": ("resources.cpuAllocationRatio", (1, 3)),
    "memory-allocation-ratio": ("resources.memoryAllocationRatio", (1, 3)),
    "ephemeral-storage-allocation-ratio": ("resources.ephemeralStorageAllocationRatio", (1, 3)),
    "proxy-protocol": ("publishing.proxyProtocol", (1, 5)),
    "gateway-enabled": ("gateway.enabled", (1, 5)),
    "wildcard-secret-name": ("publishing.certificates.wildcardSecretName", (1, 5)),
    "dns01-provider": ("publishing.certificates.dns01.provider", (1, 5)),
    "load-balancer-class": ("publishing.loadBalancerClass", (1, 6)),
    "monitoring-enabled": ("monitoring.rootEnabled", (1, 6)),
    "expose-ingress-admin": ("publishing.ingressNameAdmin", (1, 6)),
}

# Keys of the root tenant's spec; `gateway` came with 1.5. `storageClasses` has never existed.
TENANT_KEYS: Mapping[str, Version] = {"gateway": _version("1.5.0")}

OPTIONAL_PACKAGES = frozenset(
    {
        "cozystack.nfs-driver",
        "cozystack.telepresence",
        "cozystack.velero",
        "cozystack.external-dns",
        "cozystack.external-dns-application",
        "cozystack.kuberture",
        "cozystack.external-secrets-operator",
        "cozystack.linstor-gui",
        "cozystack.bootbox",
        "cozystack.hetzner-robotlb",
        "cozystack.vm-default-images",
        "cozystack.gpu-operator",
        "cozystack.hami",
        "cozystack.backupstrategy-controller",
    }
)

# Packages that many others depend on: leaving one out blocks the rest for ever in DependenciesNotReady. (cozystack-basics makes
# the root tenant.)
LOAD_BEARING_PACKAGES = frozenset(
    {
        "cozystack.networking",
        "cozystack.gateway-api-crds",
        "cozystack.prometheus-operator-crds",
        "cozystack.cert-manager",
        "cozystack.victoria-metrics-operator",
        "cozystack.postgres-operator",
        "cozystack.snapshot-controller",
        "cozystack.reloader",
        "cozystack.linstor",
        "cozystack.cozystack-engine",
        "cozystack.cozystack-basics",
        "cozystack.tenant-application",
        "cozystack.objectstorage-controller",
        "cozystack.vertical-pod-autoscaler",
    }
)

# The Talos minors (of 1.x) that machine configurations are known for, each with the newest Kubernetes minor it supports; each
# supports six (siderolabs/talos, compatibility).
_NEWEST_KUBERNETES: Mapping[int, int] = {10: 33, 11: 34, 12: 35, 13: 36, 14: 37}
_KUBERNETES_WINDOW = 6
TALOS_MINORS = tuple(_NEWEST_KUBERNETES)
TALOS_VERSIONS = f"1.{TALOS_MINORS[0]} to 1.{TALOS_MINORS[-1]}"


@dataclass(frozen=True, slots=True)
class Release:
    """What is known of one Cozystack release."""

    version: Version
    talos: str
    """Pinned Talos version with its leading v: what the release's images carry."""

    @property
    def known(self) -> bool:
        """Whether the very patch was read, and not only its minor."""
        return not self.version.pre and self.version <= self.neighbour and not self.beyond

    @property
    def beyond(self) -> bool:
        """Whether nothing of the minor was read: the facts are those of its neighbour."""
        return self.version.series not in LATEST

    @property
    def neighbour(self) -> Version:
        """The newest release that was read of this minor, or of the nearest older one when the minor was not read."""
        return max(read for series, read in LATEST.items() if series <= self.version.series)

    @property
    def chart_namespace(self) -> Literal["kube-system", "cozy-system"]:
        """Where the installer chart is released: up to 1.3 it ships cozy-system itself, so it cannot live there."""
        return "kube-system" if self.version < _NAMESPACE_MOVED else "cozy-system"

    @property
    def creates_namespace(self) -> bool:
        """Whether cozy-system has to exist before the chart: its hook labels it from 1.4 on."""
        return self.version >= _NAMESPACE_MOVED

    @property
    def oidc_at_install(self) -> bool:
        """Whether OIDC may be on from the first install without an internal Keycloak URL."""
        return self.version >= _OIDC_AT_INSTALL

    @property
    def oidc_later(self) -> bool:
        """Whether OIDC is switched on in a second step, after the platform has converged without it.

        Up to 1.5 upstream's own end-to-end suites enable it last, and an empty internal URL deadlocks (cozystack#3288). 1.4
        cannot converge without OIDC (cozystack#2869, `dashboard-without-oidc` below), so there it is on at once, with the
        internal URL that its charts take (packages/system/dashboard/templates/gatekeeper.yaml: no discovery when it is set).
        """
        return not self.oidc_at_install and self.version.series != (1, 4)

    @property
    def generic_enabled(self) -> tuple[str, ...]:
        """Packages that isp-full-generic itself switches on (packages/core/platform/values-isp-full-generic.yaml).

        1.5 made velero part of every variant.
        """
        own = ("cozystack.backupstrategy-controller",)
        return own if self.version.series >= (1, 5) else ("cozystack.velero", *own)

    @property
    def hosted_without(self) -> tuple[str, ...]:
        """Packages that isp-hosted has to leave out: from 1.5 on one needs a package of the iaas bundle (bundles/paas.yaml)."""
        return ("cozystack.backupstrategy-controller",) if self.version.series >= (1, 5) else ()

    def renders(self, key: str) -> bool:
        """Whether a key of `RENDERED_KEYS` is among what the platform chart writes down for all others."""
        return self.version.series >= RENDERED_KEYS[key][1]

    def has(self, key: str) -> bool:
        """Whether the platform component knows a key of its values, e.g. `publishing.loadBalancerClass`."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            bounds = PLATFORM_KEYS.get(".".join(parts[:length]))
            if bounds is not None:
                since, until = bounds
                return self.version >= since and (until is None or self.version < until)
        return any(
            known == key or known.startswith(f"{key}.") or key.startswith(f"{known}.") for known in PLATFORM_ALWAYS
        )

    def tenant_has(self, key: str) -> bool:
        """Whether the root tenant's spec knows a key that came after 1.3."""
        since = TENANT_KEYS.get(key)
        return since is None or self.version >= since


@dataclass(frozen=True, slots=True)
class KnownBroken:
    """A combination that is known not to work, in releases from `since` up to but without `until` (None: not fixed yet)."""

    name: str
    since: Version
    until: Version | None
    symptom: str
    remedy: str
    source: str

    def covers(self, version: Version) -> bool:
        """Whether a release is affected."""
        return self.since <= version and (self.until is None or version < self.until)


KNOWN_BROKEN: Mapping[str, KnownBroken] = {
    broken.name: broken
    for broken in (
        KnownBroken(
            "isp-hosted",
            _version("1.0.0"),
            None,
            "the variant disables the system bundle that everything in it depends on, so no package ever becomes ready",
            "set platform.bundles.system to true (networking is then a no-op) and, from 1.5 on, "
            "disable cozystack.backupstrategy-controller",
            "cozystack commit 0bfbff26f, after 1.6.2",
        ),
        KnownBroken(
            "dashboard-without-oidc",
            _version("1.4.0"),
            _version("1.5.0"),
            "the dashboard's token proxy restarts forever and never listens, so nothing that depends on "
            "the dashboard becomes ready",
            "enable OIDC, or use 1.5.0 or later",
            "cozystack#2869, fixed by 2abc7c2ab",
        ),
        KnownBroken(
            "oidc-at-install",
            _version("1.0.0"),
            _OIDC_AT_INSTALL,
            "the dashboard reaches Keycloak through an ingress that is installed after the dashboard, "
            "which is a deadlock",
            f"remove access.keycloakInternalUrl, or set it to {KEYCLOAK_INTERNAL_URL}",
            "cozystack#3288, cozystack#3289",
        ),
        KnownBroken(
            "oidc-off-again",
            _version("1.0.0"),
            _version("1.6.1"),
            "once enabled, OIDC cannot be disabled: keycloak-configure hangs while it is deleted",
            "do not change it, or use 1.6.1 or later",
            "cozystack#3478",
        ),
    )
}


@lru_cache(maxsize=64)
def find(text: str) -> Release | None:
    """The release for `1.6.2` or `v1.6.2`; None when the text is no version, or one older than the table or of another major."""
    version = Version.parse(text)
    if version is None or version.series < min(LATEST) or all(version.major != major for major, _ in LATEST):
        return None
    pins = [talos for since, talos in _TALOS_PINS if since <= version]
    # A pre-release of the very first version in the table carries what that version carries.
    return Release(version, pins[-1] if pins else _TALOS_PINS[0][1])


def kubernetes_range(talos: Version) -> tuple[int, int] | None:
    """Oldest and newest Kubernetes minor (of 1.x) a Talos version supports; None for an unknown Talos minor."""
    newest = _NEWEST_KUBERNETES.get(talos.minor) if talos.major == 1 else None
    return None if newest is None else (newest - _KUBERNETES_WINDOW + 1, newest)
