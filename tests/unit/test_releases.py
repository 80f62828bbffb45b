"""Facts per release, against what was read from the release tags."""

import json
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac import releases
from cozystack_iac.releases import KNOWN_BROKEN, Version, find
from lab import scenario, talos
from lab.platform import catalogue
from tests.recorded import RELEASES, TALOS_MINORS

READ = tuple(map(str, releases.LATEST.values()))
NEWEST_OF_1 = str(max(read for read in releases.LATEST.values() if read.major == 1))


def facts(vectors: Path, release: str, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((vectors / "cozystack" / release / name).read_text())
    return loaded


def paths(vectors: Path, release: str, name: str) -> set[str]:
    return {key["path"] for key in facts(vectors, release, name)["keys"]}


@pytest.mark.parametrize("release", RELEASES)
def test_every_platform_value_of_a_release_is_known(vectors: Path, release: str) -> None:
    known = find(release)
    assert known is not None
    assert [path for path in sorted(paths(vectors, release, "platform-values.json")) if not known.has(path)] == []


@pytest.mark.parametrize("release", RELEASES)
def test_platform_values_of_other_releases_are_not(vectors: Path, release: str) -> None:
    known = find(release)
    assert known is not None
    everywhere = {path for other in RELEASES for path in paths(vectors, other, "platform-values.json")}
    foreign = everywhere - paths(vectors, release, "platform-values.json")
    assert [path for path in sorted(foreign) if known.has(path)] == []


@pytest.mark.parametrize("release", RELEASES)
def test_the_talos_pin_is_the_profile(vectors: Path, release: str) -> None:
    known = find(release)
    assert known is not None
    assert known.talos in json.dumps(facts(vectors, release, "talos-profile.json"))


@pytest.mark.parametrize("release", RELEASES)
def test_optional_packages_are_optional(vectors: Path, release: str) -> None:
    optional = set(facts(vectors, release, "releases.json")["optional_packages"])
    assert optional - releases.OPTIONAL_PACKAGES - {"publishing.proxyProtocol=true"} == set()


@pytest.mark.parametrize("release", RELEASES)
def test_load_bearing_packages_are_depended_on(vectors: Path, release: str) -> None:
    configurations = facts(vectors, release, "releases.json")["configurations"]
    packages = next(c for c in configurations if c["platform_variant"] == "isp-full")["packages"]
    needed = {dependency for package in packages for dependency in package["dependsOn"]}
    shipped = releases.LOAD_BEARING_PACKAGES & {package["name"] for package in packages}
    # Nothing waits for cozystack-basics up to 1.4, and yet it makes the root tenant.
    assert shipped - needed <= {"cozystack.cozystack-basics"}


@pytest.mark.parametrize(
    ("text", "namespace", "creates"),
    [
        ("1.3.3", "kube-system", False),
        ("1.4.0-rc.1", "kube-system", False),
        ("1.4.0", "cozy-system", True),
        ("v1.4.2", "cozy-system", True),
        ("1.5.2", "cozy-system", True),
    ],
)
def test_the_charts_namespace_moved_with_1_4(text: str, namespace: str, creates: bool) -> None:
    release = find(text)
    assert release is not None
    assert (release.chart_namespace, release.creates_namespace) == (namespace, creates)


@pytest.mark.parametrize(
    "text", ["", "latest", "1.2.9", "0.41.9", "2.0.0", "vv1.6.2", "1.6", "1.6.2.1", "1.6.2 ", "1.6.2+x", "１.6.2"]
)
def test_an_unknown_release_is_refused_and_not_guessed(text: str) -> None:
    assert find(text) is None


def test_a_newer_minor_is_taken_for_its_newest_neighbour() -> None:
    newer, known = find("1.99.0"), find(NEWEST_OF_1)
    assert newer is not None
    assert known is not None
    assert (newer.beyond, newer.known, str(newer.neighbour)) == (True, False, NEWEST_OF_1)
    assert (newer.talos, newer.chart_namespace, newer.oidc_at_install) == (known.talos, "cozy-system", True)
    assert newer.has("publishing.loadBalancerClass")
    assert not known.beyond


def test_a_release_between_known_ones_is_taken_for_the_older_and_other_majors_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(releases, "LATEST", {**releases.LATEST, (9, 9): Version(9, 9, 0)})
    between = find.__wrapped__("1.99.0")
    assert between is not None
    assert (between.beyond, str(between.neighbour)) == (True, NEWEST_OF_1)
    assert find.__wrapped__("2.0.0") is None
    assert find.__wrapped__("9.9.0") is not None


def test_the_lab_plays_every_release_that_was_read() -> None:
    assert set(READ) - set(catalogue.known()) == set()
    played = {scenario.load(path).cozystack for path in (scenario.FOLDER / "platform").glob("clean-*.yaml")}
    assert set(READ) - played == set()


def test_the_lab_plays_every_talos_minor_that_is_known() -> None:
    assert tuple(talos.MINORS) == releases.TALOS_MINORS


def test_a_stack_file_gets_a_release_that_is_known() -> None:
    given = find(releases.DEFAULT)
    assert given is not None
    assert given.known


@pytest.mark.parametrize("release", READ)
def test_a_release_pins_a_talos_that_is_known(release: str) -> None:
    known = find(release)
    assert known is not None
    pin = Version.parse(known.talos)
    assert pin is not None
    assert pin.minor in releases.TALOS_MINORS


def test_all_that_is_known_was_recorded() -> None:
    missing = [f"Cozystack {release}" for release in READ if release not in RELEASES]
    missing += [f"Talos 1.{minor}" for minor in releases.TALOS_MINORS if minor not in TALOS_MINORS]
    if missing:
        pytest.skip(f"nothing was recorded of {', '.join(missing)}: nothing checks what is said of it")


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("1.4.0-rc.1", "1.4.0"),
        ("1.4.0-alpha", "1.4.0-rc.1"),
        ("1.4.0-rc.2", "1.4.0-rc.10"),
        ("1.4.0-1", "1.4.0-a"),
        ("1.4.0-rc", "1.4.0-rc.1"),
        ("1.9.0", "1.10.0"),
    ],
)
def test_versions_sort_as_semver_says(smaller: str, larger: str) -> None:
    one, other = Version.parse(smaller), Version.parse(larger)
    assert one is not None
    assert other is not None
    assert one < other
    assert not other < one


