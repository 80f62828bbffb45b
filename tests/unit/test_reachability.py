"""What answers and silences of the platform's public names prove, and who is to blame for them."""

import datetime as dt
from ipaddress import ip_address
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cozystack_iac.reachability import served
from cozystack_iac.reachability.causes import Blame, Cause, Inside, blame
from cozystack_iac.reachability.names import Dns, NameStanding
from cozystack_iac.reachability.outcomes import Endpoint, Failure, Outcome, Reach, judge_endpoint
from cozystack_iac.reachability.proxies import BadProxy, Proxy, choose, excluded, parse
from cozystack_iac.reachability.served import Served, Trust

IP, IP2 = ip_address("10.0.0.11"), ip_address("10.0.0.12")
DASHBOARD = Endpoint("dashboard.example.com", IP)
API = Endpoint("api.example.com", IP, passthrough=True)
ALIVE = Inside(ingress=2, dashboard=1)
DEAD = Inside(ingress=0, dashboard=1)
UNASKED = Inside(trouble="the Kubernetes API did not say: connection refused")
RIGHT = NameStanding("dashboard.example.com", Dns.RESOLVED, "10.0.0.11")
WRONG = NameStanding("dashboard.example.com", Dns.ABSENT, "does not exist", "create a record for it")

# B62 and the table of the endpoint facts: what curl would call 6 is the business of names, 7, 28, 35 and 60 are here.
OUTCOMES = [
    *((Outcome(status=status), Reach.REACHED) for status in (200, 301, 302, 303, 307, 308, 401, 403)),
    *((Outcome(status=status), Reach.STARTING) for status in (502, 503, 504)),
    (Outcome(status=404), Reach.ABSENT),  # the ingress's default backend is no success
    *((Outcome(status=status), Reach.PROXY) for status in (520, 526, 530)),
    *((Outcome(status=status), Reach.BROKEN) for status in (100, 204, 400, 418, 421, 429, 500, 501, 505, 531)),
    (Outcome(detail="not HTTP"), Reach.BROKEN),
    (Outcome(failure=Failure.REFUSED), Reach.REFUSED),  # curl 7
    (Outcome(failure=Failure.UNREACHABLE), Reach.UNREACHABLE),  # curl 7
    (Outcome(failure=Failure.TIMEOUT), Reach.UNREACHABLE),  # curl 28
    (Outcome(failure=Failure.CLOSED), Reach.TLS),  # curl 52
    (Outcome(failure=Failure.HANDSHAKE), Reach.TLS),  # curl 35
    (Outcome(failure=Failure.CERTIFICATE), Reach.TLS),  # curl 60
    (Outcome(failure=Failure.PROXY, detail="proxy.corp:3128 answered 407"), Reach.UNREACHABLE),
]


@pytest.mark.parametrize(("outcome", "reach"), OUTCOMES)
def test_b62_what_an_outcome_proves(outcome: Outcome, reach: Reach) -> None:
    for target in (DASHBOARD, API):
        standing = judge_endpoint(target, outcome)

        assert standing.reach is reach
        assert standing.ok or (standing.means and standing.remedy)


def test_an_api_certificate_for_other_names_points_at_the_certificate_names() -> None:
    detail = "Hostname mismatch, certificate is not valid for 'api.example.com'."
    standing = judge_endpoint(API, Outcome(failure=Failure.CERTIFICATE, detail=detail))

    assert standing.reach is Reach.MISNAMED
    assert "extraSans" in standing.remedy


def test_a_redirect_says_where_to_and_a_proxy_that_it_was_asked() -> None:
    words = judge_endpoint(DASHBOARD, Outcome(status=302, location="keycloak.example.com", way="proxy.corp:3128")).words

    assert words == "HTTP 302 to keycloak.example.com through the proxy proxy.corp:3128"


def test_a_proxy_that_does_not_let_through_says_nothing_about_the_platform() -> None:
    standing = judge_endpoint(
        DASHBOARD, Outcome(failure=Failure.PROXY, detail="proxy.corp:3128 answered 403 Forbidden")
    )

    assert "nothing is known about the platform" in standing.means
    assert "NO_PROXY" in standing.remedy
    assert blame([standing], [RIGHT], UNASKED).cause is Cause.UNKNOWN


