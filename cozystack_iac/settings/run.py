"""How the run itself behaves: budgets, checks, overrides, lab."""

from datetime import date, datetime, timedelta
from typing import Annotated

from pydantic import BeforeValidator

from cozystack_iac.settings.base import Count, Duration, Model


def _minutes(minutes: int) -> timedelta:
    return timedelta(minutes=minutes)


class Waits(Model):
    """A budget per link of the chain. Each starts when its link starts; none is shared."""

    probe: Duration = timedelta(seconds=30)
    """Every machine's answer to the questions of the plan gate, and later of the verification."""
    rollout: Duration = _minutes(10)
    """A machine's way from its configuration to the authenticated API; twice that when it installs first."""
    bootstrap: Duration = _minutes(10)
    """etcd: time in sync, bootstrap accepted, all control planes members."""
    nodes: Duration = _minutes(10)
    """Every node registered with the API server. They are not Ready before the platform brings the network."""
    zpools: Duration = _minutes(10)
    """Every zpool ONLINE."""
    prism: Duration = _minutes(5)
    """generic: extractedprism on every node."""
    operator: Duration = _minutes(10)
    """Custom resources established and package source present (the operator's own budgets: 2 and 5 minutes)."""
    package: Duration = _minutes(20)
    """The platform uses the values it was given; a change that meets a running installation waits for its next step."""
    linstor: Duration = _minutes(25)
    """LINSTOR's controller answers (7 to 13 minutes on a healthy site)."""
    pools: Duration = _minutes(10)
    """Every storage pool registered."""
    tenant: Duration = _minutes(40)
    """The root tenant exists and is patched; with OIDC on it comes late in the chain."""
    platform: Duration = _minutes(60)
    """Every expected release ready (15 to 60 minutes, longer on slow registries)."""
    settle: Duration = timedelta(seconds=30)
    """How long everything has to stay ready before it counts: releases flap while their dependants start."""
    verify: Duration = _minutes(10)
    """Once all is ready: pods, the root ingress, certificates."""
    reachability: Duration = _minutes(10)
    """Dashboard and API answer on their public names."""
    upgrade: Duration = _minutes(30)
    """One machine's upgrade, with drain and reboot."""
    removal: Duration = _minutes(30)
    """Each step of a machine's removal; the longest are the drain, which waits for disruption budgets, and the evacuation."""


def _date(value: object) -> object:
    # YAML knows dates, JSON does not: the same key arrives as a date, as a timestamp or as one of the engine's texts.
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, str):
        try:
            return date.fromisoformat(value.removesuffix("T00:00:00Z").removesuffix(" 00:00:00 +0000 UTC"))
        except ValueError as error:
            raise ValueError("a date is written like 2027-01-31") from error
    if isinstance(value, date):
        return value
    raise ValueError("a date is written like 2027-01-31")


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
