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
    MIXED = "partly resolves elsewhere"
    PROPAGATING = "not propagated everywhere yet"
    FILTERED = "filtered"
    SEARCHED = "answered by a search domain"
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


def judge_name(
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
        words = f"{here.resolver} reports {here.words}, but {right[0].resolver} resolves it to {right[0].words}"
        return NameStanding(
            name, Dns.BROKEN, words, "repair or replace this workstation's resolver; the DNS record is correct"
        )
    if Said.FAILED in {lookup.said for lookup in lookups}:
        words = "; ".join(f"{lookup.resolver}: {lookup.words}" for lookup in lookups)
        remedy = (
            "check the delegation and DNSSEC of the zone, because its name servers fail (if `dig +cd` gets "
            "an answer, DNSSEC is the cause)"
        )
        return NameStanding(name, Dns.BROKEN, words, remedy)
    return NameStanding(
        name, Dns.UNKNOWN, f"{here.resolver}: {here.words}", "check the network and the resolver of this workstation"
    )


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
        words = (
            f"resolves to {listed(here.addresses & wanted)}, but also to {listed(strange)}, so some users end up there"
        )
        return NameStanding(name, Dns.MIXED, words, f"remove {listed(strange)} from the record", led=strange)
    late = [other for other in others if other.said.answered and not other.addresses & wanted]
    dropping = [other for other in late if other.said is Said.EMPTY and _private(wanted)]
    if [other for other in late if other not in dropping]:
        seen = "; ".join(f"{other.resolver}: {other.words}" for other in late)
        words = f"resolves to {here.words} from here, but not everywhere: {seen}"
        remedy = (
            "wait until caches expire; if it stays like this, the record exists only here (hosts file or "
            "split-horizon DNS)"
        )
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
        words = f"{here.resolver} answers {here.words}: it blocks the name"
        return NameStanding(name, Dns.FILTERED, words, f"allow {name} in the resolver's blocklist")
    if absolute is not None and absolute.said.answered and not absolute.addresses & here.addresses:
        domains = f" ({', '.join(search)})" if search else ""
        words = (
            f"resolves to {here.words} through a search domain{domains} or this workstation's hosts file; "
            f"the name itself: {absolute.words}"
        )
        remedy = (
            f"create a record for {name} with {listed(wanted)}; until then a wildcard record in a search domain answers"
        )
        return NameStanding(name, Dns.SEARCHED, words, remedy, led=here.addresses)
    right = [other for other in others if other.addresses & wanted]
    if right:
        words = f"resolves to {here.words} from here, but to {right[0].words} at {right[0].resolver}"
        remedy = "wait until the old answer in the cache expires, or flush this workstation's DNS cache"
        return NameStanding(name, Dns.PROPAGATING, words, remedy, led=here.addresses)
    words = f"resolves to {here.words} instead of {listed(wanted)}"
    remedy = f"point {name} to {listed(wanted)}, unless a NAT or a CDN is in front of the platform"
    return NameStanding(name, Dns.ELSEWHERE, words, remedy, led=here.addresses)


def _absent(name: str, here: Lookup, others: Sequence[Lookup], wanted: frozenset[Address]) -> NameStanding:
    carried = embedded_address(name)
    right = [other for other in others if other.addresses & wanted]
    dropped = right[0].addresses & wanted if right else frozenset({carried} if carried else ())
    # A filter takes the addresses out and leaves an empty answer; only where the name itself proves that there is a
    # record can "no such name" be a filter as well.
    if dropped and _private(dropped) and (here.said is Said.EMPTY or carried):
        words = f"this workstation's resolver drops the answer {listed(dropped)} (DNS rebinding protection)"
        remedy = (
            f"add the name to the hosts file, allow it in the resolver (dnsmasq: rebind-domain-ok={_zone(name)}), "
            "or use another resolver"
        )
        return NameStanding(name, Dns.FILTERED, words, remedy)
    if right:
        words = f"{here.resolver} reports {here.words}, but {right[0].resolver} resolves it to {right[0].words}"
        remedy = "wait until the old answer in the cache expires, or flush this workstation's DNS cache"
        return NameStanding(name, Dns.PROPAGATING, words, remedy)
    if carried:
        words = f"{here.resolver} reports {here.words}, although the name contains {carried}"
        remedy = (
            "use another resolver or your own domain, because this workstation's resolver does not query the "
            "wildcard DNS service"
        )
        return NameStanding(name, Dns.FILTERED, words, remedy)
    strange = [other for other in others if other.addresses]
    if strange:
        words = f"{here.resolver} reports {here.words}, but {strange[0].resolver} resolves it to {strange[0].words}"
        remedy = f"point {name} to {listed(wanted)}"
        return NameStanding(name, Dns.ELSEWHERE, words, remedy, led=strange[0].addresses)
    words = "exists, but has no address" if here.said is Said.EMPTY else "does not exist"
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
            raise ValueError(f"{resolver} is not a valid resolver address") from None
        return str(ip_address(host.strip("[]"))), int(port)


def listed(addresses: Iterable[Address]) -> str:
    return ", ".join(sorted(map(str, addresses))) or "nothing"


def _private(addresses: Iterable[Address]) -> bool:
    return all(address.is_private for address in addresses)


def _zone(name: str) -> str:
    """What a rebinding filter has to be told: the domain of a wildcard DNS service, else the name's parent."""
    return next((zone for zone in ("nip.io", "sslip.io") if name.endswith(zone)), name.partition(".")[2])
