"""What people need once the platform stands: addresses, how to log in, where the keys are, what runs. Pure.

Names, places and commands, never credentials.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from cozystack_iac import published
from cozystack_iac.findings import table_row
from cozystack_iac.rules import reachability
from cozystack_iac.settings import Node, Site
from cozystack_iac.settings.base import size_text


@dataclass(frozen=True)
class Secret:
    """One key of a Secret in the cluster, and what it is good for."""

    purpose: str
    namespace: str
    name: str
    key: str

    @property
    def place(self) -> str:
        return f"{self.namespace}/{self.name}, key {self.key}"

    @property
    def command(self) -> str:
        path = self.key.replace(".", "\\.")
        return f"kubectl -n {self.namespace} get secret {self.name} -o jsonpath='{{.data.{path}}}' | base64 -d"


def secrets(site: Site) -> tuple[Secret, ...]:
    """Where the credentials that the platform made for itself are."""
    found = []
    if site.access.oidc:
        found.append(Secret("Keycloak, user admin", "cozy-keycloak", "keycloak-credentials", "password"))
    else:
        found.append(Secret("dashboard, token of the root tenant", "tenant-root", "tenant-root", "token"))
    if site.tenant.monitoring:
        found.append(Secret("Grafana, user admin", "tenant-root", "grafana-admin-password", "password"))
    return tuple(found)


def addresses(site: Site) -> dict[str, str]:
    """What is published where. `kubernetes` is the machines' own endpoint, `api` the one handed out to people."""
    labels = [label for label in site.publishing.exposed if label != published.API]
    labels += [published.KEYCLOAK] if site.access.oidc else []
    labels += [published.GRAFANA, published.ALERTA] if site.tenant.monitoring and site.tenant.ingress else []
    found = {label: published.url(label, site.publishing.host, site.https_port) for label in labels}
    found["kubernetes"] = site.endpoint if site.cluster.variant == "talos" else "the cluster's own endpoint"
    found["tenant kubeconfigs"] = site.api_server_endpoint
    return found


def access_summary(site: Site) -> dict[str, str]:
    """Addresses, the way in, and the commands that show each credential."""
    found = {**addresses(site), "kubeconfig": "pulumi stack output kubeconfig --show-secrets"}
    if site.cluster.variant == "talos":
        found["talosconfig"] = "pulumi stack output talosconfig --show-secrets"
    else:
        found["kubeconfig"] = "the file set in cluster.access"
    found["how to log in"] = _way_in(site)
    found["login"] = secrets(site)[0].command
    return found


def secret_places(site: Site) -> dict[str, str]:
    """Purpose of each credential -> where it is, and the command that shows it."""
    return {secret.purpose: f"{secret.place}: {secret.command}" for secret in secrets(site)}


def versions(site: Site, own: str) -> dict[str, str]:
    """What is installed by this stack, and by which version of this project (`own`)."""
    found = {"cozystack": site.cluster.cozystack.removeprefix("v"), "chart": site.platform.chart, "cozystack-iac": own}
    if site.cluster.variant == "talos":
        found |= {"talos": site.talos_version, "kubernetes": site.kubernetes_version}
    return found


def revision(site: Site) -> str:
    """A digest of what was asked for; how the run itself behaves is no part of it. Secrets enter it masked.

    Without defaults: a setting that a newer version of this project brings is no change of anybody's mind.
    """
    asked = site.model_dump_json(exclude={"waits", "allow", "checks", "protect", "lab"}, exclude_defaults=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def overrides(site: Site) -> list[str]:
    """Guardrails that are knowingly overridden, and what is not checked because of it."""
    found = [f"{allow.guardrail}: {allow.reason}" for allow in site.allow]
    why = reachability.skipped(site)
    return [*found, f"reachability was not checked: {why}"] if why else found


def _way_in(site: Site) -> str:
    if not site.access.oidc:
        return "open the dashboard and paste the token shown by the command below"
    return (
        "sign in to Keycloak as admin and create a user in the realm cozy with a verified e-mail address and the group "
        "cozystack-cluster-admin; that user signs in to the dashboard"
    )


# As one page --------------------------------------------------------------------------------------------------------


def markdown(site: Site, own: str) -> str:
    """The whole summary for a person: addresses, credentials, versions, overrides, topology."""
    parts = [
        _table(("address", "where"), addresses(site)),
        f"**How to log in:** {_way_in(site)}.",
        _table(("credential", "command to show it"), {s.purpose: f"`{s.command}`" for s in secrets(site)}),
        _table(("what", "version"), versions(site, own)),
    ]
    said = overrides(site)
    if said:
        parts.append("\n".join(["**Overridden:**", "", *(f"- {line}" for line in said)]))
    return "\n\n".join([*parts, topology(site)])


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    return "\n".join([table_row(head), "|---|---|", *(table_row(row) for row in rows.items())])


def topology(site: Site) -> str:
    """Machines, their roles and pools, and the way in from outside, as a graph in Mermaid."""
    lines = [
        "```mermaid",
        "flowchart LR",
        f'  people(["people"]) --> names["{published.name(published.ANY, site.publishing.host)}"]',
    ]
    outside = site.external_ips or ("load balancer",)
    for index, address in enumerate(outside):
        lines.append(f'  names --> outside{index}["{address}"]')
    if site.talos.vip:
        lines.append(f'  vip["{site.talos.vip} (VIP)"]')
    homes = {node.internal: index for index, node in enumerate(site.nodes)}
    for index, node in enumerate(site.nodes):
        lines.append(f'  node{index}["{_described(site, node)}"]')
        if site.talos.vip and node.is_control_plane:
            lines.append(f"  vip --- node{index}")
    lines += [f"  outside{i} --> node{homes[a]}" for i, a in enumerate(outside) if a in homes]
    return "\n".join([*lines, "```"])


def _described(site: Site, node: Node) -> str:
    role = "control plane" if node.is_control_plane else "worker"
    pool = ""
    if node.data_disks:
        layout = node.layout or site.storage.layout
        count = len(node.data_disks)
        pool = f"<br/>{site.storage.pool}: {count} disk{'s' if count > 1 else ''}, {layout}"
        pool += f", at least {size_text(site.storage.minimum_size)} each"
    return f"{node.name}<br/>{role}, {node.internal}{pool}"
