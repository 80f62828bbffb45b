"""Where the platform's names lead, as several resolvers see it: pure judgement of their answers.

A name that one resolver drops is not a name that still has to spread, and neither is one that does not exist: each has its own
way out. Names belong to whoever owns the domain, so none of this decides whether the platform is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

HERE = "this workstation"
WILDCARD_PROBE = "cozystack-iac-wildcard"  # a label that nobody publishes, so only *.HOST can answer for it


_SINKHOLES = frozenset(map(ip_address, ("0.0.0.0", "::", "127.0.0.1", "::1")))  # what block lists answer with


class Said(StrEnum):
    """What one resolver said."""

    ADDRESSES = "addresses"
    EMPTY = "no address"  # NOERROR, and nothing in it
    NXDOMAIN = "no such name"
    FAILED = "SERVFAIL"
    REFUSED = "refused to answer"
    SILENT = "no answer"

    @property
    def answered(self) -> bool:
        """Whether this is knowledge about the name, and not about the resolver."""
        return self in (Said.ADDRESSES, Said.EMPTY, Said.NXDOMAIN)


@dataclass(frozen=True)
class Lookup:
    """One resolver's answer to A and AAAA together. `resolver` names it for people."""

    said: Said
    addresses: frozenset[Address] = frozenset()
    resolver: str = HERE
    detail: str = ""

    @classmethod
    def of(cls, addresses: Iterable[Address], resolver: str = HERE) -> Lookup:
        found = frozenset(addresses)
        return cls(Said.ADDRESSES if found else Said.EMPTY, found, resolver)

    @property
    def words(self) -> str:
        return listed(self.addresses) if self.addresses else f"{self.said.value}{self.detail and f' ({self.detail})'}"


class Dns(StrEnum):
    """What a name's resolution is worth."""

    RESOLVED = "resolved"
    MIXED = "partly elsewhere"
    PROPAGATING = "not everywhere yet"
    FILTERED = "filtered"
    SEARCHED = "taken over by a search domain"
    ELSEWHERE = "elsewhere"
    ABSENT = "absent"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NameStanding:
    """One name in words for a person. `led`: where it leads from here, when that is not the platform."""

    name: str
    dns: Dns
    words: str
    remedy: str = ""
    led: frozenset[Address] = frozenset()

    @property
    def ok(self) -> bool:
        return self.dns is Dns.RESOLVED

    def __str__(self) -> str:
        return f"{self.dns.value}: {self.words}"


def judge(
    name: str,
    lookups: Sequence[Lookup],
    accepted: Collection[Address],
    *,
    absolute: Lookup | None = None,
    search: Sequence[str] = (),
) -> NameStanding:
    """Whether `name` leads to `accepted`. The first lookup is this workstation's own, the others are further resolvers'.

    `absolute`: what this workstation gets for the name with a final dot, which no search domain of `search` can change.
    """
    here, others = lookups[0], lookups[1:]
    wanted = frozenset(accepted)
    if here.said is Said.ADDRESSES:
        return _answered(name, here, others, wanted, absolute, search)
    if here.said.answered:
        return _absent(name, here, others, wanted)
    right = [other for other in others if other.addresses & wanted]
    if right:
        words = f"{here.resolver}: {here.words}; {right[0].resolver} leads to {right[0].words}"
        return NameStanding(name, Dns.BROKEN, words, "repair or replace this workstation's resolver; the name is right")
    if Said.FAILED in {lookup.said for lookup in lookups}:
        words = "; ".join(f"{lookup.resolver}: {lookup.words}" for lookup in lookups)
        remedy = "the zone's name servers fail: check the delegation and DNSSEC (`dig +cd` answers when it is DNSSEC)"
        return NameStanding(name, Dns.BROKEN, words, remedy)
    return NameStanding(name, Dns.UNKNOWN, f"{here.resolver}: {here.words}", "check the network and resolver here")


def _answered(
    name: str,
    here: Lookup,
    others: Sequence[Lookup],
    wanted: frozenset[Address],
    absolute: Lookup | None,
    search: Sequence[str],
) -> NameStanding:
    strange = here.addresses - wanted
    if strange and not here.addresses & wanted:
        return _elsewhere(name, here, others, wanted, absolute, search)
    if strange:
        words = f"leads to {listed(here.addresses & wanted)}, and also to {listed(strange)}: some people end up there"
        return NameStanding(name, Dns.MIXED, words, f"remove {listed(strange)} from the record", led=strange)
    late = [other for other in others if other.said.answered and not other.addresses & wanted]
    dropping = [other for other in late if other.said is Said.EMPTY and _private(wanted)]
    if [other for other in late if other not in dropping]:
        seen = "; ".join(f"{other.resolver}: {other.words}" for other in late)
        words = f"leads to {here.words} from here, not everywhere: {seen}"
        remedy = "wait until caches have expired; if it stays, the record exists here only (hosts file, split horizon)"
        return NameStanding(name, Dns.PROPAGATING, words, remedy)
    if dropping:
        return NameStanding(name, Dns.RESOLVED, f"{here.words} ({dropping[0].resolver} drops private addresses)")
    return NameStanding(name, Dns.RESOLVED, here.words)


