"""Whatever the input: no traceback, places that exist, no dependence on order, overlaps as brute force sees them."""

import json
import re
from dataclasses import replace
from datetime import date
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cozystack_iac.findings import Verdict, as_json, as_markdown, table
from cozystack_iac.rules import spelling, verdict
from cozystack_iac.rules.ranges import overlapping
from cozystack_iac.rules.survey import Span
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded, from_file
from cozystack_iac.settings.paths import ROOT
from cozystack_iac.settings.reading import read
from cozystack_iac.settings.reference import schema
from tests.matrix import examples
from tests.sites import TODAY, good

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.sampled_from(
        [
            "10.0.0.11",
            "::1",
            "10.0.0.0/24",
            "controlPlane",
            "talos",
            "generic",
            "1.6.2",
            "https://[::1",
            "20m",
            "50GiB",
            "sda",
            "a" * 300,
        ]
    ),
)


def known_keys() -> list[str]:
    """Every key of the schema, so that random mappings get past the first level."""
    definitions: dict[str, Any] = schema()["$defs"]
    keys = {key for definition in definitions.values() for key in definition.get("properties", {})}
    keys |= {key.partition(":")[2] for key in schema()["properties"]["config"]["properties"]}
    return sorted(keys)


KEYS = st.one_of(st.sampled_from(known_keys()), st.text(max_size=8), st.sampled_from([1, True, None]))
TREES: st.SearchStrategy[Any] = st.recursive(
    ATOMS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)), max_leaves=25
)
OTHERS = ("platform", "access", "tenant", "waits", "allow", "lab", "checks", "protect", "frob")
SECTIONS = st.sampled_from([*sorted(good()), *OTHERS])
SLOW = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


def judged(raw: Any, today: date = TODAY) -> Verdict:
    site, findings = read(raw)
    return verdict(Loaded(site, tuple(findings), today=today))


def spoiled(tree: Any, data: st.DataObject) -> Any:
    """`tree` with one value at a random place replaced by something else."""
    if isinstance(tree, dict) and tree and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(tree, key=str)))
        return {**tree, key: spoiled(tree[key], data)}
    if isinstance(tree, list) and tree and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(tree) - 1))
        return [*tree[:place], spoiled(tree[place], data), *tree[place + 1 :]]
    return data.draw(TREES)


@SLOW
@given(st.dictionaries(st.one_of(SECTIONS, KEYS), TREES, max_size=6))
def test_no_tree_is_a_traceback(raw: dict[Any, Any]) -> None:
    result = judged(raw)
    assert table(result)
    assert as_markdown(result)
    assert json.loads(as_json(result))["blocking"] is result.blocking


@SLOW
@given(st.data())
def test_no_spoiled_site_is_a_traceback(data: st.DataObject) -> None:
    raw = good()
    for _ in range(data.draw(st.integers(1, 4))):
        raw = spoiled(raw, data)
    assert table(judged(raw)) if isinstance(raw, dict) else True


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_file_is_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "Pulumi.x.yaml"
    path.write_bytes(content)
    assert table(verdict(replace(from_file(path), today=TODAY)))


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="{}[]:,-&*!|>'\"#% \n\tab1.~=<?@`", max_size=120))
def test_no_yaml_is_a_traceback(tmp_path: Path, content: str) -> None:
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text(f"config:\n  cozystack:nodes: {content}\n")
    assert table(verdict(replace(from_file(path), today=TODAY)))


# Places -----------------------------------------------------------------------------------------------------------------

_STEP = re.compile(r'\[(\d+)\]|\["((?:[^"\\]|\\.)*)"\]|\.?([A-Za-z_][A-Za-z0-9_-]*)')


def steps_of(path: str) -> list[str | int]:
    """The inverse of `spelled`, written independently: what `pulumi config get --path` would walk."""
    head, _, rest = path.partition(":")
    assert head == "cozystack"
    first = re.match(r"[^.\[]*", rest)
    assert first is not None
    steps: list[str | int] = [first[0]]
    rest = rest[first.end() :]
    while rest:
        match = _STEP.match(rest)
        assert match is not None, f"cannot walk {path}"
        number, quoted, plain = match.groups()
        steps.append(int(number) if number else json.loads(f'"{quoted}"') if quoted is not None else plain)
        rest = rest[match.end() :]
    return steps


def walk(tree: Any, steps: list[str | int]) -> None:
    for step in steps:
        tree = tree[step]


@SLOW
@given(st.data())
def test_every_place_exists(data: st.DataObject) -> None:
    raw = good()
    for _ in range(data.draw(st.integers(1, 4))):
        raw = spoiled(raw, data)
    for finding in judged(raw) if isinstance(raw, dict) else ():
        if finding.path != ROOT and not _odd_top(raw):
            walk(raw, steps_of(finding.path))


