"""The version matrix: Cozystack, Talos, Kubernetes, and what is known not to work together."""

from collections.abc import Iterator

from cozystack_iac import releases
from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.releases import KNOWN_BROKEN, Release, Version
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import Step, config_set

VER_001 = Rule(
    "VER-001",
    ERROR,
    title="The Cozystack release is known",
    why="chart namespace, Talos version and supported keys differ between releases; guessing them would "
    "break the install halfway",
    remedy="use a release of a known minor version: "
    + ", ".join(f"{major}.{minor}" for major, minor in releases.LATEST),
)
VER_002 = Rule(
    "VER-002",
    WARNING,
    title="The Cozystack release has been tested",
    why="this program knows the release only through its closest tested neighbor",
    remedy="use a final release from the table of known releases",
)
VER_003 = Rule(
    "VER-003",
    ERROR,
    title="The Talos version is known",
    why="the format of the machine configuration depends on it",
    remedy="remove talos.version; the release determines it",
)
VER_004 = Rule(
    "VER-004",
    WARNING,
    title="The Talos version is the one the release pins",
    why="the release's images contain DRBD and ZFS modules for its pinned Talos version; no other "
    "combination is built or tested",
    remedy="remove talos.version",
)
VER_005 = Rule(
    "VER-005",
    ERROR,
    title="Installer image and machine configuration are for the same Talos minor version",
    why="an older Talos rejects newer configuration keys, and the machine ends up neither in maintenance "
    "mode nor running",
    remedy="use an image of the same minor version",
)
VER_006 = Rule(
    "VER-006",
    ERROR,
    title="Talos supports the Kubernetes version",
    why="the machines reject the configuration, or the control plane never starts",
    remedy="remove talos.kubernetes",
)
VER_007 = Rule(
    "VER-007",
    ERROR,
    title="The Kubernetes version is 1.33.10 or later",
    why="older controller managers crash repeatedly once Cozystack's aggregated API appears (cozystack#2863)",
    remedy="remove talos.kubernetes, or use v1.33.12",
    overridable=True,
)
VER_008 = Rule(
    "VER-008",
    ERROR,
    title="The isp-hosted variant can be installed",
    why="as released, its packages depend on a bundle that the variant disables, so none of them ever becomes ready",
    remedy="set platform.bundles.system to true, or override VER-008: the package is then written with the "
    "system bundle enabled, networking set to a no-op, and without the packages that cannot run there",
    overridable=True,
)
VER_009 = Rule(
    "VER-009",
    ERROR,
    title="The dashboard can start",
    why="on 1.4 without OIDC, its token proxy is restarted before it listens (cozystack#2869), and "
    "everything that depends on the dashboard hangs",
    remedy="enable OIDC, or use 1.5.0 or later",
    overridable=True,
)
VER_010 = Rule(
    "VER-010",
    ERROR,
    title="OIDC does not deadlock the install",
    why="on 1.4, OIDC must be enabled from the start, and the dashboard would then reach Keycloak through an "
    "ingress that is installed after the dashboard (cozystack#3288)",
    remedy="remove access.keycloakInternalUrl",
)
VER_011 = Rule(
    "VER-011",
    NOTE,
    title="OIDC stays enabled",
    why="up to 1.6.0, disabling OIDC hangs while keycloak-configure is deleted (cozystack#3478)",
    remedy="do not disable OIDC on this release",
)
VER_012 = Rule(
    "VER-012",
    ERROR,
    title="The release supports every setting in the stack file",
    why="the release ignores the setting",
    remedy="use a release that supports it, or remove it",
)