# Who is to blame ----------------------------------------------------------------------------------------------------


def verdict(*outcomes: Outcome, names: tuple[NameStanding, ...] = (RIGHT,), inside: Inside = ALIVE) -> Blame:
    targets = (Endpoint("dashboard.example.com", ip_address(f"10.0.0.{n + 11}")) for n in range(len(outcomes)))
    return blame([judge_endpoint(t, o) for t, o in zip(targets, outcomes, strict=True)], names, inside)


REFUSED, TIMEOUT = Outcome(failure=Failure.REFUSED), Outcome(failure=Failure.TIMEOUT)
OK, STARTING, UNROUTED = Outcome(status=302), Outcome(status=503), Outcome(status=404)

BLAMED = [
    # what was seen, names, from inside -> verdict, and what comes first for the user
    ((OK,), (RIGHT,), ALIVE, Cause.REACHED, ""),
    ((OK, OK), (), UNASKED, Cause.REACHED, ""),
    ((OK,), (WRONG,), ALIVE, Cause.NAMES, "create a record"),
    ((REFUSED,), (RIGHT,), ALIVE, Cause.PATH, "get svc root-ingress-controller"),
    ((TIMEOUT,), (RIGHT,), ALIVE, Cause.PATH, "open port 443 to 10.0.0.11"),
    ((TIMEOUT,), (WRONG,), ALIVE, Cause.PATH, "open port 443"),
    ((OK, TIMEOUT), (RIGHT,), UNASKED, Cause.PATH, "open port 443 to 10.0.0.12"),
    ((REFUSED,), (RIGHT,), DEAD, Cause.PLATFORM, "kubectl -n tenant-root get pods"),
    ((TIMEOUT,), (RIGHT,), DEAD, Cause.PLATFORM, "kubectl -n tenant-root get pods"),
    ((REFUSED,), (RIGHT,), UNASKED, Cause.UNKNOWN, "get endpointslices"),
    ((STARTING,), (RIGHT,), ALIVE, Cause.PLATFORM, "kubectl -n cozy-dashboard get pods,ingress"),
    ((UNROUTED,), (RIGHT,), UNASKED, Cause.PLATFORM, "check publishing.host"),
    ((STARTING, TIMEOUT), (RIGHT,), UNASKED, Cause.PLATFORM, "kubectl -n cozy-dashboard"),
    ((Outcome(status=530),), (RIGHT,), ALIVE, Cause.PATH, "let the CDN pass traffic through"),
    ((Outcome(failure=Failure.CLOSED),), (RIGHT,), ALIVE, Cause.PATH, "publishing.proxyProtocol"),
]


@pytest.mark.parametrize(("outcomes", "names", "inside", "cause", "first"), BLAMED)
def test_names_path_and_platform_are_told_apart(
    outcomes: tuple[Outcome, ...], names: tuple[NameStanding, ...], inside: Inside, cause: Cause, first: str
) -> None:
    found = verdict(*outcomes, names=names, inside=inside)

    assert found.cause is cause
    assert first in (found.next_steps or ("",))[0]
    assert found.cause is Cause.REACHED or (found.means and found.next_steps)


def test_the_three_verdicts_read_differently_and_have_different_next_steps() -> None:
    three = [verdict(OK, names=(WRONG,)), verdict(TIMEOUT), verdict(STARTING)]

    assert len({v.headline.partition(" (")[0] for v in three}) == 3
    assert len({v.means for v in three}) == 3
    assert len({v.next_steps for v in three}) == 3
    assert [v.cause for v in three] == [Cause.NAMES, Cause.PATH, Cause.PLATFORM]


def test_wrong_names_are_told_even_when_they_are_not_the_verdict() -> None:
    assert WRONG.remedy in verdict(TIMEOUT, names=(WRONG,)).next_steps


def test_b58_an_address_the_ingress_does_not_listen_on_is_named() -> None:
    inside = Inside(ingress=2, dashboard=1, external=frozenset({"10.0.72.46"}))

    assert any("does not listen on 10.0.0.11" in step for step in verdict(REFUSED, inside=inside).next_steps)
    assert "10.0.72.46" in str(inside)