def _odd_top(raw: dict[Any, Any]) -> bool:
    # Pulumi itself knows no top-level keys with dots or brackets.
    return any(not isinstance(key, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", key) for key in raw)


# Order ------------------------------------------------------------------------------------------------------------------


def reordered(tree: Any, data: st.DataObject) -> Any:
    if isinstance(tree, dict):
        keys = data.draw(st.permutations(sorted(tree, key=repr)))
        return {key: reordered(tree[key], data) for key in keys}
    return [reordered(item, data) for item in tree] if isinstance(tree, list) else tree


@SLOW
@given(st.data())
def test_the_verdict_does_not_depend_on_key_order(data: st.DataObject) -> None:
    raw = good()
    for _ in range(data.draw(st.integers(0, 3))):
        raw = spoiled(raw, data)
    if isinstance(raw, dict):
        assert judged(reordered(raw, data)) == judged(raw)


# Overlaps ---------------------------------------------------------------------------------------------------------------


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Up to 12 spans among 64 addresses, so that brute force can list them."""
    ends = draw(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), max_size=12))
    base = int(IPv4Address("10.0.0.0"))
    return [
        Span(f"span {n}", ("network", "reserved", n), IPv4Address(base + min(pair)), IPv4Address(base + max(pair)))
        for n, pair in enumerate(ends)
    ]


@given(spans())
def test_overlaps_are_what_brute_force_sees(given_spans: list[Span]) -> None:
    held = [set(range(int(span.first), int(span.last) + 1)) for span in given_spans]
    expected = {
        frozenset((given_spans[a].label, given_spans[b].label))
        for a in range(len(held))
        for b in range(a)
        if held[a] & held[b]
    }
    assert {frozenset((one.label, other.label)) for one, other in overlapping(given_spans)} == expected


CIDRS = st.builds(
    lambda number, bits: f"10.0.{number >> bits << bits}.0/{24 - bits}", st.integers(0, 255), st.integers(0, 6)
)


@settings(max_examples=examples(200))
@given(CIDRS, CIDRS, CIDRS, CIDRS)
def test_overlap_findings_are_what_brute_force_sees(pod: str, service: str, join: str, nodes: str) -> None:
    texts = {"podCIDR": pod, "serviceCIDR": service, "joinCIDR": join, "nodeCIDR": nodes}
    raw = good() | {"network": texts}
    held = {key: third_octets(text) for key, text in texts.items()}
    keys = sorted(held)
    expected = {frozenset((a, b)) for a in keys for b in keys if a < b and held[a] & held[b]}
    found = {
        frozenset(key for key in keys if f"{key} " in finding.problem)
        for finding in judged(raw)
        if finding.code == "NET-004"
    }
    assert found == expected


def third_octets(text: str) -> set[int]:
    """Which of the 256 /24 of 10.0.0.0/16 a network covers, by arithmetic on the text."""
    start, bits = int(text.split(".")[2]), 24 - int(text.split("/")[1])
    return set(range(start, start + 2**bits))


# Spellings --------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_any_text_can_be_read_as_anything(text: str) -> None:
    spelling.address_in(text)
    spelling.network_in(text)
    spelling.interface_in(text)
    spelling.span_in(text)
    spelling.host_problem(text)
    spelling.domain_problem(text)


@given(st.ip_addresses())
def test_a_plain_address_means_itself(address: spelling.Address) -> None:
    spelled = spelling.address_in(str(address))
    assert spelled.address is not None
    assert (spelled.problem is None) == (spelled.address == address)


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:{}", " {}", "{} ", "{}/32", "[{}]"]))
def test_other_spellings_mean_the_same_address(address: IPv4Address, form: str) -> None:
    spelled = spelling.address_in(form.format(address))
    assert spelled.address == address
    assert spelled.problem is not None


@given(st.text(max_size=80))
def test_a_suggested_label_is_a_label(text: str) -> None:
    like = spelling.label_like(text)
    assert like is None or spelling.is_label(like)


@given(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True))
def test_a_label_has_no_problem(text: str) -> None:
    assert spelling.label_problem(text) is None


# Severity ---------------------------------------------------------------------------------------------------------------


@SLOW
@given(st.data(), st.dates(date(2020, 1, 1), date(2040, 1, 1)))
def test_a_mistake_never_hides_another(data: st.DataObject, today: date) -> None:
    """Adding an unknown key leaves every other finding as it was."""
    raw = good()
    for _ in range(data.draw(st.integers(0, 2))):
        raw = spoiled(raw, data)
    if isinstance(raw, dict) and "zzz" not in raw:
        assert set(judged(raw, today)) <= set(judged({**raw, "zzz": 1}, today))


def test_the_default_site_is_not_fine() -> None:
    assert judged({}).blocking
    assert isinstance(Site(), Site)
