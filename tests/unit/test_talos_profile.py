"""The pinned installer image: profiles as Cozystack writes them, what cannot be read, and what differs from the release."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cozystack_iac import releases
from cozystack_iac.settings.load import Loaded
from cozystack_iac.settings.reading import read as read_site
from cozystack_iac.talos import profile
from cozystack_iac.talos.inventory import wanted
from cozystack_iac.talos.profile import BadProfile, parse, pinned, talos_of, tuned
from tests.recorded import RELEASES
from tests.sites import changed, good
from tests.talos_machine import Authority, server_context

GOOD = """\
# this file is generated
arch: amd64
platform: metal
secureboot: false
version: v1.13.9
input:
  kernel: {path: /usr/install/amd64/vmlinuz}
  baseInstaller:
    imageRef: "ghcr.io/siderolabs/installer:v1.13.9"
  systemExtensions:
    - imageRef: ghcr.io/siderolabs/intel-ucode:20260227@sha256:6112f6426a7081727545f7c33dcf2a89ff672494847b180380b4c58f3544a7b2
    - imageRef: ghcr.io/siderolabs/drbd:9.3.2-v1.13.9@sha256:be407c20d509a1a445310636b0508008a8e5cd8e1532fbd11e5d131ae2fe9dca
    - imageRef: ghcr.io/siderolabs/zfs:2.4.3-v1.13.9@sha256:1d98138c6422e52b850da99a68e918b721b4358eed8c4daa1c9059222175127c
