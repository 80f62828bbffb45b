"""Asking for the platform's names: every resolver, addresses in front of the platform, and a proxy that resolves for browsers.

What the answers mean is the business of `names`; who is the same platform is decided here, by what cannot be faked: the cluster's
own CA, or the very certificate that the platform shows when it is asked directly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cozystack_iac import published
from cozystack_iac.reachability import names, probes, proxies
from cozystack_iac.reachability.names import Address, Dns, Lookup, NameStanding
from cozystack_iac.reachability.outcomes import Endpoint, EndpointStanding, judge_endpoint

LED = 3  # addresses of somebody else's that are looked at
SYSTEM = "system"


@dataclass(frozen=True)
class Names:
    """Which names are asked, and whom. `own` is this workstation's resolver: "system", an address, or "" for nobody."""

    host: str
    labels: tuple[str, ...]  # those that are published; `*.HOST` is asked as well
    own: str
    others: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """`*.HOST` stands for a name that nobody published; without it further hosts and tenants' applications have none."""
        return tuple(published.name(label, self.host) for label in (*self.labels, published.ANY)) if self.own else ()


async def ask(wanted: Names, accepted: Collection[Address], deadline_s: float) -> tuple[NameStanding, ...]:
    """The standing of every name."""
    return tuple(await asyncio.gather(*(_one(wanted, shown, accepted, deadline_s) for shown in wanted.shown)))


async def ask_with_fronts(
    wanted: Names, seen: Sequence[EndpointStanding], accepted: frozenset[Address], ca: str, deadline_s: float
) -> tuple[NameStanding, ...]:
    """Every name's standing; addresses in front of the platform (a CDN, a NAT, a proxy) count once they have proven themselves.

    `seen`: what answered at the platform's own addresses, to compare with.
    """
    found = await ask(wanted, accepted, deadline_s)
    direct = [s for s in seen if s.ok]
    if not direct or all(name.ok for name in found):
        return found
    fronts = sorted({address for name in found for address in name.led}, key=str)[:LED]
    tried = await probe_all([replace(s.target, address=a) for s in direct for a in fronts], ca, deadline_s)
    proven = {t.target.address for t in tried if any(_same_platform(t, s) for s in direct)}
    if proven:
        found = await ask(wanted, accepted | proven, deadline_s)
    there = {(t.target.name, t.target.address): t.words for t in tried}
    found = tuple(_with_what_is_there(name, there) for name in found)
    if wanted.own != SYSTEM:
        return found
    return tuple(await asyncio.gather(*(_by_proxy(name, direct[0].target, ca, deadline_s) for name in found)))


async def probe_all(targets: Sequence[Endpoint], ca: str, deadline_s: float) -> tuple[EndpointStanding, ...]:
    """Every target's standing; `ca` is the cluster's own, as PEM."""
    outcomes = await asyncio.gather(*(probes.probe(target, ca, deadline_s=deadline_s) for target in targets))
    return tuple(judge_endpoint(target, outcome) for target, outcome in zip(targets, outcomes, strict=True))


async def _one(wanted: Names, shown: str, accepted: Collection[Address], deadline_s: float) -> NameStanding:
    name = _asked(shown)
    lookups = await asyncio.gather(
        _own(wanted.own, name, deadline_s),
        *(probes.lookup_at(name, resolver, deadline_s=deadline_s) for resolver in wanted.others),
    )
    strange = bool(lookups[0].addresses) and not lookups[0].addresses & set(accepted)
    if not strange or wanted.own != SYSTEM:
        return names.judge_name(shown, lookups, accepted)
    absolute = await probes.lookup_here(f"{name}.", deadline_s=deadline_s)
    return names.judge_name(shown, lookups, accepted, absolute=absolute, search=probes.search_domains())


async def _own(resolver: str, name: str, deadline_s: float) -> Lookup:
    if resolver == SYSTEM:
        return await probes.lookup_here(name, deadline_s=deadline_s)
    return await probes.lookup_at(name, resolver, label=names.HERE, deadline_s=deadline_s)


def _asked(shown: str) -> str:
    return shown.replace("*", names.WILDCARD_PROBE)


async def _by_proxy(standing: NameStanding, known: Endpoint, ca: str, deadline_s: float) -> NameStanding:
    """Browsers behind a proxy never resolve a name themselves, so there the proxy's answer counts and no resolver's."""
    name = _asked(standing.name)
    try:
        proxy, _ = proxies.choose(name, None, known.port, os.environ)
    except proxies.BadProxy:
        return standing  # the probes of the addresses have said so
    if standing.ok or proxy is None:
        return standing
    direct = replace(known, name=name, passthrough=published.is_of(name, published.API))
    here, there = await probe_all([direct, replace(direct, by_name=True)], ca, deadline_s)
    if _same_platform(there, here):
        return NameStanding(standing.name, Dns.RESOLVED, f"the proxy {proxy} reaches the platform by name")
    return replace(standing, words=f"{standing.words}; through the proxy {proxy} by name: {there.words}")


def _same_platform(tried: EndpointStanding, direct: EndpointStanding) -> bool:
    """A page at somebody's address proves nothing."""
    if tried.target.name != direct.target.name or tried.target.passthrough:
        return tried.target.passthrough and tried.ok
    return None not in (tried.served, direct.served) and tried.served == direct.served


def _with_what_is_there(standing: NameStanding, there: Mapping[tuple[str, Address], str]) -> NameStanding:
    answers = [there[standing.name, a] for a in sorted(standing.led, key=str) if (standing.name, a) in there]
    return (
        replace(standing, words=f"{standing.words}; the host there responds with: {', '.join(answers)}")
        if answers
        else standing
    )
