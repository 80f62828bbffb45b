"""What people need once the platform stands: addresses, how to log in, where the keys are. Pure."""

from __future__ import annotations

from cozystack_iac.settings import Site


def access_summary(site: Site) -> dict[str, str]:
    """Names and commands, never credentials."""
    port = "" if site.https_port == 443 else f":{site.https_port}"
    host = site.publishing.host
    summary = {
        "dashboard": f"https://dashboard.{host}{port}",
        "kubernetes": site.endpoint if site.cluster.variant == "talos" else "the cluster's own endpoint",
        "tenants' kubeconfigs": site.api_server_endpoint,
        "kubeconfig": "pulumi stack output kubeconfig --show-secrets",
    }
    if site.cluster.variant == "talos":
        summary["talosconfig"] = "pulumi stack output talosconfig --show-secrets"
    if site.access.oidc:
        summary["keycloak"] = f"https://keycloak.{host}{port}"
        summary["login"] = (
            "kubectl -n cozy-keycloak get secret keycloak-credentials -o jsonpath='{.data.password}' | base64 -d"
        )
    else:
        summary["login"] = "kubectl -n tenant-root get secret tenant-root -o jsonpath='{.data.token}' | base64 -d"
    return summary