output: {kind: installer}
"""


def loaded(root: Path, *changes: tuple[str, Any]) -> Loaded:
    site, findings = read_site(changed(good(), *changes))
    assert site is not None
    return pinned(Loaded(site, tuple(findings), root=root))


def codes(result: Loaded) -> list[str]:
    return [finding.code for finding in result.findings]


def test_a_profile_says_version_and_extensions() -> None:
    found = parse(GOOD)

    assert found.version == "v1.13.9"
    assert list(found.extensions) == ["intel-ucode", "drbd", "zfs"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_profile_of_every_release_pins_what_the_table_says(vectors: Path, release: str) -> None:
    recorded = json.loads((vectors / "cozystack" / release / "talos-profile.json").read_text())
    text = json.dumps(
        {
            "version": recorded["talos_version"],
            "input": {
                "baseInstaller": {"imageRef": recorded["base_installer"]},
                "systemExtensions": [{"imageRef": one["imageRef"]} for one in recorded["extensions"]],
            },
        }
    )
    found, known = parse(text), releases.find(release)

    assert known is not None
    assert (found.version, set(found.extensions)) == (known.talos, {one["name"] for one in recorded["extensions"]})
    assert {"drbd", "zfs"} <= set(found.extensions)
    assert "openvswitch" not in found.extensions
    assert recorded["installer_image"] == f"{releases.TALOS_IMAGE}:{found.version}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not an image profile"),
        ("- a\n", "is not an image profile"),
        ("version: v1.13.9\n", "is not an image profile"),
        ("{", "is not valid YAML"),
        ("version: 2026-99-99\n", "is not valid YAML"),
        ("[" * 400, "is not valid YAML"),
        (GOOD.replace("version: v1.13.9", "version: 1.13"), "is not a Talos version"),
        (GOOD.replace("version: v1.13.9", "version: latest"), "'latest' is not a Talos version"),
        (
            GOOD.replace("version: v1.13.9", "version: v1.13.6"),
            "for Talos v1.13.6, but its base installer is v1.13.9",
        ),
        (GOOD.replace("installer:v1.13.9", "installer@sha256:0"), "but its base installer is of an unknown version"),
    ],
)
def test_what_is_no_profile_is_never_guessed(text: str, says: str) -> None:
    with pytest.raises(BadProfile, match=says):
        parse(text)


def test_a_profile_decides_image_and_contract(tmp_path: Path) -> None:
    (tmp_path / "installer.yaml").write_text(GOOD)
    result = loaded(tmp_path, ("talos.image", {"fromRelease": False, "profile": "installer.yaml"}))

    assert result.site is not None
    assert result.site.installer_image == "ghcr.io/cozystack/cozystack/talos:v1.13.9"
    assert result.site.talos_version == "v1.13.9"
    assert wanted(result.site)["cp1"].talos == "v1.13.9"
    [drift] = result.findings
    assert (drift.code, drift.severity.value) == ("IMG-002", "warning")
    assert "pins Talos v1.13.9, but Cozystack 1.6.2 pins v1.13.6" in drift.problem


def test_a_checkout_of_cozystack_is_a_source_too(tmp_path: Path) -> None:
    path = tmp_path / "cozystack" / profile.IN_CHECKOUT
    path.parent.mkdir(parents=True)
    path.write_text(GOOD.replace("v1.13.9", "v1.13.6"))
    result = loaded(tmp_path, ("talos.image", {"fromRelease": False, "profile": "cozystack"}))

    assert codes(result) == []
    assert result.site is not None
    assert result.site.installer_image == "ghcr.io/cozystack/cozystack/talos:v1.13.6"


def test_a_profile_is_read_anew_every_time(tmp_path: Path) -> None:
    path, pin = tmp_path / "installer.yaml", ("talos.image", {"fromRelease": False, "profile": "installer.yaml"})
    path.write_text(GOOD)
    first = loaded(tmp_path, pin)
    path.write_text(GOOD.replace("v1.13.9", "v1.13.6"))
    second = loaded(tmp_path, pin)

    assert [one.site.talos_version for one in (first, second) if one.site] == ["v1.13.9", "v1.13.6"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere.yaml", "No such file"),
        (".", "No such file"),  # a folder that is no checkout
        ("binary.yaml", "not UTF-8"),
        ("huge.yaml", "larger than 256 KiB"),
        ("http://127.0.0.1:1/installer.yaml", "only https"),
        ("file:///etc/hostname", "only https"),
        ("https://127.0.0.1:1/installer.yaml", "cannot be downloaded"),
        ("https://me:token@127.0.0.1:1/installer.yaml", "https://127.0.0.1:1/installer.yaml: it cannot be downloaded"),
        ("https://127.0.0.1:port/", "it is not a valid URL"),
    ],
)
def test_a_profile_that_cannot_be_read_is_a_finding_and_no_image(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (profile.MOST_BYTES + 1))
    result = loaded(tmp_path, ("talos.image", {"fromRelease": False, "profile": source}))

    [found] = result.findings
    assert (found.code, found.severity.value, found.path) == ("IMG-001", "error", "cozystack:talos.image.profile")
    assert says in found.problem
    assert result.site is not None
    assert result.site.installer_image == ""


def test_a_profile_without_zfs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD.replace("siderolabs/zfs", "siderolabs/xfs"))
    result = loaded(tmp_path, ("talos.image", {"fromRelease": False, "profile": "p.yaml"}))

    assert codes(result) == ["IMG-003", "IMG-002"]
    assert "does not include the extension zfs" in result.findings[0].problem


@contextmanager
def https(pages: Mapping[str, tuple[int, str]], monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[str]:
    """A TLS server on loopback that this process trusts; a status of 302 leads to the text as a location."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = pages[self.path]
            self.send_response(status)
            if status == 302:
                self.send_header("Location", text)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            return

    authority = Authority.named("somebody")
    context = server_context(authority.server("localhost"), alpn=False)
    (root / "ca.pem").write_text(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(root / "ca.pem"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_profile_behind_a_url_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"/moved": (302, "/installer.yaml"), "/installer.yaml": (200, GOOD)}
    with https(pages, monkeypatch, tmp_path) as url:
        result = loaded(tmp_path, ("talos.image", {"fromRelease": False, "profile": f"{url}/moved"}))

    assert result.site is not None
    assert result.site.talos_version == "v1.13.9"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ((404, "not here"), "the server returned 404"),
        ((200, "<html>sign in</html>"), "is not an image profile"),
        ((200, "#" * (profile.MOST_BYTES + 10)), "larger than"),
        ((302, "http://127.0.0.1:1/installer.yaml"), "without https"),
    ],
)
def test_what_a_url_leads_to_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: tuple[int, str], says: str
) -> None:
    with https({"/p": page}, monkeypatch, tmp_path) as url, pytest.raises(BadProfile, match=says):
        parse(profile.read(f"{url}/p", tmp_path))