def test_without_any_address_nothing_is_claimed() -> None:
    found = blame([], [], ALIVE)

    assert found.cause is Cause.UNKNOWN
    assert "No address" in found.headline


statuses = st.one_of(st.none(), st.integers(100, 599))
outcomes = st.builds(
    Outcome,
    status=statuses,
    failure=st.none() | st.sampled_from(Failure),
    detail=st.sampled_from(["", "hostname mismatch", "unable to get local issuer certificate"]),
    way=st.sampled_from(["", "proxy.corp:3128"]),
)
insides = st.builds(Inside, ingress=st.none() | st.integers(0, 3), dashboard=st.none() | st.integers(0, 3))


@given(st.lists(outcomes, max_size=4), st.lists(st.sampled_from([RIGHT, WRONG]), max_size=2), insides, st.booleans())
def test_the_verdict_is_total_and_only_what_answers_is_reached(
    seen: list[Outcome], names: list[NameStanding], inside: Inside, passthrough: bool
) -> None:
    standings = [
        judge_endpoint(Endpoint(f"h{n}.example.com", IP, passthrough=passthrough), o) for n, o in enumerate(seen)
    ]

    found = blame(standings, names, inside)

    assert len(found.targets) == len(standings)
    assert found.headline
    assert all(
        (cause is Cause.REACHED) == standing.ok for cause, standing in zip(found.targets, standings, strict=True)
    )
    assert (found.cause in (Cause.REACHED, Cause.NAMES)) is (bool(standings) and all(s.ok for s in standings))
    assert (found.cause is Cause.REACHED) is (bool(standings) and all(s.ok for s in standings) and WRONG not in names)


@given(st.sampled_from([(o, i) for (o, _), i in product(OUTCOMES, (ALIVE, DEAD, UNASKED))]))
def test_a_platform_that_is_alive_inside_is_never_called_down_for_packets_that_do_not_arrive(
    case: tuple[Outcome, Inside],
) -> None:
    outcome, inside = case
    found = verdict(outcome, inside=inside)

    if outcome.failure in (Failure.REFUSED, Failure.TIMEOUT, Failure.UNREACHABLE):
        expected = {2: Cause.PATH, 0: Cause.PLATFORM, None: Cause.UNKNOWN}[inside.ingress]
        assert found.cause is expected


# Certificates -------------------------------------------------------------------------------------------------------

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
GOOD = Served(frozenset({"dashboard.example.com"}), "dashboard.example.com", "R13", False, NOW + dt.timedelta(60), "f")
NAME = "dashboard.example.com"


def shown(**more: object) -> Served:
    return Served(**{**{f: getattr(GOOD, f) for f in GOOD.__dataclass_fields__}, **more})


@pytest.mark.parametrize(
    ("certificate", "trust", "says"),
    [
        (GOOD, Trust.TRUSTED, "issued by R13, valid until 2027-01-29"),
        (shown(names=frozenset({"*.example.com"})), Trust.TRUSTED, "R13"),
        (
            shown(names=frozenset({"*.dashboard.example.com"})),
            Trust.MISNAMED,
            "it is issued for *.dashboard.example.com",
        ),
        (shown(names=frozenset({"other.example.net"})), Trust.MISNAMED, "it is issued for other.example.net"),
        (shown(names=frozenset()), Trust.MISNAMED, "issued for no name"),
        (shown(ends=NOW - dt.timedelta(1)), Trust.EXPIRED, "expired on 2026-11-29"),
        (shown(issuer="(STAGING) Counterfeit Cashew R10", distrust="x"), Trust.STAGING, "browsers do not trust"),
        (shown(self_signed=True, distrust="self-signed certificate"), Trust.SELF_SIGNED, "browsers show a warning"),
        (shown(issuer="Corp CA", distrust="unable to get local issuer certificate"), Trust.PRIVATE, "Corp CA"),
        (
            shown(subject=served.INGRESS_PLACEHOLDER, names=frozenset({"ingress.local"})),
            Trust.PLACEHOLDER,
            "no certificate has been issued",
        ),
    ],
)
def test_certificates_are_reported_as_a_browser_sees_them(certificate: Served, trust: Trust, says: str) -> None:
    standing = served.judge_trust(NAME, certificate, NOW)

    assert standing.trust is trust
    assert says in standing.words
    assert standing.ok or standing.remedy