@pytest.mark.parametrize(
    ("release", "at_install", "later"),
    [("1.3.6", False, True), ("1.4.6", False, False), ("1.5.4", False, True), ("1.6.0", True, False)],
)
def test_when_oidc_may_be_switched_on(release: str, at_install: bool, later: bool) -> None:
    known = find(release)
    assert known is not None
    assert (known.oidc_at_install, known.oidc_later) == (at_install, later)


@pytest.mark.parametrize(
    ("name", "release", "broken"),
    [
        ("isp-hosted", "1.6.2", True),
        ("dashboard-without-oidc", "1.3.6", False),
        ("dashboard-without-oidc", "1.4.0", True),
        ("dashboard-without-oidc", "1.5.0", False),
        ("oidc-at-install", "1.5.4", True),
        ("oidc-at-install", "1.6.0", False),
        ("oidc-off-again", "1.6.0", True),
        ("oidc-off-again", "1.6.1", False),
    ],
)
def test_known_failures_begin_and_end(name: str, release: str, broken: bool) -> None:
    known = find(release)
    assert known is not None
    assert KNOWN_BROKEN[name].covers(known.version) is broken


@pytest.mark.parametrize(("talos", "window"), [("1.10.9", (28, 33)), ("1.13.6", (31, 36)), ("1.9.0", None)])
def test_the_window_of_kubernetes_minors(talos: str, window: tuple[int, int] | None) -> None:
    version = Version.parse(talos)
    assert version is not None
    assert releases.kubernetes_range(version) == window


@pytest.mark.parametrize("key", ["tenant", "frob", "publishing.exposureClass", "networking.podcidr", "", "publishing."])
def test_unknown_values_are_unknown(key: str) -> None:
    release = find("1.6.2")
    assert release is not None
    assert not release.has(key)
