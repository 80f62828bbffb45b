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
    title="the platform variant fits the cluster",
    why="it brings network and storage for another kind of cluster: nodes never become ready",
    remedy="leave platform.variant out",
)
PLT_002 = Rule(
    "PLT-002",
    ERROR,
    title="bundles fit the variant",
    why="the chart refuses it, or everything waits for packages that will never be there",
    remedy="leave the bundles to the variant",
)
PLT_003 = Rule(
    "PLT-003",
    ERROR,
    title="packages are named by their names",
    why="an unknown name is ignored: the package is not installed, or not left out",
    remedy="write cozystack.<package>",
)
PLT_004 = Rule(
    "PLT-004",
    ERROR,
    title="packages that others need are not left out",
    why="everything that depends on it stays in DependenciesNotReady for ever",
    remedy="remove it from bundles.disable",
    overridable=True,
)
PLT_005 = Rule(
    "PLT-005",
    ERROR,
    title="free values do not contradict settings",
    why="one of the two would silently win",
    remedy="use the setting the message names",
)
PLT_006 = Rule(
    "PLT-006",
    ERROR,
    title="free values exist in the release",
    why="the chart ignores keys it does not know",
    remedy="correct the key, or use a release that knows it",
)
PLT_007 = Rule(
    "PLT-007",
    ERROR,
    title="the chart is named without its version",
    why="the version comes from cluster.cozystack; a second one would contradict it",
    remedy="write oci://registry/path/cozy-installer, or a folder",
)
PLT_008 = Rule(
    "PLT-008",
    ERROR,
    title="the operator knows where the API server is",
    why="before there is a pod network nothing resolves the cluster's own service",
    remedy="leave platform.prism on, or set network.apiServerHost",
)
PLT_009 = Rule(
    "PLT-009",
    WARNING,
    title="settings of another variant are not given",
    why="they have no effect here: port 7445 belongs to KubePrism on Talos, and to the provider on managed clusters",
    remedy="remove them",
)
PLT_010 = Rule(
    "PLT-010",
    ERROR,
    title="the kubeconfig of an existing cluster is not overwritten",
    why="it is the way into a cluster that this stack did not make",
    remedy="name another file in access.kubeconfigFile",
)
PLT_011 = Rule(
    "PLT-011",
    WARNING,
    title="all nodes reach the API without a single control plane",
    why="when the one that is named fails, every node loses the API",
    remedy="leave platform.prism on, or give a virtual address or load balancer",
)
PLT_012 = Rule(
    "PLT-012",
    WARNING,
    title="access belongs to existing clusters",
    why="a new Talos cluster makes its own kubeconfig, so this one is not used",
    remedy="remove cluster.access",
)
PLT_013 = Rule(
    "PLT-013",
    NOTE,
    title="existing clusters are pinned by identity",
    why="a context that is pointed at another cluster later would be installed on without a question",
    remedy="set cluster.access.identity",
)

PLT_014 = Rule(
    "PLT-014",
    ERROR,
    title="the published API endpoint is for people",
    why="it goes into the kubeconfigs of tenants, and an address of this machine leads nowhere from theirs; Cilium is told its "
    "way to the API by a ConfigMap (cozy-system/cozystack, api-server-endpoint)",
    remedy="leave publishing.apiServerEndpoint out; network.apiServerHost is what operator and Cilium use",
)

