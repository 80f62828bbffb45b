"""Chart, variant, bundles and free values of the platform; access to existing clusters."""

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from cozystack_iac import releases
from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import listed, short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import config_set
from cozystack_iac.settings.platform import CHART
from cozystack_iac.settings.site import host_of

PLT_001 = Rule(
    "PLT-001",
    ERROR,
    title="The platform variant matches the cluster",
    why="the variant installs network and storage for a different kind of cluster, so nodes never become Ready",
    remedy="remove platform.variant to use the default",
)
PLT_002 = Rule(
    "PLT-002",
    ERROR,
    title="The bundles match the variant",
    why="the chart rejects the values, or packages wait for dependencies that are never installed",
    remedy="remove the bundle settings to use the variant's defaults",
)
PLT_003 = Rule(
    "PLT-003",
    ERROR,
    title="Packages are listed by their full name",
    why="unknown names are ignored, so the package is not installed or not left out",
    remedy="write cozystack.<package>",
)
PLT_004 = Rule(
    "PLT-004",
    ERROR,
    title="Packages that others depend on are not disabled",
    why="every package that depends on it stays in DependenciesNotReady",
    remedy="remove it from bundles.disable",
    overridable=True,
)
PLT_005 = Rule(
    "PLT-005",
    ERROR,
    title="Free-form values do not contradict settings",
    why="one of the two would silently win",
    remedy="use the setting named in the message",
)
PLT_006 = Rule(
    "PLT-006",
    ERROR,
    title="Free-form values exist in the release",
    why="the chart ignores values that it does not know",
    remedy="correct the key, or use a release that has it",
)
PLT_007 = Rule(
    "PLT-007",
    ERROR,
    title="The chart reference has no version",
    why="the version is set by cluster.cozystack, and a second one would contradict it",
    remedy="write oci://registry/path/cozy-installer, or a local directory",
)
PLT_008 = Rule(
    "PLT-008",
    ERROR,
    title="The operator knows the address of the API server",
    why="before the pod network is up, the cluster's own service for the API server does not work",
    remedy="leave platform.prism on, or set network.apiServerHost",
)
PLT_009 = Rule(
    "PLT-009",
    WARNING,
    title="Settings match the cluster variant",
    why="the setting has no effect here: on Talos, KubePrism uses port 7445; on managed clusters the "
    "provider runs the API server",
    remedy="remove the setting",
)
PLT_010 = Rule(
    "PLT-010",
    ERROR,
    title="The kubeconfig of an existing cluster is not overwritten",
    why="the file is your access to a cluster that this stack did not create",
    remedy="set access.kubeconfigFile to a different file",
)
PLT_011 = Rule(
    "PLT-011",
    WARNING,
    title="Nodes do not depend on a single control plane node for the API",
    why="when that control plane node fails, every node loses the API",
    remedy="leave platform.prism on, or use a VIP or a load balancer",
)
PLT_012 = Rule(
    "PLT-012",
    WARNING,
    title="Settings in cluster.access are used for existing clusters only",
    why="a new Talos cluster creates its own kubeconfig, so this one is not used",
    remedy="remove cluster.access",
)
PLT_013 = Rule(
    "PLT-013",
    NOTE,
    title="Existing clusters are pinned by identity",
    why="if the context later points to a different cluster, the install would run there without asking",
    remedy="set cluster.access.identity",
)

PLT_014 = Rule(
    "PLT-014",
    ERROR,
    title="The published API endpoint is reachable by users",
    why="it is written into tenant kubeconfigs, where an address of this machine leads nowhere; Cilium gets "
    "its API address from a ConfigMap (cozy-system/cozystack, api-server-endpoint)",
    remedy="remove publishing.apiServerEndpoint; the operator and Cilium use network.apiServerHost",
)

PLT_015 = Rule(
    "PLT-015",
    ERROR,
    title="Data disks are used only with variants that include LINSTOR",
    why="the pools would be created but never registered, and the run would wait for a LINSTOR that is never installed",
    remedy="remove dataDisks; the cluster needs a default storage class and one called `replicated`",
)

