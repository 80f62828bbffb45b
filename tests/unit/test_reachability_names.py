"""Where the platform's names lead: every answer of every resolver has its verdict, and each verdict its own way out."""

from collections.abc import Iterable
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cozystack_iac.reachability.names import Dns, Lookup, Said, embedded_address, endpoint, judge_name

PRIVATE, PUBLIC = ip_address("192.168.1.50"), ip_address("11.22.33.44")
OTHER, OLD = ip_address("55.66.77.88"), ip_address("99.88.77.66")
NAME = "dashboard.example.com"
NXDOMAIN, EMPTY, SERVFAIL = Lookup(Said.NXDOMAIN), Lookup(Said.EMPTY), Lookup(Said.FAILED)


def here(*addresses: str) -> Lookup:
    return Lookup.of(map(ip_address, addresses))


def at(resolver: str, *addresses: str, said: Said | None = None) -> Lookup:
    return Lookup(said, resolver=resolver) if said else Lookup.of(map(ip_address, addresses), resolver)


CASES = {
    # name, this workstation's answer, the others', what is accepted -> verdict, and what the user reads
    "right": (NAME, here("11.22.33.44"), [], PUBLIC, Dns.RESOLVED, "11.22.33.44"),
    "right everywhere": (NAME, here("11.22.33.44"), [at("9.9.9.9", "11.22.33.44")], PUBLIC, Dns.RESOLVED, "11.22"),
    "right here, others silent": (
        NAME, here("11.22.33.44"), [at("9.9.9.9", said=Said.SILENT)], PUBLIC, Dns.RESOLVED, "11.22.33.44",
    ),
    "right here, private addresses dropped elsewhere": (
        NAME, here("192.168.1.50"), [at("9.9.9.9", said=Said.EMPTY)], PRIVATE, Dns.RESOLVED, "9.9.9.9 drops private",
    ),
    "right here only": (
        NAME, here("11.22.33.44"), [at("9.9.9.9", said=Said.NXDOMAIN)], PUBLIC, Dns.PROPAGATING, "not everywhere",
    ),
    "right and wrong": (NAME, here("11.22.33.44", "55.66.77.88"), [], PUBLIC, Dns.MIXED, "also to 55.66.77.88"),
    "wrong": (NAME, here("55.66.77.88"), [], PUBLIC, Dns.ELSEWHERE, "resolves to 55.66.77.88 instead of 11.22.33.44"),
    "wrong everywhere": (
        NAME, here("55.66.77.88"), [at("9.9.9.9", "55.66.77.88")], PUBLIC, Dns.ELSEWHERE, "instead of 11.22.33.44",
    ),
    "old here, new elsewhere": (
        NAME, here("99.88.77.66"), [at("9.9.9.9", "11.22.33.44")], PUBLIC, Dns.PROPAGATING, "to 11.22.33.44 at 9.9.9.9",
    ),
    "blocks the name": (NAME, here("0.0.0.0"), [], PUBLIC, Dns.FILTERED, "blocks the name"),
    "blocked, both families": (NAME, here("0.0.0.0", "::"), [], PUBLIC, Dns.FILTERED, "blocks the name"),
    "no such name": (NAME, NXDOMAIN, [], PUBLIC, Dns.ABSENT, "does not exist"),
    "no such name anywhere": (NAME, NXDOMAIN, [at("9.9.9.9", said=Said.NXDOMAIN)], PUBLIC, Dns.ABSENT, "not exist"),
    "name without address": (NAME, EMPTY, [at("9.9.9.9", said=Said.EMPTY)], PUBLIC, Dns.ABSENT, "has no address"),
    "new elsewhere, not here yet": (
        NAME, NXDOMAIN, [at("9.9.9.9", "11.22.33.44")], PUBLIC, Dns.PROPAGATING, "9.9.9.9 resolves it to 11.22.33.44",
    ),
    "missing here, wrong elsewhere": (
        NAME, NXDOMAIN, [at("9.9.9.9", "55.66.77.88")], PUBLIC, Dns.ELSEWHERE, "9.9.9.9 resolves it to 55.66.77.88",
    ),
    "B59: private answer dropped": (
        NAME, EMPTY, [at("8.8.8.8", "192.168.1.50")], PRIVATE, Dns.FILTERED, "DNS rebinding protection",
    ),
    "B59: nip.io dropped, nobody else asked": (
        "dashboard.192-168-1-50.nip.io", EMPTY, [], PRIVATE, Dns.FILTERED, "rebinding",
    ),
    "B59: nip.io dropped as no such name": (
        "dashboard.192-168-1-50.nip.io", NXDOMAIN, [at("8.8.8.8", "192.168.1.50")], PRIVATE, Dns.FILTERED, "rebinding",
    ),
    "private record that is new is not filtered": (
        NAME, NXDOMAIN, [at("8.8.8.8", "192.168.1.50")], PRIVATE, Dns.PROPAGATING, "8.8.8.8 resolves it to 192.168.1.50",
    ),
    "public nip.io not known here": ("api.11-22-33-44.nip.io", NXDOMAIN, [], PUBLIC, Dns.FILTERED, "contains 11.22.33.44"),
    "resolver fails, zone too": (NAME, SERVFAIL, [at("9.9.9.9", said=Said.FAILED)], PUBLIC, Dns.BROKEN, "SERVFAIL"),
    "resolver fails, name is right": (
        NAME, SERVFAIL, [at("9.9.9.9", "11.22.33.44")], PUBLIC, Dns.BROKEN, "9.9.9.9 resolves it to 11.22.33.44",
    ),
    "resolver refuses": (NAME, Lookup(Said.REFUSED), [], PUBLIC, Dns.UNKNOWN, "refused to answer"),
    "resolver silent": (NAME, Lookup(Said.SILENT, detail="5 s"), [], PUBLIC, Dns.UNKNOWN, "no answer (5 s)"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_where_a_name_leads(case: str) -> None:
    name, own, others, accepted, expected, says = CASES[case]

    standing = judge_name(name, [own, *others], {accepted})

    assert standing.dns is expected
    assert says in standing.words
    assert bool(standing.remedy) is (expected is not Dns.RESOLVED)


def test_a_search_domain_that_answers_for_a_missing_name_is_named() -> None:
    own, absolute = here("10.1.1.1"), Lookup(Said.NXDOMAIN)

    standing = judge_name(NAME, [own], {PUBLIC}, absolute=absolute, search=["corp.example.net"])

    assert standing.dns is Dns.SEARCHED
    assert "corp.example.net" in standing.words
    assert f"create a record for {NAME}" in standing.remedy


def test_a_record_that_is_wrong_is_not_blamed_on_search_domains() -> None:
    own = here("55.66.77.88")

    assert judge_name(NAME, [own], {PUBLIC}, absolute=own, search=["corp.example.net"]).dns is Dns.ELSEWHERE


def test_filtered_and_propagating_have_different_ways_out() -> None:
    filtered = judge_name(NAME, [EMPTY, at("8.8.8.8", "192.168.1.50")], {PRIVATE})
    propagating = judge_name(NAME, [NXDOMAIN, at("8.8.8.8", "11.22.33.44")], {PUBLIC})

    assert "hosts file" in filtered.remedy
    assert "wait" not in filtered.remedy
    assert "wait" in propagating.remedy


answers = st.builds(
    lambda said, addresses: Lookup.of(addresses) if said is Said.ADDRESSES and addresses else Lookup(said),
    st.sampled_from([said for said in Said if said is not Said.ADDRESSES] + [Said.ADDRESSES]),
    st.frozensets(st.sampled_from([PRIVATE, PUBLIC, OTHER, OLD, ip_address("0.0.0.0"), ip_address("fd00::1")])),
).filter(lambda lookup: lookup.said is not Said.ADDRESSES or bool(lookup.addresses))


@given(
    name=st.sampled_from([NAME, "dashboard.192-168-1-50.nip.io", "*.example.com"]),
    lookups=st.lists(answers, min_size=1, max_size=4),
    accepted=st.frozensets(st.sampled_from([PRIVATE, PUBLIC]), min_size=1),
    absolute=st.none() | answers,
)
def test_every_combination_of_answers_has_a_verdict_and_only_right_addresses_are_fine(
    name: str, lookups: list[Lookup], accepted: Iterable[object], absolute: Lookup | None
) -> None:
    wanted = frozenset(a for a in (PRIVATE, PUBLIC) if a in set(accepted))

    standing = judge_name(name, lookups, wanted, absolute=absolute)

    assert standing.words
    assert standing.ok or standing.remedy
    assert not standing.ok or (lookups[0].addresses and lookups[0].addresses <= wanted)
    assert not standing.led & wanted


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("dashboard.192-168-1-50.nip.io", "192.168.1.50"),
        ("dashboard.192.168.1.50.nip.io", "192.168.1.50"),
        ("api.cluster-10-0-0-1.sslip.io.", "10.0.0.1"),
        ("dashboard.999-1-1-1.nip.io", None),
        ("dashboard.10-0-0-1.example.com", None),
        ("dashboard.example.com", None),
    ],
)
def test_addresses_carried_by_names_of_wildcard_services(name: str, address: str | None) -> None:
    assert embedded_address(name) == (ip_address(address) if address else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9.9.9.9", ("9.9.9.9", 53)),
        ("10.0.0.53:5353", ("10.0.0.53", 5353)),
        ("2620:fe::fe", ("2620:fe::fe", 53)),
        ("[2620:fe::fe]:5353", ("2620:fe::fe", 5353)),
    ],
)
def test_resolvers_are_addresses(text: str, expected: tuple[str, int]) -> None:
    assert endpoint(text) == expected


@pytest.mark.parametrize("text", ["dns.example.com", "9.9.9.9:", "9.9.9.9:0", "9.9.9.9:99999", "", "9.9.9"])
def test_what_is_no_address_is_no_resolver(text: str) -> None:
    with pytest.raises(ValueError):
        endpoint(text)
