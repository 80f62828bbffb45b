"""How the run itself behaves: budgets, checks, overrides, lab."""

from datetime import date, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator

from cozystack_iac.settings.base import Count, Duration, Model


def _minutes(minutes: int) -> timedelta:
    return timedelta(minutes=minutes)


class Waits(Model):
    """Timeout of each stage. Each starts when its link starts; none is shared."""

    probe: Duration = timedelta(seconds=30)
    """Every machine answers the live checks of the plan gate, and later of the verification."""
    rollout: Duration = _minutes(10)
    """A machine serves its authenticated API after it was configured; doubled if Talos is installed first."""
    bootstrap: Duration = _minutes(10)
    """etcd: time synchronized, bootstrap accepted, all control plane nodes are members."""
    nodes: Duration = _minutes(10)
    """Every node is registered with the API server (they become Ready only once the platform installs the network)."""
    zpools: Duration = _minutes(10)
    """Every zpool is ONLINE."""
    prism: Duration = _minutes(5)
    """generic: extractedprism runs on every node."""
    operator: Duration = _minutes(10)
    """Custom resources are established and the package source exists (the operator's own timeouts: 2 and 5 minutes)."""
    package: Duration = _minutes(20)
    """The platform uses the configured values; during an installation, a change waits for its next step."""
    linstor: Duration = _minutes(25)
    """The LINSTOR controller responds (7 to 13 minutes on a healthy site)."""
    pools: Duration = _minutes(10)
    """Every storage pool is registered."""
    tenant: Duration = _minutes(40)
    """The root tenant exists and is patched; with OIDC it is created late in the install."""
    platform: Duration = _minutes(60)
    """Every expected release is ready (15 to 60 minutes, longer with slow registries)."""
    settle: Duration = timedelta(seconds=30)
    """How long everything must stay ready, because releases flap while their dependents start."""
    verify: Duration = _minutes(10)
    """Pods, root ingress and certificates are healthy once all releases are ready."""
    reachability: Duration = _minutes(10)
    """Dashboard and API respond on their public names."""
    upgrade: Duration = _minutes(30)
    """Upgrade of one machine, including drain and reboot."""
    removal: Duration = _minutes(30)
    """Each step of a machine's removal; the longest are the drain (disruption budgets) and the evacuation."""


def _date(value: object) -> object:
    # YAML knows dates, JSON does not: the same key arrives as a date, as a timestamp or as one of the engine's texts.
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value.removesuffix("T00:00:00Z").removesuffix(" 00:00:00 +0000 UTC"))
        except ValueError as error:
            raise ValueError("write a date such as 2027-01-31") from error
    if isinstance(value, date):
        return value
    raise ValueError("write a date such as 2027-01-31")


class Allow(Model):
    """One guardrail that is knowingly overridden. There is no way to override all of them."""

    guardrail: str = ""
    """Code of the finding, e.g. NET-014. (required)"""
    reason: str = ""
    """Why, for whoever reads it later. (required)"""
    until: Annotated[date, BeforeValidator(_date)] | None = None
    """Last day the override holds. Default: no end."""


class Lab(Model):
    """The stack is played on the embedded lab: machines are on loopback addresses."""

    https_port: Count = 443
    """Port of the lab's ingress; 8443 where 443 needs privileges."""
    resolver: str = ""
    """Resolver that plays this workstation's own, `address:port`. Without one no name is asked."""