# Values we set ourselves, with the setting to use instead.
_MANAGED: Mapping[str, str] = {
    "networking.clusterDomain": "cluster.domain",
    "networking.podCIDR": "network.podCIDR",
    "networking.podGateway": "network.podGateway",
    "networking.serviceCIDR": "network.serviceCIDR",
    "networking.joinCIDR": "network.joinCIDR",
    "networking.kubeovn.MASTER_NODES": "network.masterNodes",
    "publishing.host": "publishing.host",
    "publishing.exposedServices": "publishing.exposed",
    "publishing.externalIPs": "publishing.externalIPs",
    "publishing.apiServerEndpoint": "publishing.apiServerEndpoint",
    "publishing.proxyProtocol": "publishing.proxyProtocol",
    "publishing.loadBalancerClass": "publishing.loadBalancerClass",
    "publishing.certificates.solver": "publishing.certificates.solver",
    "publishing.certificates.issuerName": "publishing.certificates.issuer",
    "publishing.certificates.dns01": "publishing.certificates.dns01",
    "publishing.certificates.wildcard": "publishing.certificates.wildcard",
    "publishing.certificates.wildcardSecretName": "publishing.certificates.wildcardSecretName",
    "authentication.oidc.enabled": "access.oidc",
    "authentication.oidc.keycloakInternalUrl": "access.keycloakInternalUrl",
    "bundles.system": "platform.bundles.system",
    "bundles.iaas.enabled": "platform.bundles.iaas",
    "bundles.paas.enabled": "platform.bundles.paas",
    "bundles.naas.enabled": "platform.bundles.naas",
    "bundles.enabledPackages": "platform.bundles.enable",
    "bundles.disabledPackages": "platform.bundles.disable",
    "registries": "network.registries",
    "monitoring.rootEnabled": "tenant.monitoring",
    "gateway.enabled": "tenant.gateway",
    "sourceRef": "cluster.cozystack",
    "migrations": "cluster.cozystack",
}
_FITTING = {
    "talos": frozenset({"isp-full", "default"}),
    "generic": frozenset({"isp-full-generic", "default"}),
    "hosted": frozenset({"isp-hosted", "default"}),
}


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about the platform."""
    site = survey.site
    yield from _variant(site)
    yield from _storage(site)
    yield from _bundles(site)
    yield from _packages(site)
    yield from _values(site)
    yield from _chart(site)
    yield from _api_server(survey)
    yield from _access(site)


def _variant(site: Site) -> Iterator[Finding]:
    variant = site.platform.variant
    if variant is not None and variant not in _FITTING[site.cluster.variant]:
        path = site.where("platform", "variant")
        problem = f"variant {variant} does not fit a {site.cluster.variant} cluster"
        fitting = " or ".join(sorted(_FITTING[site.cluster.variant], reverse=True))
        yield PLT_001.at(path, problem=problem, fix=f"remove it, or use {fitting}")


def _storage(site: Site) -> Iterator[Finding]:
    variant = site.platform_variant
    if variant not in _FITTING[site.cluster.variant]:
        return  # PLT-001 is what is wrong
    if variant in {"isp-hosted", "default"} and site.storage_nodes:
        names = listed([node.name for node in site.storage_nodes])
        yield PLT_015.at(
            site.where("nodes"),
            problem=f"{names} have data disks, but {variant} does not include LINSTOR",
            fix="remove dataDisks",
        )


def _bundles(site: Site) -> Iterator[Finding]:
    bundles, variant = site.platform.bundles, site.platform_variant
    if bundles.iaas and variant not in {"isp-full", "isp-full-generic"}:
        path = site.where("platform", "bundles", "iaas")
        yield PLT_002.at(
            path,
            problem=f"the iaas bundle does not work with {variant}",
            fix="set it to false: it needs Cozystack's own network and storage",
        )
    if bundles.system is False and variant in {"isp-full", "isp-full-generic"}:
        path = site.where("platform", "bundles", "system")
        yield PLT_002.at(path, problem=f"{variant} needs the system bundle", fix="set it to true, or remove it")
    if bundles.paas is False and bundles.iaas and not site.unread("platform", "bundles"):
        path = site.where("platform", "bundles", "paas")
        problem = (
            "iaas is enabled without paas: tenant clusters and virtual machines lack the applications they depend on"
        )
        yield PLT_002.at(path, problem=problem, fix="set paas to true", severity=WARNING)


def _packages(site: Site) -> Iterator[Finding]:
    bundles = site.platform.bundles
    for key, names in (("enable", bundles.enable), ("disable", bundles.disable)):
        for index, name in enumerate(names):
            path = site.where("platform", "bundles", key, index)
            if site.unread("platform", "bundles", key, index):
                continue
            if not name.startswith("cozystack.") or len(name) > 100 or " " in name:
                yield PLT_003.at(
                    path, problem=f"`{short(name)}` is not a package name", fix=f"write cozystack.{short(name)}"
                )
            elif key == "enable" and name not in releases.OPTIONAL_PACKAGES:
                problem = f"{name} is not a known optional package"
                yield PLT_003.at(path, problem=problem, fix="check the package name in the release", severity=WARNING)
            elif key == "disable" and name in releases.LOAD_BEARING_PACKAGES:
                problem = f"{name} is disabled, but other packages depend on it"
                yield PLT_004.at(path, problem=problem, fix="remove it from bundles.disable")
    both = sorted(set(bundles.enable) & set(bundles.disable) - {""})
    if both:
        path = site.where("platform", "bundles", "enable")
        yield PLT_003.at(
            path,
            problem=f"{listed(both)} is in both enable and disable",
            fix="remove it from one of them; disable wins",
        )


def _values(site: Site) -> Iterator[Finding]:
    release = releases.find(site.cluster.cozystack)
    for steps in _leaves(site.platform.values):
        key = ".".join(steps)
        path = site.where("platform", "values", *steps)
        managed = next((known for known in _MANAGED if key == known or key.startswith(f"{known}.")), None)
        if managed is not None:
            yield PLT_005.at(
                path, problem=f"`{short(key)}` is managed by this program", fix=f"use cozystack:{_MANAGED[managed]}"
            )
        elif release is not None and not release.has(key):
            problem = f"Cozystack {release.version} has no value `{short(key)}`"
            known_from = releases.PLATFORM_KEYS.get(key)
            fix = f"use {known_from[0]} or later" if known_from else "correct or remove the key"
            yield PLT_006.at(path, problem=problem, fix=fix)


def _leaves(values: object, steps: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(values, Mapping) and values:
        items: Mapping[Any, Any] = values
        for key, value in items.items():
            yield from _leaves(value, (*steps, str(key)))
    elif steps:
        yield steps


def _chart(site: Site) -> Iterator[Finding]:
    chart, path = site.platform.chart, site.where("platform", "chart")
    tail = chart.rpartition("/")[2]
    if not chart.strip() or any(character.isspace() for character in chart):
        yield PLT_007.at(path, problem=f"`{short(chart)}` is not a chart reference", fix=f"use {CHART}")
    elif "://" in chart and not chart.startswith("oci://"):
        yield PLT_007.at(path, problem=f"`{short(chart)}` is not an OCI reference", fix=f"use {CHART}")
    elif chart.startswith("oci://") and (":" in tail or "@" in tail):
        problem = f"`{short(chart)}` includes a version"
        yield PLT_007.at(
            path, problem=problem, fix=f"write `{short(chart.replace(tail, tail.split(':')[0].split('@')[0]))}`"
        )


def _api_server(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    network, variant = site.network, site.cluster.variant
    path = site.where("network", "apiServerHost")
    published = site.publishing.api_server_endpoint
    if published and _is_loopback(host_of(published)):
        where = site.where("publishing", "apiServerEndpoint")
        yield PLT_014.at(where, problem=f"{short(published)} is an address of this machine", fix="remove it")
    if variant != "generic":
        for key, value in (("apiServerHost", network.api_server_host), ("apiServerPort", network.api_server_port)):
            if value is not None:
                problem = f"network.{key} is set on a {variant} cluster"
                yield PLT_009.at(site.where("network", key), problem=problem, fix="remove it")
        return
    if not site.platform.prism and not network.api_server_host and not site.cluster.endpoint:
        command = config_set("cozystack:platform.prism", "true")
        problem = "platform.prism is off, and no API server address is set"
        where = site.where("platform", "prism")
        yield PLT_008.at(
            where, problem=problem, fix="set network.apiServerHost, or turn platform.prism on", command=command
        )
    internal = {survey.internal.get(position) for position, node in enumerate(site.nodes) if node.is_control_plane}
    single = network.api_server_host and any(network.api_server_host == str(address) for address in internal)
    if single and len(site.control_planes) > 1:
        problem = f"{network.api_server_host} is a single node out of {len(site.control_planes)} control plane nodes"
        yield PLT_011.at(path, problem=problem, fix="remove it and leave platform.prism on")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _access(site: Site) -> Iterator[Finding]:
    access = site.cluster.access
    if access is None:
        return
    if not site.existing:
        yield PLT_012.at(
            site.where("cluster", "access"), problem="cluster.access is set for a new Talos cluster", fix="remove it"
        )
    written = site.access.kubeconfig_file
    if written and access.kubeconfig and written.strip() == access.kubeconfig.strip():
        path = site.where("access", "kubeconfigFile")
        yield PLT_010.at(
            path, problem=f"{short(written)} is also the file used to access the cluster", fix="set a different file"
        )
    if access.kubeconfig and site.existing and access.identity is None:
        path = site.where("cluster", "access")
        problem = "the cluster's identity is not pinned"
        fix = "after the first run, set `identity` to the uid of the namespace kube-system"
        yield PLT_013.at(path, problem=problem, fix=fix)