def _elsewhere(
    name: str,
    here: Lookup,
    others: Sequence[Lookup],
    wanted: frozenset[Address],
    absolute: Lookup | None,
    search: Sequence[str],
) -> NameStanding:
    if here.addresses <= _SINKHOLES:
        words = f"{here.resolver} answers {here.words}: the name is blocked there"
        return NameStanding(name, Dns.FILTERED, words, f"allow {name} in the resolver's block list")
    if absolute is not None and absolute.said.answered and not absolute.addresses & here.addresses:
        domains = f" ({', '.join(search)})" if search else ""
        words = (
            f"leads to {here.words} by a search domain{domains} or the hosts file of this workstation; "
            f"the name itself: {absolute.words}"
        )
        remedy = f"create a record for {name} with {listed(wanted)}; a wildcard in a search domain answers until then"
        return NameStanding(name, Dns.SEARCHED, words, remedy, led=here.addresses)
    right = [other for other in others if other.addresses & wanted]
    if right:
        words = f"leads to {here.words} from here, to {right[0].words} at {right[0].resolver}"
        remedy = "an old answer is cached here: wait until it has expired, or flush this workstation's cache"
        return NameStanding(name, Dns.PROPAGATING, words, remedy, led=here.addresses)
    words = f"leads to {here.words}, not to {listed(wanted)}"
    remedy = f"let {name} point to {listed(wanted)}, unless a NAT or a CDN is between"
    return NameStanding(name, Dns.ELSEWHERE, words, remedy, led=here.addresses)


def _absent(name: str, here: Lookup, others: Sequence[Lookup], wanted: frozenset[Address]) -> NameStanding:
    carried = embedded_address(name)
    right = [other for other in others if other.addresses & wanted]
    dropped = right[0].addresses & wanted if right else frozenset({carried} if carried else ())
    # A filter takes the addresses out and leaves an empty answer; only where the name itself proves that there is a
    # record can "no such name" be a filter as well.
    if dropped and _private(dropped) and (here.said is Said.EMPTY or carried):
        words = f"this workstation's resolver drops the answer {listed(dropped)} (protection against DNS rebinding)"
        remedy = (
            f"add the name to the hosts file, allow it in the resolver (dnsmasq: rebind-domain-ok={_zone(name)}), "
            "or use another resolver"
        )
        return NameStanding(name, Dns.FILTERED, words, remedy)
    if right:
        words = f"{here.resolver}: {here.words}; {right[0].resolver} leads to {right[0].words}"
        remedy = "an older answer is cached here: wait until it has expired, or flush this workstation's cache"
        return NameStanding(name, Dns.PROPAGATING, words, remedy)
    if carried:
        words = f"{here.resolver}: {here.words}, though the name itself says {carried}"
        remedy = "this workstation's resolver does not ask the wildcard service: use another resolver or a domain of your own"
        return NameStanding(name, Dns.FILTERED, words, remedy)
    strange = [other for other in others if other.addresses]
    if strange:
        words = f"{here.resolver}: {here.words}; {strange[0].resolver} leads to {strange[0].words}"
        remedy = f"let {name} point to {listed(wanted)}"
        return NameStanding(name, Dns.ELSEWHERE, words, remedy, led=strange[0].addresses)
    words = "exists, and has no address" if here.said is Said.EMPTY else "does not exist"
    return NameStanding(name, Dns.ABSENT, words, f"create a record for {name} with {listed(wanted)}")


_EMBEDDED = re.compile(r"(?:^|[.-])(\d{1,3}(?:[.-]\d{1,3}){3})\.(?:[a-z0-9-]+\.)*(?:nip\.io|sslip\.io)$")


def embedded_address(name: str) -> Address | None:
    """The address that a name of a wildcard DNS service carries in itself (`dashboard.192-168-1-50.nip.io`)."""
    match = _EMBEDDED.search(name.lower().rstrip("."))
    if not match:
        return None
    try:
        return ip_address(match[1].replace("-", "."))
    except ValueError:
        return None


def endpoint(resolver: str) -> tuple[str, int]:
    """`9.9.9.9`, `9.9.9.9:5353`, `2620:fe::fe` or `[2620:fe::fe]:5353` as address and port. Raises ValueError."""
    try:
        return str(ip_address(resolver.strip("[]"))), 53
    except ValueError:
        host, _, port = resolver.rpartition(":")
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{resolver} is no address of a resolver") from None
        return str(ip_address(host.strip("[]"))), int(port)


def listed(addresses: Iterable[Address]) -> str:
    return ", ".join(sorted(map(str, addresses))) or "nothing"


def _private(addresses: Iterable[Address]) -> bool:
    return all(address.is_private for address in addresses)


def _zone(name: str) -> str:
    """What a rebinding filter has to be told: the domain of a wildcard DNS service, else the name's parent."""
    return next((zone for zone in ("nip.io", "sslip.io") if name.endswith(zone)), name.partition(".")[2])