def test_a_server_that_nobody_vouches_for_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with https({"/p": (200, GOOD)}, monkeypatch, tmp_path) as url:
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(BadProfile, match="cannot be downloaded"):
            profile.read(f"{url}/p", tmp_path)


@pytest.mark.parametrize(
    ("image", "found"),
    [
        ("ghcr.io/cozystack/cozystack/talos:v1.13.6", []),
        ("mirror.example.org:5000/cozystack/talos:v1.13.6", []),
        ("ghcr.io/cozystack/cozystack/talos:v1.6.2", []),  # tagged with the Cozystack release too
        ("ghcr.io/cozystack/cozystack/talos:v1.13.6@sha256:" + "0" * 64, []),
        ("ghcr.io/cozystack/cozystack/talos:v1.13.9", ["IMG-002"]),
        ("ghcr.io/cozystack/cozystack/talos:latest", ["IMG-002"]),
        ("ghcr.io/cozystack/cozystack/talos@sha256:" + "0" * 64, ["IMG-002"]),
        ("ghcr.io/siderolabs/installer:v1.13.6", ["IMG-004"]),
        ("factory.talos.dev/installer/376567988ad3:v1.13.9", ["IMG-004", "IMG-002"]),
    ],
)
@pytest.mark.parametrize("place", ["talos.image", "nodes.1.image"])
def test_an_image_that_is_not_the_releases_is_named(tmp_path: Path, image: str, found: list[str], place: str) -> None:
    result = loaded(tmp_path, (place, image))

    assert codes(result) == found
    assert all(finding.path.startswith("cozystack:") for finding in result.findings)


@pytest.mark.parametrize(
    ("image", "version", "ours"),
    [
        ("ghcr.io/cozystack/cozystack/talos:v1.13.6", "v1.13.6", True),
        ("localhost:5000/talos:v1.12.7@sha256:0", "v1.12.7", True),
        ("localhost:5000/talos", None, True),
        ("ghcr.io/cozystack/cozystack/talos:v1.6.2", None, True),
        ("ghcr.io/siderolabs/installer:v1.14.0-rc.1", "v1.14.0-rc.1", False),
        ("factory.talos.dev/metal-installer/abc:1.13.6", None, False),
        ("", None, False),
    ],
)
def test_images_are_known_by_repository_and_tag(image: str, version: str | None, ours: bool) -> None:
    assert (talos_of(image), tuned(image)) == (version, ours)


def test_what_every_machine_has_to_run_follows_from_the_stack_file(tmp_path: Path) -> None:
    result = loaded(
        tmp_path,
        ("talos.kernelModules", ["nvme_tcp"]),
        ("nodes.1.image", "mirror.example.org/talos:v1.13.9"),
        ("nodes.1.kernelModules", ["ipmi_si"]),
        ("nodes.2.vips", [{"address": "10.0.0.20", "link": "ens5"}]),
    )
    assert result.site is not None
    machines = wanted(result.site)

    assert [machines[name].talos for name in ("cp1", "cp2", "cp3")] == ["v1.13.6", "v1.13.9", "v1.13.6"]
    assert machines["cp1"].modules[-1] == "nvme_tcp"
    assert machines["cp2"].modules[-2:] == ("nvme_tcp", "ipmi_si")
    assert machines["cp1"].extensions == ("drbd", "zfs")
    assert result.site.virtual_addresses == ("10.0.0.10", "10.0.0.20")
