"""Registry mirrors, TLS and credentials. Credentials are secret and therefore apart."""

from __future__ import annotations

from typing import Any

from cozystack_iac.settings import Site
from cozystack_iac.settings.network import Mirror
from cozystack_iac.talos.documents.subject import MULTIDOC_NETWORK, document

# Docker Hub limits anonymous pulls; Google mirrors it (Cozystack preset).
DEFAULT_MIRRORS = {"docker.io": Mirror(endpoints=("https://mirror.gcr.io",))}


def _mirrors(site: Site) -> dict[str, Mirror]:
    return DEFAULT_MIRRORS | site.network.registries.mirrors


def _unverified(site: Site) -> list[str]:
    return [host for host, access in site.network.registries.config.items() if access.tls.insecure_skip_verify]


def legacy(site: Site) -> dict[str, Any]:
    """`machine.registries` up to 1.11."""
    mirrors = {}
    for host, mirror in _mirrors(site).items():
        flags = {"overridePath": mirror.override_path, "skipFallback": mirror.skip_fallback}
        mirrors[host] = {"endpoints": list(mirror.endpoints)} | {name: True for name, on in flags.items() if on}
    registries: dict[str, Any] = {"mirrors": mirrors}
    if hosts := _unverified(site):
        registries["config"] = {host: {"tls": {"insecureSkipVerify": True}} for host in hosts}
    return registries


def documents(site: Site) -> list[dict[str, Any]]:
    """One document per mirror, and per host whose certificate is not judged, from 1.12 on."""
    found = []
    for host, mirror in _mirrors(site).items():
        path = {"overridePath": True} if mirror.override_path else {}
        fallback = {"skipFallback": True} if mirror.skip_fallback else {}
        endpoints = [{"url": url} | path for url in mirror.endpoints]
        found.append(document("RegistryMirrorConfig", name=host, endpoints=endpoints, **fallback))
    return found + [document("RegistryTLSConfig", name=host, insecureSkipVerify=True) for host in _unverified(site)]


def credentials(site: Site, minor: int) -> list[dict[str, Any]]:
    """SECRET: what the machines log in with. Pass it on as a Pulumi secret only."""
    logins = {
        host: {"username": access.auth.username, "password": access.auth.password.get_secret_value()}
        for host, access in site.network.registries.config.items()
        if access.auth is not None
    }
    if not logins:
        return []
    if minor >= MULTIDOC_NETWORK:
        return [document("RegistryAuthConfig", name=host, **login) for host, login in logins.items()]
    return [{"machine": {"registries": {"config": {host: {"auth": login} for host, login in logins.items()}}}}]