_OLDEST_KUBERNETES = Version.parse(releases.KUBERNETES_MINIMUM)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about versions."""
    site = survey.site
    release = releases.find(site.cluster.cozystack)
    yield from _cozystack(site, release)
    if not site.existing:
        yield from _talos(site, release)
        yield from _image(site)
        yield from _kubernetes(site)
    if release is not None:
        yield from _broken(site, release)
        yield from _unknown_keys(site, release)


def _cozystack(site: Site, release: Release | None) -> Iterator[Finding]:
    path, text = site.where("cluster", "cozystack"), site.cluster.cozystack
    if release is None:
        if not site.unread("cluster", "cozystack"):
            problem = f"`{short(text)}` is not a known Cozystack release"
            fix = f"use, for example, {releases.DEFAULT}; quote the version so that YAML does not read it as a number"
            yield VER_001.at(path, problem=problem, fix=fix, command=config_set(path, releases.DEFAULT))
    elif release.beyond:
        problem = f"no other release of {text}'s minor version is known; it is treated like {release.neighbour}"
        yield VER_002.at(path, problem=problem, fix=f"read its release notes, or use {release.neighbour}")
    elif release.version.pre:
        yield VER_002.at(path, problem=f"{text} is a pre-release", fix=f"use {release.neighbour}")
    elif not release.known:
        problem = f"{text} is newer than {release.neighbour}, the latest known release of its minor version"
        yield VER_002.at(path, problem=problem, fix=f"no action needed, or use {release.neighbour}", severity=NOTE)


def _talos(site: Site, release: Release | None) -> Iterator[Finding]:
    text = site.talos.version
    if text is None:
        return
    path, version = site.where("talos", "version"), Version.parse(text)
    fix = "remove it" + (f"; the release pins {release.talos}" if release else "")
    if version is None or not text.startswith("v") or releases.kubernetes_range(version) is None:
        problem = f"`{short(text)}` is not a supported Talos version ({releases.TALOS_VERSIONS})"
        yield VER_003.at(path, problem=problem, fix=fix)
    elif release is not None and text != release.talos:
        pin = Version.parse(release.talos)
        minor = pin is not None and pin.series != version.series
        problem = f"Cozystack {release.version} pins Talos {release.talos}, not {text}"
        yield VER_004.at(path, problem=problem, fix=fix, severity=WARNING if minor else NOTE)


def _image(site: Site) -> Iterator[Finding]:
    contract = Version.parse(site.talos_version)
    images: list[tuple[tuple[Step, ...], str]] = []
    if site.talos.image.reference:
        given = site.given("talos", "image", "reference")
        images.append((("talos", "image", "reference") if given else ("talos", "image"), site.talos.image.reference))
    images += [(("nodes", position, "image"), node.image) for position, node in enumerate(site.nodes) if node.image]
    for steps, image in images:
        tag = image.split("@", 1)[0].rpartition("/")[2].partition(":")[2]
        version = Version.parse(tag)
        if version is None or contract is None or version.series[0] != 1 or version.series[1] < 8:
            continue  # not a Talos version: some images are tagged with the Cozystack release
        if version.series != contract.series:
            problem = f"the image is Talos {version}, but the configuration is for {contract}"
            fix = f"use an image of {contract.major}.{contract.minor}, or set talos.version"
            yield VER_005.at(site.where(*steps), problem=problem, fix=fix)


def _kubernetes(site: Site) -> Iterator[Finding]:
    text, talos = site.talos.kubernetes, Version.parse(site.talos_version)
    if text is None:
        return
    path, version = site.where("talos", "kubernetes"), Version.parse(text)
    if version is None or not text.startswith("v") or version.major != 1:
        problem = f"`{short(text)}` is not a valid Kubernetes version such as {releases.KUBERNETES}"
        yield VER_006.at(path, problem=problem, fix="remove it")
        return
    window = releases.kubernetes_range(talos) if talos is not None else None
    if window is not None and not window[0] <= version.minor <= window[1]:
        problem = f"Talos {talos} supports Kubernetes 1.{window[0]} to 1.{window[1]}, not {text}"
        yield VER_006.at(path, problem=problem, fix=f"use {releases.KUBERNETES}")
    if _OLDEST_KUBERNETES is not None and version < _OLDEST_KUBERNETES:
        yield VER_007.at(path, problem=f"Kubernetes {text} is too old", fix=f"use {releases.KUBERNETES}")


def _broken(site: Site, release: Release) -> Iterator[Finding]:
    version = release.version
    where = site.where("cluster", "cozystack")
    if site.platform_variant == "isp-hosted" and KNOWN_BROKEN["isp-hosted"].covers(version):
        yield _hosted(site, release)
    oidc = site.access.oidc
    if not oidc and KNOWN_BROKEN["dashboard-without-oidc"].covers(version):
        problem = f"the dashboard of {version} cannot start without OIDC"
        fix = KNOWN_BROKEN["dashboard-without-oidc"].remedy
        yield VER_009.at(where, problem=problem, fix=fix, command=config_set("cozystack:access.oidc", "true"))
    internal = site.access.keycloak_internal_url
    outside = internal is not None and ".svc" not in internal
    if oidc and outside and KNOWN_BROKEN["oidc-at-install"].covers(version) and not release.oidc_later:
        path = site.where("access", "keycloakInternalUrl")
        problem = f"Keycloak's internal URL is `{short(internal)}`, which is not inside the cluster"
        yield VER_010.at(path, problem=problem, fix=f"remove it, or write {releases.KEYCLOAK_INTERNAL_URL}")
    if oidc and KNOWN_BROKEN["oidc-off-again"].covers(version):
        yield VER_011.at(where, problem=f"OIDC is enabled on {version}", fix="keep OIDC enabled, or use 1.6.1 or later")


def _hosted(site: Site, release: Release) -> Finding:
    """Refused as released; once somebody has decided, what is changed about it and why."""
    path = site.where("platform", "bundles", "system")
    if site.platform.bundles.system is not True:
        problem = f"isp-hosted of {release.version} does not work as released"
        return VER_008.at(path, problem=problem, fix="set platform.bundles.system to true")
    without = release.hosted_without
    gone = f", and without {listed(without)} (these need a bundle that hosted clusters cannot have)" if without else ""
    problem = (
        f"isp-hosted of {release.version} is installed with the system bundle enabled, networking left to "
        f"the provider{gone}"
    )
    return VER_008.at(path, problem=problem, fix="no action needed", severity=NOTE)


def _unknown_keys(site: Site, release: Release) -> Iterator[Finding]:
    publishing, certificates = site.publishing, site.publishing.certificates
    asked: tuple[tuple[bool, tuple[Step, ...], str], ...] = (
        (publishing.proxy_protocol, ("publishing", "proxyProtocol"), "publishing.proxyProtocol"),
        (
            publishing.load_balancer_class is not None,
            ("publishing", "loadBalancerClass"),
            "publishing.loadBalancerClass",
        ),
        (certificates.wildcard, ("publishing", "certificates", "wildcard"), "publishing.certificates.wildcard"),
        (
            certificates.wildcard_secret_name is not None,
            ("publishing", "certificates", "wildcardSecretName"),
            "publishing.certificates.wildcardSecretName",
        ),
        (certificates.dns01 is not None, ("publishing", "certificates", "dns01"), "publishing.certificates.dns01"),
    )
    for used, steps, key in asked:
        if used and not release.has(key):
            since = releases.PLATFORM_KEYS[key][0]
            problem = f"{release.version} does not support `{key}`"
            yield VER_012.at(site.where(*steps), problem=problem, fix=f"use {since} or later, or remove it")
    if site.tenant.gateway and not release.tenant_has("gateway"):
        since = releases.TENANT_KEYS["gateway"]
        problem = f"the root tenant of {release.version} does not support a gateway"
        yield VER_012.at(site.where("tenant", "gateway"), problem=problem, fix=f"use {since} or later, or remove it")
