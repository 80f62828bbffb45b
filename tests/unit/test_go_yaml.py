"""YAML is read as Pulumi's engine and Talos read it: the same scalars, and no way to anything but plain data."""

import json
from datetime import date, datetime
from typing import Any

import pytest
import yaml

from cozystack_iac.go_yaml import load, load_all

# What stands in the stack file, and what `pulumi config --json` of 3.276 makes of it. The program is given the same JSON.
FROM_THE_ENGINE = {
    "on": '"on"',
    "off": '"off"',
    "yes": '"yes"',
    "No": '"No"',
    "y": '"y"',
    "true": "true",
    "True": "true",
    "tRUE": '"tRUE"',
    "~": "null",
    "null": "null",
    "Null": "null",
    "nil": '"nil"',
    "0o14": "12",
    "-0o14": "-12",
    "014": "12",
    "-014": "-12",
    "08": "8",
    "09": "9",
    "00": "0",
    "0": "0",
    "-0": "0",
    "0x1F": "31",
    "0X1f": "31",
    "0xg": '"0xg"',
    "0b11": "3",
    "0b12": '"0b12"',
    "1_000": "1000",
    "1__0": "10",
    "1_": "1",
    "_1": '"_1"',
    "1_000.5": "1000.5",
    "1e3": "1000",
    "1E3": "1000",
    "1e+3": "1000",
    "1e-3": "0.001",
    "1e-7": "1e-07",
    "1.": "1",
    "1.0": "1",
    "1.6": "1.6",
    "-1.50": "-1.5",
    ".5": "0.5",
    "+.5": "0.5",
    "+.5_0": "0.5",
    "._5": '"._5"',
    "1e400": '"1e400"',
    "1.6.2": '"1.6.2"',
    "+12": "12",
    '"+"': '"+"',
    "1:30": '"1:30"',
    "10:00:00": '"10:00:00"',
    "00:11:22:33:44:55": '"00:11:22:33:44:55"',
    "123456789012345678901234": "1.2345678901234569e+23",
    "1e21": "1e+21",
    "1e22": "1e+22",
    "100000.0": "100000",
    "2027-13-31": '"2027-13-31"',
    "2027-01-31 10:00:00 +2": '"2027-01-31 10:00:00 +2"',
    "2027-01-31T10:00": '"2027-01-31T10:00"',
    '"2027-01-31"': '"2027-01-31"',
    '"on"': '"on"',
    "'12'": '"12"',
    "! 12": "12",
    '! "12"': '"12"',
    "!!str 12": '"12"',
    '!!int "12"': "12",
    "!!float 12": "12",
    "=": '"="',
    "<<": '"<<"',
    "{b: 1, <<: {b: 2, c: 3}}": '{"b": 1, "c": 3}',
    "{<<: [{a: 1}, {a: 2, b: 2}]}": '{"a": 1, "b": 2}',
    "[1, 2e0, ~]": "[1, 2, null]",
    '"é\\u0041"': '"\\u00e9A"',
    "aws:region": '"aws:region"',
    "{aws:region: eu}": '{"aws:region": "eu"}',
    "12e03": "12000",
    "0.1": "0.1",
    "1e6": "1000000",
    "123456789.0": "123456789",
    "9007199254740993": "9007199254740993",
}


@pytest.mark.parametrize(("written", "value"), FROM_THE_ENGINE.items())
def test_a_scalar_means_what_the_engine_says(written: str, value: str) -> None:
    read = load(f"a: {written}")["a"]
    assert (type(read), read) == (type(json.loads(value)), json.loads(value))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2027-01-31", date(2027, 1, 31)),
        ("2027-1-3", date(2027, 1, 3)),
        ("2027-01-31T10:00:00Z", datetime(2027, 1, 31, 10)),
        ("2027-01-31t23:00:00.5+02:00", datetime(2027, 1, 31, 23)),
        ("2027-01-31 10:00:00", datetime(2027, 1, 31, 10)),
        ("2027-02-31", "2027-02-31"),
    ],
)
def test_a_date_stays_one_so_that_findings_can_say_so(written: str, value: object) -> None:
    """The engine makes a text like `2027-01-31 00:00:00 +0000 UTC` of it, without a word."""
    assert load(f"a: {written}") == {"a": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only this\n", None),
        ("\ufeffa: 1", {"a": 1}),
        ("a: &x {b: [1]}\nc: *x\nd: {<<: *x, e: 2}", {"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1], "e": 2}}),
        ("a: |\n  on\n  1\n", {"a": "on\n1\n"}),
        ("a: >-\n  12\n", {"a": "12"}),
        ('"<<": 1', {"<<": 1}),
        ("1: a\n2027-01-31: b", {1: "a", date(2027, 1, 31): "b"}),
        ("a: !!map {}\nb: !!seq []", {"a": {}, "b": []}),
    ],
)
def test_collections_are_plain_data(text: str, value: Any) -> None:
    assert load(text) == value


def test_one_document_is_not_two() -> None:
    with pytest.raises(yaml.YAMLError, match="second document"):
        load("a: 1\n---\nb: 2")


def test_a_stream_has_any_number_of_documents() -> None:
    assert list(load_all("")) == []
    assert list(load_all("a: &x 1\n---\n---\n- 014\n")) == [{"a": 1}, None, [12]]
    with pytest.raises(yaml.MarkedYAMLError):
        list(load_all("a: &x 1\n---\nb: *x"))  # anchors end with their document


def test_what_contains_itself_is_a_value() -> None:
    read = load("a: &a [*a]")
    assert read["a"][0] is read["a"]


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("a: 1\na: 2", "twice", 1),
        ("a: !python/object:os.system {}", "tag", 0),
        ("a: !!binary aGk=", "tag", 0),
        ("a: *b", "anchor", 0),
        ("a:\n  ? [x]\n  : 1", "not text", 1),
        ("a: {<<: 1}", "merged", 0),
        ("a: {<<: [{}, 1]}", "merged", 0),
        ("a: [}", "", 0),
        ("\ta: 1", "", 0),
        ("[" * 10_000, "", 0),
    ],
)
def test_what_the_engine_would_not_take_says_where(text: str, problem: str, line: int) -> None:
    with pytest.raises(yaml.MarkedYAMLError) as failure:
        load(text)
    assert problem in str(failure.value.problem)
    assert failure.value.problem_mark is not None
    assert failure.value.problem_mark.line == line
