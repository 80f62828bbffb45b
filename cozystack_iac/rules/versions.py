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
    title="the Cozystack release is one we know",
    why="chart namespace, Talos pin and known keys differ between releases, and guessing them breaks an install half way",
    remedy="use a release of 1.3, 1.4, 1.5 or 1.6",
)
VER_002 = Rule(
    "VER-002",
    WARNING,
    title="the Cozystack release is one that was tried",
    why="its facts are taken from its neighbours",
    remedy="use a final release that is in the table",
)
VER_003 = Rule(
    "VER-003",
    ERROR,
    title="the Talos version is one we know",
    why="the form of the machine configuration depends on it",
    remedy="leave talos.version out: the release pins one",
)
VER_004 = Rule(
    "VER-004",
    WARNING,
    title="the Talos version is the release's pin",
    why="the release's images carry the DRBD and ZFS modules of its pinned Talos; another one is built and tested by nobody",
    remedy="leave talos.version out",
)
VER_005 = Rule(
    "VER-005",
    ERROR,
    title="installer image and configuration contract are of the same minor",
    why="an older machine refuses the keys of a newer contract, and is then neither in maintenance nor running",
    remedy="use an image of the contract's minor",
)
VER_006 = Rule(
    "VER-006",
    ERROR,
    title="Talos supports the Kubernetes version",
    why="the machines refuse the configuration, or the control plane never starts",
    remedy="leave talos.kubernetes out",
)
VER_007 = Rule(
    "VER-007",
    ERROR,
    title="Kubernetes is 1.33.10 or later",
    why="older controller managers crash over and over once Cozystack's aggregated API appears (cozystack#2863)",
    remedy="leave talos.kubernetes out, or use v1.33.12",
    overridable=True,
)
VER_008 = Rule(
    "VER-008",
    ERROR,
    title="the hosted variant is made to work",
    why="as released, its packages depend on a bundle that it switches off: none of them ever gets ready",
    remedy="set platform.bundles.system to true, or allow VER-008: the package is then written with the bundle on, networking a "
    "no-op, and without what cannot be there",
    overridable=True,
)
VER_009 = Rule(
    "VER-009",
    ERROR,
    title="the dashboard can start",
    why="on 1.4 without OIDC its token proxy is restarted before it listens (cozystack#2869), and what depends on it hangs too",
    remedy="switch OIDC on, or use 1.5.0 or later",
    overridable=True,
)
VER_010 = Rule(
    "VER-010",
    ERROR,
    title="OIDC at install does not wait for itself",
    why="on 1.4 OIDC has to be on from the start, and the dashboard then asks Keycloak through an ingress that comes after the "
    "dashboard (cozystack#3288)",
    remedy="leave access.keycloakInternalUrl out",
)
VER_011 = Rule(
    "VER-011",
    NOTE,
    title="OIDC stays on once it is on",
    why="switching it off hangs in the deletion of keycloak-configure up to 1.6.0 (cozystack#3478)",
    remedy="do not toggle it on this release",
)
VER_012 = Rule(
    "VER-012",
    ERROR,
    title="the release knows what the stack file asks for",
    why="the release ignores it, so what it should do does not happen",
    remedy="use a release that knows it, or remove it",
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
    newest = str(max(releases.LATEST.values()))
    if release is None:
        if not site.unread("cluster", "cozystack"):
            problem = f"`{short(text)}` is not a release we know"
            fix = f"use e.g. {newest}, in quotes where YAML would read a number"
            yield VER_001.at(path, problem=problem, fix=fix, command=config_set(path, newest))
    elif release.beyond:
        problem = f"{text} is of a newer minor than any that was read; it is treated like {newest}"
        yield VER_002.at(path, problem=problem, fix=f"read its release notes, or use {newest}")
    elif release.version.pre:
        yield VER_002.at(path, problem=f"{text} is a pre-release", fix=f"use {release.neighbour}")
    elif not release.known:
        problem = f"{text} is newer than {release.neighbour}, the last one of its minor that was read"
        yield VER_002.at(path, problem=problem, fix=f"nothing, or use {release.neighbour}", severity=NOTE)


def _talos(site: Site, release: Release | None) -> Iterator[Finding]:
    text = site.talos.version
    if text is None:
        return
    path, version = site.where("talos", "version"), Version.parse(text)
    fix = "leave it out" + (f": the release pins {release.talos}" if release else "")
    if version is None or not text.startswith("v") or releases.kubernetes_range(version) is None:
        problem = f"`{short(text)}` is not a Talos version we know (v1.10.x to v1.14.x)"
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
            problem = f"the image is Talos {version}, the contract {contract}"
            fix = f"use an image of {contract.major}.{contract.minor}, or set talos.version"
            yield VER_005.at(site.where(*steps), problem=problem, fix=fix)


def _kubernetes(site: Site) -> Iterator[Finding]:
    text, talos = site.talos.kubernetes, Version.parse(site.talos_version)
    if text is None:
        return
    path, version = site.where("talos", "kubernetes"), Version.parse(text)
    if version is None or not text.startswith("v") or version.major != 1:
        problem = f"`{short(text)}` is not a Kubernetes version such as {releases.KUBERNETES}"
        yield VER_006.at(path, problem=problem, fix="leave it out")
        return
    window = releases.kubernetes_range(talos) if talos is not None else None
    if window is not None and not window[0] <= version.minor <= window[1]:
        problem = f"Talos {talos} runs Kubernetes 1.{window[0]} to 1.{window[1]}, not {text}"
        yield VER_006.at(path, problem=problem, fix=f"use {releases.KUBERNETES}")
    if _OLDEST_KUBERNETES is not None and version < _OLDEST_KUBERNETES:
        yield VER_007.at(path, problem=f"Kubernetes is {text}", fix=f"use {releases.KUBERNETES}")


def _broken(site: Site, release: Release) -> Iterator[Finding]:
    version = release.version
    where = site.where("cluster", "cozystack")
    if site.platform_variant == "isp-hosted" and KNOWN_BROKEN["isp-hosted"].covers(version):
        yield _hosted(site, release)
    oidc = site.access.oidc
    if not oidc and KNOWN_BROKEN["dashboard-without-oidc"].covers(version):
        problem = f"{version} without OIDC"
        fix = KNOWN_BROKEN["dashboard-without-oidc"].remedy
        yield VER_009.at(where, problem=problem, fix=fix, command=config_set("cozystack:access.oidc", "true"))
    internal = site.access.keycloak_internal_url
    outside = internal is not None and ".svc" not in internal
    if oidc and outside and KNOWN_BROKEN["oidc-at-install"].covers(version) and not release.oidc_later:
        path = site.where("access", "keycloakInternalUrl")
        problem = f"Keycloak's internal URL is `{short(internal)}`, which is not inside the cluster"
        yield VER_010.at(path, problem=problem, fix=f"leave it out, or write {releases.KEYCLOAK_INTERNAL_URL}")
    if oidc and KNOWN_BROKEN["oidc-off-again"].covers(version):
        yield VER_011.at(where, problem=f"OIDC is on, on {version}", fix="keep it on, or use 1.6.1 or later")


def _hosted(site: Site, release: Release) -> Finding:
    """Refused as released; once somebody has decided, what is changed about it and why."""
    path = site.where("platform", "bundles", "system")
    if site.platform.bundles.system is not True:
        problem = f"isp-hosted of {release.version} cannot work as it is"
        return VER_008.at(path, problem=problem, fix="set platform.bundles.system to true")
    without = releases.hosted_without(release)
    gone = f", and without {listed(without)} (they need a bundle that hosted clusters cannot have)" if without else ""
    problem = (
        f"isp-hosted of {release.version} is installed with the system bundle on, networking left to the provider{gone}"
    )
    return VER_008.at(path, problem=problem, fix="nothing", severity=NOTE)


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
            problem = f"{release.version} does not know `{key}`"
            yield VER_012.at(site.where(*steps), problem=problem, fix=f"use {since} or later, or remove it")
    if site.tenant.gateway and not release.tenant_has("gateway"):
        since = releases.TENANT_KEYS["gateway"]
        problem = f"{release.version} has no gateway in the root tenant"
        yield VER_012.at(site.where("tenant", "gateway"), problem=problem, fix=f"use {since} or later, or remove it")