def test_a_certificate_of_any_kind_does_not_decide_whether_the_platform_is_there() -> None:
    for certificate in (shown(distrust="x"), shown(ends=NOW - dt.timedelta(1)), shown(names=frozenset())):
        assert judge_endpoint(DASHBOARD, Outcome(status=200, served=certificate)).ok


# Proxies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "way"),
    [
        ({}, None),
        ({"https_proxy": ""}, None),
        ({"HTTPS_PROXY": "http://proxy.corp:3128"}, "proxy.corp:3128"),
        ({"https_proxy": "proxy.corp:3128"}, "proxy.corp:3128"),
        ({"https_proxy": "http://proxy.corp"}, "proxy.corp:80"),
        ({"https_proxy": "https://proxy.corp"}, "proxy.corp:443"),
        ({"https_proxy": "http://a.corp:1", "HTTPS_PROXY": "http://b.corp:2"}, "a.corp:1"),
        ({"all_proxy": "http://proxy.corp:3128"}, "proxy.corp:3128"),
        ({"http_proxy": "http://proxy.corp:3128"}, None),  # not for https
        ({"https_proxy": "http://proxy.corp:3128", "no_proxy": "example.com"}, None),
        ({"https_proxy": "http://proxy.corp:3128", "NO_PROXY": "10.0.0.0/8"}, None),
        ({"https_proxy": "http://proxy.corp:3128", "no_proxy": "example.org,10.1.0.0/16"}, "proxy.corp:3128"),
    ],
)
def test_the_way_of_a_probe(environ: dict[str, str], way: str | None) -> None:
    proxy, _ = choose("dashboard.example.com", IP, 443, environ)

    assert (str(proxy) if proxy else None) == way


def test_loopback_is_never_proxied() -> None:
    environ = {"https_proxy": "http://proxy.corp:3128"}

    assert choose("dashboard.example.com", ip_address("127.48.1.1"), 443, environ) == (None, "")


@pytest.mark.parametrize(
    ("no_proxy", "hit"),
    [
        ("*", True),
        ("example.com", True),
        (".example.com", True),
        ("*.example.com", True),
        ("dashboard.example.com", True),
        ("DASHBOARD.Example.Com", True),
        ("example.com:443", True),
        ("example.com:8443", False),
        ("ample.com", False),
        ("api.example.com", False),
        ("10.0.0.11", True),
        ("10.0.0.11:443", True),
        ("10.0.0.11:80", False),
        ("10.0.0.0/24", True),
        ("10.0.1.0/24", False),
        ("fd00::/8", False),
        (" localhost , 10.0.0.0/24 ", True),
        ("", False),
        (",,", False),
        ("corp,.corp.example.net,192.168.0.0/16", False),
    ],
)
def test_what_no_proxy_stands_for(no_proxy: str, hit: bool) -> None:
    assert excluded("dashboard.example.com", IP, 443, no_proxy) is hit


def test_credentials_of_a_proxy_are_never_shown() -> None:
    proxy = parse("http://user:s3cret%21@proxy.corp:3128", "https_proxy")

    assert proxy.authorization == "Basic dXNlcjpzM2NyZXQh"
    assert "s3cret" not in f"{proxy} {proxy!r}"
    assert "dXNl" not in repr(proxy)


@pytest.mark.parametrize(
    "text", ["socks5://user:s3cret@proxy:1080", "http://:3128", "http://proxy:notaport", "http://["]
)
def test_a_proxy_that_cannot_be_used_is_refused_without_its_credentials(text: str) -> None:
    with pytest.raises(BadProxy) as error:
        parse(text, "HTTPS_PROXY")

    assert "HTTPS_PROXY" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_ipv6_proxies_are_spelled_so_that_people_can_use_them() -> None:
    assert str(Proxy("fd00::1", 3128)) == "[fd00::1]:3128"
