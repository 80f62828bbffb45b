"""Host and ingress of the root tenant belong together: one without the other is a platform that nobody can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from policy.guardrails.values import Statement, Unknown, Unverified, Violation, at, is_on

PATCH = "pulumi-python:dynamic/cozystack:RootTenantPatched"
PLATFORM = "cozystack.cozystack-platform"
PLACEHOLDER = "example.org"  # default of the platform chart; with it nothing was chosen

_TENANT = re.compile(r"^kubernetes:apps\.cozystack\.io/[^:]+:Tenant(Patch)?$")
_RELEASE = re.compile(r"^kubernetes:helm\.toolkit\.fluxcd\.io/[^:]+:HelmRelease(Patch)?$")
_PACKAGE = re.compile(r"^kubernetes:cozystack\.io/[^:]+:Package(Patch)?$")


def judge(token: str, props: Any) -> Iterator[Statement]:
    """Wherever the root tenant's host or ingress can be set: our patch, the Tenant, its HelmRelease, the platform Package."""
    if token == PATCH:
        yield from _pair(props, "the root tenant's patch")
    elif _TENANT.match(token):
        yield from _object(props, ("tenant-root", "root"), ("spec",))
    elif _RELEASE.match(token):
        yield from _object(props, ("tenant-root", "tenant-root"), ("spec", "values"))
    elif _PACKAGE.match(token):
        yield from _package(props)


def _object(props: Any, wanted: tuple[str, str], keys: tuple[str, ...]) -> Iterator[Statement]:
    named = (at(props, "metadata", "namespace"), at(props, "metadata", "name"))
    known = [n == w for n, w in zip(named, wanted, strict=True) if not isinstance(n, Unknown)]
    if not all(known):
        return  # a part that is known says that it is another object
    statements = list(_pair(at(props, *keys), f"{wanted[0]}/{wanted[1]}"))
    if any(isinstance(n, Unknown) for n in named) and statements:
        yield Unverified("it is not known yet whether this is the root tenant, and its host and ingress do not match")
    else:
        yield from statements


def _pair(spec: Any, what: str) -> Iterator[Statement]:
    host, ingress = at(spec, "host"), at(spec, "ingress")
    unknown = [v.path for v in (host, ingress) if isinstance(v, Unknown)]
    if unknown:
        yield Unverified(f"{what}: {' and '.join(dict.fromkeys(unknown))} not known yet")
    elif bool(host) and not is_on(ingress):
        yield Violation(
            f"{what} sets host {host} without ingress, so nothing would respond there. Set ingress to true as well."
        )
    elif is_on(ingress) and not host:
        yield Violation(f"{what} sets ingress without host, so it would serve no name. Set publishing.host as well.")


def _package(props: Any) -> Iterator[Statement]:
    name = at(props, "metadata", "name")
    publishing = at(props, "spec", "components", "platform", "values", "publishing")
    if isinstance(name, str) and name != PLATFORM:
        return
    unknown = next((v for v in (name, publishing) if isinstance(v, Unknown)), None)
    if unknown is not None:
        yield Unverified(f"{unknown.path} of the platform Package is not known yet")
        return
    host, ingress = at(publishing, "host"), at(publishing, "ingressName")
    asked = [k for k in ("ingressName", "exposedServices", "externalIPs") if at(publishing, k)]
    if isinstance(host, Unknown) or isinstance(ingress, Unknown):
        yield Unverified("publishing.host or publishing.ingressName of the platform Package is not known yet")
    elif asked and host in (None, "", PLACEHOLDER):
        yield Violation(
            f"the platform Package sets publishing.{asked[0]} without publishing.host, so it would be "
            f"published as {PLACEHOLDER}. Set the host as well."
        )
    elif host and ingress == "":
        yield Violation(
            f"the platform Package sets publishing.host {host} with an empty ingressName, so no ingress "
            "would serve it. Remove ingressName (its default is tenant-root)."
        )