PLT_015 = Rule(
    "PLT-015",
    ERROR,
    title="data disks are for variants that bring LINSTOR",
    why="the pools would be made, and then registered nowhere: the run waits for a LINSTOR that never comes",
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
        problem = f"{variant} on a {site.cluster.variant} cluster"
        fitting = " or ".join(sorted(_FITTING[site.cluster.variant], reverse=True))
        yield PLT_001.at(path, problem=problem, fix=f"leave it out, or use {fitting}")


def _storage(site: Site) -> Iterator[Finding]:
    variant = site.platform_variant
    if variant not in _FITTING[site.cluster.variant]:
        return  # PLT-001 is what is wrong
    if variant in {"isp-hosted", "default"} and site.storage_nodes:
        names = listed([node.name for node in site.storage_nodes])
        yield PLT_015.at(
            site.where("nodes"),
            problem=f"{names} with data disks, and {variant} has no LINSTOR",
            fix="remove dataDisks",
        )


def _bundles(site: Site) -> Iterator[Finding]:
    bundles, variant = site.platform.bundles, site.platform_variant
    if bundles.iaas and variant not in {"isp-full", "isp-full-generic"}:
        path = site.where("platform", "bundles", "iaas")
        yield PLT_002.at(
            path, problem=f"iaas with {variant}", fix="set it to false: it needs our own network and storage"
        )
    if bundles.system is False and variant in {"isp-full", "isp-full-generic"}:
        path = site.where("platform", "bundles", "system")
        yield PLT_002.at(path, problem=f"{variant} without the system bundle", fix="set it to true, or leave it out")
    if bundles.paas is False and bundles.iaas and not site.unread("platform", "bundles"):
        path = site.where("platform", "bundles", "paas")
        problem = "iaas without paas: tenant clusters and virtual machines lack the applications they are made from"
        yield PLT_002.at(path, problem=problem, fix="set paas to true", severity=WARNING)


def _packages(site: Site) -> Iterator[Finding]:
    bundles = site.platform.bundles
    for key, names in (("enable", bundles.enable), ("disable", bundles.disable)):
        for index, name in enumerate(names):
            path = site.where("platform", "bundles", key, index)
            if site.unread("platform", "bundles", key, index):
                continue
            if not name.startswith("cozystack.") or len(name) > 100 or " " in name:
                yield PLT_003.at(path, problem=f"`{short(name)}` is no package", fix=f"write cozystack.{short(name)}")
            elif key == "enable" and name not in releases.OPTIONAL_PACKAGES:
                problem = f"{name} is not among the optional packages we know"
                yield PLT_003.at(path, problem=problem, fix="check its name in the release", severity=WARNING)
            elif key == "disable" and name in releases.LOAD_BEARING_PACKAGES:
                problem = f"{name} is left out, and others depend on it"
                yield PLT_004.at(path, problem=problem, fix="remove it from bundles.disable")
    both = sorted(set(bundles.enable) & set(bundles.disable) - {""})
    if both:
        path = site.where("platform", "bundles", "enable")
        yield PLT_003.at(
            path, problem=f"{listed(both)} in enable and in disable", fix="remove it from one; disable wins"
        )


def _values(site: Site) -> Iterator[Finding]:
    release = releases.find(site.cluster.cozystack)
    for steps in _leaves(site.platform.values):
        key = ".".join(steps)
        path = site.where("platform", "values", *steps)
        managed = next((known for known in _MANAGED if key == known or key.startswith(f"{known}.")), None)
        if managed is not None:
            yield PLT_005.at(path, problem=f"`{short(key)}` is set by us", fix=f"use cozystack:{_MANAGED[managed]}")
        elif release is not None and not release.has(key):
            problem = f"Cozystack {release.version} has no value `{short(key)}`"
            known_from = releases.PLATFORM_KEYS.get(key)
            fix = f"use {known_from[0]} or later" if known_from else "correct or remove it"
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
        yield PLT_007.at(path, problem=f"`{short(chart)}` is no chart", fix=f"use {CHART}")
    elif "://" in chart and not chart.startswith("oci://"):
        yield PLT_007.at(path, problem=f"`{short(chart)}` is not an OCI reference", fix=f"use {CHART}")
    elif chart.startswith("oci://") and (":" in tail or "@" in tail):
        problem = f"`{short(chart)}` carries a version"
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
        yield PLT_014.at(where, problem=f"{short(published)} is this machine itself", fix="leave it out")
    if variant != "generic":
        for key, value in (("apiServerHost", network.api_server_host), ("apiServerPort", network.api_server_port)):
            if value is not None:
                problem = f"network.{key} is given on a {variant} cluster"
                yield PLT_009.at(site.where("network", key), problem=problem, fix="remove it")
        return
    if not site.platform.prism and not network.api_server_host and not site.cluster.endpoint:
        command = config_set("cozystack:platform.prism", "true")
        problem = "extractedprism is off, and no API server is named"
        where = site.where("platform", "prism")
        yield PLT_008.at(where, problem=problem, fix="set network.apiServerHost, or leave prism on", command=command)
    internal = {survey.internal.get(position) for position, node in enumerate(site.nodes) if node.is_control_plane}
    single = network.api_server_host and any(network.api_server_host == str(address) for address in internal)
    if single and len(site.control_planes) > 1:
        problem = f"{network.api_server_host} is one of {len(site.control_planes)} control planes"
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
            site.where("cluster", "access"), problem="cluster.access on a new Talos cluster", fix="remove it"
        )
    written = site.access.kubeconfig_file
    if written and access.kubeconfig and written.strip() == access.kubeconfig.strip():
        path = site.where("access", "kubeconfigFile")
        yield PLT_010.at(
            path, problem=f"{short(written)} is the file the cluster is reached through", fix="name another"
        )
    if access.kubeconfig and site.existing and access.identity is None:
        path = site.where("cluster", "access")
        problem = "the cluster's identity is not pinned"
        fix = "pin it after the first run: the uid of its namespace kube-system, as `identity`"
        yield PLT_013.at(path, problem=problem, fix=fix)
